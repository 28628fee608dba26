"""Which numbers a setting may be: bounds that stand in the annotation of its field.

delta: Annotated[float, AtLeast(0)] = 0.02
"""

import dataclasses
import math
from typing import Annotated, Any, Protocol, get_args, get_origin


class Range(Protocol):
    """A bound on a number."""

    def holds(self, value: float) -> bool:
        """Whether the number is within it."""
        ...

    def __str__(self) -> str:
        """How a message says it, after "it must be"."""
        ...


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """`bound` or more."""

    bound: float

    def holds(self, value: float) -> bool:
        """Whether the number is within it."""
        return value >= self.bound

    def __str__(self) -> str:
        return f"at least {self.bound}"


@dataclasses.dataclass(frozen=True)
class AtMost:
    """`bound` or less."""

    bound: float

    def holds(self, value: float) -> bool:
        """Whether the number is within it."""
        return value <= self.bound

    def __str__(self) -> str:
        return f"at most {self.bound}"


@dataclasses.dataclass(frozen=True)
class Above:
    """More than `bound`."""

    bound: float

    def holds(self, value: float) -> bool:
        """Whether the number is within it."""
        return value > self.bound

    def __str__(self) -> str:
        return f"above {self.bound}"


@dataclasses.dataclass(frozen=True)
class Between:
    """From `low` to `high`, both included."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether the number is within it."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"between {self.low} and {self.high}"


MOST = AtMost(2**31 - 1)
"""Of whole numbers that say nothing else: what a damaged or hostile config.json asks for must not fill the memory."""


def complaint(hint: Any, value: Any) -> str | None:
    """What a number must be and is not, by the annotation of its field; None where nothing is wrong."""
    numbers = value if isinstance(value, tuple) else (value,)
    ranges: list[Range] = list(get_args(hint)[1:]) if get_origin(hint) is Annotated else []
    ranges = [bound for bound in ranges if isinstance(bound, AtLeast | AtMost | Above | Between)]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if not math.isfinite(number):
            return "a finite number"
        bounds = ranges if any(isinstance(bound, AtMost | Between) for bound in ranges) else [*ranges, MOST]
        for bound in bounds if isinstance(number, int) else ranges:
            if not bound.holds(number):
                return str(bound)
    return None
