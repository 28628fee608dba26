"""Experience by step count: policy × environments → Rollout, never waiting for an episode's end.

The environments are split into two shards used in turn: while one is simulated, the actions of the other are
computed. Every number is a function of the seed, whatever the thread timing: the noise of a batch comes from a
generator seeded by (seed, iteration, shard), so there is no random state to carry along.
"""

from collections import deque
from collections.abc import Mapping
from typing import cast

import numpy as np

from kemeny.envs.faults import LARGEST, TRIES, Faults, usable
from kemeny.envs.names import EnvLike, as_environment
from kemeny.envs.pool import DEFAULT_SIMULATION, Stateful, inspect, make_halves
from kemeny.envs.settings import Simulation
from kemeny.errors import Damaged, RunError
from kemeny.experience.acting import Policy
from kemeny.experience.ends import charge, find_goals
from kemeny.experience.settings import RESET_COST, Task
from kemeny.experience.shard import LATEST_STARTS, Shard, Starts
from kemeny.experience.source import Batch, numpy_policy
from kemeny.learning.learner import State
from kemeny.observers import NOBODY, Observer
from kemeny.rollout import Rollout
from kemeny.spaces import ArraySpec
from kemeny.spec import Spec, check_arrays

F32 = np.float32
STATE = "state"
"""Begins the names of a pool's own arrays in a snapshot; the pool's number follows."""
NOISE_STREAM = 1
"""Keeps exploration noise apart from other uses of a run's seed."""


class Collector:
    """All the environments of a run, in this process and its workers: a `Source`."""

    def __init__(
        self,
        env: EnvLike,
        task: Task,
        *,
        num_envs: int,
        batch_length: int,
        seed: int,
        costs: tuple = (),
        simulation: Simulation = DEFAULT_SIMULATION,
        observer: Observer = NOBODY,
        snapshot: Mapping[str, np.ndarray] | None = None,
        inexact: bool = False,
    ) -> None:
        """`batch_length` is the number of steps that each environment takes in a batch; `snapshot` is where to go on.

        With `inexact`, environments that do not come back to where they were begin anew.
        """
        self.seed, self.batch_length, self.num_envs, self.costs = seed, batch_length, num_envs, len(costs)
        self.observer, self.task, self.goal_seen = observer, task, False
        self.steps = 0
        """Steps of each environment so far."""
        self._history: deque[np.ndarray] = deque()
        """Actions of the latest batches, as far back as the oldest restart: what a snapshot replays."""
        longest = inspect(env, simulation=simulation).time_limit if task.episodic else task.cut
        phases = _phases(num_envs, batch_length, longest)
        self.shards: list[Shard] = []
        for first_env, pool in make_halves(env, num_envs, seed=seed, costs=costs, simulation=simulation):
            phase = phases[first_env : first_env + pool.num_envs]
            faults = Faults(pool, simulation.restart_faulty, first_env)
            if not self.shards:
                self.spec: Spec = pool.spec
                self.starts = Starts(pool.spec.observation)
            self.shards.append(Shard(pool, task, longest, phase, faults, self.starts, len(costs), observer))
        self._replayed = all(shard.pool.comeback == "replay" for shard in self.shards)
        self._rollouts = (self.allocate(), self.allocate())
        if snapshot is None:
            for shard in self.shards:
                shard.restart(shard.everyone)
            self.starts.fill()
            if self.shards[0].pool.comeback == "never":
                self.observer.say(
                    f"{as_environment(env).name} is a vector environment without get_state() and set_state(): if this "
                    "run is stopped, it can go on only from start states (--inexact)."
                )
        else:
            self._check_snapshot(snapshot)
            self._restore(snapshot, inexact)

    @property
    def falls(self) -> int:
        """Falls since the run began."""
        return sum(shard.falls for shard in self.shards)

    @property
    def faults(self) -> int:
        """Restarts after a fault since the run began."""
        return sum(shard.faults.count for shard in self.shards)

    def collect(self, state: State, iteration: int) -> Batch:
        """The batch of an iteration, by this state's policy, in arrays that are used again two iterations later.

        By then nobody reads them any more: the update of the batch before last is done; that of the last, perhaps not.
        """
        self.observer.begin("policy")
        policy = numpy_policy(state, self.spec)
        self.observer.end("policy")
        falls, faults = self.falls, [shard.faults.count for shard in self.shards]
        rollout = self.roll_out(policy, iteration, self._rollouts[iteration % 2])
        failed = [
            shard.faults for shard, before in zip(self.shards, faults, strict=True) if shard.faults.count > before
        ]
        fault = failed[0].last if failed else ""
        return Batch(rollout, self.falls - falls, self.faults - sum(faults), fault)

    def roll_out(self, policy: Policy, iteration: int, into: Rollout | None = None) -> Rollout:
        """The steps of an iteration by a policy in NumPy, in new arrays or in those of a batch that nobody reads."""
        batch = self.allocate() if into is None else into
        views = []
        begin = 0
        for number, shard in enumerate(self.shards):
            rng = np.random.default_rng([NOISE_STREAM, self.seed, iteration, number])
            self.observer.begin("act")
            shard.noise = policy.noise(rng, self.batch_length, shard.pool.num_envs)
            shard.fell = np.zeros((self.batch_length, shard.pool.num_envs), bool)
            self.observer.end("act")
            end = begin + shard.pool.num_envs
            views.append(_columns(batch, begin, end))
            begin = end
        for shard in self.shards:
            shard.begin(policy, 0)
        for t in range(self.batch_length):
            for shard, view in zip(self.shards, views, strict=True):
                shard.finish(policy, view, t)
                if t + 1 < self.batch_length:
                    shard.begin(policy, t + 1)
        batch.start_observation[:] = self.starts.latest()
        self.steps += self.batch_length
        self._check(batch)
        self._charge_ends(batch)
        self._remember(batch.action)
        return batch

    def snapshot(self) -> dict[str, np.ndarray]:
        """Where every environment stands, as what it takes to get there again: EnvPool cannot save its state.

        Pools that can save theirs do.
        """
        longest = int(self._since_restart().max()) if self._replayed else 0
        history = np.concatenate([*self._history, np.empty_like(self._history[0][:0])])
        return {
            "steps": np.array(self.steps),
            "falls": np.array([shard.falls for shard in self.shards]),
            "faults": np.array([shard.faults.count for shard in self.shards]),
            "clock": np.concatenate([shard.clock for shard in self.shards]),
            "restarts": np.concatenate([shard.restarts for shard in self.shards]),
            "since_restart": self._since_restart(),
            "actions": history[len(history) - longest :],
            "observation": np.concatenate([shard.observation for shard in self.shards]),
            "starts": self.starts.latest(),
            "paid": np.concatenate([shard.paid for shard in self.shards]),
            **self._states(),
        }

    def _states(self) -> dict[str, np.ndarray]:
        """The saved states of the pools that have one."""
        return {
            f"{STATE}{number}/{name}": array
            for number, shard in enumerate(self.shards)
            if shard.pool.comeback == "state"
            for name, array in cast(Stateful, shard.pool).get_state().items()
        }

    def _check_snapshot(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Refuse what no run can have written, before anything is replayed as often as it says."""
        envs, shards, whole = (self.num_envs,), (len(self.shards),), np.dtype(np.int64)
        shapes = {
            "steps": (),
            "falls": shards,
            "faults": shards,
            "clock": envs,
            "restarts": envs,
            "since_restart": envs,
        }
        longest = snapshot["since_restart"].max(initial=0) if "since_restart" in snapshot and self._replayed else 0
        observation, action = self.spec.observation, self.spec.action.array
        paid = ArraySpec((*envs, 1 + self.costs), np.dtype(np.float64))
        later = {"starts": self.starts.spec, "paid": paid}  # an older Kemeny did not store these
        check_arrays(
            snapshot,
            {
                **{name: ArraySpec(shape, whole) for name, shape in shapes.items()},
                "observation": ArraySpec((*envs, *observation.shape), observation.dtype),
                "actions": ArraySpec((int(longest), *envs, *action.shape), action.dtype),
                **{name: spec for name, spec in later.items() if name in snapshot},
            },
            "The collector's part of the checkpoint",
        )
        if not usable(snapshot.get("starts", np.zeros(1))).all():
            raise Damaged("The checkpoint does not fit its run: collector/starts has entries that are no numbers.")
        steps, restarts, since = (snapshot[name] for name in ("steps", "restarts", "since_restart"))
        if not ((since >= 0) & (since <= steps) & (restarts >= 1) & (restarts <= 1 + (1 + TRIES) * steps)).all():
            raise Damaged("The checkpoint does not fit its run: collector/restarts is more than its steps allow.")

    def _restore(self, snapshot: Mapping[str, np.ndarray], inexact: bool) -> None:
        """Bring the new environments to where `snapshot` was taken, and check that they got there."""
        self.steps = int(snapshot["steps"])
        actions = snapshot["actions"]
        self._history = deque([actions])
        end = lost = 0
        per_env = ("restarts", "since_restart", "observation", "clock", "paid")
        for number, (shard, falls, faults) in enumerate(
            zip(self.shards, snapshot["falls"], snapshot["faults"], strict=True)
        ):
            mine = slice(end, end + shard.pool.num_envs)
            end = mine.stop
            part = {name: snapshot[name][mine] for name in per_env if name in snapshot}
            prefix = f"{STATE}{number}/"
            state = {name.removeprefix(prefix): array for name, array in snapshot.items() if name.startswith(prefix)}
            astray = np.flatnonzero(~shard.come_back(part, actions[:, mine], state))
            if astray.size and not inexact:
                raise RunError(
                    f"Environment {mine.start + astray[0]} did not come back to the state it was in: it has randomness "
                    "of its own, or its version or machine changed. The run cannot be resumed exactly; with --inexact "
                    "it goes on from a start state."
                )
            if astray.size:
                lost += len(astray)
                shard.clock[astray] = 0
                shard.restart(astray)
            shard.falls, shard.faults.count = int(falls), int(faults)
        if "starts" in snapshot:
            self.starts.add(snapshot["starts"])
        else:  # of an older Kemeny
            self.starts.fill()
        if lost:
            self.observer.say(f"{lost} environments did not come back to where they were and begin anew.")

    def _since_restart(self) -> np.ndarray:
        return np.concatenate([shard.since_restart for shard in self.shards])

    def _remember(self, actions: np.ndarray) -> None:
        if not self._replayed:
            self._history = deque([actions[:0].copy()])
            return
        self._history.append(actions.copy())
        longest = int(self._since_restart().max())
        while sum(map(len, self._history)) - len(self._history[0]) >= longest:
            self._history.popleft()
            if not self._history:
                self._history.append(actions[:0].copy())
                break

    def allocate(self) -> Rollout:
        """Room for a batch."""
        rows, observation, action = (self.batch_length, self.num_envs), self.spec.observation, self.spec.action.array
        return Rollout(
            observation=np.empty((*rows, *observation.shape), observation.dtype),
            action=np.empty((*rows, *action.shape), action.dtype),
            signals=tuple(np.empty(rows, F32) for _ in range(1 + self.costs)),
            next_observation=np.empty((*rows, *observation.shape), observation.dtype),
            terminal=np.zeros(rows, bool),
            cut=np.zeros(rows, bool),
            start_observation=np.empty((LATEST_STARTS, *observation.shape), observation.dtype),
        )

    def close(self) -> None:
        """Give back the simulators' threads and processes."""
        for shard in self.shards:
            shard.pool.close()

    def _charge_ends(self, batch: Rollout) -> None:
        """Falls cost, goals do not; the first goal is said."""
        ended = np.concatenate([shard.fell for shard in self.shards], 1)
        self._tell_of_charged_goals(batch.signals[0], ended)
        goals = charge(batch.signals[0], ended, self.task.reset_cost)
        for shard, mine in zip(self.shards, np.split(ended & ~goals, [self.shards[0].pool.num_envs], 1), strict=False):
            shard.falls += int(mine.sum())
        if goals.any() and not self.goal_seen:
            self.goal_seen = True
            self.observer.say(
                f"A trajectory ended with the reward {batch.signals[0][goals][0]:g}, far above the usual ones "
                f"(mean {batch.signals[0][~ended].mean():.3g}): it is taken for a goal, which costs nothing. Other "
                f"ends are falls and cost {RESET_COST:g}. If that is wrong, set --reset-cost: it is for every end."
            )

    def _tell_of_charged_goals(self, reward: np.ndarray, ended: np.ndarray) -> None:
        """A reset cost that the user gave is for every end; if some look like goals, that is said once."""
        if self.task.reset_cost and not self.goal_seen and ended.any() and (goals := find_goals(reward, ended)).any():
            self.goal_seen = True
            self.observer.say(
                f"A trajectory ended with the reward {reward[goals][0]:g}, far above the usual ones, as if at a goal; "
                f"it costs --reset-cost {self.task.reset_cost:g} like every end. If goals are to cost nothing, leave "
                "--reset-cost out."
            )

    def _check(self, batch: Rollout) -> None:
        """Name the first environment and step whose numbers are not finite."""
        bad_observation = ~usable(batch.next_observation).all(-1)
        bad_signal = np.logical_or.reduce([~usable(signal) for signal in batch.signals])
        for name, bad in (("an observation", bad_observation), ("a reward or cost", bad_signal)):
            if bad.any():
                t, env = (int(i) for i in np.argwhere(bad)[0])
                step = self.steps - self.batch_length + t
                numbers = [batch.next_observation[t, env], *(signal[t, env] for signal in batch.signals)]
                finite = all(np.isfinite(number).all() for number in numbers)
                what = f"beyond ±{LARGEST:g}" if finite else "not a finite number"
                raise RunError(
                    f"Environment {env} gave {name} that is {what} at its step {step}, "
                    f"after action {np.round(batch.action[t, env], 4).tolist()}."
                )


def _phases(num_envs: int, batch_length: int, longest: int | None) -> np.ndarray:
    """Where in its first trajectory each environment begins, so that a batch holds all phases alike.

    The first trajectories are shorter for it.
    """
    numbers = np.arange(num_envs)
    if longest is None:
        return np.zeros_like(numbers)
    if longest > num_envs * batch_length:
        return numbers * longest // num_envs
    return numbers * batch_length % longest


def _columns(batch: Rollout, begin: int, end: int) -> Rollout:
    """A view of some environments' part of a batch."""
    views = {name: array[:, begin:end] for name, array in batch._asdict().items() if isinstance(array, np.ndarray)}
    views["start_observation"] = batch.start_observation
    return Rollout(**views, signals=tuple(signal[:, begin:end] for signal in batch.signals))
