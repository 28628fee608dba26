"""Cycles between two visits to a regeneration state: long-run averages without a warm-up and without batches.

What happens after a visit to such a state does not depend on what happened before. So the cycles between visits are
independent and alike, and the average per step is the mean of a cycle's sum divided by the mean of its length (Crane &
Iglehart 1975).

A trajectory that stops after T steps cuts its last cycle, and long cycles are cut more often than short ones: if the
whole cycles were simply counted, the average would have a bias of order 1/T that more trajectories do not reduce. But
the cycles that *begin* before a time m, the last of them included, have no such bias (Wald's identity, since whether a
cycle counts is known when it begins), if all of them end before T. So m is T less the longest cycle that began in the
first half: all that began in that half must have ended.
"""

import dataclasses
from typing import Any

import numpy as np
from scipy.special import ndtri

from kemeny.experience.estimate import CONFIDENCE, Estimate

LEAST_CYCLES = 10_000
"""The interval is that of a normal distribution, and cycles of a queue are very unlike each other: with fewer cycles it
has the true value in it less often (docs/evaluation.md has what was measured)."""
MOST_BINS = 128
"""Into so many parts of time cycles are sorted, by their beginnings."""
COUNT, LENGTH, SQUARED_LENGTH = range(3)
PER_SIGNAL = 3
"""Of each signal: its sum over a cycle, the square of it, and its product with the length of the cycle."""


@dataclasses.dataclass(frozen=True)
class Regenerative:
    """Averages per step from whole cycles."""

    cycles: int
    """That were counted, of all trajectories together."""
    length: float | None
    """Steps of a cycle, on average; None if there was none."""
    reward: Estimate | None
    """None if it was left out, like those of the costs."""
    costs: tuple[Estimate, ...]
    left_out: str
    """Why there is no estimate, in one sentence; empty if there is one."""

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "cycles": self.cycles,
            "length": self.length,
            "reward": None if self.reward is None else self.reward.record(),
            "costs": [cost.record() for cost in self.costs] or None,
            "left_out": self.left_out or None,
        }


class Cycles:
    """The cycles of trajectories that are stepped together, as sums: single cycles are not kept."""

    def __init__(self, trajectories: int, num_costs: int) -> None:
        self.seen = False
        """Whether a regeneration state was visited at all."""
        self.broken = False
        """Whether a trajectory was restarted: then its cycles are not those of the process."""
        self._until, self._shift = 0, 0
        """A bin has 2^shift steps."""
        self._begin = np.full(trajectories, -1, np.int64)
        """When the present cycle of each trajectory began; −1 before the first visit."""
        self._before = np.zeros((trajectories, 1 + num_costs))
        """What reward and costs came to in all by then."""
        self._bins = np.zeros((0, SQUARED_LENGTH + 1 + PER_SIGNAL * (1 + num_costs)))
        self._longest = np.zeros(0, np.int64)

    def grow(self, until: int) -> None:
        """Expect so many steps."""
        shift = max(until - 1, 0).bit_length() - (MOST_BINS.bit_length() - 1)
        merged = max(shift, self._shift) - self._shift
        self._until, self._shift = until, self._shift + merged
        old = np.arange(len(self._longest)) >> merged
        bins, longest = np.zeros((MOST_BINS, self._bins.shape[1])), np.zeros(MOST_BINS, np.int64)
        np.add.at(bins, old, self._bins)
        np.maximum.at(longest, old, self._longest)
        self._bins, self._longest = bins, longest

    def add(self, time: int, visited: np.ndarray, total: np.ndarray, spent: np.ndarray) -> None:
        """After `time` steps some trajectories are in a regeneration state; `total` and `spent` are sums since 0."""
        rows = np.flatnonzero(visited)
        if not rows.size:
            return
        self.seen = True
        now = np.column_stack([total[rows], spent[rows]])
        begin = self._begin[rows]
        whole = begin >= 0
        if np.count_nonzero(whole):
            self._count(begin[whole], time - begin[whole], (now - self._before[rows])[whole])
        self._begin[rows], self._before[rows] = time, now

    def _count(self, begin: np.ndarray, length: np.ndarray, sums: np.ndarray) -> None:
        place = begin >> self._shift
        np.maximum.at(self._longest, place, length)
        terms = [np.ones(len(length)), length, length**2]
        for of_cycle in sums.T:
            terms += [of_cycle, of_cycle**2, of_cycle * length]
        for column, term in enumerate(terms):
            self._bins[:, column] += np.bincount(place, term, MOST_BINS)

    @staticmethod
    def estimates(parts: list["Cycles"]) -> Regenerative | None:
        """What the cycles of several parts together say; None if no regeneration state was ever visited."""
        if not any(part.seen for part in parts):
            return None
        until, shift = parts[0]._until, parts[0]._shift
        bins = np.sum([part._bins for part in parts], 0)
        longest = np.max([part._longest for part in parts], 0)
        half = until // 2 >> shift
        unfinished = any(part._begin.min() < half << shift for part in parts)
        counted = max((until - int(longest[:half].max(initial=0))) >> shift, half)
        sums = bins[:counted].sum(0)
        cycles = int(sums[COUNT])
        why = ""
        if any(part.broken for part in parts):
            why = "a trajectory was restarted, which cuts a cycle"
        elif unfinished:
            why = "some cycle takes more than half of a trajectory: ask for more steps (--max-steps)"
        elif cycles < LEAST_CYCLES:
            why = f"there are {cycles:,} whole cycles, and it takes {LEAST_CYCLES:,}: ask for more steps (--max-steps)"
        signals = [] if why else [ratio(*sums[: SQUARED_LENGTH + 1], *three) for three in _per_signal(sums)]
        mean_length = float(sums[LENGTH] / cycles) if cycles else None
        return Regenerative(cycles, mean_length, signals[0] if signals else None, tuple(signals[1:]), why)


def ratio(
    cycles: float, length: float, squared_length: float, total: float, squared: float, product: float
) -> Estimate:
    """The average per step of independent cycles, given sums over them, with the interval of the delta method.

    With Y the sum over a cycle and τ its length, it is r = ΣY/Στ, and its standard error is that of the mean of Y − rτ,
    divided by the mean of τ.
    """
    average = total / length
    squares = max(squared - 2 * average * product + average**2 * squared_length, 0.0)  # below 0 by rounding alone
    error = np.sqrt(squares / (cycles - 1) * cycles) / length
    half = float(ndtri((1 + CONFIDENCE) / 2) * error)
    return Estimate(float(average), float(average) - half, float(average) + half, "cycles")


def _per_signal(sums: np.ndarray) -> np.ndarray:
    return sums[SQUARED_LENGTH + 1 :].reshape(-1, PER_SIGNAL)
