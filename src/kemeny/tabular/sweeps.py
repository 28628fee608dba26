"""Bellman sweeps: what every action is worth given h, and the best of them, at the speed of the memory."""

from typing import NamedTuple

import numpy as np

from kemeny.tabular.blocks import Blocks
from kemeny.tabular.mdp import MDP
from kemeny.tabular.structure import rows_of

TIE = 1e-12
"""An action must be better than the present one by this share of the largest value. A smaller difference is a rounding
error; acting on it could cycle for ever."""


class Improvement(NamedTuple):
    """The result of one sweep over all actions."""

    best: np.ndarray
    """max_a [r + P·h]."""

    policy: np.ndarray
    """The action that is best, one per state."""

    low: float
    """The smallest entry of best − h. For any h, the best gain from every start lies between `low` and `high`."""

    high: float
    """The largest entry of best − h."""

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

    def improve(self, h: np.ndarray, present: np.ndarray | None = None) -> Improvement:
        """The best actions given h; the `present` one stays unless another is better, by more than a tie."""
        best, policy = np.empty(len(h)), np.empty(len(h), dtype=np.int64)
        margin = 0.0 if present is None else TIE * max(float(h.max()), -float(h.min()), self.scale)

        def work(k: int, part: slice) -> tuple[float, float]:
            top, chosen = best[part], policy[part]
            chosen[:] = 0
            for a, rows in enumerate(self.rows[k]):
                value = rows @ h
                value += self.mdp.rewards_by_action[a, part]
                if a == 0:
                    top[:] = value
                    kept = value.copy() if present is not None else value
                    continue
                better = value > top
                chosen[better] = a
                np.maximum(top, value, out=top)
                if present is not None:
                    np.copyto(kept, value, where=present[part] == a)
            if present is not None:
                np.copyto(chosen, present[part], where=top <= kept + margin)
            rise = top - h[part]
            return float(rise.min()), float(rise.max())

        lows, highs = zip(*self.blocks.each(work), strict=True)
        return Improvement(best, policy, min(lows), max(highs))

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
