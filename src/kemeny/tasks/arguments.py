"""Whether the numbers that describe a task make sense, and the sentence that is said if one does not."""

import math
from numbers import Integral, Real
from typing import Any

from kemeny.errors import UserError
from kemeny.ranges import Range


def whole(task: str, what: str, value: Any, allowed: Range) -> int:
    """A whole number within its range."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{task}: {what} is {value!r}; it must be a whole number.")
    return int(number(task, what, value, allowed))


def number(task: str, what: str, value: Any, allowed: Range) -> float:
    """A finite number within its range."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise UserError(f"{task}: {what} is {value!r}; it must be a finite number.")
    if not allowed.holds(float(value)):
        raise UserError(f"{task}: {what} is {value}; it must be {allowed}.")
    return float(value)
