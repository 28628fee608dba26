"""One environment with a camera, for videos."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from kemeny.envs.costs import Cost
from kemeny.envs.pool import Backend, EnvLike, Pool, choose_backend
from kemeny.errors import RunError, UserError

USUAL_FPS = 30  # for environments that do not say how fast their time runs
FPS = {  # EnvPool does not say it either; these are Gymnasium's figures, 1/dt
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
class Film:
    """A pool of one environment, and its camera."""

    pool: Pool
    picture: Callable[[], np.ndarray]
    """How the environment looks now: (height, width, 3) uint8."""
    fps: int
    """Pictures a second at which a video runs in the environment's own time, one picture a step."""


def make_film(
    env: EnvLike,
    *,
    seed: int,
    first: int = 0,
    costs: Sequence[Cost] = (),
    time_limit: int | None = None,
    size: int = 480,
    backend: Backend = "auto",
) -> Film:
    """A pool like `make_pool(env, 1, …)`, with the same randomness, that can be looked at.

    A function must make its environment with `render_mode="rgb_array"`.
    """
    _go_headless()
    if choose_backend(env, backend, 0) == "envpool":
        assert isinstance(env, str)
        return _film_envpool(env, seed, first, costs, time_limit, size)
    from kemeny.envs.gymnasium import GymnasiumPool, describe

    name = describe(env)
    settings = {"render_mode": "rgb_array"} if isinstance(env, str) else {}
    try:
        pool = GymnasiumPool(env, 1, seed=seed, first=first, costs=costs, time_limit=time_limit, settings=settings)
    except UserError:
        raise
    except Exception as error:  # graphics libraries fail in many ways
        raise UserError(f"{name} cannot be filmed: {type(error).__name__}: {error}") from error
    made = pool.env(0)
    if made.render_mode != "rgb_array":
        pool.close()
        raise UserError(f'{name} cannot be filmed: it must be made with render_mode="rgb_array".')
    fps = int(made.metadata.get("render_fps") or USUAL_FPS)
    return Film(pool, lambda: _picture(name, made.render), fps)


def _film_envpool(env: str, seed: int, first: int, costs: Sequence[Cost], time_limit: int | None, size: int) -> Film:
    from kemeny.envs.envpool import EnvPoolPool

    if _uses_mujoco(env):
        open_graphics(size)
    settings = {"render_mode": "rgb_array", "render_width": size, "render_height": size}
    pool = EnvPoolPool(
        env,
        1,
        seed=seed,
        first=first,
        costs=costs,
        time_limit=time_limit,
        threads=1,
        settings=settings,
    )
    return Film(pool, lambda: _picture(env, pool.render), FPS.get(env.split("-v")[0], USUAL_FPS))


@cache
def open_graphics(size: int) -> Any:
    """An OpenGL context of this thread; without one EnvPool does not raise but ends the process."""
    try:
        if os.environ.get("MUJOCO_GL") == "egl":
            from mujoco.egl import GLContext
        else:
            from mujoco import GLContext
        context = GLContext(size, size)
        context.make_current()
    except Exception as error:
        raise UserError(
            f"pictures need OpenGL, which is not to be had here ({error}): install EGL (on Debian libegl1), "
            "or OSMesa (libosmesa6) and set MUJOCO_GL=osmesa."
        ) from error
    return context


def _go_headless() -> None:
    # MuJoCo's own choice on Linux is a window, which a server does not have.
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def _picture(name: str, render: Callable[[], Any]) -> np.ndarray:
    try:
        return np.asarray(render(), dtype=np.uint8)
    except Exception as error:
        raise RunError(f"{name} could not be drawn: {type(error).__name__}: {error}") from error


def _uses_mujoco(env: str) -> bool:
    import envpool.registration

    return envpool.registration.registry.specs[env][0].startswith("envpool.mujoco")
