"""A policy on film, as it is deployed: one trajectory as an mp4, or a few moments of it as pictures."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kemeny.envs.camera import Camera, make_camera
from kemeny.envs.names import EnvLike, as_environment
from kemeny.envs.pool import Pool, make_pool
from kemeny.errors import UserError
from kemeny.experience.acting import Policy

APART = 0.1
"""Seconds of the environment's time between two stills: a stride has several."""


class Still(NamedTuple):
    """One moment of a trajectory."""

    step: int
    """Steps before it."""
    picture: np.ndarray
    """(height, width, 3) uint8."""


def record(policy: Policy, env: EnvLike, path: Path, *, max_steps: int, seed: int) -> int:
    """Film one trajectory until a fall or `max_steps`; the number of steps filmed.

    The trajectory begins as the first of an evaluation with the same seed, and is the same if the policy acts by its
    mean (or likeliest) action.
    """
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise UserError("Videos need an extra package: pip install 'kemeny[video]'.") from error
    camera = make_camera(env, seed=seed)
    try:
        steps = _steps(camera.pool, policy, max_steps, seed)
        filmed, picture = next(steps), _picture(camera, env)
        height, width = picture.shape[:2]
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=camera.fps, macro_block_size=2)
        writer.send(None)
        writer.send(np.ascontiguousarray(picture))
        for step in steps:
            writer.send(np.ascontiguousarray(_picture(camera, env)))
            filmed = step
        writer.close()
        return filmed
    except OSError as error:
        raise UserError(f"The video {path} cannot be written: {error}.") from error
    finally:
        camera.pool.close()


def stills(policy: Policy, env: EnvLike, *, count: int, max_steps: int, seed: int, apart: float = APART) -> list[Still]:
    """The last moments of the trajectory that `record` would film, so many seconds apart; fewer if it is short."""
    pool = make_pool(env, 1, seed=seed)  # drawing takes far longer than simulating, so only the moments are drawn
    try:
        end = max(_steps(pool, policy, max_steps, seed))
    finally:
        pool.close()
    camera = make_camera(env, seed=seed)
    try:
        between = max(1, round(camera.fps * apart))
        wanted = range(end, max(end - between * count, -1), -between)
        steps = _steps(camera.pool, policy, end, seed)
        return [Still(step, _picture(camera, env)) for step in steps if step in wanted]
    finally:
        camera.pool.close()


def _steps(pool: Pool, policy: Policy, most: int, seed: int) -> Iterator[int]:
    """The number of steps so far: at the start, and after each step until a fall, a cut or so many steps."""
    observation, rng, explores = pool.reset(np.arange(1)), np.random.default_rng(seed), policy.explores(None)
    yield 0
    for done in range(1, most + 1):
        head = policy.head(observation)
        pool.send(policy.explore(head, policy.noise(rng, 1)) if explores else policy.mode(head))
        step = pool.recv()
        yield done
        if (step.terminated | step.truncated).any():
            return
        observation = step.observation


def _picture(camera: Camera, env: EnvLike) -> np.ndarray:
    picture = camera.picture()
    if picture.ndim != 3 or picture.shape[2] != 3:
        raise UserError(
            f"{as_environment(env).name} cannot be filmed: its pictures have shape {picture.shape}, "
            "not height × width × 3."
        )
    return picture
