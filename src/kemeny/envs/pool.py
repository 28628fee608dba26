"""The one interface behind which every environment stands: a pool that steps many copies at once.

No pool restarts anything by itself. After `terminated` or `truncated` an environment waits for `reset`,
so what a fall or a cut means (a restart that is an ordinary transition, an end, a bootstrap) is decided in
one place: by whoever collects.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import gymnasium
import numpy as np

from kemeny.envs.costs import Cost
from kemeny.envs.names import envpool_ids
from kemeny.errors import UserError
from kemeny.spec import Spec

EnvLike = str | Callable[[], gymnasium.Env]
Backend = Literal["auto", "envpool", "gymnasium"]


class Step(NamedTuple):
    """One step of n environments, a row each."""

    observation: np.ndarray
    """(n, D) float32: the true next state, also where the step ended something."""
    reward: np.ndarray
    """(n,) floats, as precise as the simulator gives them."""
    terminated: np.ndarray
    """(n,) bool: the environment says that the task ended here (a fall)."""
    truncated: np.ndarray
    """(n,) bool: the time limit, or the environment itself, cut the trajectory; both flags can be set."""
    costs: np.ndarray
    """(n, K) float64: the K costs asked for, in that order."""


class Pool(Protocol):
    """Many copies of one environment, stepped together; nothing restarts unless told to."""

    num_envs: int
    spec: Spec

    def reset(self, ids: np.ndarray) -> np.ndarray:
        """Restart these environments; their start observations, a row an id."""
        ...

    def send(self, action: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Begin a step of all (or only these) environments; returns at once.

        Continuous actions are clipped to the bounds here and only here.
        """
        ...

    def recv(self) -> Step:
        """Wait for the step begun; rows in the order of the ids sent."""
        ...

    def fast_forward(self, restarts: np.ndarray) -> None:
        """Put a freshly made pool where it stands after `restarts[i]` restarts of environment i.

        Its next `reset` gives the start state that restart number `restarts[i]` (counted from 0) gave.
        """
        ...

    def take_faults(self) -> list[str]:
        """What failed in a tolerant pool since the last call, a sentence each, without its full stop."""
        ...

    def close(self) -> None:
        """Give back processes and memory; a closed pool cannot be used."""
        ...


class Clock:
    """Steps since each environment's restart: which are at the time limit, and which wait for a restart."""

    def __init__(self, num_envs: int, time_limit: int | None) -> None:
        self.elapsed = np.zeros(num_envs, dtype=np.int64)
        self.waiting = np.ones(num_envs, dtype=bool)
        self.everyone = np.arange(num_envs)
        self.pending: np.ndarray | None = None
        self._time_limit = time_limit

    def restart(self, ids: np.ndarray) -> np.ndarray:
        """Note that these begin anew; the ids, checked."""
        ids = self._checked(ids)
        self.elapsed[ids] = 0
        self.waiting[ids] = False
        return ids

    def begin(self, ids: np.ndarray | None) -> np.ndarray:
        """Note that a step of these is under way; the ids, checked."""
        ids = self.everyone if ids is None else self._checked(ids)
        if self.pending is not None:
            raise RuntimeError("a step is under way already: recv() before the next send()")
        if np.count_nonzero(self.waiting[self._rows(ids)]):
            # EnvPool would silently ignore the action and restart by itself.
            raise RuntimeError(f"environments {ids[self.waiting[ids]].tolist()} have ended: reset() them before send()")
        self.pending = ids
        return ids

    def stepping(self) -> np.ndarray:
        """The ids of the step under way."""
        if self.pending is None:
            raise RuntimeError("no step is under way: send() before recv()")
        return self.pending

    def end(self, terminated: np.ndarray, truncated: np.ndarray) -> np.ndarray:
        """Note that the step is over; `truncated` with the time limit in it."""
        rows = self._rows(self.stepping())
        self.pending = None
        self.elapsed[rows] += 1
        if self._time_limit is not None:
            truncated = truncated | (self.elapsed[rows] >= self._time_limit)
        self.waiting[rows] = terminated | truncated
        return truncated

    def abandon(self) -> None:
        """Note that the step failed: those in it wait for a restart."""
        self.waiting[self.stepping()] = True
        self.pending = None

    def _rows(self, ids: np.ndarray) -> np.ndarray | slice:
        """All rows as a slice, which is several times as fast as an index each."""
        return slice(None) if ids is self.everyone else ids

    def _checked(self, ids: np.ndarray) -> np.ndarray:
        if self.pending is not None:
            raise RuntimeError("a step is under way: recv() first")
        return np.array(ids, dtype=np.int64, ndmin=1)


def seed_of(seed: int, index: int, *more: int) -> int:
    """A seed in 0, …, 2³¹−1 for environment `index` of a run, however the run is divided into pools."""
    return int(np.random.SeedSequence((seed, index, *more)).generate_state(1)[0]) >> 1


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_pool(
    env: EnvLike,
    num_envs: int,
    *,
    seed: int,
    first: int = 0,
    costs: Sequence[Cost] = (),
    time_limit: int | None = None,
    threads: int = 0,
    workers: int = 0,
    backend: Backend = "auto",
    step_timeout: float | None = None,
    tolerant: bool = False,
) -> Pool:
    """A pool of `num_envs` copies of an environment.

    `env` is an id or a function without arguments that makes a Gymnasium environment. Environment j of
    the pool is number `first + j` of the run, and its randomness depends on `(seed, first + j)` alone. With
    `time_limit` None nothing cuts a trajectory but the environment's own doing: the time limit it is
    registered with (or wrapped in, for a function) is removed.

    `threads` (0: one a core) are EnvPool's; `workers` (0: none, all in this process) are Gymnasium's
    processes, and `step_timeout` is how many seconds a step in them may take. `auto` takes EnvPool for the
    ids it has, unless workers are asked for.

    A `tolerant` pool answers with NaN for a Gymnasium environment that raises, or whose worker dies or hangs; it is
    made anew at its next `reset`. (What goes wrong inside EnvPool ends the process.)
    """
    for name, number, least in (
        ("num_envs", num_envs, 1),
        ("seed", seed, 0),
        ("first", first, 0),
        ("time_limit", 1 if time_limit is None else time_limit, 1),
        ("threads", threads, 0),
        ("workers", workers, 0),
    ):
        if number < least:
            raise UserError(f"{name} is {number}; it must be at least {least}.")
    if step_timeout is not None and (workers == 0 or step_timeout <= 0):
        raise UserError("step_timeout is a positive number of seconds and needs workers, for only they can be stopped.")
    if choose_backend(env, backend, workers) == "envpool":
        from kemeny.envs.envpool import EnvPoolPool

        assert isinstance(env, str)
        return EnvPoolPool(env, num_envs, seed=seed, first=first, costs=costs, time_limit=time_limit, threads=threads)
    if workers:
        from kemeny.envs.workers import WorkerPool

        return WorkerPool(
            env,
            num_envs,
            seed=seed,
            first=first,
            costs=costs,
            time_limit=time_limit,
            workers=workers,
            step_timeout=step_timeout,
            tolerant=tolerant,
        )
    from kemeny.envs.gymnasium import GymnasiumPool

    return GymnasiumPool(env, num_envs, seed=seed, first=first, costs=costs, time_limit=time_limit, tolerant=tolerant)


def make_halves(env: EnvLike, num_envs: int, *, workers: int = 0, **options: Any) -> Iterator[tuple[int, Pool]]:
    """Two pools to be used in turn, one simulating while the other's actions are computed; each with its `first`.

    Of a single environment there is one. `options` are those of `make_pool`.
    """
    sizes = [num_envs] if num_envs == 1 else [num_envs - num_envs // 2, num_envs // 2]
    for first, size in zip((0, sizes[0]), sizes, strict=False):
        yield first, make_pool(env, size, first=first, workers=-(-workers // len(sizes)), **options)


def inspect(env: EnvLike, *, costs: Sequence[Cost] = (), backend: Backend = "auto") -> Spec:
    """What the environment is, or a `UserError` that says why it or a cost cannot be used."""
    if choose_backend(env, backend, 0) == "envpool":
        from kemeny.envs.envpool import inspect_envpool

        assert isinstance(env, str)
        return inspect_envpool(env, costs)
    from kemeny.envs.gymnasium import inspect_gymnasium

    return inspect_gymnasium(env, costs)


def choose_backend(env: EnvLike, backend: Backend, workers: int) -> Literal["envpool", "gymnasium"]:
    """Who runs this environment."""
    if not (isinstance(env, str) or callable(env)):
        raise UserError(f"an environment is an id or a function that makes one, not a {type(env).__name__}.")
    if backend == "gymnasium":
        return "gymnasium"
    if not isinstance(env, str):
        if backend == "envpool":
            raise UserError("EnvPool runs ids, not functions: choose the backend auto or gymnasium.")
        return "gymnasium"
    if env not in envpool_ids():
        if backend == "envpool":
            raise UserError(f"EnvPool has no environment {env!r}: choose the backend auto or gymnasium.")
        return "gymnasium"
    if workers and backend == "envpool":
        raise UserError("EnvPool has threads instead of workers: leave workers out, or choose the backend gymnasium.")
    return "gymnasium" if workers else "envpool"
