"""What a solver hands back: a policy, its gain, and how far from the best it can be."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """An optimal policy of an average-reward model, with a bound on its error that holds for any model."""

    method: str
    gain: float
    """ρ*, the best reward per step."""

    bias: np.ndarray
    """h with h = max_a [r − ρ* + P·h], up to a constant."""

    policy: np.ndarray
    """The action in each state."""

    iterations: int
    gain_bounds: tuple[float, float]
    """The least and the largest max_a [r + P·h] − h over the states: every start's best gain lies between them."""

    def __str__(self) -> str:
        low, high = self.gain_bounds
        return f"{self.method}: gain {self.gain:.10g} in [{low:.10g}, {high:.10g}], {self.iterations} iterations"
