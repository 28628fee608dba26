"""Bellman sweeps: what every action is worth given h, and the best of them, at the speed of the memory."""

from typing import NamedTuple

import numpy as np

from kemeny.tabular.blocks import Blocks
from kemeny.tabular.mdp import MDP
from kemeny.tabular.structure import rows_of

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
    """The rows of a model, block by block: views of its matrix, not copies."""

    def __init__(self, mdp: MDP):
        self.mdp = mdp
        self.blocks = Blocks(mdp.n_states)
        self.rows = [[rows_of(matrix, part) for matrix in mdp.by_action] for part in self.blocks.slices]

    def backup(self, h: np.ndarray) -> Backup:
        """The best value in each state given h."""
        best = np.empty(len(h))

        def work(k: int, part: slice) -> tuple[float, float, float]:
            top = self._value(k, 0, part, h)
            for a in range(1, self.mdp.n_actions):
                np.maximum(top, self._value(k, a, part, h), out=top)
            best[part] = top
            return ends(top, h[part])

        return summary(best, self.blocks.each(work))

    def improve(self, h: np.ndarray, present: np.ndarray | None = None) -> tuple[np.ndarray, Backup]:
        """The best actions given h, and their values; the `present` one stays unless another is better than a tie."""
        best, policy = np.empty(len(h)), np.zeros(len(h), dtype=np.int32)
        margin = 0.0 if present is None else TIE * max(float(h.max()), -float(h.min()), self.scale)

        def work(k: int, part: slice) -> tuple[float, float, float]:
            top, chosen = self._value(k, 0, part, h), policy[part]
            kept = top.copy()
            for a in range(1, self.mdp.n_actions):
                value = self._value(k, a, part, h)
                np.copyto(chosen, a, where=value > top)
                np.maximum(top, value, out=top)
                if present is not None:
                    np.copyto(kept, value, where=present[part] == a)
            if present is not None:
                np.copyto(chosen, present[part], where=top <= kept + margin)
            best[part] = top
            return ends(top, h[part])

        found = summary(best, self.blocks.each(work))
        return policy, found

    def policy(self, h: np.ndarray) -> np.ndarray:
        """The best actions given h."""
        return self.improve(h)[0]

    def _value(self, k: int, a: int, part: slice, h: np.ndarray) -> np.ndarray:
        value = self.rows[k][a] @ h
        value += self.mdp.rewards_by_action[a, part]
        return value

    @property
    def scale(self) -> float:
        """The largest reward, or a tiny positive number if all are 0."""
        return max(float(self.mdp.rewards.max()), -float(self.mdp.rewards.min()), 1e-300)


class PolicySweeps:
    """The rows and rewards of one deterministic policy, block by block."""

    def __init__(self, mdp: MDP, policy: np.ndarray, blocks: Blocks):
        self.chain, self.blocks = mdp.chain(policy), blocks
        self.rows = [rows_of(self.chain.P, part) for part in blocks.slices]
        self.reward = mdp.rewards[np.arange(mdp.n_states), policy]

    def step(self, h: np.ndarray, step: float) -> tuple[np.ndarray, float]:
        """h + step·(r + P·h − h), and the span of r + P·h − h."""
        result = np.empty(len(h))

        def work(k: int, part: slice) -> tuple[float, float]:
            rise = self.rows[k] @ h
            rise += self.reward[part]
            rise -= h[part]
            ends = float(rise.min()), float(rise.max())
            rise *= step
            np.add(h[part], rise, out=result[part])
            return ends

        lows, highs = zip(*self.blocks.each(work), strict=True)
        return result, max(highs) - min(lows)


def ends(best: np.ndarray, h: np.ndarray) -> tuple[float, float, float]:
    """The smallest and the largest entry of best − h, and the sum."""
    rise = best - h
    return float(rise.min()), float(rise.max()), float(rise.sum())


def summary(best: np.ndarray, parts: list[tuple[float, float, float]]) -> Backup:
    """What the blocks have found, taken together."""
    lows, highs, sums = zip(*parts, strict=True)
    return Backup(best, min(lows), max(highs), sum(sums) / len(best))
