"""Pictures of an environment."""

from functools import partial

import gymnasium
import numpy as np
import pytest

from kemeny.envs.camera import FPS, PIXELS, make_camera
from kemeny.envs.pool import make_pool
from kemeny.errors import UserError
from tests.envs.toys import Counter
from tests.envs.vectors import Carts

ZERO = np.array([0])


def camera_or_skip(env):
    try:
        return make_camera(env, seed=3)
    except UserError as error:
        if "OpenGL" in str(error):
            pytest.skip(str(error))
        raise


def test_a_v3_body_is_filmed_as_it_moves():
    camera = camera_or_skip("HalfCheetah-v3")
    plain = make_pool("HalfCheetah-v3", 1, seed=3)
    assert np.array_equal(camera.pool.reset(ZERO), plain.reset(ZERO))
    before = camera.picture()
    for _ in range(5):
        camera.pool.send(np.ones((1, 6), np.float32))
        camera.pool.recv()
    after = camera.picture()
    assert before.shape == after.shape == (PIXELS, PIXELS, 3)
    assert before.dtype == np.uint8
    assert len(np.unique(before)) > 10
    assert not np.array_equal(before, after)
    assert camera.fps == 20


def test_a_function_is_filmed_if_it_can_be():
    camera = make_camera(partial(Counter, render_mode="rgb_array"), seed=0)
    camera.pool.reset(ZERO)
    camera.pool.send(np.zeros((1, 1), np.float32))
    camera.pool.recv()
    assert camera.picture().tolist() == np.ones((4, 4, 3)).tolist()
    assert camera.fps == 7
    make_camera(Counter, seed=0)  # whose render_mode is a parameter
    with pytest.raises(UserError, match=r'cannot .* must be made with render_mode="rgb_array"'):
        make_camera(lambda: Counter(), seed=0)
    with pytest.raises(UserError, match="cannot be filmed: ZeroDivisionError"):
        make_camera(lambda: 1 / 0, seed=0)


def test_a_vector_environment_is_not_filmed(monkeypatch):
    why = "cannot be filmed, because it is a vector environment: only a plain environment"
    with pytest.raises(UserError, match=why):
        make_camera(Carts, seed=0)
    registered = gymnasium.envs.registration.EnvSpec("Both-v0", entry_point=Counter, vector_entry_point=Carts)
    monkeypatch.setitem(gymnasium.registry, "Both-v0", registered)
    make_camera("Both-v0", seed=0)  # its ordinary environment
    registered.entry_point = None
    with pytest.raises(UserError, match=f"Both-v0 {why}"):
        make_camera("Both-v0", seed=0)


def test_an_id_that_only_gymnasium_has_is_filmed(monkeypatch):
    registered = gymnasium.envs.registration.EnvSpec("OnlyHere-v0", entry_point=Counter)
    monkeypatch.setitem(gymnasium.registry, "OnlyHere-v0", registered)
    camera = make_camera("OnlyHere-v0", seed=0)
    camera.pool.reset(ZERO)
    assert camera.picture().tolist() == np.zeros((4, 4, 3)).tolist()


def test_gymnasiums_own_graphics_work():
    camera = camera_or_skip(partial(gymnasium.make, "InvertedPendulum-v5", render_mode="rgb_array"))
    camera.pool.reset(ZERO)
    assert camera.picture().shape == (PIXELS, PIXELS, 3)
    assert camera.fps == FPS["InvertedPendulum"]


@pytest.mark.parametrize("family", FPS)
def test_the_table_of_speeds_is_gymnasiums(family):
    from kemeny.envs.gymnasium import make_env

    env, _ = make_env(f"{family}-v5")
    assert env.metadata["render_fps"] == FPS[family]
    env.close()
