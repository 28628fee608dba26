"""Bellman sweeps: what every action is worth given h, and the best of them, at the speed of the memory."""

from typing import NamedTuple

import numpy as np

from kemeny.tabular import kernels
from kemeny.tabular.blocks import Blocks
from kemeny.tabular.kernels import unsigned
from kemeny.tabular.mdp import MDP
from kemeny.tabular.rows import Rows

TIE = 1e-12
"""An action must be better than the present one by this share of the largest value. A smaller difference is a rounding
error; acting on it could cycle for ever."""


class Backup(NamedTuple):
    """The result of one sweep over all actions."""

    best: np.ndarray
    """max_a [r + P·h]."""

    low: float
    """The smallest entry of best − h. For any h, the best gain from every start lies between `low` and `high`."""

    high: float
    """The largest entry of best − h."""

    mean: float
    """The mean of best − h."""

    @property
    def span(self) -> float:
        """The width of the interval in which the best gain lies."""
        return self.high - self.low


class Sweeps:
    """Sweeps over the rows of a model."""

    def __init__(self, mdp: MDP):
        self.mdp = mdp
        self.blocks = Blocks(mdp.n_states, mdp.P.size)
        self.arrays = None
        """What `kernels` read of a sparse model."""
        if mdp.is_sparse:
            self.arrays = (unsigned(mdp.P.indptr), unsigned(mdp.P.indices), mdp.P.data, mdp.rewards)

    def backup(self, h: np.ndarray) -> Backup:
        """The best value in each state given h."""
        if self.arrays is None:
            return self._dense(h)[1]
        best, arrays = np.empty(len(h)), self.arrays
        return summary(best, self.blocks.each(lambda begin, end: kernels.backup(*arrays, h, begin, end, best)))

    def improve(self, h: np.ndarray, present: np.ndarray | None = None) -> tuple[np.ndarray, Backup]:
        """The best actions given h, and their values; the `present` one stays unless another is better than a tie."""
        margin = 0.0 if present is None else TIE * max(float(h.max()), -float(h.min()), self.scale)
        if self.arrays is None:
            values, found = self._dense(h)
            policy = values.argmax(axis=0)
            if present is not None:
                kept = values[present, np.arange(len(h))]
                policy = np.where(found.best > kept + margin, policy, present)
            return policy, found
        best, arrays = np.empty(len(h)), self.arrays
        policy = np.full(len(h), -1, dtype=np.int32) if present is None else present.astype(np.int32)

        def work(begin: int, end: int) -> tuple[float, float, float]:
            return kernels.improve(*arrays, h, begin, end, best, policy, margin)

        return policy, summary(best, self.blocks.each(work))

    def _dense(self, h: np.ndarray) -> tuple[np.ndarray, Backup]:
        """The values of all actions, A × S, and the best of them."""
        values = (self.mdp.P @ h).reshape(self.mdp.n_actions, -1) + self.mdp.rewards_by_action
        best = values.max(axis=0)
        rise = best - h
        return values, Backup(best, float(rise.min()), float(rise.max()), float(rise.mean()))

    def policy(self, h: np.ndarray) -> np.ndarray:
        """The best actions given h."""
        return self.improve(h)[0]

    @property
    def scale(self) -> float:
        """The largest reward, or a tiny positive number if all are 0."""
        return max(float(self.mdp.rewards.max()), -float(self.mdp.rewards.min()), 1e-300)


class PolicySweeps:
    """Sweeps over the rows of one deterministic policy."""

    def __init__(self, mdp: MDP, policy: np.ndarray):
        self.blocks = Blocks(mdp.n_states, mdp.P.size // mdp.n_actions)
        self.reward = mdp.rewards[np.arange(mdp.n_states), policy]
        self.matrix = None if mdp.is_sparse else mdp.chain(policy).P
        if mdp.is_sparse:
            self.rows = Rows.of_policy(mdp.P, policy)

    def step(self, h: np.ndarray, step: float) -> tuple[np.ndarray, float]:
        """h + step·(r + P·h − h), and the span of r + P·h − h."""
        if self.matrix is not None:
            rise = self.matrix @ h + self.reward - h
            return h + step * rise, float(np.ptp(rise))
        result = np.empty(len(h))

        def work(begin: int, end: int) -> tuple[float, float]:
            return kernels.chain_step(*self.rows, self.reward, h, step, begin, end, result)

        lows, highs = zip(*self.blocks.each(work), strict=True)
        return result, max(highs) - min(lows)


def summary(best: np.ndarray, parts: list[tuple[float, float, float]]) -> Backup:
    """What the blocks have found, taken together."""
    lows, highs, sums = zip(*parts, strict=True)
    return Backup(best, min(lows), max(highs), sum(sums) / len(best))
