"""A policy in few words and plain arrays, for programs that know nothing of Kemeny.

Whatever the spaces of an environment are, a policy is: parts of an observation, each of which is numbers, bits or
choices, written one after the other as one row (a choice as a one-hot vector); a normaliser; a network; and an action,
which is numbers between bounds, or choices.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kemeny.errors import UserError
from kemeny.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Spaces, Tuple

F32 = np.float32


@dataclass(frozen=True)
class Part:
    """One array that the environment gives or takes."""

    name: str
    path: tuple[str | int, ...]
    """The keys that lead to it in an observation that has parts."""
    kind: Literal["numbers", "bits", "choices"]
    dtype: str
    """Of the array, in words of NumPy."""
    shape: tuple[int, ...]
    """Of one, without the batch."""
    sizes: tuple[int, ...] = ()
    """Of each choice: how many there are to choose from."""
    starts: tuple[int, ...] = ()
    """Of each choice: the smallest number that it may be."""

    @property
    def size(self) -> int:
        """Number of columns of a row, or of outputs of the network."""
        return sum(self.sizes) if self.kind == "choices" else math.prod(self.shape)


@dataclass(frozen=True)
class Blueprint:
    """All of a policy."""

    spaces: Spaces
    observation: tuple[Part, ...]
    action: Part
    masked: bool
    """Whether a mask of the options of the action comes with each observation."""
    network: Mapping[str, str]
    """Its kind, and what else there is to say about it."""
    layers: int
    arrays: Mapping[str, np.ndarray]
    """In float32. observation_mean, _scale and _clip are the normaliser's; weights_0, biases_0, … the network's. An
    action of numbers has action_std, action_low and _high, and action_shift and _scale: what the environment calls the
    policy's 0 and how much it calls the policy's 1."""

    @property
    def description(self) -> dict[str, Any]:
        """All but the arrays, as JSON."""
        return {
            "observation": [dataclasses.asdict(part) for part in self.observation],
            "action": dataclasses.asdict(self.action),
            "masked": self.masked,
            "network": dict(self.network),
            "layers": self.layers,
        }


def draw_up(arrays: Mapping[str, np.ndarray], network: Mapping[str, str], spaces: Spaces | None) -> Blueprint:
    """The blueprint of a policy of a checkpoint (see `acting.Policy`) that `acting.check_policy` has passed."""
    layers = sum(name.startswith("policy/network/weights/") for name in arrays)
    outputs = len(arrays[f"policy/network/biases/{layers - 1}"])
    continuous = "policy/log_std" in arrays
    if spaces is None:
        inputs = len(arrays["normalizer/mean"])
        spaces = Spaces(Box((inputs,)), Box((outputs,)) if continuous else Discrete(outputs))
    parts = tuple(_parts(spaces.observation, "observation", ()))
    if len({part.name for part in parts}) < len(parts):
        raise UserError(
            "The policy cannot be exported: with its dots, the name of a part of an observation is another's."
        )
    features = slice(sum(part.size for part in parts))  # of a row, behind which a mask may be
    plain = {f"observation_{name}": arrays[f"normalizer/{name}"][features] for name in ("mean", "scale")}
    plain["observation_clip"] = arrays["normalizer/clip"]
    for i in range(layers):
        plain |= {f"{name}_{i}": arrays[f"policy/network/{name}/{i}"] for name in ("weights", "biases")}
    if continuous:
        plain["action_std"] = np.exp(arrays["policy/log_std"])
        for name, otherwise in (("low", -np.inf), ("high", np.inf), ("shift", 0), ("scale", 1)):
            plain[f"action_{name}"] = arrays.get(f"action/{name}", np.full(outputs, otherwise, F32))
    return Blueprint(
        spaces,
        parts,
        _action(spaces.action),
        spaces.mask,
        network,
        layers,
        {name: np.asarray(array, F32, order="C") for name, array in plain.items()},
    )


def _parts(space: Space, name: str, path: tuple[str | int, ...]) -> Iterator[Part]:
    """The parts of an observation, in the order of its row."""
    match space:
        case Dict() | Tuple():
            keys = space.names if isinstance(space, Dict) else range(len(space.parts))
            for key, part in zip(keys, space.parts, strict=True):
                yield from _parts(part, f"{name}.{key}", (*path, key))
        case Box():
            yield Part(name, path, "numbers", "float32", space.shape)
        case MultiBinary():
            yield Part(name, path, "bits", "int8", space.shape)
        case Discrete():
            yield Part(name, path, "choices", "int64", (), (space.n,), (space.start,))
        case MultiDiscrete():
            yield Part(name, path, "choices", "int64", space.shape, space.n, space.start)


def _action(space: Space) -> Part:
    """An action; of bits each is a choice of two."""
    [part] = _parts(space, "action", ())
    if part.kind == "bits":
        return dataclasses.replace(part, kind="choices", sizes=(2,) * part.size, starts=(0,) * part.size)
    return part
