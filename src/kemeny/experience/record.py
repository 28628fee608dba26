"""What happened at each step of some trajectories, in arrays that grow with them."""

import math

import numpy as np

from kemeny.envs.pool import Pool, Step
from kemeny.errors import UserError
from kemeny.experience.long_run import Series
from kemeny.experience.trajectory import Trajectory

MOST_BYTES = 8 * 1024**3
"""Of the arrays of an evaluation: a longer one would leave no memory for anything else."""


class Record:
    """Reward, costs and ends of each trajectory of a pool; of the first, if asked, observations and actions as well."""

    def __init__(self, pool: Pool, num_costs: int, keep_first: bool) -> None:
        self._pool, self._keep_first, self._count = pool, keep_first, pool.num_envs
        self.clock = np.zeros(pool.num_envs, np.int64)
        """Steps of each trajectory so far; those after a restart count on."""
        self._series = Series(
            np.zeros((0, self._count)),
            np.zeros((0, self._count, num_costs)),
            np.zeros((0, self._count), bool),
            np.zeros((0, self._count), bool),
        )
        self._observations = np.zeros((0, *pool.spec.observation.shape), pool.spec.observation.dtype)
        self._actions: np.ndarray | None = None
        self._until = 0

    @property
    def bytes_per_step(self) -> int:
        """What a step of all trajectories takes."""
        step = sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in self._series)
        first = self._pool.spec.observation.size * self._pool.spec.observation.dtype.itemsize
        return step + self._keep_first * first

    def grow(self, until: int) -> None:
        """Make room for so many steps of each trajectory."""
        self._until = until
        self._series = Series(*(_longer(array, until) for array in self._series))
        if self._keep_first:
            self._observations = _longer(self._observations, until)
            self._actions = None if self._actions is None else _longer(self._actions, until)

    def add(self, ids: np.ndarray, failed: np.ndarray, before: np.ndarray, step: Step) -> None:
        """A step of these, from the observations `before` of all; that of one that failed is not kept, but cuts."""
        kept = self.clock[ids] < self._until  # one that was begun anew after a fault may go on for longer
        if failed.size:
            sound = ~np.isin(ids, failed)
            broken = ids[kept & ~sound & (self.clock[ids] > 0)]
            self._series.truncated[self.clock[broken] - 1, broken] |= ~self._series.terminated[
                self.clock[broken] - 1, broken
            ]
            kept &= sound
        rows, times = ids[kept], self.clock[ids[kept]]
        for array, column in zip(self._series, (step.reward, step.costs, step.terminated, step.truncated), strict=True):
            array[times, rows] = column[kept]
        if self._keep_first and (first := np.flatnonzero(kept & (ids == 0))).size:
            self._add_first(int(self.clock[0]), before[0], self._pool.sent[first[0]])
        self.clock[rows] += 1

    def series(self) -> Series:
        """Of all the steps for which there was room."""
        return self._series

    def first(self, cost_names: tuple[str, ...]) -> Trajectory | None:
        """The first trajectory, step by step."""
        if self._actions is None:
            return None
        steps = slice(int(self.clock[0]))
        reward, costs, terminated, truncated = (array[steps, 0] for array in self._series)
        return Trajectory(
            self._pool.spec.spaces, self._observations[steps], self._actions[steps],
            reward, costs, terminated, truncated, cost_names,
        )  # fmt: skip

    def _add_first(self, time: int, observation: np.ndarray, action: np.ndarray) -> None:
        if self._actions is None:
            self._actions = np.zeros((self._until, *action.shape), action.dtype)
        self._observations[time], self._actions[time] = observation, action


def refuse_too_large(bytes_per_step: int, max_steps: int) -> None:
    """Refuse an evaluation whose record does not fit into memory, before it begins."""
    if bytes_per_step * max_steps > MOST_BYTES:
        gigabytes = bytes_per_step * max_steps / 1024**3
        raise UserError(
            f"The record of so many steps would take {gigabytes:,.0f} GB: ask for fewer steps or fewer trajectories."
        )


def _longer(array: np.ndarray, length: int) -> np.ndarray:
    longer = np.zeros((length, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer
