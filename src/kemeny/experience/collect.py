"""Experience by step count: policy × environments → Rollout, never waiting for an episode's end.

The environments of a run are with one collector, in the run's own process, or divided among several, in processes of
their own (`elsewhere.py`). Steps are taken in `part.py`. What they cost, and what is kept of them to go on from, is
decided here, for all alike.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from kemeny.cluster import HERE, Place
from kemeny.envs.costs import FALL
from kemeny.envs.faults import LARGEST, usable
from kemeny.envs.names import EnvLike, as_environment
from kemeny.envs.pool import DEFAULT_SIMULATION, Farsighted, make_pool
from kemeny.envs.settings import Simulation
from kemeny.errors import Damaged, RunError, UserError
from kemeny.experience.acting import Policy
from kemeny.experience.deployed import Deployed
from kemeny.experience.elsewhere import CollectorLost, Elsewhere, Employer, Given, employer
from kemeny.experience.ends import charge, find_goals
from kemeny.experience.history import History
from kemeny.experience.part import STATE, Part, Share, Taken, allocate, check_standing, columns, in_order, shares
from kemeny.experience.settings import RESET_COST, Deployment, Task
from kemeny.experience.shard import Shard, Starts
from kemeny.experience.source import Batch, numpy_policy
from kemeny.learning.learner import Behaviour, State
from kemeny.observers import NOBODY, Observer
from kemeny.rollout import Outcomes, Rollout, flatten
from kemeny.spaces import ArraySpec
from kemeny.spec import Spec, check_arrays

MOST_LOSSES = 5
"""How often one collector may be lost in one batch: then it is not its machine that fails."""


class Collector:
    """All the environments of a run: a `Source`."""

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
        expected: bool = False,
        deployed: Deployment | None = None,
        collectors: int = 1,
        place: Place = HERE,
        observer: Observer = NOBODY,
        snapshot: Mapping[str, np.ndarray] | None = None,
        inexact: bool = False,
    ) -> None:
        """`batch_length` is the number of steps that each environment takes in a batch; `snapshot` is where to go on.

        With `inexact`, environments that do not come back to where they were begin anew. With `expected`, batches have
        all that might have come of each action. With `deployed`, the policy also acts as deployed, in environments of
        this process.
        """
        self.seed, self.batch_length, self.num_envs, self.costs = seed, batch_length, num_envs, len(costs)
        self.observer, self.task, self.goal_seen = observer, task, False
        self._fall_costs = [number for number, cost in enumerate(costs) if cost == FALL]
        self.steps = 0
        """Steps of each environment so far."""
        run: dict[str, Any] = {"env": env, "task": task, "batch_length": batch_length, "seed": seed, "costs": costs}
        self.shares = shares(collectors, num_envs, simulation, **run)
        sizes = [size for share in self.shares for size in share.shard_sizes]
        self._ends = np.cumsum(sizes)
        """Of each shard the environment after its last."""
        self._falls = np.zeros(len(sizes), np.int64)
        self._outlook = make_outlook(env) if expected else None
        self._deployed: Deployed | None = None
        hires = employer(collectors, place, observer.say)
        self.crew = Alone(self.shares[0], observer) if hires is None else Crew(self.shares, hires, observer)
        try:
            self.spec, self.comeback = self.crew.make()
            self.starts = Starts(self.spec.observation)
            self._history = History(self.spec, num_envs, self.comeback == "replay")
            self._rollouts = (self.allocate(), self.allocate())
            self._begin(env) if snapshot is None else self._go_on(snapshot, inexact)
            if deployed is not None:
                self._deployed = Deployed(deployed, simulation=simulation, observer=observer, **run)
                self._deployed.begin() if snapshot is None else self._deployed.go_on(snapshot, self.steps, inexact)
        except BaseException:
            self.close()
            raise

    def _begin(self, env: EnvLike) -> None:
        for rows in in_order(self.crew.begin()):
            self.starts.add(rows)
        self.starts.fill()
        if self.comeback == "never":
            self.observer.say(
                f"{as_environment(env).name} is a vector environment without get_state() and set_state(): if this "
                "run is stopped, it can go on only from start states (--inexact)."
            )

    def _go_on(self, snapshot: Mapping[str, np.ndarray], inexact: bool) -> None:
        """Bring the new environments to where `snapshot` was taken, and check that they got there."""
        self._check_snapshot(snapshot)
        self.steps = int(snapshot["steps"])
        self._falls[:] = snapshot["falls"]
        self._history = History(self.spec, self.num_envs, self.comeback == "replay", snapshot["actions"])
        answers = self.crew.come_back(snapshot, self._history, inexact)
        astray = [number for lost, _ in answers for number in lost]
        if astray and not inexact:
            raise RunError(
                f"Environment {astray[0]} did not come back to the state it was in: it has randomness "
                "of its own, or its version or machine changed. The run cannot be resumed exactly; with --inexact "
                "it goes on from a start state."
            )
        for rows in in_order([starts for _, starts in answers]):
            self.starts.add(rows)
        if "starts" in snapshot:
            self.starts.add(snapshot["starts"])
        else:  # of an older Kemeny
            self.starts.fill()
        if astray:
            self.observer.say(f"{len(astray)} environments did not come back to where they were and begin anew.")

    @property
    def shards(self) -> list[Shard]:
        """Those in this process."""
        return self.crew.shards

    @property
    def falls(self) -> int:
        """Falls since the run began."""
        return int(self._falls.sum())

    @property
    def faults(self) -> int:
        """Restarts after a fault since the run began."""
        return int(self.crew.faults.sum()) + (0 if self._deployed is None else self._deployed.faults)

    def collect(self, behaviour: Behaviour | State, iteration: int) -> Batch:
        """The batch of an iteration, by this policy, in arrays that are used again two iterations later.

        By then nobody reads them any more: the update of the batch before last is done; that of the last, perhaps not.
        """
        self.observer.begin("policy")
        policy = numpy_policy(behaviour, self.spec)
        self.observer.end("policy")
        falls, faults = self.falls, self.faults
        rollout, fault = self._roll_out(policy, iteration, self._rollouts[iteration % 2])
        costs = None if self._deployed is None else self._deployed.costs(policy, iteration)
        if self._deployed is not None:
            fault = fault or self._deployed.fault
        return Batch(rollout, self.falls - falls, self.faults - faults, fault, costs)

    def roll_out(self, policy: Policy, iteration: int, into: Rollout | None = None) -> Rollout:
        """The steps of an iteration by a policy in NumPy, in new arrays or in those of a batch that nobody reads."""
        return self._roll_out(policy, iteration, self.allocate() if into is None else into)[0]

    def _roll_out(self, policy: Policy, iteration: int, batch: Rollout) -> tuple[Rollout, str]:
        """The batch, and what the latest failure was."""
        taken = self.crew.roll_out(policy, iteration, batch, self._history)
        for rows in in_order([part.starts for part in taken]):
            self.starts.add(rows)
        batch.start_observation[:] = self.starts.latest()
        self.steps += self.batch_length
        self._check(batch)
        batch = self._charge_ends(batch, np.concatenate([part.fell for part in taken], 1))
        self._history.remember(batch.action, self.crew.since_restart)
        if self._outlook is not None:
            if batch.terminal.any() or any(part.fell.any() for part in taken):
                raise UserError(
                    "A copy fell or reached a goal, which the environment's outcomes(observations, actions) do not "
                    "know of: --next-value expected is for environments in which nothing ends. Use sampled."
                )
            batch = with_outcomes(self._outlook, batch)
        return batch, next((part.fault for part in taken if part.fault), "")

    def snapshot(self) -> dict[str, np.ndarray]:
        """Where every environment stands, as what it takes to get there again: EnvPool cannot save its state.

        Pools that can save theirs do.
        """
        return {
            "steps": np.array(self.steps),
            "falls": self._falls.copy(),
            **_joined(self.crew.standing()),
            "actions": self._history.since(self.crew.since_restart),
            "starts": self.starts.latest(),
            **({} if self._deployed is None else self._deployed.snapshot()),
        }

    def _check_snapshot(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Refuse what no run can have written, before anything is replayed as often as it says."""
        shards, whole = self._ends.shape, np.dtype(np.int64)
        in_halves = snapshot.get("falls", np.empty(0)).shape == (2 * len(self.shares),)
        if in_halves and len(self._ends) == len(self.shares):
            raise UserError(
                "An older Kemeny began this run. It stepped the copies of a vector environment in two halves, which "
                "cannot be put together: begin the run anew, or another with --init-from where its policy stands."
            )
        expected = {"steps": ArraySpec((), whole), "falls": ArraySpec(shards, whole)}
        if "starts" in snapshot:  # an older Kemeny did not store this
            expected["starts"] = self.starts.spec
        check_arrays(snapshot, expected, "The collector's part of the checkpoint")
        check_standing(
            snapshot, self.spec, num_envs=self.num_envs, shards=len(self._ends), costs=self.costs,
            steps=int(snapshot["steps"]), replayed=self._history.kept, where="collector",
        )  # fmt: skip
        if not usable(snapshot.get("starts", np.zeros(1))).all():
            raise Damaged("The checkpoint does not fit its run: collector/starts has entries that are no numbers.")

    def allocate(self) -> Rollout:
        """Room for a batch."""
        return allocate(self.spec, self.batch_length, self.num_envs, self.costs)

    def close(self) -> None:
        """Give back the simulators' threads and processes."""
        if self._outlook is not None:
            self._outlook.close()
        if self._deployed is not None:
            self._deployed.close()
        self.crew.close()

    def _charge_ends(self, batch: Rollout, ended: np.ndarray) -> Rollout:
        """Falls cost, goals do not; the first goal is said. `ended` is empty of ends on an episodic task.

        If the learner finds the reset cost, it is told of the falls instead.
        """
        automatic = self.task.meant_fall_target is not None
        self._tell_of_charged_goals(batch.signals[0], ended)
        if automatic:
            goals = find_goals(batch.signals[0], ended)
        else:
            goals = charge(batch.signals[0], ended, self.task.given_reset_cost)
        falls = batch.terminal if self.task.episodic else ended & ~goals
        for cost in self._fall_costs:
            batch.signals[1 + cost][goals] = 0
        self._falls += [part.sum() for part in np.split(falls, self._ends[:-1], 1)]
        if goals.any() and not self.goal_seen:
            self.goal_seen = True
            self.observer.say(
                f"A trajectory ended with the reward {batch.signals[0][goals][0]:g}, far above the usual ones "
                f"(mean {batch.signals[0][~ended].mean():.3g}): it is taken for a goal, which costs nothing. Other "
                f"ends are falls and cost {'what makes them rare' if automatic else f'{RESET_COST:g}'}. If that is "
                "wrong, set --reset-cost: it is for every end."
            )
        return batch._replace(fall=falls) if automatic else batch

    def _tell_of_charged_goals(self, reward: np.ndarray, ended: np.ndarray) -> None:
        """A reset cost that the user gave is for every end; if some look like goals, that is said once."""
        given = self.task.given_reset_cost
        if given and not self.goal_seen and ended.any() and (goals := find_goals(reward, ended)).any():
            self.goal_seen = True
            self.observer.say(
                f"A trajectory ended with the reward {reward[goals][0]:g}, far above the usual ones, as if at a goal; "
                f"it costs --reset-cost {given:g} like every end. If goals are to cost nothing, leave "
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


def make_outlook(env: EnvLike) -> Farsighted:
    """A pool that is never stepped, but asked what may come of an action; or a `UserError`."""
    name = as_environment(env).name
    pool = make_pool(env, 1, seed=0)
    if not getattr(pool, "farsighted", False):
        pool.close()
        raise UserError(
            f"{name} does not know what may come of an action: --next-value expected needs a vector environment with a "
            "method outcomes(observations, actions), such as those of Kemeny's own tasks. With --preset queues, use "
            "--next-value sampled --quadratic-fit targets."
        )
    return cast(Farsighted, pool)


def with_outcomes(outlook: Farsighted, batch: Rollout) -> Rollout:
    """The batch, with all that might have come of each action."""
    rows = batch.cut.shape
    seen, likely, reward = outlook.outcomes(flatten(batch.observation), flatten(batch.action))
    outcomes = Outcomes(seen.reshape(len(seen), *rows, -1), likely.reshape(len(likely), *rows), reward.reshape(rows))
    return batch._replace(outcomes=outcomes)


class Alone:
    """One collector, in the run's own process."""

    def __init__(self, share: Share, observer: Observer) -> None:
        self._share, self._observer = share, observer
        self._part: Part | None = None

    @property
    def part(self) -> Part:
        """The environments, once they are made."""
        assert self._part is not None
        return self._part

    @property
    def shards(self) -> list[Shard]:
        """All."""
        return self.part.shards

    @property
    def faults(self) -> np.ndarray:
        """Of each shard."""
        return np.array(self.part.faults)

    @property
    def since_restart(self) -> np.ndarray:
        """Steps of each environment."""
        return self.part.since_restart

    def make(self) -> tuple[Spec, str]:
        """Make the environments: what they are, and how they come back."""
        self._part = Part(self._share, self._observer)
        return self._part.spec, self._part.comeback

    def begin(self) -> list[list[tuple[int, np.ndarray]]]:
        """Begin in start states."""
        return [self.part.begin()]

    def come_back(
        self, snapshot: Mapping[str, np.ndarray], history: History, inexact: bool
    ) -> list[tuple[list[int], list[tuple[int, np.ndarray]]]]:
        """Go on from a snapshot."""
        return [self.part.come_back(snapshot, history.since(snapshot["since_restart"]), inexact)]

    def roll_out(self, policy: Policy, iteration: int, into: Rollout, history: History) -> list[Taken]:
        """The steps of an iteration."""
        return [self.part.roll_out(policy, iteration, into)]

    def standing(self) -> list[dict[str, np.ndarray]]:
        """Where the environments are."""
        return [self.part.standing()]

    def close(self) -> None:
        """Give back the simulators' threads and processes."""
        if self._part is not None:
            self._part.close()


class Crew:
    """Several collectors in processes of their own. One that is lost is replaced, and its part of the batch repeated.

    After each batch they say where their environments are. So a new collector can be brought to where the lost one was
    when the batch began, and takes the same steps, bit for bit.
    """

    shards: list[Shard] = []  # noqa: RUF012 (none of them is in this process)

    def __init__(self, shares: list[Share], employer: Employer, observer: Observer) -> None:
        self._shares, self._employer, self._observer = shares, employer, observer
        self.members: list[Elsewhere] = []
        self._standing: list[dict[str, np.ndarray]] = []

    @property
    def faults(self) -> np.ndarray:
        """Of each shard."""
        return np.concatenate([standing["faults"] for standing in self._standing])

    @property
    def since_restart(self) -> np.ndarray:
        """Steps of each environment."""
        return np.concatenate([standing["since_restart"] for standing in self._standing])

    def make(self) -> tuple[Spec, str]:
        """Hire all, and have them make their environments: what they are, and how they come back."""
        for number, share in enumerate(self._shares):
            self.members.append(self._employer.hire(number, share))
        about = [member.receive() for member in self.members]
        self._comeback = about[0][1]
        return about[0]

    def begin(self) -> list[list[tuple[int, np.ndarray]]]:
        """Begin in start states."""
        answers = self._everyone("begin")
        self._standing = [standing for _, standing in answers]
        return [starts for starts, _ in answers]

    def come_back(
        self, snapshot: Mapping[str, np.ndarray], history: History, inexact: bool
    ) -> list[tuple[list[int], list[tuple[int, np.ndarray]]]]:
        """Go on from a snapshot."""
        actions = history.since(snapshot["since_restart"])
        for member, share in zip(self.members, self._shares, strict=True):
            member.send("come_back", _part_of(snapshot, share), actions[:, share.columns], inexact)
        answers = [member.receive() for member in self.members]
        self._standing = [standing for _, _, standing in answers]
        return [(astray, starts) for astray, starts, _ in answers]

    def roll_out(self, policy: Policy, iteration: int, into: Rollout, history: History) -> list[Taken]:
        """The steps of an iteration, by all at the same time."""
        for member in self.members:
            member.send("roll_out", policy, iteration)
        taken = []
        for number, share in enumerate(self._shares):
            given = self._given(number, policy, iteration, history)
            self._standing[number] = given.standing
            mine = columns(into, share.columns)
            for name in ("observation", "action", "next_observation", "terminal", "cut"):
                getattr(mine, name)[:] = getattr(given.rollout, name)
            for signal, values in zip(mine.signals, given.rollout.signals, strict=True):
                signal[:] = values
            taken.append(given.taken)
        return taken

    def standing(self) -> list[dict[str, np.ndarray]]:
        """Where the environments are."""
        return self._standing

    def close(self) -> None:
        """Let all go."""
        for member in self.members:
            member.close()
        self.members = []
        self._employer.close()

    def _everyone(self, method: str, *arguments: Any) -> list[Any]:
        for member in self.members:
            member.send(method, *arguments)
        return [member.receive() for member in self.members]

    def _given(self, number: int, policy: Policy, iteration: int, history: History) -> Given:
        """What a collector gives, or the one that takes its place."""
        for losses in range(MOST_LOSSES + 1):
            try:
                if losses:
                    self._replace(number, history)
                    self.members[number].send("roll_out", policy, iteration)
                return self.members[number].receive()
            except CollectorLost as lost:
                if self._comeback == "never":
                    raise RunError(f"{lost} Its environments cannot be brought back to where they were.") from lost
                self._observer.say(f"{lost} Another takes its place, and repeats its part of the batch.")
        raise RunError(f"Collector {number} was lost {MOST_LOSSES + 1} times in one batch.")

    def _replace(self, number: int, history: History) -> None:
        """A new collector, brought to where the lost one was when the batch began."""
        share, standing = self._shares[number], self._standing[number]
        self.members[number].close()
        member = self.members[number] = self._employer.hire(number, share)
        member.receive()  # its environments are made
        actions = history.since(self.since_restart)
        member.send("come_back", standing, actions[:, share.columns], False)
        if astray := member.receive()[0]:
            raise RunError(
                f"Collector {number} was lost, and environment {astray[0]} did not come back to the state it was in: "
                "it has randomness of its own. Resume the run with --inexact."
            )


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Where all environments stand, from where those of each collector do."""
    states = {name: array for part in parts for name, array in part.items() if name.startswith(STATE)}
    rows = [name for name in parts[0] if not name.startswith(STATE)]
    return {**{name: np.concatenate([part[name] for part in parts]) for name in rows}, **states}


def _part_of(snapshot: Mapping[str, np.ndarray], share: Share) -> dict[str, np.ndarray]:
    """Where the environments of one collector stand, from a snapshot of all."""
    rows = ("clock", "restarts", "since_restart", "observation", "paid")
    shards = range(share.first_shard, share.first_shard + len(share.shard_sizes))
    mine = tuple(f"{STATE}{number}/" for number in shards)
    return {
        "faults": snapshot["faults"][shards.start : shards.stop],
        **{name: snapshot[name][share.columns] for name in rows if name in snapshot},
        **{name: array for name, array in snapshot.items() if name.startswith(mine)},
    }
