"""Any function from an observation to an action, as a policy that pools can be given: a rule."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kemeny.envs.strangers import RAISED, type_and_text
from kemeny.errors import UserError
from kemeny.naming import name_of
from kemeny.spec import Continuous, Discrete, Spec

Rule = Callable[[Any], Any]
"""From one observation, as the environment gives it, to one action, as the environment takes it."""


class RulePolicy:
    """A rule that acts as a policy does, one observation after the other."""

    def __init__(self, rule: Rule, spec: Spec) -> None:
        self._rule, self._name, self._spec = rule, name_of(rule), spec

    def head(self, observation: np.ndarray) -> np.ndarray:
        """Actions for rows of observations, in the unit in which pools take them."""
        return np.array([self._act(row) for row in observation])

    def mode(self, head: np.ndarray) -> np.ndarray:
        """The same."""
        return head

    def _act(self, row: np.ndarray) -> np.ndarray:
        space = self._spec.spaces.observation
        observation = row.argmax() + space.start if isinstance(space, Discrete) else row.reshape(space.shape).copy()
        try:
            action = self._rule(observation)
        except RAISED as error:
            raise UserError(f"The rule {self._name} raised {type_and_text(error)}.") from error
        return self._checked(action)

    def _checked(self, given: Any) -> np.ndarray:
        """The action as a pool takes it, or a `UserError`."""
        space, shape = self._spec.action, self._spec.spaces.action.shape
        try:
            action = np.asarray(given)
        except ValueError as error:
            raise UserError(f"The rule {self._name} returned no array of numbers: {error}.") from error
        if isinstance(space, Discrete):
            if action.size == 1 and action.dtype.kind in "iu" and 0 <= int(action.item()) - space.start < space.n:
                return np.array(int(action.item()) - space.start)
            allowed = f"a whole number from {space.start} to {space.start + space.n - 1}"
        else:
            if action.size == space.size and action.dtype.kind in "iuf" and np.isfinite(action).all():
                return _in_unit(action.reshape(-1), space)
            allowed = f"finite numbers of shape {shape}"
        raise UserError(f"The rule {self._name} returned {given!r}, but an action is {allowed}.")


def _in_unit(action: np.ndarray, space: Continuous) -> np.ndarray:
    unit = space.unit
    return action if unit is None else (action - unit.shift) / unit.scale
