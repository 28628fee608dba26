"""What an evaluation found, as numbers and as a record of evaluations.jsonl; and back."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

HORIZONS = (1_000, 10_000)
"""Steps at which returns are reported (§6.1)."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One entry per trajectory."""

    returns: dict[int, np.ndarray]
    """Undiscounted return up to a fall or to each horizon, without any reset cost."""
    lengths: np.ndarray
    average_costs: np.ndarray
    """(trajectory, cost): total cost / length."""
    faults: int = 0
    """Trajectories that were begun anew because their environment failed."""

    def record(self) -> dict[str, Any]:
        """As a line of evaluations.jsonl; a horizon beyond the longest allowed trajectory is null."""
        returns = {
            f"returns_{horizon}": self.returns[horizon].tolist() if horizon in self.returns else None
            for horizon in sorted({*HORIZONS, *self.returns})
        }
        costs = self.average_costs.tolist() if self.average_costs.size else None
        return {**returns, "lengths": self.lengths.tolist(), "average_costs": costs, "faults": self.faults}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Evaluation":
        """From a line of evaluations.jsonl, or a `ValueError` that says what is wrong with it."""
        returns = {}
        for name, values in record.items():
            horizon = re.fullmatch(r"returns_([1-9]\d{0,17})", name)
            if name.startswith("returns_") and horizon is None:
                raise ValueError(f"{name} names no number of steps")
            if horizon is not None and values is not None:
                returns[int(horizon[1])] = _numbers(values, name, 1)
        if not returns:
            raise ValueError("it has no returns")
        lengths, costs = record.get("lengths"), record.get("average_costs")
        trajectories = len(next(iter(returns.values())))
        return cls(
            returns,
            np.zeros(0, np.int64) if lengths is None else _numbers(lengths, "lengths", 1),
            np.zeros((trajectories, 0)) if costs is None else _numbers(costs, "average_costs", 2),
            int(record.get("faults") or 0),
        )

    def score(self, limits: Sequence[float] = (), slope: float = 1.0) -> list[float]:
        """What makes a policy best, in order: least cost above the limits, then the return at the longest horizon.

        `slope` turns cost per step into the units of the limits: 1, or 1/(1−γ) for a limit on the discounted sum.
        """
        excess = np.maximum(slope * self.average_costs.mean(0) - np.asarray(limits, float), 0)
        return [-float(excess.sum()), float(self.returns[max(self.returns)].mean())]


def _numbers(values: Any, name: str, dimensions: int) -> np.ndarray:
    try:
        array = np.array(values, float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not a list of numbers") from error
    if array.ndim != dimensions or not array.size or not (np.abs(array) < 1e300).all():
        raise ValueError(f"{name} is not a list of numbers")
    return array
