"""Any Gymnasium environment behind the pool interface; an environment that fails is named in the error."""

import contextlib
import functools
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from kemeny.envs.costs import Cost, call_cost, read_cost, refuse_names
from kemeny.envs.faults import TRIES
from kemeny.envs.masks import Masks, first_allowed, has_key, has_method, widen
from kemeny.envs.names import Environment, EnvLike, Maker, as_environment, envpool_ids, find, refuse_misfit, unknown
from kemeny.envs.pool import DEFAULT_SIMULATION, REGENERATION, Clock, Comeback, Step, seed_of
from kemeny.envs.settings import Simulation
from kemeny.envs.spaces import Actions, understand_actions, understand_observations
from kemeny.envs.strangers import RAISED, close_quietly, text_of, type_and_text
from kemeny.errors import RunError, UserError
from kemeny.spaces import BadMask, Misfit, Space, read_rows
from kemeny.spec import Continuous, Spec, vector

FIRST_SEED = 0
"""Of the restart that shows whether an environment has masks."""


class EnvironmentFault(RunError):
    """An environment raised, or returned what it should not."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index
        """Number of the environment in the run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.index)


class NotMade(UserError):
    """An environment raised when it was made; the cause is what it raised."""


def make_env(env: EnvLike) -> tuple[gymnasium.Env, int | None]:
    """One environment without its time limit, and that time limit.

    Every `TimeLimit` is removed, also from below other wrappers, so that a function returning
    `FlattenObservation(gymnasium.make(…))` means the same as an id. If an environment cuts trajectories in another
    way, it still does.
    """
    return remove_time_limit(_make(as_environment(env)))


def remove_time_limit(made: gymnasium.Env) -> tuple[gymnasium.Env, int | None]:
    """An environment without any `TimeLimit`, and the shortest that it had."""
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


def _make(env: Environment) -> gymnasium.Env:
    found = find(env)
    try:
        made = _make_registered(found, env.kwargs) if isinstance(found, str) else _call(found, env)
    except UserError:
        raise
    except RAISED as error:
        raise NotMade(f"{env.name} could not be made: it raised {type_and_text(error)}.") from error
    if isinstance(made, gymnasium.vector.VectorEnv):
        raise UserError(
            f"{env.name} returned a vector environment of its own size: give it a parameter num_envs, and let it "
            "make one of that many copies at each call."
        )
    if not isinstance(made, gymnasium.Env):
        raise UserError(
            f"The function {env.name} returned an object of type {type(made).__name__}, "
            "but it must return a new gymnasium.Env at each call."
        )
    return made


def _call(maker: Maker, env: Environment) -> Any:
    refuse_misfit(maker, env)
    return maker(**env.kwargs)


def _make_registered(env: str, env_kwargs: Mapping[str, Any]) -> gymnasium.Env:
    if env not in gymnasium.registry and ":" not in env:
        if env in envpool_ids():
            raise UserError(f"Gymnasium has no {env}, but EnvPool has: leave the backend at auto and workers at 0.")
        raise unknown(env)
    try:
        with warnings.catch_warnings(), _quiet_mujoco(env):
            # The version is the user's choice: results are compared between v4 and v5.
            warnings.filterwarnings("ignore", message=".*is out of date", category=DeprecationWarning)
            # Gymnasium's checker would refuse the six values of Safety-Gymnasium; the checks here replace it.
            return gymnasium.make(env, disable_env_checker=True, **env_kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        raise unknown(env) from error
    except (ImportError, gymnasium.error.Error) as error:
        advice = " EnvPool has it: leave the backend at auto and workers at 0." if env in envpool_ids() else ""
        raise UserError(f"Gymnasium cannot make {env}: {text_of(error).splitlines()[0]}{advice}") from error


@contextlib.contextmanager
def _quiet_mujoco(env: str) -> Iterator[None]:
    """Silence MuJoCo's warnings about Gymnasium's own models, on the terminal and in ./MUJOCO_LOG.TXT."""
    registered = gymnasium.registry.get(env)
    if registered is None or "envs.mujoco" not in str(registered.entry_point):
        yield
        return
    try:
        mujoco: Any = importlib.import_module("mujoco")
    except ImportError:  # Gymnasium's own error will say what to install
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def understand(env: gymnasium.Env, name: str, time_limit: int | None) -> tuple[Spec, Space, Actions]:
    """Spec and spaces of an environment, or a `UserError`."""
    try:
        observation_space, action_space = env.observation_space, env.action_space
    except RAISED as error:
        raise UserError(f"{name} does not say what its spaces are: {type_and_text(error)}.") from error
    observations = understand_observations(observation_space, name)
    actions = understand_actions(action_space, name)
    return Spec(vector(observations.size), actions.spec, time_limit, observations), observations, actions


def inspect_gymnasium(env: EnvLike, costs: Sequence[Cost]) -> Spec:
    """The spec of a Gymnasium environment, found by making one and taking one step."""
    block: Block | None = None
    try:
        block = Block(env, [0], costs)
        start = block.reset([0], [0])
        block.step([0], block.actions.batch(first_allowed(block.spec, start)))
        return block.spec
    except EnvironmentFault as fault:
        raise UserError(f"{as_environment(env).name} failed its first step: {fault}") from fault.__cause__
    finally:
        if block is not None:
            block.close()


class Block:
    """Environments of one process, addressed by their place in the block.

    `indices` are their numbers in the run. With `restart_faulty` an environment that fails is noted for `take_faults`,
    its rows are NaN, and its next `reset` makes a new one; without, the fault is raised.
    """

    def __init__(
        self,
        env: EnvLike,
        indices: Sequence[int],
        costs: Sequence[Cost],
        restart_faulty: bool = False,
    ) -> None:
        env = as_environment(env)
        self.name = env.name
        self._make = functools.partial(make_env, env)
        self._restart_faulty = restart_faulty
        self._broken: set[int] = set()
        self._faults: list[str] = []
        self._indices = list(indices)
        self._costs = tuple(costs)
        self.envs: list[gymnasium.Env] = []
        self._steps = [0] * len(self._indices)
        limit = None
        try:
            for _ in self._indices:
                made, limit = self._new()
                self.envs.append(made)
            self.spec, self.observations, self.actions = understand(self.envs[0], self.name, limit)
            self._masks = self._find_masks()
            if self._masks is not None:
                self.spec = widen(self.spec)
        except BaseException:
            self.close()
            raise

    def reset(self, places: Sequence[int], seeds: Sequence[int]) -> np.ndarray:
        """Restart these environments with these seeds; returns their start observations."""
        rows = np.empty((len(places), *self.spec.observation.shape), self.spec.observation.dtype)
        for row, (place, seed) in enumerate(zip(places, seeds, strict=True)):
            self._steps[place] = 0
            try:
                if place in self._broken:
                    self._replace(place)
                observation, info = self.envs[place].reset(seed=int(seed))
                self._write(rows[row], self.envs[place], observation, info)
            except RAISED as error:
                self._note_or_raise(place, error, f"when it was restarted with seed {seed}")
                rows[row] = np.nan
        return rows

    def step(self, places: Sequence[int], actions: np.ndarray) -> Step:
        """One step of these environments, with actions that are already converted for them."""
        step = Step.empty(len(places), self.spec.observation, len(self._costs))
        for row, place in enumerate(places):
            self._steps[place] += 1
            action = actions[row]
            try:
                self._step_one(step, row, self.envs[place], action)
            except (UserError, RunError):
                raise
            except RAISED as error:
                when = f"at step {self._steps[place]} after its restart, with action {_short(action)}"
                self._note_or_raise(place, error, when)
                step.mark_failed(row)
        return step

    def take_faults(self) -> list[str]:
        """What failed since the last call."""
        faults, self._faults = self._faults, []
        return faults

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            close_quietly(env)

    def _new(self) -> tuple[gymnasium.Env, int | None]:
        """An environment that is none of those there are, and its time limit."""
        made, limit = self._make()
        if any(made.unwrapped is other.unwrapped for other in self.envs):
            raise UserError(
                f"The function {self.name} returned the same environment twice, "
                "but it must return a new one at each call."
            )
        return made, limit

    def _find_masks(self) -> Masks | None:
        """The masks of the environments; whether `info` has them is found by a restart of one that the run never sees.

        So state that outlives a restart is the same in all environments of the run.
        """
        if isinstance(self.actions.spec, Continuous):
            return None
        if has_method(self.envs[0]):
            return Masks(self.actions.spec, by_method=True)
        for _ in range(TRIES):
            try:
                if self._broken:
                    self._replace(0)
                _, info = self.envs[0].reset(seed=FIRST_SEED)
                self._replace(0)
                return Masks(self.actions.spec, by_method=False) if has_key(info) else None
            except UserError:
                raise
            except RAISED as error:
                self._note_or_raise(0, error, f"when it was restarted with seed {FIRST_SEED}")
        raise RunError(f"{self._faults[-1]} It has failed {TRIES} times in a row.")

    def _note_or_raise(self, place: int, error: BaseException, when: str) -> None:
        """Note the fault for `take_faults`, or raise it unless faulty environments are restarted."""
        index = self._indices[place]
        what = str(error) if isinstance(error, _Wrong) else f"raised {type_and_text(error)}"
        fault = EnvironmentFault(f"Environment {index} ({self.name}) {what}, {when}.", index)
        if not self._restart_faulty:
            raise fault from error
        self._faults.append(str(fault))
        self._broken.add(place)

    def _replace(self, place: int) -> None:
        """Make a new environment in place of one that failed, because the state of that one is unknown."""
        close_quietly(self.envs[place])
        try:
            self.envs[place], _ = self._new()
        except NotMade as error:
            raise _Wrong(f"could not be made again ({type_and_text(error.__cause__ or error)})") from error
        self._broken.discard(place)

    def _step_one(self, step: Step, row: int, env: gymnasium.Env, action: Any) -> None:
        values: tuple[Any, ...] = tuple(env.step(action))
        if len(values) == 6:  # in Safety-Gymnasium the cost follows the reward
            observation, reward, cost, terminated, truncated, info = values
            info = {**info, "cost": cost}
        elif len(values) == 5:
            observation, reward, terminated, truncated, info = values
        else:
            expected = "(observation, reward, terminated, truncated, info)"
            raise _Wrong(f"returned {len(values)} values from step() instead of {expected}")
        step.reward[row] = _number(reward, "reward")
        step.terminated[row] = bool(_number(terminated, "terminated"))
        step.truncated[row] = bool(_number(truncated, "truncated"))
        self._write(step.observation[row], env, observation, info, ended=step.terminated[row] or step.truncated[row])
        if isinstance(info, Mapping) and REGENERATION in info:
            step.regeneration[row] = bool(_number(info[REGENERATION], f"info[{REGENERATION!r}]"))
        for k, cost in enumerate(self._costs):
            if isinstance(cost, str):
                refuse_names([cost], info, self.name)
                value = read_cost(cost, info, step.terminated[row])
                if np.asarray(value).dtype.kind not in "biuf":
                    raise UserError(f"{self.name} has a cost {cost!r} that is not a number: {value!r}.")
            else:
                value = call_cost(
                    cost, step.observation[row, : self.spec.features], action, float(step.reward[row]), info
                )
            step.costs[row, k] = _number(value, "cost")

    def _write(self, row: np.ndarray, env: gymnasium.Env, observation: Any, info: Any, ended: bool = False) -> None:
        """Write an observation, and its mask behind it, into the row that the policy sees."""
        try:
            rows, single = read_rows(self.observations, observation, any_type=True)
            if not single:
                raise Misfit("", self.observations, "a batch of observations")
        except Misfit as misfit:
            where = f" as the part {misfit.part} of its observation" if misfit.part else ""
            raise _Wrong(f"returned {misfit}{where}") from misfit
        features = self.spec.features
        row[:features] = rows[0]
        try:
            if self._masks is not None:
                row[features:] = self._masks.read(env, info, ended)
            elif has_key(info) and not isinstance(self.actions.spec, Continuous):
                raise BadMask("did not come with its first observation, though one must come with every observation")
        except BadMask as bad:
            raise _Wrong(f"has a wrong action mask: it {bad}") from bad


class GymnasiumPool:
    """Gymnasium environments in this process, stepped one after the other in `recv`.

    Restart number k of environment i is `env.reset(seed=…)` with a seed made from (the run's seed, i, k): a trajectory
    depends on that seed and its actions only, not on anything before.
    """

    comeback: Comeback = "replay"

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
        self.num_envs = num_envs
        indices = range(first_env, first_env + num_envs)
        self._block = Block(env, indices, costs, simulation.restart_faulty)
        self.spec = self._block.spec
        self._clock = Clock(num_envs, time_limit)
        self._seeds = RestartSeeds(seed, first_env, num_envs)
        self.sent = np.empty(0)

    def reset(self, ids: np.ndarray) -> np.ndarray:
        """Restart these environments; returns their start observations, one row per id."""
        ids = self._clock.restart(ids)
        return self._block.reset(ids.tolist(), self._seeds.take(ids))

    def send(self, action: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Keep the actions until `recv` takes the step."""
        self._clock.begin(ids)
        self.sent = self._block.actions.batch(action)

    def recv(self) -> Step:
        """Take the step that was begun; its rows are in the order of the ids sent."""
        try:
            step = self._block.step(self._clock.stepping().tolist(), self.sent)
        except BaseException:
            self._clock.abandon()
            raise
        return step._replace(truncated=self._clock.end(step.terminated, step.truncated))

    def fast_forward(self, restarts: np.ndarray) -> None:
        """Continue as after this many restarts of each environment."""
        self._seeds.fast_forward(restarts)

    def take_faults(self) -> list[str]:
        """What failed since the last call."""
        return self._block.take_faults()

    def wrap(self, wrapper: Callable[[gymnasium.Env], gymnasium.Env]) -> None:
        """Put a wrapper around each environment."""
        self._block.envs[:] = map(wrapper, self._block.envs)

    def env(self, place: int) -> gymnasium.Env:
        """The Gymnasium environment at this place."""
        return self._block.envs[place]

    def close(self) -> None:
        """Close the environments."""
        self._block.close()


class RestartSeeds:
    """The seed of each restart, and the number of restarts of each environment so far."""

    def __init__(self, seed: int, first_env: int, num_envs: int) -> None:
        self._seed = seed
        self._first_env = first_env
        self._restarts = np.zeros(num_envs, dtype=np.int64)

    def take(self, ids: np.ndarray) -> list[int]:
        """Seeds for the next restart of these environments, which is counted."""
        seeds = [seed_of(self._seed, self._first_env + int(i), int(self._restarts[i])) for i in ids]
        self._restarts[ids] += 1
        return seeds

    def fast_forward(self, restarts: np.ndarray) -> None:
        """Continue as after this many restarts of each environment."""
        self._restarts[:] = restarts


class _Wrong(Exception):
    """What an environment did wrong, as the end of a sentence that begins with its name."""


def _number(value: Any, what: str) -> float:
    array = np.asarray(value)
    if array.size != 1:
        raise _Wrong(f"returned a {what} of shape {array.shape} instead of one number")
    return float(array.reshape(()))


def _short(action: Any) -> str:
    return np.array2string(np.asarray(action), threshold=20, max_line_width=10_000)
