"""Spaces as a file describes them, which may be damaged or hostile."""

import dataclasses
import math
from typing import Any

from kemeny.errors import Damaged, UserError
from kemeny.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Spaces, Tuple

MOST_DIMENSIONS = 32
"""Of an array, as in older versions of NumPy."""
DEEPEST = 16
"""How deep Dict and Tuple spaces may be nested."""
KINDS = {kind.kind: kind for kind in (Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple)}
FIELDS = {kind: {field.name for field in dataclasses.fields(kind)} for kind in KINDS.values()}


def read_spaces(described: Any, where: object) -> Spaces:
    """The spaces that a description in a file is of; `where` names the file if it is of none."""
    if not isinstance(described, dict) or not {"observation", "action"} <= described.keys():
        raise Damaged(f"{where} does not say which observations and actions its policy has.")
    if not described.keys() <= {"observation", "action", "mask"}:
        raise _unknown(where)
    observation, action = (_read_space(described[name], where) for name in ("observation", "action"))
    if isinstance(action, Dict | Tuple):
        raise _unknown(where)
    mask = described.get("mask", False)
    if type(mask) is not bool or (mask and isinstance(action, Box)):
        raise _impossible(where)
    return Spaces(observation, action, mask)


def _read_space(described: Any, where: object, depth: int = 0) -> Space:
    if not isinstance(described, dict) or not isinstance(described.get("kind"), str):
        raise Damaged(f"{where} does not say which observations and actions its policy has.")
    values = {name: value for name, value in described.items() if name != "kind"}
    kind = KINDS.get(described["kind"])
    if kind is None or values.keys() > FIELDS[kind] or not values.keys() <= set().union(*FIELDS.values()):
        raise _unknown(where)  # more than is known of this kind, or what is known of none
    space = _read_nested(kind, values, where, depth) if kind in (Dict, Tuple) else _read_leaf(kind, values)
    if space is None or not _is_size(space.size):
        raise _impossible(where)
    return space


def _read_leaf(kind: type, values: dict[str, Any]) -> Space | None:
    match values:
        case {"shape": list(shape), **rest} if not _is_shape(shape):
            return None
        case {"shape": list(shape), **rest} if not rest and kind in (Box, MultiBinary):
            return kind(tuple(shape))
        case {"n": n, "start": start} if kind is Discrete and _is_range(n, start):
            return Discrete(n, start)
        case {"n": list(n), "start": list(start), "shape": list(shape)} if kind is MultiDiscrete:
            if len(n) == len(start) == math.prod(shape) > 0 and all(map(_is_range, n, start)):
                return MultiDiscrete(tuple(n), tuple(start), tuple(shape))
    return None


def _read_nested(kind: type, values: dict[str, Any], where: object, depth: int) -> Space | None:
    match values:
        case {"parts": list(parts), **rest} if parts and depth < DEEPEST:
            inner = tuple(_read_space(part, where, depth + 1) for part in parts)
            if kind is Tuple:
                return Tuple(inner)
            names = rest.get("names")
            if isinstance(names, list) and all(isinstance(name, str) for name in names):
                return Dict(tuple(names), inner) if len(set(names)) == len(names) == len(inner) else None
    return None


def _unknown(where: object) -> UserError:
    return UserError(f"{where} holds a policy for spaces that this Kemeny does not know: upgrade to use it.")


def _impossible(where: object) -> Damaged:
    return Damaged(f"{where} describes observations or actions that cannot be.")


def _is_shape(shape: list[Any]) -> bool:
    return len(shape) <= MOST_DIMENSIONS and all(map(_is_size, shape))


def _is_range(n: Any, start: Any) -> bool:
    return _is_size(n) and n > 0 and _is_int64(start) and _is_int64(start + n)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_int64(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63
