"""Costs as named signals, read from what an environment says about a step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kemeny.errors import UserError

Cost = str | Callable[[np.ndarray, Any, float, Mapping[str, Any]], float]
"""`speed`, a key of `info` (`cost` is the usual one), or a function of (observation, action, reward, info).

`speed` is |v_x|, or √(v_x² + v_y²) where `info` has `y_velocity` too (Appendix F); an environment that
tells neither but has its own `speed` in `info` is believed.
"""


def check_names(costs: Sequence[Cost], keys: Sequence[str], env: str) -> None:
    """Refuse a cost that `info` with these keys cannot give."""
    for cost in costs:
        if isinstance(cost, str) and needed_key(cost, keys) not in keys:
            there = ", ".join(sorted(keys)) or "nothing"
            raise UserError(
                f"the cost {cost!r} is not in what {env} tells about a step; its info has: {there}."
            )


def needed_key(cost: str, keys: Sequence[str] | Mapping[str, Any]) -> str:
    """The key of `info` without which this cost cannot be told."""
    return "x_velocity" if cost == "speed" and "x_velocity" in keys else cost


def read_cost(cost: str, info: Mapping[str, Any]) -> Any:
    """A named cost from an `info` whose values are numbers, or arrays of a row an environment."""
    if cost == "speed" and "x_velocity" in info:
        if "y_velocity" in info:
            return np.hypot(info["x_velocity"], info["y_velocity"])
        return np.abs(info["x_velocity"])
    return info[cost]
