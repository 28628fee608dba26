"""A few environments in which the policy acts as it is deployed, beside those it learns from, and what that costs.

They are in the run's own process, wherever the others are, and take as many steps per batch as each of those. Nothing
is learned from their steps, and like those of evaluations they are not counted. Their trajectories are long, so that
slow starts hardly count, and go on from one policy to the next.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from kemeny.envs.costs import FALL
from kemeny.envs.faults import usable
from kemeny.envs.names import EnvLike
from kemeny.envs.pool import seed_of
from kemeny.envs.settings import Simulation
from kemeny.errors import RunError
from kemeny.experience.acting import Policy
from kemeny.experience.ends import find_goals
from kemeny.experience.history import History
from kemeny.experience.part import Part, Share, allocate, check_standing
from kemeny.experience.settings import Deployment, Task
from kemeny.observers import Observer

DEPLOYED_STREAM = 2**21
"""Keeps their seeds apart from those of training environments, which count up from 0, and of evaluations."""
PREFIX = "deployed/"
"""Begins the names of their arrays in a snapshot."""


class Deployed:
    """Environments in which the policy acts as it is deployed."""

    def __init__(
        self,
        deployment: Deployment,
        env: EnvLike,
        task: Task,
        batch_length: int,
        seed: int,
        costs: tuple,
        simulation: Simulation,
        observer: Observer,
    ) -> None:
        """`deployment` says in how many, and how; the other arguments are those of the run."""
        envs, cut = deployment.deployed_envs, deployment.deployed_cut
        assert envs is not None, "how many environments is decided by now"
        assert cut is not None, "how long their trajectories are is decided by now"
        share = Share(
            env=env,
            task=dataclasses.replace(task, cut=cut, long_cut=None),
            first_env=0,
            num_envs=envs,
            all_envs=envs,
            first_shard=0,
            batch_length=batch_length,
            seed=seed_of(seed, DEPLOYED_STREAM),
            costs=costs,
            simulation=simulation,
            explore=deployment.deploy == "explore",
        )
        self._part = Part(share, observer)
        self._room = allocate(self._part.spec, batch_length, envs, len(costs))
        self._history = History(self._part.spec, envs, self._replayed)
        self.fault = ""
        """What the latest failure was in the last batch; empty if there was none."""

    @property
    def faults(self) -> int:
        """Restarts after a fault since the run began."""
        return sum(self._part.faults)

    def begin(self) -> None:
        """Begin in start states."""
        self._part.begin()

    def go_on(self, snapshot: Mapping[str, np.ndarray], steps: int, inexact: bool) -> None:
        """Go on from a snapshot of all environments, taken when each had taken so many steps."""
        mine = {name.removeprefix(PREFIX): array for name, array in snapshot.items() if name.startswith(PREFIX)}
        part, share = self._part, self._part.share
        check_standing(
            mine, part.spec, num_envs=share.num_envs, shards=len(part.shards), costs=len(share.costs), steps=steps,
            replayed=self._replayed, where="collector/deployed",
        )  # fmt: skip
        astray, _ = part.come_back(mine, mine["actions"], inexact)
        if astray and not inexact:
            raise RunError(
                f"Environment {astray[0]} of those in which the policy acts as deployed did not come back to the state "
                "it was in. The run cannot be resumed exactly; with --inexact it goes on from a start state."
            )
        self._history = History(part.spec, share.num_envs, self._replayed, mine["actions"])

    def costs(self, policy: Policy, iteration: int) -> np.ndarray:
        """Each cost per step of this policy, over the steps of an iteration."""
        taken = self._part.roll_out(policy, iteration, self._room)
        self.fault = taken.fault
        self._forgive_goals(taken.fell)
        costs = self._room.signals[1:]
        numbers = (self._room.next_observation, *costs)
        if not all(usable(array).all() for array in numbers):
            raise RunError(
                "An environment in which the policy acts as deployed gave a number that is not finite, or too large."
            )
        self._history.remember(self._room.action, self._part.since_restart)
        return np.array([cost.mean(dtype=np.float64) for cost in costs], np.float32)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Where they stand, as what it takes to get there again."""
        actions = self._history.since(self._part.since_restart)
        return {f"{PREFIX}{name}": array for name, array in {**self._part.standing(), "actions": actions}.items()}

    def close(self) -> None:
        """Give back the simulators' threads and processes."""
        self._part.close()

    def _forgive_goals(self, ended: np.ndarray) -> None:
        """A goal is no fall, where it is not charged as one."""
        task, costs = self._part.share.task, self._part.share.costs
        if FALL in costs and task.given_reset_cost is None:
            self._room.signals[1 + costs.index(FALL)][find_goals(self._room.signals[0], ended)] = 0

    @property
    def _replayed(self) -> bool:
        return self._part.comeback == "replay"
