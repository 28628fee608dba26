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
    bound = max(usual.max(), usual.mean() + FAR_ABOVE * usual.std())
    return ended & (reward > bound)


def charge(reward: np.ndarray, ended: np.ndarray, reset_cost: float | None) -> np.ndarray:
    """Subtract what the ends of a batch cost from its rewards, in place; which of them were goals, and so free."""
    goals = find_goals(reward, ended) if reset_cost is None else np.zeros_like(ended)
    if ended.any():
        reward[ended & ~goals] -= RESET_COST if reset_cost is None else reset_cost
    return goals
