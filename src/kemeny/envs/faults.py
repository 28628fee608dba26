"""Environments that fail in the middle of a run, and are restarted if `restart_faulty` is set."""

import numpy as np

from kemeny.envs.pool import Pool, Step
from kemeny.errors import RunError

TRIES = 10
"""How often in a row an environment may fail, without a sound step in between, before the run is given up."""
LARGEST = 1e15
"""A number beyond this is a fault: nothing that is measured is so large, and it would spoil the running statistics for
good. Up to here squares, and sums of squares over 10⁸ steps, are finite in float32."""


class Faults:
    """Finds and counts the faults of a pool: steps and start states with a number that is not finite, or too large.

    A pool that restarts faulty environments also gives such numbers for one that raised, hung or died.
    """

    def __init__(self, pool: Pool, restart_faulty: bool, first_env: int = 0) -> None:
        """Environment 0 of the pool is number `first_env` of the run; a fault is raised unless `restart_faulty`."""
        self.count = 0
        """Number of faults so far."""
        self.last = ""
        """The latest fault, in one sentence."""
        self._pool, self.restart_faulty, self._first_env = pool, restart_faulty, first_env
        self._in_a_row = np.zeros(pool.num_envs, np.int64)

    def among(self, step: Step, ids: np.ndarray) -> np.ndarray:
        """Those of `ids` that failed; row i of the step is of environment `ids[i]`."""
        return self._record(ids, step.observation, step.reward[:, None], step.costs)

    def reset(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Restart these environments until all start observations are sound.

        Returns the start observations, and how many restarts each environment needed.
        """
        rows, restarts = self._pool.reset(ids), np.ones(len(ids), np.int64)
        while (failed := self._record(ids, rows)).size:
            again = np.isin(ids, failed)
            rows[again] = self._pool.reset(failed)
            restarts[again] += 1
        return rows, restarts

    def clear(self) -> None:
        """Forget failures in a row, because every environment has taken a sound step."""
        self._in_a_row[:] = 0

    def _record(self, ids: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        """Count the faults among these environments, given the numbers of each in a row; returns the ids that failed.

        The latest fault is raised if it must not be tolerated.
        """
        if all(usable(rows).all() for rows in numbers):  # several times faster than row by row
            return ids[:0]
        sound = np.logical_and.reduce([usable(rows).all(1) for rows in numbers])
        failed = ids[~sound]
        if failed.size:
            self.count += len(failed)
            self._in_a_row[failed] += 1
            finite = all(np.isfinite(rows[np.argmin(sound)]).all() for rows in numbers)
            what = f"beyond ±{LARGEST:g}" if finite else "not finite"
            unusable = f"Environment {self._first_env + failed[0]} gave a number that is {what}."
            self.last = [unusable, *self._pool.take_faults()][-1]
            if not self.restart_faulty:
                raise RunError(self.last)
            if self._in_a_row.max() > TRIES:
                raise RunError(f"{self.last} It has failed {TRIES + 1} times in a row.")
        return failed


def usable(numbers: np.ndarray) -> np.ndarray:
    """Which of these are finite, and not so large that they ruin what is computed from them."""
    return np.abs(numbers) <= LARGEST
