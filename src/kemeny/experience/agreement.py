"""Whether an ONNX graph acts as the policy in NumPy does."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kemeny.errors import RunError
from kemeny.experience.acting import Policy
from kemeny.experience.blueprint import Blueprint
from kemeny.spaces import Dict, Space, Tuple, first_of_each, read_rows

TOLERANCE = 1e-4
"""Of a mean or a logit x, in units of 1 + |x|. What was seen is 20 times smaller: both compute in float32, but they add
in another order."""
DEVIATIONS = 3.0
"""Spread of the random observations, in standard deviations of those that the policy was trained on."""

Feed = dict[str, np.ndarray]


def check_agreement(model: bytes, blueprint: Blueprint, policy: Policy, *, observations: int, seed: int = 0) -> None:
    """A `RunError` if the two act differently on random observations.

    ONNX Runtime computes the actions if it is installed, or else the evaluator of the package `onnx`.
    """
    feed = random_observations(blueprint, observations, np.random.default_rng(seed))
    found = runner(model)(feed)["action"]
    excess = excess_difference(found, feed, blueprint, policy)
    if not np.all(excess <= 0):
        worst = int(np.argmax(excess))
        raise RunError(
            f"The exported graph does not act as the policy does, so nothing was written: it gives {found[worst]} for "
            f"the observation { {name: array[worst].tolist() for name, array in feed.items()} }. Please report this."
        )


def runner(model: bytes) -> Callable[[Feed], Feed]:
    """A function that computes the outputs of a graph by their names."""
    try:
        import onnxruntime
    except ImportError:
        import onnx
        from onnx.reference import ReferenceEvaluator

        evaluator: Any = ReferenceEvaluator(onnx.load_from_string(model))
        names = list(evaluator.output_names)
    else:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors alone
        evaluator = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in evaluator.get_outputs()]
    return lambda feed: dict(zip(names, evaluator.run(names, feed), strict=True))


def random_observations(blueprint: Blueprint, n: int, rng: np.random.Generator) -> Feed:
    """`n` observations of every kind that the normaliser knows, also beyond its clip, by the names of their parts."""
    feed, column = {}, 0
    scale = np.maximum(blueprint.arrays["observation_scale"], np.finfo(np.float32).tiny)
    for part in blueprint.observation:
        columns = slice(column, column := column + part.size)
        if part.kind == "numbers":
            noise = DEVIATIONS * rng.standard_normal((n, part.size)) / scale[columns]
            numbers = blueprint.arrays["observation_mean"][columns] + noise
            feed[part.name] = numbers.astype(np.float32).reshape(n, *part.shape)
        elif part.kind == "bits":
            feed[part.name] = rng.integers(0, 2, (n, *part.shape), np.int8)
        else:
            drawn = rng.integers(part.starts, np.add(part.starts, part.sizes), (n, len(part.sizes)))
            feed[part.name] = drawn.reshape(n, *part.shape)
    if blueprint.masked:
        always = rng.integers(0, blueprint.action.sizes, (n, len(blueprint.action.sizes)))
        mask = rng.integers(0, 2, (n, blueprint.action.size), np.int8)
        np.put_along_axis(mask, always + first_of_each(blueprint.action.sizes), np.int8(1), axis=1)
        feed["action_mask"] = mask
    return feed


def as_given(feed: Feed, space: Space, name: str = "observation") -> Any:
    """The observations, as an environment with this space would give a batch of them."""
    if isinstance(space, Dict):
        return {key: as_given(feed, part, f"{name}.{key}") for key, part in space.named()}
    if isinstance(space, Tuple):
        return tuple(as_given(feed, part, f"{name}.{key}") for key, part in space.named())
    return feed[name]


def excess_difference(found: np.ndarray, feed: Feed, blueprint: Blueprint, policy: Policy) -> np.ndarray:
    """By how much each action differs from the policy's beyond the tolerance, where 0 or less is agreement.

    Of choices the logits are compared: where two are level within the tolerance, either is right.
    """
    observation, mask = as_given(feed, blueprint.spaces.observation), feed.get("action_mask")
    expected = policy(observation, mask, explore=False)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return np.full(len(found), np.inf)
    arrays = blueprint.arrays
    found, expected = (actions.reshape(len(found), -1) for actions in (found, expected))
    if blueprint.action.kind == "numbers":
        allowed = TOLERANCE * (arrays["action_scale"] + np.abs(expected - arrays["action_shift"]))
        return np.max(np.abs(found - expected) - allowed - 2 * np.spacing(np.abs(expected)), axis=1, initial=-np.inf)
    rows, _ = read_rows(blueprint.spaces.observation, observation)
    head = policy.head(rows if mask is None else np.concatenate([rows, mask], 1, dtype=np.float32))
    offsets = first_of_each(blueprint.action.sizes) - np.array(blueprint.action.starts)
    best, taken = (np.take_along_axis(head, offsets + actions, axis=1) for actions in (expected, found))
    return np.max(best - taken - TOLERANCE * (1 + np.abs(best)), axis=1)
