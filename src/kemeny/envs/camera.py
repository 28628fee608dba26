"""One environment with a camera, for videos."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from kemeny.envs.names import Environment, EnvLike, as_environment, find, takes
from kemeny.envs.pool import Pool, choose_backend
from kemeny.envs.settings import Simulation
from kemeny.envs.strangers import RAISED, text_of, type_and_text
from kemeny.envs.vector import also_makes_one
from kemeny.errors import RunError, UserError

PIXELS = 480
"""Width and height of EnvPool's pictures; Gymnasium's MuJoCo environments have the same by default."""
USUAL_FPS = 30  # for environments that do not say how fast their time runs
FPS = {  # EnvPool does not say it either; these are Gymnasium's values, 1/dt
    "Ant": 20,
    "HalfCheetah": 20,
    "Hopper": 125,
    "Humanoid": 67,
    "HumanoidStandup": 67,
    "InvertedDoublePendulum": 20,
    "InvertedPendulum": 25,
    "Pusher": 20,
    "Reacher": 50,
    "Swimmer": 25,
    "Walker2d": 125,
}


@dataclass(frozen=True)
class Camera:
    """A pool of one environment, and pictures of it."""

    pool: Pool
    picture: Callable[[], np.ndarray]
    """Draws the environment in its present state: (height, width, 3) uint8."""
    fps: int
    """Pictures per second at which a video with one picture per step runs in the environment's own time."""


def make_camera(env: EnvLike, *, seed: int) -> Camera:
    """A camera on a pool that has the same randomness as `make_pool(env, 1, seed=seed)`.

    A function without the parameter `render_mode` must make its environment with `render_mode="rgb_array"`.
    """
    _go_headless()
    env = as_environment(env)
    backend = choose_backend(env, "auto", workers=0)
    if backend == "envpool":
        return _envpool_camera(env, seed)
    if backend == "vector" and not also_makes_one(env):
        raise UserError(
            f"{env.name} cannot be filmed, because it is a vector environment: only a plain environment with "
            'render_mode="rgb_array" can be.'
        )
    return _gymnasium_camera(env, seed)


def _envpool_camera(env: Environment, seed: int) -> Camera:
    from kemeny.envs.envpool import EnvPoolPool

    if _uses_mujoco(env.name):
        open_graphics()
    rendering = {"render_mode": "rgb_array", "render_width": PIXELS, "render_height": PIXELS}
    pool = EnvPoolPool(env, 1, seed=seed, simulation=Simulation(threads=1), rendering=rendering)
    return Camera(pool, lambda: _draw(env.name, pool.render), FPS.get(env.name.split("-v")[0], USUAL_FPS))


def _gymnasium_camera(env: Environment, seed: int) -> Camera:
    from kemeny.envs.gymnasium import GymnasiumPool, NotMade

    name, found = env.name, find(env)
    if isinstance(found, str) or takes(found, "render_mode"):
        env = env.with_kwargs(render_mode="rgb_array")
    try:
        pool = GymnasiumPool(env, 1, seed=seed)
    except NotMade as error:  # graphics libraries fail in many ways
        cause = error.__cause__ or error
        takes_none = isinstance(cause, TypeError) and "'render_mode'" in text_of(cause)
        why = 'it takes no render_mode="rgb_array"' if takes_none else type_and_text(cause)
        raise UserError(f"{name} cannot be filmed: {why}.") from error.__cause__
    made = pool.env(0)
    if made.render_mode != "rgb_array":
        pool.close()
        raise UserError(f'{name} cannot be filmed: it must be made with render_mode="rgb_array".')
    return Camera(pool, lambda: _draw(name, made.render), int(made.metadata.get("render_fps") or USUAL_FPS))


@cache
def open_graphics() -> Any:
    """An OpenGL context for this thread; without one EnvPool does not raise but ends the process."""
    try:
        if os.environ.get("MUJOCO_GL") == "egl":
            from mujoco.egl import GLContext
        else:
            from mujoco import GLContext
        context = GLContext(PIXELS, PIXELS)
        context.make_current()
    except Exception as error:
        raise UserError(
            f"Pictures need OpenGL, which does not work here ({error}): install EGL (on Debian libegl1), "
            "or install OSMesa (libosmesa6) and set MUJOCO_GL=osmesa."
        ) from error
    return context


def _go_headless() -> None:
    # On Linux MuJoCo would open a window, which a server does not have.
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def _draw(name: str, render: Callable[[], Any]) -> np.ndarray:
    try:
        picture = render()
        if picture is None:
            raise UserError(f"{name} cannot be filmed: its render() returns nothing.")
        return np.asarray(picture, dtype=np.uint8)
    except UserError:
        raise
    except RAISED as error:
        raise RunError(f"{name} could not be drawn: {type_and_text(error)}.") from error


def _uses_mujoco(env: str) -> bool:
    import envpool.registration

    return envpool.registration.registry.specs[env][0].startswith("envpool.mujoco")
