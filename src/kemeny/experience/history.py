"""Actions since the last restarts: what it takes to bring new environments to where others stand."""

from collections import deque

import numpy as np

from kemeny.spec import Spec


class History:
    """Actions of the latest batches, as far back as the oldest restart: what a snapshot replays."""

    def __init__(self, spec: Spec, num_envs: int, kept: bool, actions: np.ndarray | None = None) -> None:
        """If they need not be `kept`, there are none."""
        action = spec.action.array
        self._none = np.empty((0, num_envs, *action.shape), action.dtype)
        self._batches = deque([self._none if actions is None else actions])
        self.kept = kept

    def remember(self, actions: np.ndarray, since_restart: np.ndarray) -> None:
        """Add those of a batch, after which each environment has taken so many steps since its restart."""
        if not self.kept:
            return
        self._batches.append(actions.copy())
        longest = int(since_restart.max())
        while self._batches and sum(map(len, self._batches)) - len(self._batches[0]) >= longest:
            self._batches.popleft()

    def since(self, since_restart: np.ndarray) -> np.ndarray:
        """The latest, as many as the environment has taken that was restarted first."""
        longest = int(since_restart.max()) if self.kept else 0
        every = np.concatenate([self._none, *self._batches])
        return every[len(every) - longest :]
