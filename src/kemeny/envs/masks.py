"""Masks: how an environment says which actions are allowed now, in `info["action_mask"]` or by `action_masks()`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from kemeny.spaces import BadMask, Choices, NothingAllowed, first_of_each, read_mask
from kemeny.spec import Continuous, Spec, vector

KEY, METHOD = "action_mask", "action_masks"
"""Of Gymnasium's own environments, and of SB3-contrib's."""


@dataclass(frozen=True)
class Masks:
    """The masks of an environment that has them."""

    action: Choices
    by_method: bool
    """Whether its method is asked, and not `info`."""

    def read(self, env: gymnasium.Env, info: Any, ended: bool) -> np.ndarray:
        """Which options are allowed now, or a `BadMask` that says what the environment did.

        Nobody acts in a state in which a trajectory has ended: there a mask may be missing, or forbid everything.
        """
        if self.by_method:
            given = env.get_wrapper_attr(METHOD)()
        else:
            given = info.get(KEY) if isinstance(info, Mapping) else None
        try:
            if given is None and not ended:
                raise BadMask("is missing, though one must come with every observation")
            allowed = np.ones(self.action.outputs, bool) if given is None else read_mask(given, self.action)
            if allowed.ndim != 1:
                raise BadMask(f"has shape {allowed.shape}, but there must be one row of {self.action.outputs}")
            return allowed
        except NothingAllowed:
            if not ended:
                raise
            return np.ones(self.action.outputs, bool)


def has_method(env: gymnasium.Env) -> bool:
    """Whether the environment, or one of its wrappers, has `action_masks()`."""
    try:
        return callable(env.get_wrapper_attr(METHOD))
    except AttributeError:
        return False


def has_key(info: Any) -> bool:
    """Whether there is a mask in an `info`."""
    return isinstance(info, Mapping) and KEY in info


def widen(spec: Spec) -> Spec:
    """The spec of an environment whose observations are followed by masks."""
    assert not isinstance(spec.action, Continuous), "what is not chosen cannot be masked"
    options = spec.action.outputs
    return replace(spec, observation=vector(spec.observation.size + options), mask=options)


def first_allowed(spec: Spec, observation: np.ndarray) -> np.ndarray:
    """For each row, of each choice the first option that is allowed; 0 if nothing is masked or chosen."""
    shape = (len(observation), *spec.action.array.shape)
    if isinstance(spec.action, Continuous) or not spec.mask:
        return np.zeros(shape)
    allowed = np.split(observation[:, -spec.mask :], first_of_each(spec.action.choices)[1:], 1)
    return np.stack([options.argmax(1) for options in allowed], 1).reshape(shape)
