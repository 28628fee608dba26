"""Environments that fail in the middle of a run, and are restarted if `restart_faulty` is set."""

import numpy as np

from kemeny.envs.pool import Pool, Step
from kemeny.errors import RunError

TRIES = 10
"""How often in a row an environment may fail, without a sound step in between, before the run is given up."""
LARGEST = float(np.finfo(np.float32).max)


class Faults:
    """Finds and counts the faults of a pool: steps and start states with a number that is not finite.

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
        sound = _finite(step.observation) & _finite(step.reward[:, None]) & _finite(step.costs)
        return self._record(ids[~sound])

    def reset(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Restart these environments until all start observations are finite.

        Returns the start observations, and how many restarts each environment needed.
        """
        rows, restarts = self._pool.reset(ids), np.ones(len(ids), np.int64)
        while not (sound := _finite(rows)).all():
            failed = self._record(ids[~sound])
            rows[~sound] = self._pool.reset(failed)
            restarts[~sound] += 1
        return rows, restarts

    def clear(self) -> None:
        """Forget failures in a row, because every environment has taken a sound step."""
        self._in_a_row[:] = 0

    def _record(self, failed: np.ndarray) -> np.ndarray:
        """Count these faults; raise the latest if it must not be tolerated, or return the ids that failed."""
        if failed.size:
            self.count += len(failed)
            self._in_a_row[failed] += 1
            not_finite = f"Environment {self._first_env + failed[0]} gave a number that is not finite."
            self.last = [not_finite, *self._pool.take_faults()][-1]
            if not self.restart_faulty:
                raise RunError(self.last)
            if self._in_a_row.max() > TRIES:
                raise RunError(f"{self.last} It has failed {TRIES + 1} times in a row.")
        return failed


def _finite(rows: np.ndarray) -> np.ndarray:
    """Which rows hold only finite numbers within the range of float32."""
    return np.all(np.abs(rows) <= LARGEST, axis=1)
