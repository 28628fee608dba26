"""A long-run average and its interval."""

from typing import Any, Literal, NamedTuple

import numpy as np

CONFIDENCE = 0.95
"""How often an interval has the true value in it."""


class Estimate(NamedTuple):
    """A long-run average, and an interval that has the true value in it 95 times in 100."""

    average: float
    low: float
    high: float
    spread: Literal["batches", "trajectories", "cycles", "poisson", "none"]
    """What the interval's width comes from; `none` if there are too few steps for an interval, which is then NaN."""

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    @property
    def precision(self) -> float:
        """Half-width relative to the average; NaN or infinite if that says nothing."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.abs(np.divide(self.half_width, self.average)))

    def record(self) -> dict[str, Any]:
        """As JSON, where a bound that does not exist is null."""
        bounds = {name: None if np.isnan(bound) else bound for name, bound in (("low", self.low), ("high", self.high))}
        return {"average": self.average, **bounds, "spread": self.spread}
