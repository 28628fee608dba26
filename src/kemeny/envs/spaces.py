"""Which observation and action spaces are supported, and how their values are converted for a policy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from kemeny.errors import UserError
from kemeny.spec import Continuous, Discrete


@dataclass(frozen=True)
class Observations:
    """How observations become vectors: a box as it is, the number of a state as a one-hot vector."""

    size: int
    """Length of one vector."""
    shape: tuple[int, ...]
    """Shape of one observation as the environment gives it."""
    start: int | None
    """The smallest state number, or None for a box."""

    def rows(self, batch: np.ndarray) -> np.ndarray:
        """(n, *shape) observations as a new array of (n, size) float32."""
        if self.start is None:
            with np.errstate(over="ignore"):  # numbers too large become inf, which the collector reports
                return batch.astype(np.float32).reshape(len(batch), self.size)
        rows = np.zeros((len(batch), self.size), dtype=np.float32)
        rows[np.arange(len(batch)), batch.reshape(len(batch)).astype(np.int64) - self.start] = 1.0
        return rows


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

    def batch(self, action: np.ndarray) -> np.ndarray:
        """n actions of a policy as a new array of actions of the environment: clipped, or counted from `low`."""
        if isinstance(self.spec, Discrete):
            return action.astype(self.dtype) + self.low
        batch = action.astype(self.dtype).reshape(len(action), *self.shape)
        np.maximum(batch, self.low, out=batch)
        return np.minimum(batch, self.high, out=batch)


def understand_observations(space: Any, env: str) -> Observations:
    """How to convert observations from this space, or a `UserError`."""
    if isinstance(space, spaces.Discrete):
        return Observations(int(space.n), (), int(space.start))
    if isinstance(space, spaces.Box) and len(space.shape) <= 1:
        return Observations(int(np.prod(space.shape)), tuple(space.shape), None)
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
        return Actions(Discrete(int(space.n)), (), dtype.type(space.start), None, dtype)
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
    largest = np.finfo(space.dtype).max / 10  # some simulators write the largest number for "no bound"
    if not (np.all(space.low > -largest) and np.all(space.high < largest)):
        raise UserError(
            f"{env} has actions without bounds, but actions are clipped to bounds: "
            "pass a function that returns it in a wrapper whose action_space is a Box with finite bounds."
        )
    bounds = Continuous(space.low.astype(np.float32).reshape(-1), space.high.astype(np.float32).reshape(-1))
    return Actions(bounds, tuple(space.shape), space.low, space.high, space.low.dtype)
