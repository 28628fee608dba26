"""Environments that fail in the middle of a run, and are restarted if that was asked for."""

import numpy as np

from kemeny.envs.pool import Pool, Step
from kemeny.errors import RunError

TRIES = 10
"""Failures of one environment without a sound step between them, after which it is given up."""
LARGEST = float(np.finfo(np.float32).max)


class Faults:
    """What failed in a pool: its steps and start states with a number that is not finite.

    A tolerant pool gives such numbers, too, for an environment that raised, hung or died.
    """

    def __init__(self, pool: Pool, restart: bool, first: int = 0) -> None:
        """Environment 0 of the pool is number `first` of the run; without `restart` the first fault is raised."""
        self.count = 0
        """Faults so far."""
        self.last = ""
        """What the latest was."""
        self._pool, self._restart, self._first = pool, restart, first
        self._in_a_row = np.zeros(pool.num_envs, np.int64)

    def among(self, step: Step, ids: np.ndarray) -> np.ndarray:
        """Those of `ids`, a row of the step each, that failed."""
        sound = _finite(step.observation) & _finite(step.reward[:, None]) & _finite(step.costs)
        return self._note(ids[~sound])

    def reset(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Restart these, again if need be: their start observations, and how many restarts each took."""
        rows, restarts = self._pool.reset(ids), np.ones(len(ids), np.int64)
        while not (sound := _finite(rows)).all():
            again = self._note(ids[~sound])
            rows[~sound] = self._pool.reset(again)
            restarts[~sound] += 1
        return rows, restarts

    def forgive(self) -> None:
        """Everyone has taken a sound step."""
        self._in_a_row[:] = 0

    def _note(self, failed: np.ndarray) -> np.ndarray:
        if failed.size:
            self.count += len(failed)
            self._in_a_row[failed] += 1
            told = self._pool.take_faults()
            self.last = told[-1] if told else f"environment {self._first + failed[0]} gave a number that is not finite"
            if not self._restart:
                raise RunError(f"{self.last}.")
            if self._in_a_row.max() > TRIES:
                raise RunError(f"{self.last}; it has failed {TRIES + 1} times in a row.")
        return failed


def _finite(rows: np.ndarray) -> np.ndarray:
    """Which rows hold finite numbers, of float32's range, alone."""
    return np.all(np.abs(rows) <= LARGEST, axis=1)
