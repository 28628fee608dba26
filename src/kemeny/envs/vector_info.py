"""The `info` of a vector environment: arrays over the copies, and which copies have what.

Beside an array `key` there may be a mask `_key`: where it is False, the copy has no such entry. If copies restart
within the step that ended them, their last `info` is under `final_info`, in the same form.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kemeny.envs.costs import FALL, Cost, call_cost, read_cost, refuse_names
from kemeny.errors import UserError

FINAL_OBS, FINAL_INFO = "final_obs", "final_info"


class VectorInfo:
    """The entries of one step, for each copy those of the step itself, not of a restart within it."""

    def __init__(self, info: Mapping[str, Any], restarted: np.ndarray, env: str) -> None:
        """`restarted` says which copies restarted within the step."""
        self._info, self._restarted, self._env = info, restarted, env
        final = info.get(FINAL_INFO) if restarted.any() else None
        if final is not None and not isinstance(final, Mapping):
            raise UserError(
                f"{env} has a final_info of type {type(final).__name__}, but it must be a dictionary of arrays over "
                "the copies, as those of Gymnasium have it."
            )
        self._final: Mapping[str, Any] | None = final

    def keys(self) -> set[str]:
        """What the copies have entries of."""
        keys = {*self._info, *(self._final or ())}
        return {key for key in keys if not (key.startswith("_") and key[1:] in keys)} - {FINAL_OBS, FINAL_INFO}

    def column(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """One entry of every copy, and which copies have it."""
        values, known = self._column(self._info, key)
        if self._final is not None:
            last, last_known = self._column(self._final, key)
            if values is None or last is None:
                values = last if values is None else values
            else:
                mask = self._restarted.reshape(-1, *(1,) * (last.ndim - 1))
                values = np.where(mask, last, values)
            known = np.where(self._restarted, last_known, known)
        assert values is not None  # for the key is one of `keys()`
        return values, known

    def flag(self, key: str) -> np.ndarray:
        """An entry that is true or false, of every copy; false where a copy has none."""
        values, known = self.column(key)
        if values.ndim != 1 or values.dtype.kind not in "biuf":
            raise UserError(
                f"{self._env} has an info[{key!r}] of shape {values.shape} and type {values.dtype}, but it must be "
                "true or false for each copy."
            )
        return values.astype(bool) & known

    def row(self, copy: int) -> dict[str, Any]:
        """All entries of one copy, as its own `info`."""
        own = self._final if self._final is not None and self._restarted[copy] else self._info
        return _row(own, copy, len(self._restarted))

    def _column(self, info: Mapping[str, Any], key: str) -> tuple[np.ndarray | None, np.ndarray]:
        n = len(self._restarted)
        if key not in info:
            return None, np.zeros(n, bool)
        values = np.asarray(info[key])
        if values.shape[:1] != (n,):
            raise UserError(
                f"{self._env} has an info[{key!r}] of shape {values.shape}, but it must have one entry for each of its "
                f"{n} copies."
            )
        known = info.get(f"_{key}")
        return values, np.ones(n, bool) if known is None else np.asarray(known, bool)


def read_costs(
    costs: Sequence[Cost],
    info: VectorInfo,
    copies: np.ndarray,
    observation: np.ndarray,
    action: np.ndarray,
    reward: np.ndarray,
    terminated: np.ndarray,
    env: str,
) -> np.ndarray:
    """(n, K) costs of a step of all n copies; only the rows of `copies` are meant, the others may be anything."""
    values = np.zeros((len(reward), len(costs)))
    for k, cost in enumerate(costs):
        if isinstance(cost, str):
            values[:, k] = terminated if cost == FALL else _named(cost, info, copies, env)
        else:  # a function sees one copy at a time, as it does with any other pool
            for i in copies.tolist():
                values[i, k] = call_cost(cost, observation[i], action[i], float(reward[i]), info.row(i))
    return values


def _named(cost: str, info: VectorInfo, copies: np.ndarray, env: str) -> np.ndarray:
    keys = info.keys()
    refuse_names([cost], keys, env)
    needed = [cost] if cost in keys and not (cost == "speed" and "x_velocity" in keys) else ["x_velocity", "y_velocity"]
    columns = {key: info.column(key) for key in needed if key in keys}
    for key, (values, known) in columns.items():
        if values.ndim != 1 or values.dtype.kind not in "biuf":
            raise UserError(
                f"{env} has a cost {cost!r} that is not one number for each copy: info[{key!r}] is an array of shape "
                f"{values.shape} and type {values.dtype}."
            )
        if not known[copies].all():
            raise UserError(f"{env} has no cost {cost!r} in the info of every copy at every step.")
    return np.asarray(read_cost(cost, {key: values for key, (values, _) in columns.items()}))


def _row(info: Mapping[str, Any], copy: int, n: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, values in info.items():
        if key in (FINAL_OBS, FINAL_INFO) or (key.startswith("_") and key[1:] in info):
            continue
        known = info.get(f"_{key}")
        if known is not None and not np.asarray(known)[copy]:
            continue
        if isinstance(values, Mapping):
            row[key] = _row(values, copy, n)
        else:
            row[key] = values[copy] if np.shape(values)[:1] == (n,) else values
    return row
