"""What the end of a trajectory costs on a continuing task: a fall costs, a goal does not."""

import numpy as np

from kemeny.experience.settings import RESET_COST

FAR_ABOVE = 10.0
"""Standard deviations of the usual rewards between their mean and the reward of a goal. A fall forward may pay more
than any step before it, but not that much more."""


def find_goals(reward: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Which ends look like goals: their reward is far above those of the steps of the batch that ended nothing."""
    usual = reward[~ended]
    if not usual.size:
        return np.zeros_like(ended)
    usual = usual.astype(np.float64)
    return ended & (reward > _bound(usual.max(), usual.mean(), usual.std()))


def charge(reward: np.ndarray, ended: np.ndarray, reset_cost: float | None) -> np.ndarray:
    """Subtract what the ends of a batch cost from its rewards, in place; which of them were goals, and so free."""
    goals = find_goals(reward, ended) if reset_cost is None else np.zeros_like(ended)
    if ended.any():
        reward[ended & ~goals] -= RESET_COST if reset_cost is None else reset_cost
    return goals


class UsualRewards:
    """The rewards of steps that ended nothing, as they come: they tell from which reward on an end is a goal."""

    def __init__(self) -> None:
        self._count, self._largest = 0, -np.inf
        self._origin = 0.0
        """The first reward; sums are of differences to it, so that the squares lose no digits to a large mean."""
        self._sum = self._squares = 0.0

    def add(self, reward: np.ndarray) -> None:
        """Some more."""
        if not reward.size:
            return
        if not self._count:
            self._origin = float(reward[0])
        around = np.subtract(reward, self._origin, dtype=np.float64)
        self._count += reward.size
        self._largest = max(self._largest, float(reward.max()))
        self._sum += float(around.sum())
        self._squares += float(np.dot(around, around))

    @property
    def bound(self) -> float:
        """As in `find_goals`; infinite if there was none, for then nothing can be told."""
        if not self._count:
            return np.inf
        mean = self._sum / self._count
        deviation = np.sqrt(max(self._squares / self._count - mean**2, 0.0))
        return float(_bound(self._largest, self._origin + mean, deviation))


def _bound(largest: float, mean: float, deviation: float) -> float:
    return max(largest, mean + FAR_ABOVE * deviation)
