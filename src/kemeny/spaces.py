"""What observations and actions are: the spaces of an environment, their values as rows of numbers, and masks."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

FORBIDDEN = -1e30
"""The logit of an action that is masked: its probability is exactly 0, and nothing computed from it is infinite."""
F32 = np.float32


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
    letters: ClassVar[str] = "biuf"
    """NumPy's letters for the types that its values may have."""

    @property
    def size(self) -> int:
        """Length of the vector."""
        return math.prod(self.shape)

    @property
    def outputs(self) -> int:
        """How many numbers a policy gives for an action: a mean for each component."""
        return self.size

    def rows(self, batch: np.ndarray) -> np.ndarray:
        """(n, *shape) observations as a new array of (n, size) float32."""
        with np.errstate(over="ignore"):  # numbers too large become inf, which is a fault
            return batch.astype(F32).reshape(len(batch), self.size)

    def outside(self, batch: np.ndarray) -> np.ndarray:
        """The values of a batch that cannot be; bounds are not kept, so there are none."""
        return batch[:0]

    def __str__(self) -> str:
        if len(self.shape) > 1:
            return f"observations of shape {self.shape}"
        return f"observations of length {self.size}" if self.shape else "single numbers"


@dataclass(frozen=True)
class Discrete:
    """One of the whole numbers start, …, start + n − 1; the policy counts from 0, and sees a one-hot vector."""

    n: int
    start: int = 0
    kind: ClassVar[str] = "discrete"
    letters: ClassVar[str] = "iu"
    shape: ClassVar[tuple[int, ...]] = ()

    @property
    def size(self) -> int:
        """Length of the one-hot vector."""
        return self.n

    @property
    def choices(self) -> tuple[int, ...]:
        """From how many options an action chooses."""
        return (self.n,)

    @property
    def outputs(self) -> int:
        """How many numbers a policy gives for an action: a logit for each."""
        return self.n

    @property
    def array(self) -> ArraySpec:
        """One action, as the policy draws it."""
        return ArraySpec((), np.dtype(np.int32))

    def rows(self, batch: np.ndarray) -> np.ndarray:
        """(n,) observations as a new array of (n, size) float32."""
        rows = np.zeros((len(batch), self.n), dtype=F32)
        rows[np.arange(len(batch)), batch.reshape(len(batch)).astype(np.int64) - self.start] = 1.0
        return rows

    def outside(self, batch: np.ndarray) -> np.ndarray:
        """The values of a batch that cannot be."""
        return batch[~((batch >= self.start) & (batch < self.start + self.n))]  # NaN too

    def actions(self, drawn: np.ndarray) -> np.ndarray:
        """A batch of the policy's actions as the environment has them."""
        return drawn + self.start

    def __str__(self) -> str:
        return f"whole numbers from {self.start} to {self.start + self.n - 1}"


@dataclass(frozen=True)
class MultiDiscrete:
    """Several whole numbers, each as in `Discrete`; the policy sees their one-hot vectors one after the other."""

    n: tuple[int, ...]
    """How many values each number can have, in the order of the flattened array."""
    start: tuple[int, ...]
    """The smallest value of each."""
    shape: tuple[int, ...]
    """Of one array, as the environment has it."""
    kind: ClassVar[str] = "multidiscrete"
    letters: ClassVar[str] = "iu"

    @property
    def size(self) -> int:
        """Length of the one-hot vectors together."""
        return sum(self.n)

    @property
    def choices(self) -> tuple[int, ...]:
        """From how many options each number of an action is chosen."""
        return self.n

    @property
    def outputs(self) -> int:
        """How many numbers a policy gives for an action: a logit for each option of each choice."""
        return self.size

    @property
    def array(self) -> ArraySpec:
        """One action, as the policy draws it."""
        return ArraySpec((len(self.n),), np.dtype(np.int32))

    def rows(self, batch: np.ndarray) -> np.ndarray:
        """(n, *shape) observations as a new array of (n, size) float32."""
        rows = np.zeros((len(batch), self.size), dtype=F32)
        numbers = batch.reshape(len(batch), len(self.n)).astype(np.int64) - np.array(self.start, np.int64)
        rows[np.arange(len(batch))[:, None], numbers + first_of_each(self.n)] = 1.0
        return rows

    def outside(self, batch: np.ndarray) -> np.ndarray:
        """The values of a batch that cannot be."""
        flat, start = batch.reshape(len(batch), len(self.n)), np.array(self.start, np.int64)
        return flat[~((flat >= start) & (flat < start + np.array(self.n, np.int64)))]

    def actions(self, drawn: np.ndarray) -> np.ndarray:
        """A batch of the policy's actions as the environment has them."""
        return (drawn + np.array(self.start, np.int64)).reshape(len(drawn), *self.shape)

    def __str__(self) -> str:
        last = [start + n - 1 for start, n in zip(self.start, self.n, strict=True)]
        return f"whole numbers of shape {self.shape} from {list(self.start)} to {last}"


@dataclass(frozen=True)
class MultiBinary:
    """Arrays of zeros and ones. The policy sees them as numbers; it chooses each of them as one of two options."""

    shape: tuple[int, ...]
    kind: ClassVar[str] = "multibinary"
    letters: ClassVar[str] = "biuf"

    @property
    def size(self) -> int:
        """Number of bits."""
        return math.prod(self.shape)

    @property
    def choices(self) -> tuple[int, ...]:
        """From how many options each bit of an action is chosen."""
        return (2,) * self.size

    @property
    def outputs(self) -> int:
        """How many numbers a policy gives for an action: a logit for 0 and one for 1, for each bit."""
        return 2 * self.size

    @property
    def array(self) -> ArraySpec:
        """One action, as the policy draws it."""
        return ArraySpec((self.size,), np.dtype(np.int32))

    def rows(self, batch: np.ndarray) -> np.ndarray:
        """(n, *shape) observations as a new array of (n, size) float32."""
        return batch.astype(F32).reshape(len(batch), self.size)

    def outside(self, batch: np.ndarray) -> np.ndarray:
        """The values of a batch that cannot be."""
        return batch[(batch != 0) & (batch != 1)]

    def actions(self, drawn: np.ndarray) -> np.ndarray:
        """A batch of the policy's actions as the environment has them."""
        return drawn.astype(np.int8).reshape(len(drawn), *self.shape)

    def __str__(self) -> str:
        return f"zeros and ones of shape {self.shape}"


@dataclass(frozen=True)
class Dict:
    """Several observations with names; the policy sees them one after the other, in this order."""

    names: tuple[str, ...]
    parts: tuple["Space", ...]
    kind: ClassVar[str] = "dict"

    @property
    def size(self) -> int:
        """Length of the vectors together."""
        return sum(part.size for part in self.parts)

    def rows(self, batch: Mapping[str, Any]) -> np.ndarray:
        """A batch of each part, by name, as a new array of (n, size) float32."""
        return np.concatenate([part.rows(batch[name]) for name, part in self.named()], 1)

    def named(self) -> Iterator[tuple[str, "Space"]]:
        """Each part with its name."""
        return zip(self.names, self.parts, strict=True)

    def __str__(self) -> str:
        return f"dictionaries with the keys {', '.join(self.names)}"


@dataclass(frozen=True)
class Tuple:
    """Several observations in a row; the policy sees them one after the other."""

    parts: tuple["Space", ...]
    kind: ClassVar[str] = "tuple"

    @property
    def size(self) -> int:
        """Length of the vectors together."""
        return sum(part.size for part in self.parts)

    def rows(self, batch: tuple[Any, ...]) -> np.ndarray:
        """A batch of each part as a new array of (n, size) float32."""
        return np.concatenate([part.rows(values) for part, values in zip(self.parts, batch, strict=True)], 1)

    def named(self) -> Iterator[tuple[str, "Space"]]:
        """Each part with its place."""
        return ((str(place), part) for place, part in enumerate(self.parts))

    def __str__(self) -> str:
        return f"tuples of length {len(self.parts)}"


Choices = Discrete | MultiDiscrete | MultiBinary
"""Actions that are chosen, each from finitely many options: these can be masked."""
Leaf = Box | Choices
Space = Leaf | Dict | Tuple


class Spaces(NamedTuple):
    """What a policy is given and what it gives, as the environment has it."""

    observation: Space
    action: Box | Choices
    mask: bool = False
    """Whether a mask comes with every observation."""

    @property
    def description(self) -> dict[str, Any]:
        """As JSON: a checkpoint's facts have it, and `read_spaces` reads it."""
        described: dict[str, Any] = {"observation": _described(self.observation), "action": _described(self.action)}
        return {**described, "mask": True} if self.mask else described


def first_of_each(choices: tuple[int, ...]) -> np.ndarray:
    """Where the options of each choice begin, among those of all."""
    return np.cumsum([0, *choices[:-1]])


def leaves(space: Space, name: str = "") -> Iterator[tuple[str, Leaf]]:
    """The parts that have no parts, in their order, each with its name: `arm.angle`."""
    if isinstance(space, Dict | Tuple):
        for inner, part in space.named():
            yield from leaves(part, f"{name}.{inner}" if name else inner)
    else:
        yield name, space


def values_of(leaf: Leaf, rows: np.ndarray) -> np.ndarray:
    """(n, *shape) observations as the environment gives them, to the digits of float32: what `leaf.rows` had."""
    if isinstance(leaf, Discrete):
        return rows.argmax(1) + leaf.start
    if isinstance(leaf, MultiDiscrete):
        numbers = [options.argmax(1) for options in np.split(rows, first_of_each(leaf.n)[1:], 1)]
        return leaf.actions(np.stack(numbers, 1))
    values = rows.reshape(len(rows), *leaf.shape)
    return values.astype(np.int8) if isinstance(leaf, MultiBinary) else values.copy()


def observations_of(space: Space, rows: np.ndarray) -> Any:
    """A batch of observations (of each part) as the environment gives them, from the rows that the policy sees."""
    return _read(space, rows, values_of)


def observation_of(space: Space, row: np.ndarray) -> Any:
    """One observation as the environment gives it, from the row that the policy sees."""
    return _read(space, row[None], lambda leaf, rows: values_of(leaf, rows)[0])


def _read(space: Space, rows: np.ndarray, read: Callable[[Leaf, np.ndarray], Any]) -> Any:
    """What is read from the rows of each part that has no parts, put together as the space has it."""
    if isinstance(space, Dict | Tuple):
        ends = np.cumsum([part.size for part in space.parts])
        parts = [_read(part, rows[:, end - part.size : end], read) for part, end in zip(space.parts, ends, strict=True)]
        return dict(zip(space.names, parts, strict=True)) if isinstance(space, Dict) else tuple(parts)
    return read(space, rows[:, : space.size])


class Misfit(Exception):
    """A value that is not of its space."""

    def __init__(self, part: str, wanted: object, found: str, plural: str | None = None) -> None:
        super().__init__(f"{found} instead of {wanted}")
        self.part, self.wanted, self.found = part, wanted, found
        """Which part of the observation it is (empty for all of it), what belongs there, and what was there."""
        self.plural = found if plural is None else plural
        """What was there, if it was a batch."""


def read_rows(space: Space, given: Any, *, any_type: bool = False) -> tuple[np.ndarray, bool]:
    """One observation as the environment gives it, or a batch (of each part), as rows; and whether it is one.

    What is not of the space raises a `Misfit`; `any_type` lets pass what NumPy can convert.
    """
    rows, counts = [], {}
    for part, leaf, value in _values(space, given, ""):
        array = np.asarray(value)
        if array.ndim == 0 and leaf.shape == (1,):
            array = array[None]
        single = array.shape == leaf.shape
        right_type = any_type or array.dtype.kind in leaf.letters
        if not right_type or not (single or array.shape[1:] == leaf.shape):
            what = f"of shape {array.shape} and type {array.dtype}"
            raise Misfit(part, leaf, f"an observation {what}", f"observations {what}")
        batch = array[None] if single else array
        outside = leaf.outside(batch)
        if outside.size:
            raise Misfit(part, leaf, str(outside.flat[0]))
        counts[None if single else len(batch)] = part
        rows.append(leaf.rows(batch))
    if len(counts) > 1:
        one, other = list(counts.values())[:2]
        raise Misfit("", "one observation or one batch", f"{one} and {other} of different lengths")
    return rows[0] if len(rows) == 1 else np.concatenate(rows, 1), None in counts


def _values(space: Space, given: Any, name: str) -> Iterator[tuple[str, Leaf, Any]]:
    """Name, space and value of each part that has no parts."""
    if isinstance(space, Dict):
        if not isinstance(given, Mapping):
            raise Misfit(name, space, f"an object of type {type(given).__name__}")
        if given.keys() != set(space.names):
            raise Misfit(name, space, f"the keys {', '.join(map(str, given)) or 'of nothing'}")
        values = [given[inner] for inner in space.names]
    elif isinstance(space, Tuple):
        if not isinstance(given, tuple | list):
            raise Misfit(name, space, f"an object of type {type(given).__name__}")
        if len(given) != len(space.parts):
            raise Misfit(name, space, f"{len(given)} parts")
        values = list(given)
    else:
        yield name, space, given
        return
    for (inner, part), value in zip(space.named(), values, strict=True):
        yield from _values(part, value, f"{name}.{inner}" if name else inner)


class BadMask(Exception):
    """What is wrong with a mask, as the end of a sentence that begins with it."""


class NothingAllowed(BadMask):
    """The mask forbids every option of some choice."""


def read_mask(given: Any, action: Choices) -> np.ndarray:
    """Which options of each choice are allowed, as booleans: one row or several, as they were given.

    The options of several choices follow each other. For a bit they are 0 and 1.
    """
    mask = np.asarray(given)
    if mask.dtype.kind not in "biuf" or mask.ndim not in (1, 2) or mask.shape[-1] != action.outputs:
        what = f"has shape {mask.shape} and type {mask.dtype}"
        raise BadMask(f"{what}, but there must be {action.outputs} zeros and ones")
    allowed = mask == 1
    if not (allowed | (mask == 0)).all():
        raise BadMask("has entries that are neither 0 nor 1")
    left = np.logical_or.reduceat(allowed, first_of_each(action.choices), axis=-1)
    if not left.all():
        place = int(np.argwhere(~left)[0, -1])
        of = "" if len(action.choices) == 1 else f" of choice {place} (counted from 0)"
        raise NothingAllowed(f"forbids every action{of}, but one at least must be allowed")
    return allowed


def _described(space: Space) -> dict[str, Any]:
    if isinstance(space, Dict):
        return {"kind": space.kind, "names": space.names, "parts": [_described(part) for part in space.parts]}
    if isinstance(space, Tuple):
        return {"kind": space.kind, "parts": [_described(part) for part in space.parts]}
    return {"kind": space.kind, **vars(space)}
