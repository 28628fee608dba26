"""Which observation and action spaces are supported, and how their values are converted for a policy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from kemeny.errors import UserError
from kemeny.spec import Box, Continuous, Discrete, Space, Unit


@dataclass(frozen=True)
class Actions:
    """How actions of a policy become actions of the environment."""

    spec: Continuous | Discrete
    """The actions that the policy draws."""
    shape: tuple[int, ...]
    """Shape of one action as the environment takes it."""
    low: Any
    """Smallest action in the environment's own type, for 0.4 in float32 is more than 0.4 in float64."""
    high: Any
    """Largest action, likewise; None for discrete actions."""
    dtype: np.dtype
    """The environment's own type."""
    unit: Unit | None = None
    """How the policy's actions are mapped to the bounds, in the environment's shape and type; None if they are not."""

    def batch(self, action: np.ndarray) -> np.ndarray:
        """n actions of a policy as a new array of actions of the environment.

        Discrete actions are counted from `low`. Vectors are mapped to their bounds, unless these are of order one, and
        clipped.
        """
        if isinstance(self.spec, Discrete):
            return action.astype(self.dtype) + self.low
        batch = action.astype(self.dtype).reshape(len(action), *self.shape)
        if self.unit is not None:
            batch *= self.unit.scale
            batch += self.unit.shift
        np.maximum(batch, self.low, out=batch)
        return np.minimum(batch, self.high, out=batch)


def understand_observations(space: Any, env: str) -> Space:
    """The observations that this space has, or a `UserError`."""
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, spaces.Box) and len(space.shape) <= 1:
        return Box(tuple(map(int, space.shape)))
    if isinstance(space, spaces.Box):
        found = f"observations of shape {space.shape} (images?)"
    else:
        found = f"{type(space).__name__} observations"
    raise UserError(
        f"{env} has {found}, but only vectors (1-D Box) and Discrete are supported: "
        "pass a function that returns it wrapped, for instance in gymnasium.wrappers.FlattenObservation."
    )


def understand_actions(space: Any, env: str) -> Actions:
    """How to convert actions to this space, or a `UserError`."""
    if isinstance(space, spaces.Discrete):
        dtype = np.dtype(space.dtype or np.int64)
        return Actions(Discrete(int(space.n), int(space.start)), (), dtype.type(space.start), None, dtype)
    if not isinstance(space, spaces.Box):
        raise UserError(
            f"{env} has {type(space).__name__} actions, but only Box and Discrete are supported: "
            "pass a function that returns it wrapped so that they are one bounded vector or one number."
        )
    if len(space.shape) > 1:
        raise UserError(
            f"{env} has actions of shape {space.shape}, but only vectors are supported: "
            "pass a function that returns it wrapped in gymnasium.wrappers.TransformAction with a flat Box."
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise UserError(
            f"{env} has vectors of integers ({space.dtype}) as actions, but only vectors of real numbers and "
            "Discrete are supported: pass a function that returns it wrapped so that they are Discrete."
        )
    # Some simulators write the largest number for "no bound"; and the policy computes in float32.
    largest = min(float(np.finfo(dtype).max) for dtype in (space.dtype, np.float32)) / 10
    if not (np.all(space.low > -largest) and np.all(space.high < largest)):
        raise UserError(
            f"{env} has actions without bounds, but actions are clipped to bounds: "
            "pass a function that returns it in a wrapper whose action_space is a Box with finite bounds."
        )
    low, high = (bound.astype(np.float32).reshape(-1) for bound in (space.low, space.high))
    bounds, dtype = Continuous(low, high, tuple(map(int, space.shape))), space.low.dtype
    unit = bounds.unit
    if unit is not None:
        unit = Unit(*(part.astype(dtype).reshape(space.shape) for part in unit))
    return Actions(bounds, tuple(space.shape), space.low, space.high, dtype, unit)
