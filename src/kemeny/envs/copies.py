"""The copies of one vector environment: none restarts by itself, whichever autoreset mode of Gymnasium it has.

- `DISABLED`: copies that ended are restarted before the next step, which they could not take.
- `NEXT_STEP`: a copy that ended would restart in its next step and ignore the action. Restarting it before with
  `reset_mask` takes that back.
- `SAME_STEP`: a copy that ended has restarted already. The step's observation is `final_obs`, and the start observation
  is kept until the copy is restarted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from kemeny.envs import states
from kemeny.envs.costs import Cost
from kemeny.envs.gymnasium import remove_time_limit
from kemeny.envs.masks import first_allowed, has_key, widen
from kemeny.envs.pool import REGENERATION, Step
from kemeny.envs.spaces import understand_actions, understand_observations
from kemeny.envs.strangers import RAISED, close_quietly, type_and_text
from kemeny.envs.vector_info import FINAL_OBS, VectorInfo, read_costs
from kemeny.envs.vector_masks import VectorMasks, has_masks, put_in_info
from kemeny.errors import Damaged, RunError, UserError
from kemeny.spaces import BadMask, Misfit, read_rows
from kemeny.spec import Continuous, Spec, vector

ALLOWED = "allowed"
"""Name of the present masks in a state."""
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
        self._masks = self._find_masks()
        if self._masks is not None:
            self.spec = widen(self.spec)
        self._start = np.zeros((self.num_envs, self.spec.observation.size), np.float32)
        """Start observations of copies that have restarted."""

    def begin(self, seed: int) -> np.ndarray:
        """Restart all copies, with a new seed; returns their start observations."""
        self._fresh[:] = self._over[:] = False
        return self._reset(np.ones(self.num_envs, bool), seed=seed)

    def restart(self, which: np.ndarray, seeds: Sequence[int | None] | None = None) -> np.ndarray:
        """Restart some copies, each with its seed if seeds are given; returns (n, D): only their rows are meant."""
        again = which & ~self._fresh if seeds is None else which
        if np.count_nonzero(again):
            rows = self._reset(again, seed=seeds, options={"reset_mask": again.copy()})
            self._start[again] = rows[again]
        self._fresh[which] = self._over[which] = False
        return self._start

    def step(self, actions: np.ndarray, meant: np.ndarray) -> Step:
        """One step of all copies; those that are not `meant` take some action that is allowed, and wait for a restart.

        Those that are meant must have been restarted if they ended.
        """
        if self._mode is AutoresetMode.DISABLED and np.count_nonzero(self._over):
            self.restart(self._over.copy())
        if len(meant) < self.num_envs:
            others = np.ones(self.num_envs, bool)
            others[meant] = False
            actions[others] = self.actions.batch(first_allowed(self.spec, self._allowed()))[others]
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
        observation = self._masked(observation, values[4], ~self._over | self._fresh, self._over & ~self._fresh)
        if np.count_nonzero(self._fresh):
            self._start[self._fresh] = observation[self._fresh]
            observation[self._fresh] = self._last_masked(self._last_rows(values[4]), values[4])
        costs, regeneration = np.empty((self.num_envs, 0)), np.zeros(self.num_envs, bool)
        says = isinstance(values[4], Mapping) and REGENERATION in values[4]
        if self._costs or says:
            info = VectorInfo(values[4], self._fresh, self.name)
            seen = observation[:, : self.spec.features]
            costs = read_costs(self._costs, info, meant, seen, actions, reward, terminated, self.name)
            regeneration = info.flag(REGENERATION) if says else regeneration
        return Step(observation, reward, terminated, truncated, costs, regeneration)

    def get_state(self) -> dict[str, np.ndarray]:
        """The state of all copies and of their randomness; none may wait for a restart."""
        arrays = states.to_arrays(self._call(self.env.get_state), self.name)  # pyright: ignore[reportAttributeAccessIssue]
        return arrays if self._masks is None else {ALLOWED: self._masks.allowed.copy(), **arrays}

    def set_state(self, arrays: dict[str, np.ndarray]) -> bool:
        """Go to a state that was saved; whether the environment has it now."""
        self.begin(0)  # nothing of what was before may stay
        own = {name: array for name, array in arrays.items() if name != ALLOWED}
        self._call(self.env.set_state, states.from_arrays(own))  # pyright: ignore[reportAttributeAccessIssue]
        if self._masks is not None:
            if ALLOWED not in arrays or arrays[ALLOWED].shape != self._masks.allowed.shape:
                raise Damaged(f"The checkpoint does not fit its run: it does not hold the masks of {self.name}.")
            self._masks.allowed[:] = arrays[ALLOWED]
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
            rows = self._reset(~other, options={"reset_mask": ~other})
            self._over[~other] = self._fresh[~other] = False
            if not np.array_equal(rows[other], now[other], equal_nan=True):
                raise UserError(
                    f"{self.name} restarts all of its copies if only some should: its reset() must restart those where "
                    'options["reset_mask"] is True, and return the present observations of the others.'
                )
        if self.has_state:
            self._try_state()

    def _try_state(self) -> None:
        self.restart(self._over.copy())
        saved = self.get_state()
        once = self._walk()
        came_back = self.set_state(saved)
        if not came_back or not all(map(np.array_equal, once, self._walk())):
            raise UserError(
                f"{self.name} does not come back to where it was by set_state(get_state()): both must have everything "
                "that the next steps depend on, the generator of random numbers too."
            )

    def _walk(self) -> list[np.ndarray]:
        """What some steps give, and the restarts after them; always the same actions."""
        seen, rng = [], np.random.default_rng(1)
        for _ in range(PROBE_STEPS):
            step = self.step(self._any_actions(rng), np.arange(self.num_envs))
            over = self._over.copy()
            seen += [np.nan_to_num(column) for column in step]
            if over.any():
                seen.append(np.nan_to_num(self.restart(over)[over]))
        return seen

    def _any_actions(self, rng: np.random.Generator) -> np.ndarray:
        kind = self.actions.spec
        if self._masks is not None:  # the first of the largest numbers is one of those that are allowed
            return self.actions.batch(first_allowed(self.spec, self._allowed() * rng.random(self._allowed().shape)))
        if isinstance(kind, Continuous):
            return self.actions.batch(rng.uniform(-1, 1, (self.num_envs, kind.size)))
        return self.actions.batch(rng.integers(kind.choices, size=(self.num_envs, len(kind.choices))))

    def _reset(self, which: np.ndarray, **how: Any) -> np.ndarray:
        """Call `reset`, which restarts these; returns the present rows of all copies."""
        observation, info = self._call_reset(**how)
        return self._masked(self._rows(observation), info, which)

    def _call_reset(self, **how: Any) -> tuple[Any, Any]:
        values = self._call(self.env.reset, **how)
        if not isinstance(values, tuple) or len(values) != 2:
            raise self._wrong("something else from reset() than (observations, infos)")
        return values

    def _find_masks(self) -> VectorMasks | None:
        """The masks of the copies; whether `info` has them is found by a restart before those of the run."""
        if isinstance(self.actions.spec, Continuous):
            return None
        put_in_info(self.env)
        _, info = self._call_reset(seed=0)
        return VectorMasks(self.env, self.actions.spec) if has_masks(self.env, info) else None

    def _allowed(self) -> np.ndarray:
        return np.ones((self.num_envs, 0)) if self._masks is None else self._masks.allowed

    def _masked(self, rows: np.ndarray, info: Any, known: np.ndarray, ended: np.ndarray | None = None) -> np.ndarray:
        """Rows and their masks behind them; `known` are the copies whose masks must have come now, `ended` may have."""
        try:
            if self._masks is not None:
                self._masks.update(info, known, ended)
                return np.concatenate([rows, self._masks.allowed], 1)
            if not isinstance(self.actions.spec, Continuous) and has_key(info):
                raise BadMask("did not come with its first observation, though one must come with every observation")
        except BadMask as bad:
            raise self._wrong_mask(bad) from bad
        return rows

    def _last_masked(self, rows: np.ndarray, info: Any) -> np.ndarray:
        """Last rows of the copies that restarted within this step, and their masks behind them."""
        try:
            return (
                rows
                if self._masks is None
                else np.concatenate([rows, self._masks.before_restart(info, self._fresh)], 1)
            )
        except BadMask as bad:
            raise self._wrong_mask(bad) from bad

    def _wrong_mask(self, bad: BadMask) -> RunError:
        return RunError(f"The vector environment {self.name} has a wrong action mask: it {bad}.")

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
