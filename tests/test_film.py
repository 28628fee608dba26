"""Filming: what can be filmed is, and what cannot gets a sentence."""

from functools import partial

import gymnasium
import numpy as np
import pytest

from kemeny.errors import UserError
from kemeny.experience.film import record, stills
from tests.envs.toys import Counter


class Still:
    """A policy in name only: it takes action 0."""

    def explores(self, explore):
        return False

    def head(self, observation):
        return observation

    def mode(self, head):
        return np.zeros((len(head), 1), np.float32)


class Unseen(Counter):
    """An environment that was written without pictures in mind."""

    def __init__(self):
        super().__init__()


class Flat(Counter):
    """Its pictures are no pictures."""

    def render(self):
        return np.zeros((4, 4), np.uint8)


class Blind(Counter):
    """It says it can be drawn, but has nothing to show."""

    def render(self):
        return None


class Large(Counter):
    """Large enough for a film."""

    def render(self):
        return np.full((64, 64, 3), 10 * self.steps, np.uint8)


class Quick(Large):
    """Its time runs at 30 steps a second."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012


def film(env, path):
    return record(Still(), env, path, max_steps=3, seed=0)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def registered(monkeypatch):
    def register(made):
        spec = gymnasium.envs.registration.EnvSpec("OnlyHere-v0", entry_point=made)
        monkeypatch.setitem(gymnasium.registry, "OnlyHere-v0", spec)
        return "OnlyHere-v0"

    return register


# JAX, which other tests have loaded into this process, warns of the fork by which ffmpeg is started.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_trajectory_becomes_a_video(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    assert film(partial(Large, falls_at=2, render_mode="rgb_array"), tmp_path / "deep" / "film.mp4") == 2
    assert b"ftyp" in (tmp_path / "deep" / "film.mp4").read_bytes()[:12]


def test_stills_are_the_last_moments_before_a_fall():
    made = partial(Quick, falls_at=20, render_mode="rgb_array")
    taken = stills(Still(), made, count=3, max_steps=50, seed=0)  # pyright: ignore[reportArgumentType]
    assert [(still.step, int(still.picture[0, 0, 0])) for still in taken] == [(14, 140), (17, 170), (20, 200)]
    assert len(stills(Still(), made, count=3, max_steps=5, seed=0)) == 2  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("make", "by_id", "sentence"),
    [
        (Unseen, False, 'Unseen cannot be filmed: it must be made with render_mode="rgb_array"'),
        (Unseen, True, r'^OnlyHere-v0 cannot be filmed: it takes no render_mode="rgb_array"\.$'),
        (partial(Flat, render_mode="rgb_array"), False, r"Flat cannot .* have shape \(4, 4\), not height × width × 3"),
        (partial(Blind, render_mode="rgb_array"), False, r"Blind cannot be filmed: its render\(\) returns nothing"),
    ],
)
def test_what_cannot_be_filmed_gets_a_sentence(make, by_id, sentence, registered, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    with pytest.raises(UserError, match=sentence):
        film(registered(make) if by_id else make, tmp_path / "film.mp4")
    assert not list(tmp_path.iterdir())
