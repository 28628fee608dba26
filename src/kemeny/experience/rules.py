"""Any function from observations to actions, as a policy that pools can be given: a rule."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kemeny.envs.names import takes
from kemeny.envs.strangers import RAISED, type_and_text
from kemeny.errors import UserError
from kemeny.naming import name_of
from kemeny.spaces import Box, first_of_each, observation_of, observations_of
from kemeny.spec import Continuous, Spec

Rule = Callable[..., Any]
"""From one observation, as the environment gives it, to one action, as the environment takes it.

If the environment has masks and the rule a parameter `mask`, it also gets which actions are allowed, as ones and zeros.

A rule with a method `rows` is called for many observations at once, one per row, and returns one action per row. If
there are masks and the method has a parameter `masks`, it gets these too, one per row.
"""


class RulePolicy:
    """A rule that acts as a policy does: for all rows in one call if it can, or one observation after the other."""

    def __init__(self, rule: Rule, spec: Spec) -> None:
        self._rule, self._name, self._spec = rule, name_of(rule), spec
        self._rows: Rule | None = getattr(rule, "rows", None)
        masked = spec.mask > 0
        self._sees_mask = masked and (takes(rule, "mask") if self._rows is None else takes(self._rows, "masks"))

    def head(self, observation: np.ndarray) -> np.ndarray:
        """Actions for rows of observations, in the unit in which pools take them."""
        if self._rows is not None:
            return self._act(observation)
        return np.concatenate([self._act(observation[i : i + 1]) for i in range(len(observation))])

    def mode(self, head: np.ndarray) -> np.ndarray:
        """The same."""
        return head

    def _act(self, rows: np.ndarray) -> np.ndarray:
        """Actions for what the rule is asked about in one call: all rows, or the only one."""
        masks = rows[:, self._spec.features :].astype(np.int8)
        try:
            given = self._ask(rows, masks)
        except RAISED as error:
            raise UserError(f"The rule {self._name} raised {type_and_text(error)}.") from error
        actions = self._checked(given, len(rows))
        if masks.size:
            self._refuse_forbidden(given, actions, masks)
        return actions

    def _ask(self, rows: np.ndarray, masks: np.ndarray) -> Any:
        space = self._spec.spaces.observation
        if self._rows is not None:
            seen = {"masks": masks.copy()} if self._sees_mask else {}
            return self._rows(observations_of(space, rows), **seen)
        seen = {"mask": masks[0].copy()} if self._sees_mask else {}
        return self._rule(observation_of(space, rows[0]), **seen)

    def _checked(self, given: Any, count: int) -> np.ndarray:
        """The actions as a pool takes them, or a `UserError`."""
        space = self._spec.spaces.action
        try:
            array = np.asarray(given)
        except ValueError as error:
            raise UserError(f"The rule {self._name} returned no array of numbers: {error}.") from error
        actions = array[None] if self._rows is None else array
        single = space.shape in ((), (1,)) and actions.size == count and actions.shape[:1] == (count,)
        if not (single or actions.shape == (count, *space.shape)):
            raise self._misfit(repr(given) if self._rows is None else f"shape {array.shape} for {count} observations")
        if array.dtype.kind not in ("iuf" if isinstance(space, Box) else "biu"):
            raise self._misfit(self._shown(given, 0))
        actions = actions.reshape(count, *space.shape)
        if not np.isfinite(actions).all() or space.outside(actions).size:
            sound = (np.isfinite(row).all() and not space.outside(row[None]).size for row in actions)
            raise self._misfit(self._shown(given, next(row for row, good in enumerate(sound) if not good)))
        return self._in_units(actions)

    def _in_units(self, actions: np.ndarray) -> np.ndarray:
        """Actions of the environment as the policy counts or measures them."""
        if isinstance(self._spec.action, Continuous):
            unit = self._spec.action.unit
            actions = actions.reshape(len(actions), -1)
            return actions if unit is None else (actions - unit.shift) / unit.scale
        start = np.array(getattr(self._spec.spaces.action, "start", 0), np.int64)
        return actions.reshape(len(actions), *self._spec.action.array.shape) - start

    def _refuse_forbidden(self, given: Any, actions: np.ndarray, masks: np.ndarray) -> None:
        assert not isinstance(self._spec.action, Continuous), "what is not chosen cannot be masked"
        choices = self._spec.action.choices
        options = first_of_each(choices) + actions.reshape(len(actions), -1)
        forbidden = np.argwhere(np.take_along_axis(masks, options, axis=1) == 0)
        if forbidden.size:
            row, choice = forbidden[0]
            of = f" in choice {choice} (counted from 0)" if len(choices) > 1 else ""
            seen = "mask" if self._rows is None else "masks"
            raise UserError(
                f"The rule {self._name} returned {self._shown(given, row)}, which the action mask forbids{of}: a rule "
                f"with a parameter {seen} gets the {seen}, and can keep to it."
            )

    def _shown(self, given: Any, row: int) -> str:
        """What the rule returned for a row, as a message says it."""
        return repr(given) if self._rows is None else repr(np.asarray(given)[row].tolist())

    def _misfit(self, returned: str) -> UserError:
        space = self._spec.spaces.action
        allowed = f"finite numbers of shape {space.shape}" if isinstance(space, Box) else str(space)
        return UserError(f"The rule {self._name} returned {returned}, but the actions are {allowed}.")
