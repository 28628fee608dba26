"""What a solver returns: a policy, its gain, and bounds on the best gain; and what is known while it runs."""

import dataclasses
import types
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """An optimal policy of an average-reward model, with bounds on the best gain that hold for any model."""

    method: str
    gain: float
    """ρ*, the best reward per step."""

    bias: np.ndarray
    """h with h = max_a [r − ρ* + P·h], up to a constant."""

    policy: np.ndarray
    """The action in each state."""

    iterations: int
    gain_bounds: tuple[float, float]
    """The smallest and the largest entry of max_a [r + P·h] − h: the best gain from any start lies between them."""

    reason: str = ""
    """Why this method was chosen, if `solve` chose it."""

    def __str__(self) -> str:
        low, high = self.gain_bounds
        iterations = f"{self.iterations} iteration{'' if self.iterations == 1 else 's'}"
        return f"{self.method}: gain {self.gain:.10g} in [{low:.10g}, {high:.10g}], {iterations}"


class Known(NamedTuple):
    """What is known about the best gain at some moment of a search."""

    method: str
    iterations: int
    low: float
    high: float


Watch = Callable[[Known], None]
"""Is told what is known after each iteration of a solver."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C during a search; `solution` is what was known by then, and its bounds are certain."""

    def __init__(self, solution: Solution):
        low, high = solution.gain_bounds
        super().__init__(
            f"Stopped after {solution.iterations} iterations: the best gain is in [{low:.10g}, {high:.10g}]."
        )
        self.solution = solution


class Search:
    """Keeps the best bounds of a search and the policy that goes with them; used as a context.

    The bounds of every iteration hold, so the largest lower bound and the smallest upper bound do.
    """

    def __init__(
        self, method: str, policy: Callable[[np.ndarray], np.ndarray], watch: Watch | None = None, reason: str = ""
    ):
        self.method, self.policy, self.watch, self.reason = method, policy, watch, reason
        self.iterations, self.low, self.high = 0, -np.inf, np.inf
        self.best: np.ndarray | None = None
        """The h whose best policy has the largest lower bound on its gain."""

    def see(self, h: np.ndarray, low: float, high: float) -> None:
        """Take note of an iteration: h, and the bounds that follow from it. h must not be changed afterwards."""
        self.iterations += 1
        if self.best is None or low > self.low:
            self.best = h
        self.low, self.high = max(self.low, low), min(self.high, high)
        if self.watch is not None:
            self.watch(Known(self.method, self.iterations, self.low, self.high))

    def solution(self, h: np.ndarray, policy: np.ndarray | None = None, gain: float | None = None) -> Solution:
        """The result of the search; the policy is the best one given h, unless it is known already."""
        policy = self.policy(h) if policy is None else policy
        low, high = min(self.low, self.high), max(self.low, self.high)  # rounding may turn a tiny interval around
        middle = (low + high) / 2 if gain is None else min(max(gain, low), high)
        return Solution(self.method, middle, h, policy.astype(np.int64), self.iterations, (low, high), self.reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: types.TracebackType | None) -> None:
        if kind is KeyboardInterrupt and self.best is not None:
            raise Stopped(self.solution(self.best)) from None
