"""What arrays look like: those that an environment gives and takes, and those that are read from a file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kemeny.errors import Damaged


@dataclass(frozen=True)
class ArraySpec:
    """Shape and type of one array."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, array: np.ndarray) -> "ArraySpec":
        """The shape and type that this array has."""
        return cls(array.shape, array.dtype)

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"shape {self.shape} and type {self.dtype}"


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

    @property
    def array(self) -> ArraySpec:
        """One action, as the policy draws it."""
        return ArraySpec((self.size,), np.dtype(np.float32))


@dataclass(frozen=True)
class Discrete:
    """Actions that are one of 0, …, n−1."""

    n: int

    @property
    def array(self) -> ArraySpec:
        """One action, as the policy draws it."""
        return ArraySpec((), np.dtype(np.int32))


@dataclass(frozen=True)
class Spec:
    """What a policy must know of an environment."""

    observation: ArraySpec
    """One observation, as the policy sees it."""
    action: Continuous | Discrete
    time_limit: int | None
    """The `max_episode_steps` with which the environment is registered; a pool has it only if asked."""


def vector(size: int) -> ArraySpec:
    """Observations that are vectors of float32."""
    return ArraySpec((size,), np.dtype(np.float32))


def check_arrays(found: Mapping[str, np.ndarray], expected: Mapping[str, ArraySpec], where: object) -> None:
    """Refuse arrays, read from `where`, of which one is missing or has another shape or type than expected."""
    for name, spec in expected.items():
        array = found.get(name)
        if array is None:
            raise Damaged(f"{where} does not hold what it must: {name} is missing.")
        if ArraySpec.of(array) != spec:
            raise Damaged(f"{where} does not hold what it must: {name} has {ArraySpec.of(array)}, not {spec}.")
