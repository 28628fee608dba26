"""What a policy must know of an environment."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Continuous:
    """Actions that are vectors between bounds."""

    low: np.ndarray
    """Smallest value of each component, float32."""
    high: np.ndarray
    """Largest value of each component, float32."""

    @property
    def size(self) -> int:
        """Number of components."""
        return len(self.low)


@dataclass(frozen=True)
class Discrete:
    """Actions that are one of 0, …, n−1."""

    n: int


@dataclass(frozen=True)
class Spec:
    """What a policy must know of an environment."""

    observation_size: int
    action: Continuous | Discrete
    time_limit: int | None
    """The `max_episode_steps` the environment is registered with; a pool has it only if asked."""
