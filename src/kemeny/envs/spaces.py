"""Which observation and action spaces are supported, and how their values are converted for a policy."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from kemeny.errors import UserError
from kemeny.spaces import Box, Choices, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from kemeny.spec import Continuous, Unit
from kemeny.stored_spaces import DEEPEST

LARGEST_OBSERVATION = 20_000
"""Numbers of an observation: a batch of larger ones fills the memory, and a perceptron learns nothing from them."""


@dataclass(frozen=True)
class Actions:
    """How actions of a policy become actions of the environment."""

    spec: Continuous | Choices
    """The actions that the policy draws."""
    shape: tuple[int, ...]
    """Shape of one action as the environment takes it."""
    low: Any
    """Smallest action in the environment's own type, for 0.4 in float32 is more than 0.4 in float64."""
    high: Any
    """Largest action, likewise; None for actions that are chosen."""
    dtype: np.dtype
    """The environment's own type."""
    unit: Unit | None = None
    """How the policy's actions are mapped to the bounds, in the environment's shape and type; None if they are not."""

    def batch(self, action: np.ndarray) -> np.ndarray:
        """n actions of a policy as a new array of actions of the environment.

        Actions that are chosen are counted from `low`. Others are mapped to their bounds, unless these are of order
        one, and clipped.
        """
        batch = action.astype(self.dtype).reshape(len(action), *self.shape)
        if self.high is None:
            return batch + self.low
        if self.unit is not None:
            batch *= self.unit.scale
            batch += self.unit.shift
        np.maximum(batch, self.low, out=batch)
        return np.minimum(batch, self.high, out=batch)


def understand_observations(space: Any, env: str) -> Space:
    """The observations that this space has, or a `UserError`."""
    understood = _understand(space, env, DEEPEST)
    if understood.size > LARGEST_OBSERVATION:
        raise UserError(
            f"{env} has observations of {understood.size:,} numbers, but at most {LARGEST_OBSERVATION:,} are "
            "supported: pass a function that returns it wrapped so that they are fewer, for instance features of them."
        )
    return understood


def _understand(space: Any, env: str, depth: int) -> Space:
    match space:
        case spaces.Discrete():
            return Discrete(int(space.n), int(space.start))
        case spaces.MultiDiscrete():
            return _multi_discrete(space)
        case spaces.MultiBinary():
            return MultiBinary(tuple(map(int, space.shape)))
        case spaces.Box() if len(space.shape) < 3 or space.dtype != np.uint8:
            return Box(tuple(map(int, space.shape)))
        case spaces.Dict() if space.spaces and depth and all(isinstance(name, str) for name in space.spaces):
            return Dict(tuple(space.spaces), tuple(_understand(part, env, depth - 1) for part in space.spaces.values()))
        case spaces.Tuple() if space.spaces and depth:
            return Tuple(tuple(_understand(part, env, depth - 1) for part in space.spaces))
        case spaces.Box():
            raise UserError(
                f"{env} has observations of shape {space.shape} and type uint8 (images?), but images are not "
                "supported: pass a function that returns it wrapped so that they are vectors of features."
            )
    raise UserError(
        f"{env} has {type(space).__name__} observations that are not supported; these are: Box, Discrete, "
        f"MultiDiscrete, MultiBinary, and Dict (with strings as keys) or Tuple of them, not empty and at most "
        f"{DEEPEST} deep: pass a function that returns it wrapped so that it has such observations."
    )


def _multi_discrete(space: spaces.MultiDiscrete) -> MultiDiscrete:
    n, start = (tuple(map(int, numbers.reshape(-1))) for numbers in (space.nvec, space.start))
    return MultiDiscrete(n, start, tuple(map(int, space.shape)))


def understand_actions(space: Any, env: str) -> Actions:
    """How to convert actions to this space, or a `UserError`."""
    if isinstance(space, spaces.Discrete):
        dtype = np.dtype(space.dtype or np.int64)
        return Actions(Discrete(int(space.n), int(space.start)), (), dtype.type(space.start), None, dtype)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.size:
        return Actions(_multi_discrete(space), tuple(space.shape), space.start, None, space.start.dtype)
    if isinstance(space, spaces.MultiBinary) and math.prod(space.shape):
        bits, dtype = MultiBinary(tuple(map(int, space.shape))), np.dtype(space.dtype or np.int8)
        return Actions(bits, bits.shape, dtype.type(0), None, dtype)
    if not isinstance(space, spaces.Box):
        raise UserError(
            f"{env} has {type(space).__name__} actions, but only Box, Discrete, MultiDiscrete and MultiBinary are "
            "supported: pass a function that returns it wrapped so that they are one of these."
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise UserError(
            f"{env} has arrays of integers ({space.dtype}) as actions, but only arrays of real numbers, Discrete, "
            "MultiDiscrete and MultiBinary are supported: pass a function that returns it wrapped so that they are "
            "MultiDiscrete."
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
