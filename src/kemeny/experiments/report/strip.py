"""The film strip of a run: the last moments of a trajectory of its newest policy, small enough for a page."""

import base64
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kemeny.errors import RunError, UserError
from kemeny.runs.directory import Run

PICTURES = 8
MOST_STEPS = 200
"""By then a gait has settled."""
WIDTH = 220
"""Pixels of the longer side of a picture."""
MOST_BYTES = 200_000
"""Of the pictures of one run, which are a third longer in the page."""
QUALITIES = (80, 60, 40, 20)
"""Of JPEG, until the pictures are small enough."""


class Strip(NamedTuple):
    """What can be seen of a run."""

    stills: tuple[tuple[int, str], ...] = ()
    """Steps, and the picture then as a data URL."""
    problem: str = ""
    """Why there are none."""


NO_FILM = Strip()


def film_strip(run: Run, *, trust: bool = False) -> Strip:
    """Film a run; if it cannot be filmed here, the strip says why. `trust` lets the code of its environment run."""
    try:
        from kemeny.experience.evaluate import evaluation_seed
        from kemeny.experience.film import stills
        from kemeny.runs.environment import environment_of

        env = environment_of(run, trust=trust)
        taken = stills(run.policy, env, count=PICTURES, max_steps=MOST_STEPS, seed=evaluation_seed(0, 0))
        return Strip(
            tuple(zip([still.step for still in taken], _small([still.picture for still in taken]), strict=True))
        )
    except (UserError, RunError, ImportError) as problem:
        return Strip(problem=f"No film: {problem}")


def _small(pictures: Sequence[np.ndarray]) -> list[str]:
    """Pictures as data URLs."""
    from PIL import Image

    drawn = [Image.fromarray(picture) for picture in pictures]
    for picture in drawn:
        picture.thumbnail((WIDTH, WIDTH))
    packed = []
    for quality in QUALITIES:
        packed = [_jpeg(picture, quality) for picture in drawn]
        if sum(map(len, packed)) <= MOST_BYTES:
            break
    return [f"data:image/jpeg;base64,{base64.b64encode(one).decode()}" for one in packed]


def _jpeg(picture: Any, quality: int) -> bytes:
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=quality, optimize=True)
    return content.getvalue()
