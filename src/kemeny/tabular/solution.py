"""What a solver returns: a policy, its gain, and bounds on the best gain."""

import dataclasses

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

    def __str__(self) -> str:
        low, high = self.gain_bounds
        iterations = f"{self.iterations} iteration{'' if self.iterations == 1 else 's'}"
        return f"{self.method}: gain {self.gain:.10g} in [{low:.10g}, {high:.10g}], {iterations}"
