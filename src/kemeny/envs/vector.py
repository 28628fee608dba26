"""Gymnasium's vector environments behind the pool interface: many copies in one call, and no Python runs per copy."""

import json
import warnings
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from kemeny.envs.copies import Copies
from kemeny.envs.costs import Cost
from kemeny.envs.gymnasium import NotMade, RestartSeeds
from kemeny.envs.masks import KEY
from kemeny.envs.names import NUM_ENVS, Environment, EnvLike, as_environment, find, refuse_misfit, takes
from kemeny.envs.pool import DEFAULT_SIMULATION, Clock, Comeback, Step, seed_of
from kemeny.envs.settings import Simulation
from kemeny.envs.strangers import RAISED, close_quietly, type_and_text
from kemeny.errors import Damaged, RunError, UserError
from kemeny.spec import Spec

FOREVER = 2**31 - 1
"""The time limit of an id that is to have none."""
ELAPSED = "elapsed"
"""Name of the pool's own part of its state."""
_in_use: "weakref.WeakValueDictionary[int, VectorEnv]" = weakref.WeakValueDictionary()


def makes_copies(env: EnvLike) -> bool:
    """Whether this makes many copies together: it has a parameter `num_envs`, or is the id of a vector environment.

    An id that also has an ordinary environment is that, if its vector environment cannot be used.
    """
    env = as_environment(env)
    found = find(env)
    if not isinstance(found, str):
        return takes(found, NUM_ENVS)
    registered = gymnasium.registry.get(found.rpartition(":")[2])
    if registered is None or registered.vector_entry_point is None:
        return False
    return registered.entry_point is None or _usable(found, json.dumps(env.kwargs, sort_keys=True))


def also_makes_one(env: EnvLike) -> bool:
    """Whether what makes many copies together is an id that has an ordinary environment too."""
    found = find(as_environment(env))
    return isinstance(found, str) and gymnasium.spec(found).entry_point is not None


@cache
def _usable(env: str, kwargs: str) -> bool:
    try:
        inspect_vector(Environment(env, json.loads(kwargs)), ())
    except UserError:
        return False
    return True


def inspect_vector(env: EnvLike, costs: Sequence[Cost], simulation: Simulation = DEFAULT_SIMULATION) -> Spec:
    """The spec of a vector environment, found by making one of two copies and taking some steps."""
    pool = VectorPool(env, 2, seed=0, costs=costs, simulation=simulation)
    pool.close()
    return pool.spec


class VectorPool:
    """The copies of a vector environment, all stepped in `recv`.

    A vector environment can only step all copies together. Copies that a step is not meant for take one too, with some
    action; nobody sees it, and they wait for a restart afterwards.

    The copies share their randomness: its seed is made from (the run's seed, the first copy's number, the restarts
    before). But in `SyncVectorEnv` and `AsyncVectorEnv` every restart of every copy has its own seed, as in
    `GymnasiumPool`.
    """

    def __init__(
        self,
        env: EnvLike,
        num_envs: int,
        *,
        seed: int,
        first_env: int = 0,
        costs: Sequence[Cost] = (),
        time_limit: int | None = None,
        simulation: Simulation = DEFAULT_SIMULATION,
    ) -> None:
        env = as_environment(env)
        name = env.name
        if simulation.restart_faulty:
            raise UserError(
                f"{name} is a vector environment, in which one copy cannot be made anew: leave out --restart-faulty."
            )
        self.num_envs = num_envs
        made, limit = make_copies(env, num_envs)
        try:
            self._copies = Copies(made, name, costs, limit)
            self._copies.try_out()
        except BaseException as error:
            close_quietly(made)
            if isinstance(error, RunError):
                raise UserError(f"{name} failed its first steps: {error}") from error.__cause__
            raise
        _in_use[id(made)] = made
        self.spec = self._copies.spec
        self._clock = Clock(num_envs, time_limit)
        self._seed, self._first_env, self._before = seed, first_env, 0
        self._begun = False
        self._seeds = RestartSeeds(seed, first_env, num_envs) if self._copies.seeded_each else None
        self.sent = np.empty(0)
        """Actions of the latest step, as the environment got them."""

    @property
    def comeback(self) -> Comeback:
        """How a new pool is brought to where this one is: only what has a state or seeds of its own comes back."""
        if self._copies.has_state:
            return "state"
        return "replay" if self._seeds is not None else "never"

    def reset(self, ids: np.ndarray) -> np.ndarray:
        """Restart these copies; returns their start observations, one row per id."""
        ids = self._clock.restart(ids)
        if self._seeds is None and not self._begun:
            self._begun = True
            return self._copies.begin(seed_of(self._seed, self._first_env, self._before))[ids]
        which = np.zeros(self.num_envs, bool)
        which[ids] = True
        seeds = None
        if self._seeds is not None:
            seeds = dict(zip(ids.tolist(), self._seeds.take(ids), strict=True))
            seeds = [seeds.get(i) for i in range(self.num_envs)]
        return self._copies.restart(which, seeds)[ids]

    def send(self, action: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Keep the actions until `recv` takes the step."""
        self._clock.begin(ids)
        self.sent = self._copies.actions.batch(action)

    def recv(self) -> Step:
        """Take the step that was begun; its rows are in the order of the ids sent."""
        ids = self._clock.stepping()
        actions = self.sent
        if ids is not self._clock.everyone:
            actions = np.zeros((self.num_envs, *actions.shape[1:]), actions.dtype)
            actions[ids] = self.sent
        try:
            step = self._copies.step(actions, ids)
        except BaseException:
            self._clock.abandon()
            raise
        if ids is not self._clock.everyone:
            step = Step(*(column[ids] for column in step))
            waiting = np.ones(self.num_envs, bool)
            waiting[ids] = False
            self._clock.waiting |= waiting
        return step._replace(truncated=self._clock.end(step.terminated, step.truncated))

    def fast_forward(self, restarts: np.ndarray) -> None:
        """Continue as after this many restarts; copies that share their randomness get one that is new."""
        if self._seeds is not None:
            self._seeds.fast_forward(restarts)
        else:
            self._before = int(restarts.sum())

    def get_state(self) -> dict[str, np.ndarray]:
        """Where all copies are, as arrays."""
        if self._clock.waiting.any():
            raise RuntimeError("Some environments wait for a restart: call reset() for them before get_state().")
        return {ELAPSED: self._clock.elapsed.copy(), **self._copies.get_state()}

    def set_state(self, arrays: dict[str, np.ndarray]) -> bool:
        """Bring a newly made pool to where another was; whether it got there."""
        own = dict(arrays)
        elapsed = own.pop(ELAPSED, np.empty(0))
        if elapsed.shape != (self.num_envs,) or elapsed.dtype != np.int64:
            raise Damaged(f"The checkpoint does not fit its run: it does not hold the state of {self._copies.name}.")
        self._clock.elapsed[:] = elapsed
        self._clock.waiting[:] = False
        self._begun = True
        return self._copies.set_state(own)

    @property
    def farsighted(self) -> bool:
        """Whether the environment knows what may come of an action: it has a method `outcomes`."""
        return callable(getattr(self._copies.env.unwrapped, "outcomes", None))

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For rows of observations and actions: all that may be observed next, how likely each is, the mean reward."""
        env: Any = self._copies.env.unwrapped
        found = env.outcomes(rows[:, : self.spec.features], self._copies.actions.batch(actions))
        seen = [found["observation"], *([found[KEY]] if self.spec.mask else [])]
        after = np.concatenate(seen, axis=2, dtype=np.float32)
        likely, reward = found["probability"].astype(np.float32), found["reward"].astype(np.float32)
        return np.ascontiguousarray(np.moveaxis(after, 1, 0)), np.ascontiguousarray(likely.T), reward

    def take_faults(self) -> list[str]:
        """Always empty: what a vector environment raises is raised."""
        return []

    def close(self) -> None:
        """Close the environment."""
        _in_use.pop(id(self._copies.env), None)
        self._copies.close()


def make_copies(env: Environment, num_envs: int) -> tuple[VectorEnv, int | None]:
    """A vector environment of so many copies, and the time limit that it would have had."""
    name, found, limit = env.name, find(env), None
    try:
        if isinstance(found, str):
            options = dict(env.kwargs)
            limit = options.get("max_episode_steps", gymnasium.spec(found).max_episode_steps)
            if limit is not None:
                options["max_episode_steps"] = FOREVER
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about a missing autoreset mode, which is refused here
                made = gymnasium.make_vec(found, num_envs, vectorization_mode="vector_entry_point", **options)
        else:
            refuse_misfit(found, env)
            made = found(num_envs=num_envs, **env.kwargs)
    except UserError:
        raise
    except RAISED as error:
        raise NotMade(f"{name} could not be made: it raised {type_and_text(error)}.") from error
    if not isinstance(made, VectorEnv):
        raise UserError(
            f"{name} has a parameter num_envs, so it must return a new gymnasium.vector.VectorEnv at each call, but it "
            f"returned an object of type {type(made).__name__}."
        )
    if made.num_envs != num_envs:
        raise UserError(f"{name} was asked for num_envs={num_envs} copies and made {made.num_envs}.")
    if id(made) in _in_use:
        raise UserError(f"{name} returned the same environment twice, but it must return a new one at each call.")
    return made, limit
