"""A process as Gymnasium environments: one copy, or thousands of copies in one call."""

from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from kemeny.errors import UserError
from kemeny.tasks.process import Process

Start = Literal["first", "elsewhere", "shuffled"]
MASK, REGENERATION = "action_mask", "regeneration"
KEPT_STATES = 1_000
"""Visited states among which a restart chooses, unless `start` is `"first"`."""


class ProcessVectorEnv(VectorEnv):
    """Copies of a process, all stepped in one call.

    Observations are the states as they are, in single precision; rewards, costs (in `info`) and masks are those of the
    process. No copy ever terminates. If `largest` is given, a copy whose state has a larger sum is cut (`truncated`):
    so a policy under which queues grow without end is survived. `info["overflow"]` says which copies were cut, and
    `info["regeneration"]` which are in the first state of the process: what comes next is then independent of the past.

    A restart leads to the first state of the process or, with `start="elsewhere"`, to a state in which some copy was
    not long ago: then the copies stay near the steady state however often they are restarted. With `start="shuffled"`
    the parts of such a state change places: as many jobs, in other queues. So restarts show what a policy hardly ever
    leads to, such as a long queue that it always serves first.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(
        self, process: Process, num_envs: int, *, largest: float | None = None, start: Start = "first"
    ) -> None:
        if largest is not None and not largest > sum(process.start):
            raise UserError(f"largest is {largest}; it must be more than {sum(process.start)}, the sum of the start.")
        if start not in get_args(Start):
            raise UserError(f"start is {start!r}; it must be 'first', 'elsewhere' or 'shuffled'.")
        if start == "shuffled" and not interchangeable(process):
            raise UserError(
                f"start is 'shuffled', but {process.name} has no parts that can change places: there is only one, or "
                "their smallest or largest values differ. Use 'first' or 'elsewhere'."
            )
        self.process, self.num_envs, self.largest, self.start = process, num_envs, largest, start
        self.single_observation_space, self.single_action_space = spaces_of(process)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.states = np.tile(np.array(process.start, np.int64), (num_envs, 1))
        self.visited = self.states[:1].copy()
        """States in which some copy was not long ago."""
        self._never = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Restart all copies, or those of `options["reset_mask"]`."""
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        if seed is not None:
            self.visited = np.array([self.process.start], np.int64)
        if self.start == "first":
            self.states[mask] = self.process.start
        else:
            chosen = self.visited[self.np_random.integers(len(self.visited), size=int(mask.sum()))]
            self.states[mask] = self.np_random.permuted(chosen, axis=1) if self.start == "shuffled" else chosen
        return self._observe(), self._describe()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One step of all copies."""
        actions = np.asarray(actions).reshape(self.num_envs, -1)
        events = self.process.draw(self.states, actions, self.np_random)
        self.states, reward, costs = self.process.outcome(self.states, actions, events)
        info = self._describe() | dict(zip(self.process.cost_names, costs.T, strict=True))
        truncated = self._never
        if self.largest is not None:
            truncated = info["overflow"] = self.states.sum(axis=1) > self.largest
        if self.start != "first":
            self._remember(truncated)
        return self._observe(), reward, self._never, truncated, info

    def get_state(self) -> dict[str, Any]:
        """All that the next steps depend on."""
        return {"states": self.states, "visited": self.visited, "random": self.np_random}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.states, self.visited, self.np_random = state["states"], state["visited"], state["random"]

    def outcomes(self, observations: np.ndarray, actions: np.ndarray) -> dict[str, np.ndarray]:
        """What may come of actions: of each row all that may be observed next, how likely that is, the mean reward.

        `observation` is (rows, outcomes, parts), `probability` (rows, outcomes), `reward` (rows,), and `action_mask`,
        if there are masks, (rows, outcomes, options). There are as many outcomes as events that are possible at once.
        Where fewer are possible, the others have the probability 0 and lead nowhere.
        """
        states = np.rint(observations).astype(np.int64)
        actions = np.asarray(actions).reshape(len(states), -1)
        events, likely = possible(self.process, states, actions)
        after = np.empty((*events.shape, states.shape[1]), np.int64)
        reward = np.zeros(len(states))
        for number in range(events.shape[1]):
            next_states, paid, _ = self.process.outcome(states, actions, events[:, number])
            after[:, number] = np.where(
                likely[:, number, None] > 0, next_states, states
            )  # what cannot happen is no state
            reward += likely[:, number] * paid
        found = {"observation": after.astype(np.float32), "probability": likely, "reward": reward}
        allowed = self.process.allowed(after.reshape(-1, states.shape[1]))
        return found if allowed is None else found | {MASK: allowed.reshape(*events.shape, -1)}

    def _observe(self) -> np.ndarray:
        return self.states.astype(np.float32)

    def _describe(self) -> dict[str, np.ndarray]:
        """The `info` of the present states."""
        allowed = self.process.allowed(self.states)
        info = {} if allowed is None else {MASK: allowed.view(np.int8)}
        return info | {REGENERATION: self._at_first()}

    def _at_first(self) -> np.ndarray:
        """Which copies are in the first state; part by part, which is several times faster than rows of few parts."""
        first = self.states[:, 0] == self.process.start[0]
        for part in range(1, len(self.process.start)):
            first &= self.states[:, part] == self.process.start[part]
        return first

    def _remember(self, left_out: np.ndarray) -> None:
        """Keep some of the present states in place of older ones."""
        kept = np.flatnonzero(~left_out)
        if kept.size:
            some = self.states[kept[self.np_random.integers(kept.size, size=max(1, self.num_envs // 100))]]
            self.visited = np.concatenate([self.visited, some])[-KEPT_STATES:]


class OneCopy(gymnasium.Env):
    """A vector environment of one copy, as an ordinary environment."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, copies: VectorEnv) -> None:
        self._copies = copies
        self.observation_space = copies.single_observation_space
        self.action_space = copies.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Back to the start."""
        super().reset(seed=seed)
        observation, info = self._copies.reset(seed=seed)
        return observation[0], _of_one(info)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One step."""
        observation, reward, _, truncated, info = self._copies.step(np.asarray(action)[None])
        return observation[0], float(reward[0]), False, bool(truncated[0]), _of_one(info)


class ProcessEnv(OneCopy):
    """One copy of a process, with the same observations, rewards, costs and masks."""

    def __init__(self, process: Process, *, largest: float | None = None, start: Start = "first") -> None:
        super().__init__(ProcessVectorEnv(process, 1, largest=largest, start=start))
        self.process = process


def _of_one(info: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: rows[0] if rows[0].ndim else rows[0].item() for name, rows in info.items()}


def possible(process: Process, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The events that are possible in each row, and how likely they are; filled up where they are fewer than usual."""
    likely = np.broadcast_to(process.probabilities(states, actions), (len(states), process.events))
    if process.at_once is None:
        return np.broadcast_to(np.arange(process.events), likely.shape), likely
    first = np.argsort(likely == 0, axis=1, kind="stable")[:, : process.at_once]
    found = np.take_along_axis(likely, first, axis=1)
    if np.count_nonzero(found) != np.count_nonzero(likely):
        most = np.count_nonzero(likely, axis=1).max()
        raise UserError(
            f"{process.name} says that at most {process.at_once} events are possible at once, but there are {most}: "
            "at_once must be larger, or None."
        )
    return first, found


def interchangeable(process: Process) -> bool:
    """Whether the parts of a state, of which there are several, may change places."""
    return len(process.start) > 1 and len({*zip(process.lowest, process.highest, strict=True)}) == 1


def spaces_of(process: Process) -> tuple[spaces.Box, spaces.Space]:
    """The spaces of the observations and of the actions of one copy."""
    high = np.array([np.inf if value is None else value for value in process.highest], np.float32)
    observation = spaces.Box(np.array(process.lowest, np.float32), high, dtype=np.float32)
    if len(process.choices) == 1:
        return observation, spaces.Discrete(process.choices[0])
    return observation, spaces.MultiDiscrete(list(process.choices))
