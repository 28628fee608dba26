"""A trial of an environment: random actions, what they show, and whether the same seed shows the same again."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from kemeny.envs.envpool import EnvPoolPool
from kemeny.envs.faults import LARGEST, usable
from kemeny.envs.gymnasium import GymnasiumPool
from kemeny.envs.names import Environment
from kemeny.envs.pool import Pool, make_pool
from kemeny.spaces import first_of_each
from kemeny.spec import Continuous, Spec

TOGETHER = 4
"""Environments stepped together in a trial; EnvPool and vector environments have more, as in training."""
MORE_TOGETHER = 20
REPEATED = 100
"""Steps of the trajectories that are taken again."""


@dataclass(frozen=True)
class Trial:
    """What random actions showed; arrays are (time, environment)."""

    spec: Spec
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    """Cut by the environment itself: time limits are removed."""
    lengths: np.ndarray
    """Steps of each trajectory that ended."""
    varies: np.ndarray
    """Which entries of the observation took more than one value."""
    unusable: str
    """What was not finite, or too large, and when; empty if nothing was."""
    seconds_per_step: float
    repeats: bool
    """Whether a new environment with the same seed and actions showed the same."""
    forgets: bool | None
    """Whether a used one did; None if it cannot be restarted with the same seed."""
    costs: tuple[str, ...] | None
    """Keys of info that are one number in every step; None if they were not looked for."""
    outside: int
    """Observations outside the declared space, of those that were looked at."""
    looked_at: int


def try_out(env: Environment, spec: Spec, backend: str, *, steps: int, seconds: float, seed: int) -> Trial:
    """Step an environment for so many steps, or so long."""
    size = min(TOGETHER if backend == "gymnasium" else MORE_TOGETHER, steps)
    pool = make_pool(env, size, seed=seed)
    spies: list[_Spy] = []
    try:
        if isinstance(pool, GymnasiumPool):
            pool.wrap(lambda made: spies.append(_Spy(made)) or spies[-1])
        rng = np.random.default_rng(seed)
        first = _Recording(pool, rng, min(REPEATED, -(-steps // size)), seconds / 4)
        walked = _walk(pool, rng, steps, seconds)
        forgets = None
        if pool.comeback == "replay" and not isinstance(pool, EnvPoolPool):
            pool.fast_forward(np.zeros(size, np.int64))
            forgets = first.shown_again(pool)
        costs = _costs_of(env, pool, spies)
    finally:
        pool.close()
    fresh = make_pool(env, size, seed=seed)
    try:
        repeats = first.shown_again(fresh)
    finally:
        fresh.close()
    outside, looked_at = sum(spy.outside for spy in spies), sum(spy.looked_at for spy in spies)
    return Trial(spec, **walked, repeats=repeats, forgets=forgets, costs=costs, outside=outside, looked_at=looked_at)


def draw_actions(spec: Spec, rng: np.random.Generator, observation: np.ndarray) -> np.ndarray:
    """Random actions that are allowed, one per row, as a policy would give them: evenly between bounds or options."""
    count, action = len(observation), spec.action
    if isinstance(action, Continuous):
        unit = action.unit
        low, high = action.low, action.high
        if unit is not None:
            low, high = (low - unit.shift) / unit.scale, (high - unit.shift) / unit.scale
        return rng.uniform(low, high, (count, action.size)).astype(np.float32)
    allowed = observation[:, -spec.mask :] if spec.mask else np.ones((count, action.outputs))
    options = np.split(rng.random((count, action.outputs)) * allowed, first_of_each(action.choices)[1:], 1)
    chosen = np.stack([option.argmax(1) for option in options], 1)
    return chosen.reshape(count, *action.array.shape).astype(np.int32)


class _Recording:
    """The first steps of a pool, with which a later attempt is compared."""

    def __init__(self, pool: Pool, rng: np.random.Generator, steps: int, seconds: float) -> None:
        self._actions: list[np.ndarray] = []
        until = time.monotonic() + seconds
        self._shown: list[np.ndarray] = []
        for shown, observation, alive in _follow(pool):
            self._shown.append(shown)
            if len(self._actions) == steps or not alive.size or time.monotonic() > until:
                break
            self._actions.append(draw_actions(pool.spec, rng, observation))
            pool.send(self._actions[-1][alive], alive)

    def shown_again(self, pool: Pool) -> bool:
        """Whether the same actions show the same in this pool, which must be about to restart with the same seeds."""
        for t, (shown, _, alive) in enumerate(_follow(pool)):
            if not np.array_equal(shown, self._shown[t], equal_nan=True):
                return False
            if t == len(self._actions) or not alive.size:
                break
            pool.send(self._actions[t][alive], alive)
        return True


def _follow(pool: Pool) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """From a restart on: all that was shown, the observations, and which trajectories go on; the caller sends actions.

    A trajectory that ends is not restarted.
    """
    alive = np.arange(pool.num_envs)
    observation = pool.reset(alive)
    yield observation.copy(), observation, alive
    while True:
        step = pool.recv()
        observation[alive] = step.observation
        shown = np.column_stack([step.observation, step.reward, step.terminated, step.truncated])
        alive = alive[~(step.terminated | step.truncated)]
        yield shown, observation, alive


def _walk(pool: Pool, rng: np.random.Generator, steps: int, seconds: float) -> dict[str, Any]:
    """Random actions; a trajectory that ends is restarted."""
    everyone = np.arange(pool.num_envs)
    began = time.perf_counter()
    observation = pool.reset(everyone)
    first, varies = observation.copy(), np.zeros(observation.shape[1], bool)
    unusable = "" if usable(observation).all() else _unusable("a start observation", 0)
    lengths, since = [], np.zeros(pool.num_envs, np.int64)
    columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    while len(columns) * pool.num_envs < steps and (time.perf_counter() - began < seconds or not columns):
        pool.send(draw_actions(pool.spec, rng, observation))
        step = pool.recv()
        columns.append((step.reward.astype(float), step.terminated, step.truncated))
        since += 1
        varies |= (step.observation != first[:1]).any(0) | (first != first[:1]).any(0)
        for what, numbers in (("an observation", step.observation), ("a reward", step.reward)):
            if not (unusable or usable(numbers).all()):
                unusable = _unusable(what, len(columns))
        if unusable:
            break
        observation = step.observation.copy()
        if (over := step.terminated | step.truncated).any():
            lengths += since[over].tolist()
            since[over] = 0
            observation[over] = pool.reset(everyone[over])
    spent = time.perf_counter() - began
    reward, terminated, truncated = (np.stack(column) for column in zip(*columns, strict=True))
    return {
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "lengths": np.array(lengths, np.int64),
        "varies": varies[: pool.spec.features],
        "unusable": unusable,
        "seconds_per_step": spent / reward.size,
    }


def _unusable(what: str, step: int) -> str:
    return f"{what} that is not finite, or beyond {LARGEST:g}, at step {step}"


class _Spy(gymnasium.Wrapper):
    """Sees what an environment itself returns: which numbers are in `info`, and observations outside the space."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.outside = self.looked_at = 0
        self.numbers: set[str] | None = None

    def reset(self, **options: Any) -> Any:
        """As the environment does."""
        observation, info = self.env.reset(**options)
        self._look(observation)
        return observation, info

    def step(self, action: Any) -> Any:
        """As the environment does."""
        values = self.env.step(action)
        self._look(values[0])
        info = values[-1] if isinstance(values[-1], Mapping) else {}
        numbers = {str(key) for key, value in info.items() if _is_number(value)}
        numbers |= {"cost"} if len(values) == 6 else set()
        self.numbers = numbers if self.numbers is None else self.numbers & numbers
        return values

    def _look(self, observation: Any) -> None:
        self.looked_at += 1
        self.outside += not _contains(self.env.observation_space, observation)


def _contains(space: gymnasium.Space, observation: Any) -> bool:
    """Whether an observation is in its space; other types of numbers are no matter, for they are converted."""
    if isinstance(space, gymnasium.spaces.Box):
        array = np.asarray(observation, space.dtype)
        return array.shape == space.shape and bool(np.all((array >= space.low) & (array <= space.high)))
    return space.contains(observation)


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.size == 1 and array.dtype.kind in "biuf"


def _costs_of(env: Environment, pool: Pool, spies: list[_Spy]) -> tuple[str, ...] | None:
    if isinstance(pool, EnvPoolPool):
        from kemeny.envs.envpool import info_keys

        found = set(info_keys(env))
    elif spies:
        found = set.intersection(*(spy.numbers or set() for spy in spies))
    else:
        return None
    return tuple(sorted(found | ({"speed"} if "x_velocity" in found else set())))
