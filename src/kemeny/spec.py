"""What arrays look like: those that an environment gives and takes, and those that are read from a file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kemeny.errors import Damaged
from kemeny.spaces import ArraySpec, Box, Choices, Space, Spaces

SMALLEST_NEAR_ONE, LARGEST_NEAR_ONE = 0.1, 10.0
"""Bounds of this size, on either side of 0, suit a policy as they are. An untrained policy acts near 0 with a deviation
of e⁻¹ or so: between such bounds it neither stays at one of them nor is too weak to be noticed. All MuJoCo tasks have
such bounds."""


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
    def outputs(self) -> int:
        """How many numbers a policy gives for an action: a mean for each component."""
        return self.size

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
    """One observation, as the policy sees it; its last columns are the mask, if there is one."""
    action: Continuous | Choices
    time_limit: int | None
    """The `max_episode_steps` with which the environment is registered; a pool has it only if asked."""
    observation_space: Space | None = None
    """One observation, as the environment gives it; None if that is as the policy sees it."""
    mask: int = 0
    """How many columns of an observation, the last ones, are the mask of the actions: all of its options, or 0."""

    @property
    def features(self) -> int:
        """Length of an observation without its mask."""
        return self.observation.size - self.mask

    @property
    def spaces(self) -> Spaces:
        """Observations and actions as the environment has them."""
        observation = Box((self.features,)) if self.observation_space is None else self.observation_space
        action = self.action.space if isinstance(self.action, Continuous) else self.action
        return Spaces(observation, action, self.mask > 0)


def vector(size: int) -> ArraySpec:
    """Observations that are vectors of float32."""
    return ArraySpec((size,), np.dtype(np.float32))


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
