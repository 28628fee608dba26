"""Costs as named signals, read from what an environment says about a step."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from kemeny.errors import RunError, UserError

Cost = str | Callable[[np.ndarray, Any, float, Mapping[str, Any]], float]
"""`speed`, a key of `info` (`cost` is the usual one), or a function of (observation, action, reward, info).

A function is called for one environment at a time, with the observation the step led to (a float32 row), the
action as the environment got it (clipped), the reward, and `info`; it may say `info.get("cost", 0.0)` where a
key is told at some steps only. On EnvPool it is the one thing that runs Python per environment, so prefer a
name where there is one.

`speed` is |v_x|, or √(v_x² + v_y²) where `info` has `y_velocity` too (Appendix F); an environment that
tells neither but has its own `speed` in `info` is believed.
"""


def refuse_names(costs: Sequence[Cost], keys: Collection[str], env: str) -> None:
    """Refuse a named cost that an `info` with these keys does not give."""
    for cost in costs:
        known = cost in keys or (cost == "speed" and "x_velocity" in keys)
        if isinstance(cost, str) and not known:
            there = ", ".join(sorted(map(str, keys))) or "nothing"
            raise UserError(f"there is no cost {cost!r} in what {env} tells of a step; its info has: {there}.")


def read_cost(cost: str, info: Mapping[str, Any]) -> Any:
    """A named cost from an `info` whose values are numbers, or arrays of a row an environment."""
    if cost == "speed" and "x_velocity" in info:
        if "y_velocity" in info:
            return np.hypot(info["x_velocity"], info["y_velocity"])
        return np.abs(info["x_velocity"])
    return info[cost]


def call_cost(cost: Any, observation: np.ndarray, action: Any, reward: float, info: Mapping[str, Any]) -> Any:
    """A cost that is a function, on one step of one environment."""
    try:
        return cost(observation.copy(), action, reward, info)
    except Exception as error:
        name = getattr(cost, "__qualname__", repr(cost))
        raise RunError(f"the cost function {name} raised {type(error).__name__}: {error}.") from error
