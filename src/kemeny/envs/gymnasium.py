"""Any Gymnasium environment behind the pool interface: made, understood, stepped, and named when it fails."""

import contextlib
import functools
import importlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np

from kemeny.envs.costs import Cost, call_cost, read_cost, refuse_names
from kemeny.envs.names import envpool_ids, unknown
from kemeny.envs.pool import Clock, EnvLike, Step, seed_of
from kemeny.envs.spaces import Actions, Observations, understand_actions, understand_observations
from kemeny.errors import RunError, UserError
from kemeny.spec import Spec


class EnvironmentFault(RunError):
    """An environment raised, or returned what it should not."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index
        """Number of the environment in the run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.index)


def make_env(env: EnvLike, **settings: Any) -> tuple[gymnasium.Env, int | None]:
    """One environment without time limit, and the time limit it came with.

    Every `TimeLimit` is taken out, also from under other wrappers, so that a function returning
    `FlattenObservation(gymnasium.make(…))` means the same as an id. What else an environment does of its own
    accord to cut a trajectory stays.
    """
    made = _make(env, **settings)
    limits: list[int] = []
    while isinstance(made, gymnasium.wrappers.TimeLimit):
        limits.append(made._max_episode_steps)
        made = made.env
    outer = made
    while isinstance(outer, gymnasium.Wrapper):
        if isinstance(outer.env, gymnasium.wrappers.TimeLimit):
            limits.append(outer.env._max_episode_steps)
            outer.env = outer.env.env
        else:
            outer = outer.env
    return made, min(limits, default=None)


def _make(env: EnvLike, **settings: Any) -> gymnasium.Env:
    if not isinstance(env, str):
        made = env()
        if not isinstance(made, gymnasium.Env):
            raise UserError(
                f"the function {describe(env)} returned a {type(made).__name__}, "
                "but must return a new gymnasium.Env at each call."
            )
        return made
    if env not in gymnasium.registry and ":" not in env:
        raise unknown(env)
    try:
        with warnings.catch_warnings(), _quiet_mujoco(env):
            # The version is the user's choice: v4 beside v5 is how results are compared.
            warnings.filterwarnings("ignore", message=".*is out of date", category=DeprecationWarning)
            # Gymnasium's checker would refuse the six values of Safety-Gymnasium; the checks here replace it.
            return gymnasium.make(env, disable_env_checker=True, **settings)
    except gymnasium.error.UnregisteredEnv as error:
        raise unknown(env) from error
    except (ImportError, gymnasium.error.Error) as error:
        elsewhere = " EnvPool has it: leave the backend at auto and workers at 0." if env in envpool_ids() else ""
        raise UserError(f"Gymnasium cannot make {env}: {str(error).splitlines()[0]}{elsewhere}") from error


@contextlib.contextmanager
def _quiet_mujoco(env: str) -> Iterator[None]:
    """Keep MuJoCo from remarking on Gymnasium's own models, on the terminal and in ./MUJOCO_LOG.TXT."""
    registered = gymnasium.registry.get(env)
    if registered is None or "envs.mujoco" not in str(registered.entry_point):
        yield
        return
    try:
        mujoco: Any = importlib.import_module("mujoco")
    except ImportError:  # Gymnasium says what to install
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def describe(env: EnvLike) -> str:
    """What to call an environment in a message."""
    if isinstance(env, str):
        return env
    maker = env.func if isinstance(env, functools.partial) else env
    return getattr(maker, "__qualname__", type(maker).__name__)


def understand(env: gymnasium.Env, name: str, time_limit: int | None) -> tuple[Spec, Observations, Actions]:
    """Spec and spaces of an environment, or a `UserError`."""
    observations = understand_observations(env.observation_space, name)
    actions = understand_actions(env.action_space, name)
    return Spec(observations.size, actions.spec, time_limit), observations, actions


def inspect_gymnasium(env: EnvLike, costs: Sequence[Cost]) -> Spec:
    """What a Gymnasium environment is, found by making one and taking one step."""
    block = Block(env, [0], costs, {})
    try:
        block.reset([0], [0])
        action = block.actions.batch(np.zeros((1, *block.actions.shape)))
        block.step([0], action)
        return block.spec
    except EnvironmentFault as fault:
        raise UserError(f"{describe(env)} failed its first step: {fault}") from fault.__cause__
    finally:
        block.close()


class Block:
    """Environments of one process, addressed by their place in the block."""

    def __init__(
        self,
        env: EnvLike,
        indices: Sequence[int],
        costs: Sequence[Cost],
        settings: Mapping[str, Any],
        tolerant: bool = False,
    ) -> None:
        self.name = describe(env)
        self._make = functools.partial(make_env, env, **settings)
        self._tolerant = tolerant
        self._broken: set[int] = set()
        self._faults: list[str] = []
        self._indices = list(indices)
        self._costs = tuple(costs)
        self.envs: list[gymnasium.Env] = []
        self._steps = [0] * len(self._indices)
        limit = None
        for _ in self._indices:
            made, limit = self._make()
            if any(made.unwrapped is other.unwrapped for other in self.envs):
                raise UserError(
                    f"the function {self.name} returned the same environment twice, "
                    "but must return a new one at each call."
                )
            self.envs.append(made)
        self.spec, self.observations, self.actions = understand(self.envs[0], self.name, limit)

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> np.ndarray:
        """Restart these with these seeds; their start observations."""
        rows = np.empty((len(places), self.spec.observation_size), dtype=np.float32)
        for row, (place, seed) in enumerate(zip(places, seeds, strict=True)):
            self._steps[place] = 0
            try:
                if place in self._broken:
                    self._replace(place)
                observation, _ = self.envs[place].reset(seed=int(seed))
                rows[row] = self._row(observation)
            except Exception as error:
                self._tolerate(self._fault(place, error, f"when it was restarted with seed {seed}"), place, error)
                rows[row] = np.nan
        return rows

    def step(self, places: Sequence[int], actions: np.ndarray) -> Step:
        """One step of these; `actions` are as the environments take them."""
        n = len(places)
        step = Step(
            np.empty((n, self.spec.observation_size), dtype=np.float32),
            np.empty(n),
            np.empty(n, dtype=bool),
            np.empty(n, dtype=bool),
            np.empty((n, len(self._costs))),
        )
        for row, place in enumerate(places):
            self._steps[place] += 1
            action = actions[row]
            try:
                self._step_one(step, row, self.envs[place], action)
            except (UserError, RunError):
                raise
            except Exception as error:
                when = f"at step {self._steps[place]} after its restart, with action {_short(action)}"
                self._tolerate(self._fault(place, error, when), place, error)
                blank(step, row)
        return step

    def take_faults(self) -> list[str]:
        """What failed since the last call."""
        faults, self._faults = self._faults, []
        return faults

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def _tolerate(self, fault: EnvironmentFault, place: int, error: Exception) -> None:
        """Raise the fault, or note it for whoever restarts the environment."""
        if not self._tolerant:
            raise fault from error
        self._faults.append(str(fault))
        self._broken.add(place)

    def _replace(self, place: int) -> None:
        """A new environment in place of one that failed, whose insides nobody knows."""
        with contextlib.suppress(Exception):
            self.envs[place].close()
        self.envs[place], _ = self._make()
        self._broken.discard(place)

    def _step_one(self, step: Step, row: int, env: gymnasium.Env, action: Any) -> None:
        told: tuple[Any, ...] = tuple(env.step(action))
        if len(told) == 6:  # Safety-Gymnasium: the cost stands after the reward
            observation, reward, cost, terminated, truncated, info = told
            info = {**info, "cost": cost}
        elif len(told) == 5:
            observation, reward, terminated, truncated, info = told
        else:
            raise _Wrong(
                f"returned {len(told)} values from step() instead of (observation, reward, terminated, truncated, info)"
            )
        step.observation[row] = self._row(observation)
        step.reward[row] = _number(reward, "reward")
        step.terminated[row] = bool(_number(terminated, "terminated"))
        step.truncated[row] = bool(_number(truncated, "truncated"))
        for k, cost in enumerate(self._costs):
            if isinstance(cost, str):
                refuse_names([cost], info, self.name)
                value = read_cost(cost, info)
                if np.asarray(value).dtype.kind not in "biuf":
                    raise UserError(f"{self.name} has a cost {cost!r} that is not a number: {value!r}.")
            else:
                value = call_cost(cost, step.observation[row], action, float(step.reward[row]), info)
            step.costs[row, k] = _number(value, "cost")

    def _row(self, observation: Any) -> np.ndarray:
        array = np.asarray(observation)
        if array.shape != self.observations.shape:
            raise _Wrong(f"returned an observation of shape {array.shape} instead of {self.observations.shape}")
        if self.observations.start is not None:
            number = int(array) - self.observations.start
            if not 0 <= number < self.observations.size:
                raise _Wrong(f"returned the observation {array}, which is not in its observation space")
        return self.observations.rows(array[None])[0]

    def _fault(self, place: int, error: Exception, when: str) -> EnvironmentFault:
        index = self._indices[place]
        what = str(error) if isinstance(error, _Wrong) else f"raised {type(error).__name__}: {error}"
        return EnvironmentFault(f"environment {index} ({self.name}) {what}, {when}", index)


class GymnasiumPool:
    """Gymnasium environments in this process, stepped one after the other when the step is asked for.

    Restart number k of environment i is `env.reset(seed=…)` with a seed made of (the run's seed, i, k): a
    trajectory is a function of that seed and its actions, whatever came before.
    """

    def __init__(
        self,
        env: EnvLike,
        num_envs: int,
        *,
        seed: int,
        first: int,
        costs: Sequence[Cost],
        time_limit: int | None,
        settings: Mapping[str, Any] = MappingProxyType({}),
        tolerant: bool = False,
    ) -> None:
        self.num_envs = num_envs
        self._block = Block(env, range(first, first + num_envs), costs, settings, tolerant)
        self.spec = self._block.spec
        self._clock = Clock(num_envs, time_limit)
        self._seeds = RestartSeeds(seed, first, num_envs)
        self._sent = np.empty(0)

    def reset(self, ids: np.ndarray) -> np.ndarray:
        """Restart these environments; their start observations, a row an id."""
        ids = self._clock.restart(ids)
        return self._block.reset(ids.tolist(), self._seeds.take(ids))

    def send(self, action: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Note the actions; they are taken in `recv`."""
        self._clock.begin(ids)
        self._sent = self._block.actions.batch(action)

    def recv(self) -> Step:
        """Take the step begun; rows in the order of the ids sent."""
        try:
            step = self._block.step(self._clock.stepping().tolist(), self._sent)
        except BaseException:
            self._clock.abandon()
            raise
        return step._replace(truncated=self._clock.end(step.terminated, step.truncated))

    def fast_forward(self, restarts: np.ndarray) -> None:
        """Go on counting restarts from here."""
        self._seeds.fast_forward(restarts)

    def take_faults(self) -> list[str]:
        """What failed since the last call."""
        return self._block.take_faults()

    def env(self, place: int) -> gymnasium.Env:
        """The environment itself, to be looked at."""
        return self._block.envs[place]

    def close(self) -> None:
        """Close the environments."""
        self._block.close()


def blank(step: Step, rows: Any) -> None:
    """Make these rows those of environments that failed: no number in them is one."""
    step.observation[rows], step.reward[rows], step.costs[rows] = np.nan, np.nan, np.nan
    step.terminated[rows], step.truncated[rows] = False, True


class RestartSeeds:
    """The seed of each restart, and how many restarts each environment has had."""

    def __init__(self, seed: int, first: int, num_envs: int) -> None:
        self._seed = seed
        self._first = first
        self._restarts = np.zeros(num_envs, dtype=np.int64)

    def take(self, ids: np.ndarray) -> list[int]:
        """Seeds for the next restart of these."""
        seeds = [seed_of(self._seed, self._first + int(i), int(self._restarts[i])) for i in ids]
        self._restarts[ids] += 1
        return seeds

    def fast_forward(self, restarts: np.ndarray) -> None:
        """Go on from this many restarts of each."""
        self._restarts[:] = restarts


class _Wrong(Exception):
    """What an environment should not have done, as the end of a sentence that begins with its name."""


def _number(value: Any, what: str) -> float:
    array = np.asarray(value)
    if array.size != 1:
        raise _Wrong(f"returned a {what} of shape {array.shape} instead of one number")
    return float(array.reshape(()))


def _short(action: Any) -> str:
    return np.array2string(np.asarray(action), threshold=20, max_line_width=10_000)
