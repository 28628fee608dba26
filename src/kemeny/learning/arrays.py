"""A learner's state as named NumPy arrays, for checkpoints and for the policy that acts; and back."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from kemeny.learning.learner import Behaviour, State
from kemeny.spaces import ArraySpec
from kemeny.spec import Continuous, Spec, check_arrays, check_finite

FINITE = ("policy/", "critics/", "normalizer/", "behind/")
"""Parts of a state from which nothing can be learnt again once they are not finite."""


def to_arrays(state: State) -> dict[str, np.ndarray]:
    """Every array of the state by its path in it: policy/network/weights/0, optimizers/0/mu/…"""
    return {name: np.asarray(_raw(leaf)) for name, leaf in _named_leaves(state)}


def from_arrays(template: State, arrays: Mapping[str, np.ndarray], where: object) -> State:
    """The state that was saved; `template` says which arrays it must have, and `where` they were read from."""
    leaves = _named_leaves(template)
    arrays = as_today(arrays, [name for name, _ in leaves])
    check_arrays(arrays, {name: ArraySpec.of(np.asarray(_raw(leaf))) for name, leaf in leaves}, where)
    check_finite(arrays, [name for name, _ in leaves if name.startswith(FINITE)], where)
    restored = []
    for name, leaf in leaves:
        array = jax.numpy.asarray(arrays[name])
        restored.append(jax.random.wrap_key_data(array) if _is_key(leaf) else array)
    return jax.tree.unflatten(jax.tree.structure(template), restored)


ADDED = {"mean": np.zeros((), np.float32), "unit": np.ones((), np.float32), "settled": np.array(True)}
"""Arrays of a critic that checkpoints of an older Kemeny do not have, and what they were then."""


def as_today(arrays: Mapping[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by their names of today, also if an older Kemeny wrote it."""
    added = {name: ADDED[last] for name in names if (last := name.rsplit("/", 1)[-1]) in ADDED and "critics" in name}
    return {**added, **{re.sub("^(optimizers/.*)/network/", r"\1/", name): array for name, array in arrays.items()}}


def acting_arrays(behaviour: Behaviour | State, spec: Spec) -> dict[str, np.ndarray]:
    """What the policy in NumPy needs, named as in a checkpoint."""
    leaves = _named_leaves({"policy": behaviour.policy, "normalizer": behaviour.normalizer})
    return {**{name: np.asarray(leaf) for name, leaf in leaves}, **bounds(spec)}


def bounds(spec: Spec) -> dict[str, np.ndarray]:
    """What the policy in NumPy clips its actions to, and how it maps them to there where it must."""
    if not isinstance(spec.action, Continuous):
        return {}
    limits, unit = {"action/low": spec.action.low, "action/high": spec.action.high}, spec.action.unit
    return limits if unit is None else {**limits, "action/shift": unit.shift, "action/scale": unit.scale}


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in paths]


def _raw(leaf: jax.Array) -> jax.Array:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: jax.Array) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
