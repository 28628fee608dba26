"""Costs as named signals, read from the `info` of a step or computed by a function."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from kemeny.envs.strangers import RAISED, type_and_text
from kemeny.errors import RunError, UserError
from kemeny.naming import name_of

Cost = str | Callable[[np.ndarray, Any, float, Mapping[str, Any]], float]
"""`fall`, `speed`, `jerk`, a key of `info` (most often `cost`), or a function of (observation, action, reward, info).

A function is called for one environment at a time, with the observation that the step led to (a float32 vector), the
action as the environment received it (in its own units, clipped), the reward, and `info`. Where a key is missing from
the `info` of some steps, the function can read `info.get("cost", 0.0)`. On EnvPool a function is the only Python that
runs once per environment, so a name is faster.

`speed` is |v_x|, or √(v_x² + v_y²) if `info` has `y_velocity` too (Appendix F). If `info` has no `x_velocity`, `speed`
is a key of `info` like any other. `jerk` is how much the action changed since the step before (`jerk.py`), whatever
`info` has.

`fall` is 1 on a step that the environment says ended the task, and 0 on all others, whatever `info` has under that
name. Whether such an end was a goal, which is no fall, is known where batches are collected.
"""

FALL = "fall"


def refuse_names(costs: Sequence[Cost], keys: Collection[str], env: str) -> None:
    """Refuse a named cost that cannot be read from an `info` with these keys."""
    for cost in costs:
        known = cost in keys or cost == FALL or (cost == "speed" and "x_velocity" in keys)
        if isinstance(cost, str) and not known:
            available = ", ".join(sorted(map(str, keys))) or "nothing"
            raise UserError(f"{env} has no cost {cost!r}; its info has: {available}.")


def read_cost(cost: str, info: Mapping[str, Any], terminated: Any = False) -> Any:
    """A named cost from an `info` whose values are numbers, or arrays with one entry per environment."""
    if cost == FALL:
        return terminated
    if cost == "speed" and "x_velocity" in info:
        if "y_velocity" in info:
            return np.hypot(info["x_velocity"], info["y_velocity"])
        return np.abs(info["x_velocity"])
    return info[cost]


def call_cost(cost: Any, observation: np.ndarray, action: Any, reward: float, info: Mapping[str, Any]) -> Any:
    """The value of a cost function for one step of one environment."""
    try:
        return cost(observation.copy(), action, reward, info)
    except RAISED as error:
        raise RunError(f"The cost function {name_of(cost)} raised {type_and_text(error)}.") from error
