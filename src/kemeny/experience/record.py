"""What happened in the trajectories of an evaluation, as far as estimates need it; if asked, all steps of the first."""

import math

import numpy as np

from kemeny.envs.pool import Pool, Step
from kemeny.errors import UserError
from kemeny.experience.ends import UsualRewards
from kemeny.experience.long_run import BLOCK, Ends, Series
from kemeny.experience.trajectory import Trajectory

FINE_BYTES = 256 * 1024**2
"""A record of single steps may be so large. A longer evaluation keeps the means of blocks of steps instead."""
LEAST_BLOCKS = 1_000
"""Into so many blocks a trajectory is divided at least, so that the warm-up and the batches are still found well."""
MOST_BYTES = 8 * 1024**3
"""Of the arrays of an evaluation: a longer one would leave no memory for anything else."""


class Record:
    """Reward and costs of all trajectories, step by step or in blocks of steps; and when each of them ended."""

    def __init__(self, trajectories: int, num_costs: int) -> None:
        self.clock = np.zeros(trajectories, np.int64)
        """Steps of each trajectory so far; those after a restart count on."""
        self._until, self._length = 0, 1
        self._reward = np.zeros((0, trajectories))
        self._costs = np.zeros((0, trajectories, num_costs))
        """Means of the blocks of each trajectory, of which the last is not complete."""
        self._ends: list[Ends] = []
        self._ended_at = np.zeros(trajectories, np.int64)
        """The clock after the last step of each that ended in a restart; 0 if there was none."""
        self.usual = UsualRewards()
        """Of all trajectories."""

    def bytes_of(self, until: int) -> int:
        """What so many steps of all trajectories take, apart from their ends."""
        return _bytes_of(self._row_bytes, until, block_length(self._row_bytes, until))

    @property
    def _row_bytes(self) -> int:
        return sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in (self._reward, self._costs))

    def grow(self, until: int) -> None:
        """Make room for so many steps of each trajectory, in longer blocks if they are too many."""
        length = block_length(self._row_bytes, until)
        blocks, together = -(-until // length), length // self._length
        self._reward, self._costs = (_merged(array, together, blocks) for array in (self._reward, self._costs))
        self._until, self._length = until, length

    def add_all(self, first: int, step: Step) -> None:
        """A step of all the trajectories from `first` on that are stepped together: none has ended so far."""
        mine = slice(first, first + len(step.reward))
        block = int(self.clock[first]) // self._length
        self._reward[block, mine] += step.reward / self._length
        if self._costs.shape[2]:
            self._costs[block, mine] += step.costs / self._length
        self.usual.add(step.reward)
        self.clock[mine] += 1

    def add(self, ids: np.ndarray, failed: np.ndarray, step: Step) -> None:
        """A step of these; that of one that failed is not kept, but cuts."""
        kept = self.clock[ids] < self._until  # one that was begun anew after a fault may go on for longer
        if failed.size:
            sound = ~np.isin(ids, failed)
            self._cut(ids[kept & ~sound])
            kept &= sound
        rows, times = ids[kept], self.clock[ids[kept]]
        reward, terminated = step.reward[kept], step.terminated[kept]
        self._reward[times // self._length, rows] += reward / self._length
        self._costs[times // self._length, rows] += step.costs[kept] / self._length
        self.usual.add(reward[~terminated])
        self.clock[rows] += 1
        ended = terminated | step.truncated[kept]
        if np.count_nonzero(ended):
            self._ends.append(Ends(times[ended], rows[ended], reward[ended], terminated[ended]))
            self._ended_at[rows[ended]] = self.clock[rows[ended]]

    def series(self) -> Series:
        """Of all the steps for which there was room, in whole blocks."""
        blocks = self._until // self._length
        ends = Ends(*(np.concatenate(column) for column in zip(Ends.none(), *self._ends, strict=True)))
        return Series(
            self._reward[:blocks], self._costs[:blocks], ends.before(blocks * self._length),
            self.usual.bound, self._length,
        )  # fmt: skip

    def _cut(self, ids: np.ndarray) -> None:
        """Note that the latest step of these was their last before a restart, unless that is known already."""
        ids = ids[self.clock[ids] > self._ended_at[ids]]
        self._ends.append(Ends(self.clock[ids] - 1, ids, np.zeros(len(ids)), np.zeros(len(ids), bool)))
        self._ended_at[ids] = self.clock[ids]


class FirstTrajectory:
    """The first trajectory of a pool, step by step, in arrays that grow with it."""

    def __init__(self, pool: Pool, num_costs: int) -> None:
        self._pool, self._until, self._steps = pool, 0, 0
        observation = pool.spec.observation
        self._columns = [
            np.zeros((0, *observation.shape), observation.dtype), np.zeros(0), np.zeros((0, num_costs)),
            np.zeros(0, bool), np.zeros(0, bool),
        ]  # fmt: skip
        """Observation, reward, costs, terminated, truncated."""
        self._actions: np.ndarray | None = None

    @property
    def bytes_per_step(self) -> int:
        """What a step takes, apart from the action."""
        return sum(column.dtype.itemsize * math.prod(column.shape[1:]) for column in self._columns)

    def grow(self, until: int) -> None:
        """Make room for so many steps."""
        self._until = until
        self._columns = [_longer(column, until) for column in self._columns]
        self._actions = None if self._actions is None else _longer(self._actions, until)

    def add(self, before: np.ndarray, row: int, step: Step) -> None:
        """A step from the observation `before`, in this row; not beyond the steps for which there is room."""
        if self._steps == self._until:
            return
        action = self._pool.sent[row]
        if self._actions is None:
            self._actions = np.zeros((self._until, *action.shape), action.dtype)
        seen = (before, step.reward[row], step.costs[row], step.terminated[row], step.truncated[row])
        for column, value in zip(self._columns, seen, strict=True):
            column[self._steps] = value
        self._actions[self._steps] = action
        self._steps += 1

    def cut(self) -> None:
        """The next step failed: if the one before did not end the trajectory, it was cut there."""
        *_, terminated, truncated = self._columns
        if 0 < self._steps < self._until:
            truncated[self._steps - 1] |= ~terminated[self._steps - 1]

    def trajectory(self, cost_names: tuple[str, ...]) -> Trajectory | None:
        """What was kept."""
        if self._actions is None:
            return None
        steps = slice(self._steps)
        observations, reward, costs, terminated, truncated = (column[steps] for column in self._columns)
        return Trajectory(
            self._pool.spec.spaces, observations, self._actions[steps],
            reward, costs, terminated, truncated, cost_names,
        )  # fmt: skip


def block_length(row_bytes: int, until: int) -> int:
    """Steps of a block: 1 if a record of single steps is small enough, or else 5, 10, 20, 40, …

    `row_bytes` is what one step of all trajectories takes.
    """
    length = 1
    while _bytes_of(row_bytes, until, length) > FINE_BYTES:
        longer = BLOCK if length == 1 else 2 * length
        if until // longer < LEAST_BLOCKS:
            break
        length = longer
    return length


def refuse_too_large(bytes_needed: int) -> None:
    """Refuse an evaluation whose record does not fit into memory, before it begins."""
    if bytes_needed > MOST_BYTES:
        raise UserError(
            f"The record of so many steps would take {bytes_needed / 1024**3:,.0f} GB: ask for fewer steps or fewer "
            "trajectories."
        )


def _bytes_of(row_bytes: int, until: int, length: int) -> int:
    return row_bytes * -(-until // length)


def _merged(blocks: np.ndarray, together: int, length: int) -> np.ndarray:
    """So many blocks, each the mean of some that were there; those that were not there are zero."""
    if together == 1:
        return _longer(blocks, length)
    merged = np.zeros((length, *blocks.shape[1:]))
    for first in range(together):
        part = blocks[first::together]
        merged[: len(part)] += part
    merged /= together
    return merged


def _longer(array: np.ndarray, length: int) -> np.ndarray:
    longer = np.zeros((length, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer
