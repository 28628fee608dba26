"""The one interface of all environments: a pool steps many copies of an environment together.

No pool restarts anything by itself. After `terminated` or `truncated` an environment waits for `reset`, so the caller
alone decides what a fall or a cut means (a restart that is an ordinary transition, an end, a bootstrap).
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Protocol, get_type_hints

import gymnasium
import numpy as np

from kemeny.envs.costs import Cost
from kemeny.envs.names import Environment, EnvLike, as_environment, envpool_ids, find
from kemeny.envs.settings import Simulation
from kemeny.errors import UserError
from kemeny.ranges import AtLeast, AtMost, complaint
from kemeny.spaces import ArraySpec
from kemeny.spec import Spec

Backend = Literal["auto", "envpool", "gymnasium"]
"""Which library simulates; `auto` is EnvPool for the ids that it has, unless there are workers."""
Comeback = Literal["replay", "state", "never"]
"""How a new pool is brought to where another was: by the same restarts and actions, by a saved state, or not at all."""
DEFAULT_SIMULATION = Simulation()
INT64 = AtMost(2**63 - 1)
REGENERATION = "regeneration"
"""Key of `info`: whether the environment is now in its regeneration state, such as an empty queue. Nothing need say."""


class Step(NamedTuple):
    """One step of n environments, one row per environment."""

    observation: np.ndarray
    """(n, D) float32: the true next state, also if the step ended the trajectory."""
    reward: np.ndarray
    """(n,) floats, in the simulator's own precision."""
    terminated: np.ndarray
    """(n,) bool: the environment says that the task ended here (a fall)."""
    truncated: np.ndarray
    """(n,) bool: the time limit, or the environment itself, cut the trajectory; both flags can be set."""
    costs: np.ndarray
    """(n, K) float64: the K costs that were asked for, in their order."""
    regeneration: np.ndarray
    """(n,) bool: the environment says that what comes next does not depend on what was before (`REGENERATION`)."""

    @classmethod
    def empty(cls, n: int, observation: ArraySpec, num_costs: int) -> "Step":
        """A step of n environments whose rows are yet to be written."""
        rows = np.empty((n, *observation.shape), observation.dtype)
        return cls(rows, np.empty(n), np.empty(n, bool), np.empty(n, bool), np.empty((n, num_costs)), np.zeros(n, bool))

    def mark_failed(self, rows: Any) -> None:
        """Write into these rows what stands for an environment that failed: NaN, and a cut."""
        self.observation[rows], self.reward[rows], self.costs[rows] = np.nan, np.nan, np.nan
        self.terminated[rows], self.truncated[rows] = False, True


class Pool(Protocol):
    """Many copies of one environment, stepped together; none restarts by itself."""

    num_envs: int
    spec: Spec
    sent: np.ndarray
    """Actions of the step that was begun last, as the environments got them."""

    @property
    def comeback(self) -> Comeback:
        """How a new pool is brought to where this one is; a pool with a saved state is `Stateful`."""
        ...

    def reset(self, ids: np.ndarray) -> np.ndarray:
        """Restart these environments; returns their start observations, one row per id."""
        ...

    def send(self, action: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Begin a step of all environments, or of these only; returns at once.

        A pool that can only step all together moves the others too; they must be reset before they are sent to again.
        Actions are as the policy draws them. Continuous ones are mapped to the bounds of the environment, unless these
        are of order one, and clipped to them (`envs.spaces.Actions`).
        """
        ...

    def recv(self) -> Step:
        """Wait for the step that was begun; its rows are in the order of the ids sent."""
        ...

    def fast_forward(self, restarts: np.ndarray) -> None:
        """Bring a newly made pool to its state after `restarts[i]` restarts of environment i.

        Its next `reset` gives the start state that restart number `restarts[i]` (counted from 0) gave.
        """
        ...

    def take_faults(self) -> list[str]:
        """What failed since the last call, one sentence per fault; only pools that restart faulty environments."""
        ...

    def close(self) -> None:
        """Release processes and memory; a closed pool cannot be used."""
        ...


class Stateful(Pool, Protocol):
    """A pool whose `comeback` is "state"."""

    def get_state(self) -> dict[str, np.ndarray]:
        """Where all environments are, and their randomness; none may wait for a restart."""
        ...

    def set_state(self, arrays: dict[str, np.ndarray]) -> bool:
        """Bring a newly made pool to where another was; whether it got there."""
        ...


class Farsighted(Pool, Protocol):
    """A pool whose environment knows what may come of an action."""

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What may come of these actions, one per row of observations.

        Returns all that may be observed next, (event, row, D), how likely each is, (event, row), and the mean reward,
        (row,).
        """
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
        """Note that these environments restart; returns the ids, checked."""
        ids = self._checked(ids)
        self.elapsed[ids] = 0
        self.waiting[ids] = False
        return ids

    def begin(self, ids: np.ndarray | None) -> np.ndarray:
        """Note that a step of these environments begins; returns the ids, checked."""
        ids = self.everyone if ids is None else self._checked(ids)
        if self.pending is not None:
            raise RuntimeError("A step is under way already: call recv() before the next send().")
        if np.count_nonzero(self.waiting[self._rows(ids)]):
            # EnvPool would silently ignore the action and restart by itself.
            ended = ids[self.waiting[ids]].tolist()
            raise RuntimeError(f"Environments {ended} have ended: call reset() for them before send().")
        self.pending = ids
        return ids

    def stepping(self) -> np.ndarray:
        """The ids of the step under way."""
        if self.pending is None:
            raise RuntimeError("No step is under way: call send() before recv().")
        return self.pending

    def end(self, terminated: np.ndarray, truncated: np.ndarray) -> np.ndarray:
        """Note that the step is over; returns `truncated`, set also where the time limit is reached."""
        rows = self._rows(self.stepping())
        self.pending = None
        self.elapsed[rows] += 1
        if self._time_limit is not None:
            truncated = truncated | (self.elapsed[rows] >= self._time_limit)
        self.waiting[rows] = terminated | truncated
        return truncated

    def abandon(self) -> None:
        """Note that the step failed: its environments wait for a restart."""
        self.waiting[self.stepping()] = True
        self.pending = None

    def _rows(self, ids: np.ndarray) -> np.ndarray | slice:
        """Where these ids stand; a slice for all of them, which is several times faster than an index array."""
        return slice(None) if ids is self.everyone else ids

    def _checked(self, ids: np.ndarray) -> np.ndarray:
        if self.pending is not None:
            raise RuntimeError("A step is under way: call recv() first.")
        return np.array(ids, dtype=np.int64, ndmin=1)


def seed_of(seed: int, index: int, *more: int) -> int:
    """A seed in 0, …, 2³¹−1 for environment `index` of a run, however the run is divided into pools."""
    return int(np.random.SeedSequence((seed, index, *more)).generate_state(1)[0]) >> 1


def make_pool(
    env: EnvLike,
    num_envs: Annotated[int, AtLeast(1)],
    *,
    seed: Annotated[int, AtLeast(0), INT64],
    first_env: Annotated[int, AtLeast(0)] = 0,
    costs: Sequence[Cost] = (),
    time_limit: Annotated[int | None, AtLeast(1), INT64] = None,
    simulation: Simulation = DEFAULT_SIMULATION,
    backend: Backend = "auto",
) -> Pool:
    """A pool of `num_envs` copies of an environment.

    Environment j of the pool is number `first_env + j` of the run, and its randomness depends only on `seed` and that
    number. If `time_limit` is None, only the environment itself cuts a trajectory: the time limit that it is registered
    with (or that a function wraps it in) is removed.

    With `simulation.restart_faulty` a step is NaN for a Gymnasium environment that raises, or whose worker dies or
    hangs, and its next `reset` makes a new one. (A failure inside EnvPool ends the process.)
    """
    numbers = {"num_envs": num_envs, "seed": seed, "first_env": first_env, "time_limit": time_limit}
    _refuse_out_of_range(numbers, get_type_hints(make_pool, include_extras=True))
    _refuse_out_of_range(vars(simulation), get_type_hints(Simulation, include_extras=True))
    if simulation.step_timeout is not None and not simulation.workers:
        raise UserError("step_timeout needs workers, for only a worker can be stopped: set workers to 1 or more.")
    from kemeny.envs.jerk import JERK, WithJerk, without_jerk

    pool_class = _pool_class(env, backend, simulation.workers)
    pool = pool_class(
        env, num_envs, seed=seed, first_env=first_env, costs=without_jerk(costs), time_limit=time_limit,
        simulation=simulation,
    )  # fmt: skip
    if JERK not in costs:
        return pool
    try:
        return WithJerk(pool, costs)
    except UserError:
        pool.close()
        raise


def sizes_in_turn(env: EnvLike, num_envs: int, simulation: Simulation = DEFAULT_SIMULATION) -> list[int]:
    """Environments of each pool that `make_in_turn` makes.

    A single environment is one pool, and so are the copies of a vector environment: their steps are taken in the same
    thread that computes actions, and one call for all of them is faster than two.
    """
    if num_envs == 1 or choose_backend(env, "auto", simulation.workers) == "vector":
        return [num_envs]
    return [num_envs - num_envs // 2, num_envs // 2]


def make_in_turn(
    env: EnvLike,
    num_envs: int,
    *,
    seed: int,
    first_env: int = 0,
    costs: Sequence[Cost] = (),
    time_limit: int | None = None,
    simulation: Simulation = DEFAULT_SIMULATION,
) -> Iterator[tuple[int, Pool]]:
    """Pools to be used in turn, one simulating while the actions for the other are computed (`sizes_in_turn`).

    Yields each with the number of its environment 0 in the run, which for the first is `first_env`. The workers are
    divided between them.
    """
    sizes = sizes_in_turn(env, num_envs, simulation)
    share = dataclasses.replace(simulation, workers=-(-simulation.workers // len(sizes)))
    for first, size in zip((first_env, first_env + sizes[0]), sizes, strict=False):
        pool = make_pool(env, size, seed=seed, first_env=first, costs=costs, time_limit=time_limit, simulation=share)
        yield first, pool


def inspect(
    env: EnvLike,
    *,
    costs: Sequence[Cost] = (),
    simulation: Simulation = DEFAULT_SIMULATION,
    backend: Backend = "auto",
) -> Spec:
    """The spec of an environment, or a `UserError` that says why it or a cost cannot be used.

    It is that of the library which will simulate: with workers, an id that EnvPool has too is Gymnasium's.
    """
    from kemeny.envs.jerk import JERK, refuse_jerk, without_jerk

    env = as_environment(env)
    spec = _inspect(env, without_jerk(costs), simulation, backend)
    if JERK in costs:
        refuse_jerk(spec, env.name)
    return spec


def _inspect(env: Environment, costs: Sequence[Cost], simulation: Simulation, backend: Backend) -> Spec:
    chosen = choose_backend(env, backend, simulation.workers)
    if chosen == "envpool":
        from kemeny.envs.envpool import inspect_envpool

        return inspect_envpool(env, costs)
    if chosen == "vector":
        from kemeny.envs.vector import inspect_vector

        return inspect_vector(env, costs, simulation)
    from kemeny.envs.gymnasium import inspect_gymnasium

    try:
        return inspect_gymnasium(env, costs)
    except UserError as error:
        if misfit := _misfit(env, backend, simulation.workers):
            raise UserError(f"{misfit} {error}") from error
        raise


def choose_backend(env: EnvLike, backend: Backend, workers: int) -> Literal["envpool", "gymnasium", "vector"]:
    """Which library runs this environment, and whether as a vector environment."""
    from kemeny.envs.vector import makes_copies

    env = as_environment(env)
    found = find(env)
    if backend == "gymnasium" and isinstance(found, str):
        return "gymnasium"
    if not isinstance(found, str):
        if backend == "envpool":
            raise UserError("EnvPool runs ids, not functions: choose the backend auto or gymnasium.")
        if makes_copies(env) and workers:
            raise UserError(f"{env.name} makes a vector environment, which is not for workers: leave workers at 0.")
        return "vector" if makes_copies(env) else "gymnasium"
    if found not in envpool_ids():
        if backend == "envpool":
            raise UserError(f"EnvPool has no environment {env.name!r}: choose the backend auto or gymnasium.")
        return "vector" if not workers and makes_copies(env) else "gymnasium"
    if workers and backend == "envpool":
        raise UserError("EnvPool has threads instead of workers: leave workers at 0, or choose the backend gymnasium.")
    misfit = _misfit(env, backend, workers)
    if misfit is not None and (backend == "envpool" or found not in gymnasium.registry):
        raise misfit
    return "gymnasium" if workers or misfit is not None else "envpool"


def why_not_envpool(env: EnvLike, workers: int) -> str | None:
    """A sentence if EnvPool has the environment, but does not take its arguments, so that Gymnasium's is used."""
    misfit = _misfit(as_environment(env), "auto", workers)
    return None if misfit is None else f"{misfit} So Gymnasium's is used, which is slower."


def _misfit(env: Environment, backend: Backend, workers: int) -> UserError | None:
    """Why EnvPool does not take the arguments of an environment that it would run otherwise."""
    if not env.kwargs or workers or backend == "gymnasium" or env.source not in envpool_ids():
        return None
    from kemeny.envs.envpool import refuse_options

    try:
        refuse_options(env)
    except UserError as error:
        return error
    return None


def _pool_class(env: EnvLike, backend: Backend, workers: int) -> Callable[..., Pool]:
    chosen = choose_backend(env, backend, workers)
    if chosen == "vector":
        from kemeny.envs.vector import VectorPool

        return VectorPool
    if chosen == "envpool":
        from kemeny.envs.envpool import EnvPoolPool

        return EnvPoolPool
    if workers:
        from kemeny.envs.workers import WorkerPool

        return WorkerPool
    from kemeny.envs.gymnasium import GymnasiumPool

    return GymnasiumPool


def _refuse_out_of_range(numbers: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    for name, number in numbers.items():
        if needed := complaint(hints[name], number):
            raise UserError(f"{name} is {number}; it must be {needed}.")
