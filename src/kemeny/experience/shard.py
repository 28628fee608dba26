"""Some of a run's environments: where each of them stands, how it steps, falls, is cut and comes back."""

from collections import deque
from collections.abc import Mapping
from typing import Protocol, cast

import numpy as np

from kemeny.envs.faults import Faults
from kemeny.envs.pool import Pool, Stateful, Step
from kemeny.experience.acting import Policy
from kemeny.experience.settings import Task
from kemeny.observers import Observer
from kemeny.rollout import Rollout
from kemeny.spaces import ArraySpec

F32 = np.float32
LATEST_STARTS = 200
"""Restarts over which the value of the start states is averaged."""
NEVER = 2**62
"""Steps after which a trajectory without a limit is cut."""


class Shard:
    """Some of a run's environments, and where each of them stands."""

    def __init__(
        self,
        pool: Pool,
        task: Task,
        longest: np.ndarray,
        phase: np.ndarray,
        faults: Faults,
        starts: "Sink",
        num_costs: int,
        observer: Observer,
    ) -> None:
        """`longest` is the number of steps after which a trajectory of each environment is cut."""
        self.pool, self.task, self.faults, self.starts, self.observer = pool, task, faults, starts, observer
        self.longest = longest
        self.everyone = np.arange(pool.num_envs)
        self.clock = phase.copy()
        """Steps of each trajectory so far; staggered at first, so that a batch holds every phase."""
        self.restarts = np.zeros(pool.num_envs, np.int64)
        self.since_restart = np.zeros(pool.num_envs, np.int64)
        self.observation = np.empty((pool.num_envs, *pool.spec.observation.shape), pool.spec.observation.dtype)
        self.fell = np.empty((0, pool.num_envs), bool)
        """Which steps of the batch ended in a fall or a goal, on a continuing task."""
        self.paid = np.zeros((pool.num_envs, 1 + num_costs))
        """Reward and costs of the latest step, as the environment gave them: a resumed run must give them again."""
        self.noise: np.ndarray = np.empty(0, F32)
        self.action = np.empty(0, F32)

    def restart(self, ids: np.ndarray) -> None:
        """Put these environments into start states."""
        self.observer.begin("simulate")
        start, restarts = self.faults.reset(ids)
        self.observer.end("simulate")
        self.observation[ids] = start
        self.starts.add(start)
        self.restarts[ids] += restarts
        self.since_restart[ids] = 0

    def begin(self, policy: Policy, t: int) -> None:
        """Choose actions and let the simulator start on them."""
        self.observer.begin("act")
        self.action = policy.explore(policy.head(self.observation), self.noise[t])
        self.observer.end("act")
        self.observer.begin("simulate")
        self.pool.send(self.action)
        self.observer.end("simulate")

    def finish(self, policy: Policy, into: Rollout, t: int) -> None:
        """Wait for the step and write it down."""
        self.observer.begin("simulate")
        step = self.pool.recv()
        self.observer.end("simulate")
        into.observation[t] = self.observation
        into.action[t] = self.action
        if self.faults.restart_faulty:
            step = self._mend(policy, step, into, t)
        self.clock += 1
        self.since_restart += 1
        for signal, values in zip(into.signals, (step.reward, *step.costs.T), strict=True):
            signal[t] = values
        self.observation[:] = step.observation
        if t + 1 == len(into.cut):
            self.paid = np.column_stack([step.reward, step.costs])
        if self.task.episodic:
            self._end_or_cut(into, t, step.terminated, step.truncated)
        else:
            self._fall_or_cut(into, t, step.terminated, step.truncated)

    def replay(self, restarts: np.ndarray, since_restart: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Restart as often as before, then take again the actions since the last restart (the last rows).

        Those that began earlier begin earlier again, so that all take their last step together. Those that ended on the
        way, as they did not the first time, are returned.
        """
        self.pool.fast_forward(restarts - 1)
        self.restarts[:] = restarts - 1
        ended = np.zeros(len(self.everyone), bool)
        for left in range(int(since_restart.max()), -1, -1):
            if (since_restart == left).any():
                self.restart(self.everyone[since_restart == left])
            ids = self.everyone[(since_restart >= left) & ~ended]
            if not ids.size or not left:
                continue
            self.pool.send(actions[len(actions) - left, ids], ids)
            step = self.pool.recv()
            self.observation[ids] = step.observation
            self.paid[ids] = np.column_stack([step.reward, step.costs])
            ended[ids] = step.terminated | step.truncated
        self.since_restart[:] = since_restart
        return ended

    def come_back(
        self, part: Mapping[str, np.ndarray], actions: np.ndarray, state: dict[str, np.ndarray]
    ) -> np.ndarray:
        """Go to where this part of a snapshot was taken; returns which environments got there."""
        restarts, since_restart, observation = (part[name] for name in ("restarts", "since_restart", "observation"))
        self.clock[:] = part["clock"]
        if self.pool.comeback == "replay":
            ended = self.replay(restarts, since_restart, actions)
            other = (self.observation != observation).any(1) | ended
            if "paid" in part:  # only a step pays: nothing is known of an environment that has just been restarted
                other |= (since_restart > 0) & (self.paid != part["paid"]).any(1)
            return ~other
        if self.pool.comeback == "state" and cast(Stateful, self.pool).set_state(state):
            self.restarts[:], self.since_restart[:], self.observation[:] = restarts, since_restart, observation
            self.paid[:] = part["paid"]
            return np.ones(len(self.everyone), bool)
        self.pool.fast_forward(restarts)
        self.restarts[:] = restarts
        return np.zeros(len(self.everyone), bool)

    def _mend(self, policy: Policy, step: Step, into: Rollout, t: int) -> Step:
        """Restart what failed and let it take its step from a start state: the step that failed is in no batch.

        The trajectory that failed is cut after the step before, whose next state is known.
        """
        failed = self.faults.among(step, self.everyone)
        if not failed.size:
            return step
        step = Step(*(column.copy() for column in step))
        while failed.size:
            if t > 0:
                into.cut[t - 1, failed] = ~into.terminal[t - 1, failed]
            self.clock[failed] = 0
            self.restart(failed)
            into.observation[t, failed] = self.observation[failed]
            action = policy.explore(policy.head(self.observation[failed]), self.noise[t, failed])
            into.action[t, failed] = action
            self.pool.send(action, failed)
            again = self.pool.recv()
            for column, rows in zip(step, again, strict=True):
                column[failed] = rows
            failed = self.faults.among(again, failed)
        self.faults.clear()
        return step

    def _fall_or_cut(self, into: Rollout, t: int, fell: np.ndarray, truncated: np.ndarray) -> None:
        """A fall is an ordinary, costly transition to a start state; a cut hides the state that comes next."""
        if np.count_nonzero(fell):
            self.restart(self.everyone[fell])
        self.fell[t] = fell
        into.next_observation[t] = self.observation
        cut = truncated | (self.clock >= self.longest)
        into.cut[t] = cut
        if np.count_nonzero(cut):
            self.clock[cut] = 0
            self.restart(self.everyone[cut & ~fell])

    def _end_or_cut(self, into: Rollout, t: int, ended: np.ndarray, truncated: np.ndarray) -> None:
        """A fall ends the episode, with value 0 after it; a time-out only hides what comes next."""
        truncated = truncated | (self.clock >= self.longest)
        into.next_observation[t] = self.observation
        into.terminal[t] = ended
        into.cut[t] = truncated & ~ended
        over = ended | truncated
        if np.count_nonzero(over):
            self.clock[over] = 0
            self.restart(self.everyone[over])


class Sink(Protocol):
    """Gets the start states of restarts."""

    def add(self, rows: np.ndarray) -> None:
        """Of some more restarts."""
        ...


class Starts:
    """The start states of the latest restarts, whichever environment they were of."""

    def __init__(self, observation: ArraySpec) -> None:
        self.spec = ArraySpec((LATEST_STARTS, *observation.shape), observation.dtype)
        self._latest: deque[np.ndarray] = deque(maxlen=LATEST_STARTS)

    def add(self, rows: np.ndarray) -> None:
        """Of some more restarts."""
        self._latest.extend(rows[-LATEST_STARTS:].copy())

    def fill(self) -> None:
        """At the beginning of a run, count each of the few several times."""
        self.add(np.resize(self.latest(), self.spec.shape))

    def latest(self) -> np.ndarray:
        """The oldest first."""
        return np.array(self._latest)
