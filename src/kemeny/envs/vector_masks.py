"""Masks of a vector environment: which actions each copy may take now, by `info["action_mask"]` or `action_masks()`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from kemeny.envs.masks import KEY, METHOD, has_key, has_method
from kemeny.spaces import BadMask, Choices, read_mask


class VectorMasks:
    """The present masks of all copies, one row per copy."""

    def __init__(self, env: VectorEnv, action: Choices) -> None:
        self._action = action
        self._ask = _method(env)
        self.allowed = np.ones((env.num_envs, action.outputs), np.float32)
        """1 for every option that is allowed, also for copies of which no mask is known."""

    def update(self, info: Any, begun: np.ndarray, ended: np.ndarray | None = None) -> None:
        """Note the masks of the copies that `begun` names; those that ended may take any action, for none is taken."""
        if ended is not None:
            self.allowed[ended] = 1.0
        given = self._ask() if self._ask is not None else info.get(KEY) if isinstance(info, Mapping) else None
        if not np.count_nonzero(begun):
            return
        known = info.get(f"_{KEY}") if isinstance(info, Mapping) and self._ask is None else None
        if given is None or (known is not None and not np.asarray(known, bool)[begun].all()):
            raise BadMask("is missing, though one must come with every observation")
        rows = np.asarray(given)
        if rows.shape != self.allowed.shape:
            raise BadMask(f"has shape {rows.shape}, but there must be one row of {self._action.outputs} for each copy")
        self.allowed[begun] = read_mask(rows[begun], self._action)


def has_masks(env: VectorEnv, info: Any) -> bool:
    """Whether an environment has masks, seen from the `info` of a restart."""
    return has_key(info) or _method(env) is not None


def _method(env: VectorEnv) -> Any:
    """What tells the masks of all copies, if it is not `info`."""
    method, base = getattr(env, METHOD, None), env.unwrapped
    if callable(method):
        return method
    if isinstance(base, SyncVectorEnv) and has_method(base.envs[0]):
        return lambda: np.array(base.call(METHOD))
    return None
