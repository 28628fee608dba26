"""What arrays look like: those that an environment gives and takes, and those that are read from a file."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kemeny.errors import Damaged, UserError

SMALLEST_NEAR_ONE, LARGEST_NEAR_ONE = 0.1, 10.0
"""Bounds of this size, on either side of 0, suit a policy as they are. An untrained policy acts near 0 with a deviation
of e⁻¹ or so: between such bounds it neither stays at one of them nor is too weak to be noticed. All MuJoCo tasks have
such bounds."""
MOST_DIMENSIONS = 32
"""Of an array that a file describes, as in older versions of NumPy."""


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
class Box:
    """Arrays of numbers; the policy has each as a vector."""

    shape: tuple[int, ...]
    """Of one array, as the environment has it; () for a single number."""
    kind: ClassVar[str] = "box"
    """Its name in a file."""

    @property
    def size(self) -> int:
        """Length of the vector."""
        return math.prod(self.shape)

    def rows(self, batch: np.ndarray) -> np.ndarray:
        """(n, *shape) observations as a new array of (n, size) float32."""
        with np.errstate(over="ignore"):  # numbers too large become inf, which is a fault
            return batch.astype(np.float32).reshape(len(batch), self.size)


@dataclass(frozen=True)
class Discrete:
    """One of the whole numbers start, …, start + n − 1; the policy counts from 0, and sees a one-hot vector."""

    n: int
    start: int = 0
    kind: ClassVar[str] = "discrete"
    shape: ClassVar[tuple[int, ...]] = ()

    @property
    def size(self) -> int:
        """Length of the one-hot vector."""
        return self.n

    @property
    def array(self) -> ArraySpec:
        """One action, as the policy draws it."""
        return ArraySpec((), np.dtype(np.int32))

    def rows(self, batch: np.ndarray) -> np.ndarray:
        """(n,) observations as a new array of (n, size) float32."""
        rows = np.zeros((len(batch), self.n), dtype=np.float32)
        rows[np.arange(len(batch)), batch.reshape(len(batch)).astype(np.int64) - self.start] = 1.0
        return rows


Space = Box | Discrete


class Spaces(NamedTuple):
    """What a policy is given and what it gives, as the environment has it."""

    observation: Space
    action: Space

    @property
    def description(self) -> dict[str, Any]:
        """As JSON: a checkpoint's facts have it, and `read_spaces` reads it."""
        return {name: {"kind": space.kind, **vars(space)} for name, space in self._asdict().items()}


class Unit(NamedTuple):
    """What the environment calls the policy's 0 and 1: its action is shift + scale · the policy's."""

    shift: np.ndarray
    scale: np.ndarray


@dataclass(frozen=True)
class Continuous:
    """Actions that are vectors between bounds."""

    low: np.ndarray
    """Smallest value of each component for the environment, float32."""
    high: np.ndarray
    """Largest value of each component, float32."""
    shape: tuple[int, ...] | None = None
    """Of one action as the environment takes it; None for a vector."""

    @property
    def size(self) -> int:
        """Number of components."""
        return len(self.low)

    @property
    def array(self) -> ArraySpec:
        """One action, as the policy draws it."""
        return ArraySpec((self.size,), np.dtype(np.float32))

    @property
    def space(self) -> Box:
        """The shape of an action, without its bounds."""
        return Box((self.size,) if self.shape is None else self.shape)

    @property
    def unit(self) -> Unit | None:
        """How the policy's actions are mapped to the bounds, float32; None if they are the environment's as they are.

        A component whose bounds are of order one, on either side of 0, is left alone (shift 0, scale 1). For any other,
        −1 and 1 of the policy are the bounds of the environment.
        """
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        near_one = (low < 0) & (high > 0)
        for bound in (self.low, self.high):
            near_one &= (np.abs(bound) >= SMALLEST_NEAR_ONE) & (np.abs(bound) <= LARGEST_NEAR_ONE)
        if near_one.all():
            return None
        shift, scale = np.where(near_one, 0, (low + high) / 2), np.where(near_one, 1, (high - low) / 2)
        return Unit(shift.astype(np.float32), scale.astype(np.float32))


@dataclass(frozen=True)
class Spec:
    """What a policy must know of an environment."""

    observation: ArraySpec
    """One observation, as the policy sees it."""
    action: Continuous | Discrete
    time_limit: int | None
    """The `max_episode_steps` with which the environment is registered; a pool has it only if asked."""
    observation_space: Space | None = None
    """One observation, as the environment gives it; None if that is as the policy sees it."""

    @property
    def spaces(self) -> Spaces:
        """Observations and actions as the environment has them."""
        observation = Box(self.observation.shape) if self.observation_space is None else self.observation_space
        return Spaces(observation, self.action.space if isinstance(self.action, Continuous) else self.action)


def vector(size: int) -> ArraySpec:
    """Observations that are vectors of float32."""
    return ArraySpec((size,), np.dtype(np.float32))


def read_spaces(described: Any, where: object) -> Spaces:
    """The spaces that a description in a file is of; `where` names the file if it is of none."""
    if not isinstance(described, dict) or not {"observation", "action"} <= described.keys():
        raise Damaged(f"{where} does not say which observations and actions its policy has.")
    if described.keys() != {"observation", "action"}:
        raise _unknown(where)
    return Spaces(_read_space(described["observation"], where), _read_space(described["action"], where))


def _read_space(described: Any, where: object) -> Space:
    kinds = {kind.kind: kind for kind in (Box, Discrete)}
    if not isinstance(described, dict) or not isinstance(described.get("kind"), str):
        raise Damaged(f"{where} does not say which observations and actions its policy has.")
    values = {name: value for name, value in described.items() if name != "kind"}
    kind = kinds.get(described["kind"])
    if kind is None or values.keys() > {field.name for field in dataclasses.fields(kind)}:
        raise _unknown(where)
    match values:
        case {"shape": list(shape)} if kind is Box and len(shape) <= MOST_DIMENSIONS and all(map(_is_size, shape)):
            return Box(tuple(shape))
        case {"n": n, "start": start} if kind is Discrete and _is_size(n) and n and _is_int64(start):
            if _is_int64(start + n):
                return Discrete(n, start)
    raise Damaged(f"{where} describes observations or actions that cannot be.")


def _unknown(where: object) -> UserError:
    return UserError(f"{where} holds a policy for spaces that this Kemeny does not know: upgrade to use it.")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_int64(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def check_arrays(found: Mapping[str, np.ndarray], expected: Mapping[str, ArraySpec], where: object) -> None:
    """Refuse arrays, read from `where`, of which one is missing or has another shape or type than expected."""
    for name, spec in expected.items():
        array = found.get(name)
        if array is None:
            raise Damaged(f"{where} does not hold what it must: {name} is missing.")
        if ArraySpec.of(array) != spec:
            raise Damaged(f"{where} does not hold what it must: {name} has {ArraySpec.of(array)}, not {spec}.")


def check_finite(found: Mapping[str, np.ndarray], names: Iterable[str], where: object) -> None:
    """Refuse arrays of these names, read from `where`, of which one has an entry that is infinite or no number."""
    for name in names:
        if not np.isfinite(found[name]).all():
            raise Damaged(f"{where} does not hold what it must: {name} has entries that are not finite numbers.")
