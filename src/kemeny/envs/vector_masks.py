"""Masks of a vector environment: which actions each copy may take now, by `info["action_mask"]` or `action_masks()`."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from kemeny.envs.masks import KEY, METHOD, has_key, has_method
from kemeny.envs.vector_info import FINAL_INFO
from kemeny.spaces import BadMask, Choices, first_of_each, read_mask


class VectorMasks:
    """The present masks of all copies, one row per copy."""

    def __init__(self, env: VectorEnv, action: Choices) -> None:
        self._action = action
        self._ask = _method(env)
        self.allowed = np.ones((env.num_envs, action.outputs), np.float32)
        """1 for every option that is allowed, also for copies of which no mask is known."""

    def update(self, info: Any, begun: np.ndarray, ended: np.ndarray | None = None) -> None:
        """Note the masks of the copies that `begun` names, which must be there, and of those that ended."""
        rows, known = self._read(info, self._ask)
        if np.count_nonzero(begun):
            which = slice(None) if begun.all() else begun  # a slice is several times faster than an index array
            if not known[which].all():
                raise BadMask("is missing, though one must come with every observation")
            self.allowed[which] = read_mask(rows[which], self._action)
        if ended is not None and np.count_nonzero(ended):
            self.allowed[ended] = self._last(rows, known, ended)

    def before_restart(self, info: Any, restarted: np.ndarray) -> np.ndarray:
        """The last masks of copies that ended and restarted within the same step, from the `info` of that step."""
        rows, known = self._read(info.get(FINAL_INFO) if isinstance(info, Mapping) else None, None)
        return self._last(rows, known, restarted)

    def _read(self, info: Any, ask: Any) -> tuple[np.ndarray, np.ndarray]:
        """Masks as they are given, and which copies have one."""
        entries = info if isinstance(info, Mapping) else {}
        given = entries.get(KEY) if ask is None else ask()
        if given is None:
            return self.allowed, np.zeros(len(self.allowed), bool)
        rows = np.asarray(given)
        if rows.shape != self.allowed.shape:
            raise BadMask(f"has shape {rows.shape}, but there must be one row of {self._action.outputs} for each copy")
        known = entries.get(f"_{KEY}") if ask is None else None
        return rows, np.ones(len(rows), bool) if known is None else np.asarray(known, bool)

    def _last(self, rows: np.ndarray, known: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Masks of copies that ended; all ones, as in `Masks.read`, if one is missing or forbids everything."""
        rows = np.where(known[ended, None], rows[ended], 1)
        left = np.logical_or.reduceat(rows == 1, first_of_each(self._action.choices), axis=1).all(1, keepdims=True)
        return read_mask(np.where(~left & (rows == 0), 1, rows), self._action)


class MaskInInfo(gymnasium.Wrapper):
    """Puts what `action_masks()` returns into `info`.

    So the mask of a last state is known even if the environment is restarted before anybody else can ask.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Restart the environment."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._with_mask(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the environment."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self._with_mask(info)

    def _with_mask(self, info: dict[str, Any]) -> dict[str, Any]:
        given = self.env.get_wrapper_attr(METHOD)()
        others = {key: value for key, value in info.items() if key != KEY}
        return others if given is None else {**others, KEY: np.asarray(given)}


def has_masks(env: VectorEnv, info: Any) -> bool:
    """Whether an environment has masks, seen from the `info` of a restart."""
    return has_key(info) or _method(env) is not None


def put_in_info(env: VectorEnv) -> None:
    """Let each copy of a `SyncVectorEnv` that has `action_masks()` give its mask in `info`."""
    base = env.unwrapped
    if isinstance(base, SyncVectorEnv) and _method(env) is None:
        base.envs = [MaskInInfo(one) if has_method(one) else one for one in base.envs]


def _method(env: VectorEnv) -> Any:
    """What tells the masks of all copies, if it is not `info`."""
    method = getattr(env, METHOD, None)
    return method if callable(method) else None
