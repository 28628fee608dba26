"""Any function from an observation to an action, as a policy that pools can be given: a rule."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kemeny.envs.names import takes
from kemeny.envs.strangers import RAISED, type_and_text
from kemeny.errors import UserError
from kemeny.naming import name_of
from kemeny.spaces import Box, first_of_each, observation_of
from kemeny.spec import Continuous, Spec

Rule = Callable[..., Any]
"""From one observation, as the environment gives it, to one action, as the environment takes it.

If the environment has masks and the rule a parameter `mask`, it also gets which actions are allowed, as ones and zeros.
"""


class RulePolicy:
    """A rule that acts as a policy does, one observation after the other."""

    def __init__(self, rule: Rule, spec: Spec) -> None:
        self._rule, self._name, self._spec = rule, name_of(rule), spec
        self._sees_mask = spec.mask > 0 and takes(rule, "mask")

    def head(self, observation: np.ndarray) -> np.ndarray:
        """Actions for rows of observations, in the unit in which pools take them."""
        return np.array([self._act(row) for row in observation])

    def mode(self, head: np.ndarray) -> np.ndarray:
        """The same."""
        return head

    def _act(self, row: np.ndarray) -> np.ndarray:
        mask = row[self._spec.features :].astype(np.int8)
        seen = {"mask": mask.copy()} if self._sees_mask else {}
        try:
            given = self._rule(observation_of(self._spec.spaces.observation, row), **seen)
        except RAISED as error:
            raise UserError(f"The rule {self._name} raised {type_and_text(error)}.") from error
        action = self._checked(given)
        if mask.size:
            self._refuse_forbidden(given, action, mask)
        return action

    def _refuse_forbidden(self, given: Any, action: np.ndarray, mask: np.ndarray) -> None:
        assert not isinstance(self._spec.action, Continuous), "what is not chosen cannot be masked"
        forbidden = np.flatnonzero(mask[first_of_each(self._spec.action.choices) + action.reshape(-1)] == 0)
        if forbidden.size:
            several = len(self._spec.action.choices) > 1
            of = f" in choice {forbidden[0]} (counted from 0)" if several else ""
            raise UserError(
                f"The rule {self._name} returned {given!r}, which the action mask forbids{of}: a rule with a "
                "parameter mask gets the mask, and can keep to it."
            )

    def _checked(self, given: Any) -> np.ndarray:
        """The action as a pool takes it, or a `UserError`."""
        space = self._spec.spaces.action
        try:
            action = np.asarray(given)
        except ValueError as error:
            raise UserError(f"The rule {self._name} returned no array of numbers: {error}.") from error
        fits = action.shape == space.shape or (action.size == 1 and space.shape in ((), (1,)))
        letters = "iuf" if isinstance(space, Box) else "biu"
        batch = action.reshape(1, *space.shape) if fits else action
        if not fits or action.dtype.kind not in letters or not np.isfinite(action).all() or space.outside(batch).size:
            allowed = f"finite numbers of shape {space.shape}" if isinstance(space, Box) else str(space)
            raise UserError(f"The rule {self._name} returned {given!r}, but the actions are {allowed}.")
        if isinstance(self._spec.action, Continuous):
            unit = self._spec.action.unit
            action = action.reshape(-1)
            return action if unit is None else (action - unit.shift) / unit.scale
        start = np.array(getattr(space, "start", 0), np.int64)
        return action.reshape(self._spec.action.array.shape) - start
