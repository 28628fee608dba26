"""The copies of one vector environment: none restarts by itself, whichever autoreset mode of Gymnasium it has.

- `DISABLED`: copies that ended are restarted before the next step, which they could not take.
- `NEXT_STEP`: a copy that ended would restart in its next step and ignore the action. Restarting it before with
  `reset_mask` takes that back.
- `SAME_STEP`: a copy that ended has restarted already. The step's observation is `final_obs`, and the start observation
  is kept until the copy is restarted.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from kemeny.envs import states
from kemeny.envs.costs import Cost
from kemeny.envs.gymnasium import remove_time_limit
from kemeny.envs.pool import Step
from kemeny.envs.spaces import understand_actions, understand_observations
from kemeny.envs.strangers import RAISED, close_quietly, type_and_text
from kemeny.envs.vector_info import FINAL_OBS, VectorInfo, read_costs
from kemeny.errors import RunError, UserError
from kemeny.spaces import Misfit, read_rows
from kemeny.spec import Continuous, Spec, vector

PROBE_STEPS = 20
"""Steps with which a new environment is tried."""


class Copies:
    """All copies of one vector environment, in rows; those that ended wait for `restart`."""

    def __init__(self, env: VectorEnv, name: str, costs: Sequence[Cost], time_limit: int | None = None) -> None:
        self.env, self.name, self._costs = env, name, tuple(costs)
        self.num_envs = int(env.num_envs)
        self._mode = _autoreset_mode(env, name)
        base = env.unwrapped
        self.seeded_each = isinstance(base, SyncVectorEnv | AsyncVectorEnv)
        """Whether every copy has randomness of its own, and takes a seed of its own when it restarts."""
        self.has_state = all(callable(getattr(env, method, None)) for method in ("get_state", "set_state"))
        """Whether the state of all copies can be saved (`envs.states`)."""
        limits = [] if time_limit is None else [time_limit]
        if isinstance(base, SyncVectorEnv):
            for i, single in enumerate(base.envs):
                base.envs[i], limit = remove_time_limit(single)
                limits += [] if limit is None else [limit]
        try:
            observation_space, action_space = env.single_observation_space, env.single_action_space
        except RAISED as error:
            raise UserError(
                f"{name} does not say what the spaces of one copy are (single_observation_space, single_action_space): "
                f"{type_and_text(error)}."
            ) from error
        self._observations = understand_observations(observation_space, name)
        self.actions = understand_actions(action_space, name)
        self.spec = Spec(
            vector(self._observations.size), self.actions.spec, min(limits, default=None), self._observations
        )
        self._steps = 0
        self._over = np.zeros(self.num_envs, bool)
        """Which copies ended and have not been restarted since."""
        self._fresh = np.zeros(self.num_envs, bool)
        """Which copies restarted within the latest step."""
        self._start = np.zeros((self.num_envs, self._observations.size), np.float32)
        """Start observations of copies that have restarted."""

    def begin(self, seed: int) -> np.ndarray:
        """Restart all copies, with a new seed; returns their start observations."""
        self._fresh[:] = self._over[:] = False
        return self._reset(seed=seed)

    def restart(self, which: np.ndarray, seeds: Sequence[int | None] | None = None) -> np.ndarray:
        """Restart some copies, each with its seed if seeds are given; returns (n, D): only their rows are meant."""
        again = which & ~self._fresh if seeds is None else which
        if np.count_nonzero(again):
            rows = self._reset(seed=seeds, options={"reset_mask": again.copy()})
            self._start[again] = rows[again]
        self._fresh[which] = self._over[which] = False
        return self._start

    def step(self, actions: np.ndarray, meant: np.ndarray) -> Step:
        """One step of all copies; of `meant` the costs are read, and they must have been restarted if they ended."""
        if self._mode is AutoresetMode.DISABLED and np.count_nonzero(self._over):
            self.restart(self._over.copy())
        self._steps += 1
        values = self._call(self.env.step, actions)
        if not isinstance(values, tuple) or len(values) != 5:
            raise self._wrong(
                "something else from step() than (observations, rewards, terminations, truncations, infos)"
            )
        observation = self._rows(values[0])
        reward = self._column(values[1], "rewards")
        reward = reward if reward.dtype.kind == "f" else reward.astype(np.float64)
        terminated = self._column(values[2], "terminations").astype(bool)
        truncated = self._column(values[3], "truncations").astype(bool)
        self._over = terminated | truncated
        self._fresh = self._over & (self._mode is AutoresetMode.SAME_STEP)
        if np.count_nonzero(self._fresh):
            self._start[self._fresh] = observation[self._fresh]
            observation[self._fresh] = self._last_rows(values[4])
        costs = np.empty((self.num_envs, 0))
        if self._costs:
            info = VectorInfo(values[4], self._fresh, self.name)
            costs = read_costs(self._costs, info, meant, observation, actions, reward, self.name)
        return Step(observation, reward, terminated, truncated, costs)

    def get_state(self) -> dict[str, np.ndarray]:
        """The state of all copies and of their randomness; none may wait for a restart."""
        return states.to_arrays(self._call(self.env.get_state), self.name)  # pyright: ignore[reportAttributeAccessIssue]

    def set_state(self, arrays: dict[str, np.ndarray]) -> bool:
        """Go to a state that was saved; whether the environment has it now."""
        self.begin(0)  # nothing of what was before may stay
        self._call(self.env.set_state, states.from_arrays(arrays))  # pyright: ignore[reportAttributeAccessIssue]
        return states.same(self.get_state(), arrays)

    def close(self) -> None:
        """Close the environment."""
        close_quietly(self.env)

    def try_out(self) -> None:
        """Take a few steps, and refuse what ignores `reset_mask`, or does not come back by `set_state`."""
        rng = np.random.default_rng(0)
        everyone = np.arange(self.num_envs)
        other = everyone % 2 == 1
        self.begin(0)
        for _ in range(PROBE_STEPS):
            step = self.step(self._any_actions(rng), everyone[~self._over])  # of the others, some restart instead
            now = np.where(self._fresh[:, None], self._start, step.observation)
            rows = self._reset(options={"reset_mask": ~other})
            self._over[~other] = self._fresh[~other] = False
            if not np.array_equal(rows[other], now[other], equal_nan=True):
                raise UserError(
                    f"{self.name} restarts all of its copies if only some should: its reset() must restart those where "
                    'options["reset_mask"] is True, and return the present observations of the others.'
                )
        if self.has_state:
            self._try_state(rng)

    def _try_state(self, rng: np.random.Generator) -> None:
        actions = [self._any_actions(rng) for _ in range(PROBE_STEPS)]
        self.restart(self._over.copy())
        saved = self.get_state()
        once = self._walk(actions)
        came_back = self.set_state(saved)
        if not came_back or not all(map(np.array_equal, once, self._walk(actions))):
            raise UserError(
                f"{self.name} does not come back to where it was by set_state(get_state()): both must have everything "
                "that the next steps depend on, the generator of random numbers too."
            )

    def _walk(self, actions: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What some steps give, and the restarts after them."""
        seen = []
        for action in actions:
            step = self.step(action, np.arange(self.num_envs))
            over = self._over.copy()
            seen += [np.nan_to_num(column) for column in step]
            if over.any():
                seen.append(np.nan_to_num(self.restart(over)[over]))
        return seen

    def _any_actions(self, rng: np.random.Generator) -> np.ndarray:
        kind = self.actions.spec
        if isinstance(kind, Continuous):
            return self.actions.batch(rng.uniform(-1, 1, (self.num_envs, kind.size)))
        return self.actions.batch(rng.integers(kind.choices, size=(self.num_envs, len(kind.choices))))

    def _reset(self, **how: Any) -> np.ndarray:
        values = self._call(self.env.reset, **how)
        if not isinstance(values, tuple) or len(values) != 2:
            raise self._wrong("something else from reset() than (observations, infos)")
        return self._rows(values[0])

    def _call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        """What a method of the environment returns."""
        try:
            return method(*arguments, **options)
        except RAISED as error:
            doing = f"{getattr(method, '__name__', 'call')}()"
            masked = " with a reset_mask" if "reset_mask" in (options.get("options") or {}) else ""
            raise RunError(
                f"The vector environment {self.name} raised {type_and_text(error)} in {doing}{masked}, after "
                f"{self._steps} steps."
            ) from error

    def _rows(self, observation: Any) -> np.ndarray:
        """Observations of all copies, as a policy sees them, in a new array."""
        try:
            rows, single = read_rows(self._observations, observation, any_type=True)
        except Misfit as misfit:
            part = f" as their part {misfit.part}" if misfit.part else ""
            raise self._wrong(f"{misfit.plural} instead of {misfit.wanted}{part}") from misfit
        if single or len(rows) != self.num_envs:
            found = "one observation" if single else f"{len(rows)} observations"
            raise self._wrong(f"{found} instead of {self.num_envs}")
        return rows

    def _last_rows(self, info: Any) -> np.ndarray:
        """Observations in which the copies ended that restarted within this step."""
        last = info.get(FINAL_OBS)
        try:
            if isinstance(last, np.ndarray) and last.dtype == object:  # as Gymnasium has them: an observation per copy
                return np.concatenate([self._last_row(one) for one in last[self._fresh]])
            rows, single = read_rows(self._observations, last, any_type=True)
            if single or len(rows) != self.num_envs:
                raise Misfit("", f"{self.num_envs} observations", "another number")
            return rows[self._fresh]
        except (Misfit, ValueError, TypeError) as error:
            raise UserError(
                f"{self.name} restarts its copies within the step that ends them (SAME_STEP), so its info must have, "
                f'under "{FINAL_OBS}", the last observation of each copy that ended.'
            ) from error

    def _last_row(self, observation: Any) -> np.ndarray:
        rows, single = read_rows(self._observations, observation, any_type=True)
        if not single:
            raise Misfit("", "one observation", "several")
        return rows

    def _column(self, values: Any, what: str) -> np.ndarray:
        """One number per copy, in a new array, for an environment may write into its own at the next step."""
        array = np.array(values)
        if array.shape != (self.num_envs,) or array.dtype.kind not in "biuf":
            expected = f"{self.num_envs} numbers"
            raise self._wrong(f"{what} of shape {array.shape} and type {array.dtype} instead of {expected}")
        return array

    def _wrong(self, what: str) -> RunError:
        return RunError(f"The vector environment {self.name} returned {what}.")


def _autoreset_mode(env: VectorEnv, name: str) -> AutoresetMode:
    mode = (env.metadata or {}).get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise UserError(
            f'{name} does not say how its copies restart: set metadata["autoreset_mode"] to NEXT_STEP, SAME_STEP or '
            "DISABLED of gymnasium.vector.AutoresetMode."
        )
    return mode
