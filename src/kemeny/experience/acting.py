"""The policy in plain NumPy: fast to sample with, and all that deployment needs."""

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from kemeny.errors import Damaged, UserError
from kemeny.spec import ArraySpec, check_arrays

F32 = np.float32
PERCEPTRON: Mapping[str, str] = {"kind": "perceptron", "activation": "tanh"}
"""The network of checkpoints that say nothing about it."""


class Actor(Protocol):
    """A kind of network in NumPy."""

    outputs: int

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Apply to normalised rows."""
        ...


class Perceptron:
    """Hidden layers and a linear head: `learning.networks.Perceptron` in NumPy."""

    def __init__(self, arrays: Mapping[str, np.ndarray], description: Mapping[str, str]) -> None:
        layers = range(self._layers(arrays))
        self._weights = [np.ascontiguousarray(arrays[f"policy/network/weights/{i}"], F32) for i in layers]
        self._biases = [np.asarray(arrays[f"policy/network/biases/{i}"], F32) for i in layers]
        self._activate = ACTIVATIONS[description["activation"]]
        self.outputs = self._biases[-1].size

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Apply to normalised rows."""
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            x = x @ weight
            x += bias
            self._activate(x)
        return x @ self._weights[-1] + self._biases[-1]

    @classmethod
    def expected(cls, arrays: Mapping[str, np.ndarray], description: Mapping[str, str], inputs: int) -> dict:
        """The arrays that it must have so that its layers fit each other."""
        if description.get("activation") not in ACTIVATIONS:
            raise UserError(f"The policy has units of an unknown kind: {description.get('activation')!r}.")
        expected = {}
        for i in range(max(1, cls._layers(arrays))):
            bias = arrays.get(f"policy/network/biases/{i}")
            outputs = 0 if bias is None else bias.size
            expected |= {
                f"policy/network/weights/{i}": ArraySpec((inputs, outputs), np.dtype(F32)),
                f"policy/network/biases/{i}": ArraySpec((outputs,), np.dtype(F32)),
            }
            inputs = outputs
        return expected

    @staticmethod
    def _layers(arrays: Mapping[str, np.ndarray]) -> int:
        return sum(name.startswith("policy/network/weights/") for name in arrays)


ACTIVATIONS: dict[str, Callable[[np.ndarray], object]] = {
    "tanh": lambda x: np.tanh(x, out=x),
    "relu": lambda x: np.maximum(x, 0, out=x),
}
"""In place."""
NETWORKS = {"perceptron": Perceptron}
"""By the kind that a checkpoint records."""


class Policy:
    """A trained policy. `policy(s)` is the mean (or likeliest) action, `policy.sample(s, rng)` explores.

    Both take one observation or a batch of them, as the environment gives them: the normaliser is inside.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], network: Mapping[str, str] = PERCEPTRON) -> None:
        """`arrays` are named as in a checkpoint, and `network` describes their network as a checkpoint's facts do."""
        self._network: Actor = NETWORKS[network["kind"]](arrays, network)
        self._shift = np.asarray(arrays["normalizer/mean"], F32)
        self._scale = np.asarray(arrays["normalizer/scale"], F32)
        self._clip = np.asarray(arrays["normalizer/clip"], F32)
        self.continuous = "policy/log_std" in arrays
        self._std = np.exp(np.asarray(arrays["policy/log_std"], F32)) if self.continuous else None
        self._low, self._high = arrays.get("action/low"), arrays.get("action/high")

    @property
    def observation_size(self) -> int:
        """Length of the observation it was trained on."""
        return len(self._shift)

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """The action without exploration: the mean, within the bounds, or the likeliest."""
        head, single = self._user_head(observation)
        action = self.mode(head)
        return action[0] if single else action

    def sample(self, observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """An action drawn from the policy, within the bounds."""
        head, single = self._user_head(observation)
        action = self.explore(head, self.noise(rng, len(head)))
        if self.continuous:
            action = self._bounded(action)
        return action[0] if single else action

    def head(self, observation: np.ndarray) -> np.ndarray:
        """Means or logits, one row per observation (float32 rows)."""
        x = (observation - self._shift) * self._scale
        np.minimum(x, self._clip, out=x)  # a third of np.clip's time on so few rows
        np.maximum(x, -self._clip, out=x)
        return self._network(x)

    def noise(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        """Standard noise that `explore` turns into actions: normal, or Gumbel for discrete actions."""
        shape = (*shape, self._network.outputs)
        return rng.standard_normal(shape, F32) if self.continuous else rng.gumbel(size=shape).astype(F32)

    def explore(self, head: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions as drawn, before clipping to bounds: mean + std·noise, or the largest of logits + Gumbel noise."""
        if self._std is not None:
            return head + self._std * noise
        return (head + noise).argmax(-1)

    def mode(self, head: np.ndarray) -> np.ndarray:
        """The mean within the bounds, or the likeliest action."""
        return self._bounded(head) if self.continuous else head.argmax(-1)

    def _bounded(self, action: np.ndarray) -> np.ndarray:
        return action if self._low is None else np.clip(action, self._low, self._high)

    def _user_head(self, observation: np.ndarray) -> tuple[np.ndarray, bool]:
        """Rows for a batch, or for a single observation; a discrete observation becomes one-hot."""
        observation = np.asarray(observation)
        if np.issubdtype(observation.dtype, np.integer) and observation.ndim == 0 and self.observation_size > 1:
            observation = np.eye(self.observation_size, dtype=F32)[observation]
        observation = observation.astype(F32)
        single = observation.ndim <= 1
        rows = observation.reshape(1, -1) if single else observation
        if rows.ndim != 2 or rows.shape[-1] != self.observation_size:
            raise UserError(
                f"The policy was trained on observations of length {self.observation_size}, "
                f"not of shape {observation.shape}."
            )
        return self.head(rows), single


def check_policy(arrays: Mapping[str, np.ndarray], network: Mapping[str, str], where: object) -> None:
    """Refuse arrays that are not those of a policy: layers that do not fit each other, numbers that are none."""
    kind = network.get("kind")
    if kind not in NETWORKS:
        raise UserError(
            f"{where} holds a network of a kind that this Kemeny does not know ({kind!r}): upgrade to use it."
        )
    inputs = math.prod(arrays["normalizer/mean"].shape) if "normalizer/mean" in arrays else 0
    expected = {name: ArraySpec((inputs,), np.dtype(F32)) for name in ("normalizer/mean", "normalizer/scale")}
    expected["normalizer/clip"] = ArraySpec((), np.dtype(F32))
    layers = NETWORKS[kind].expected(arrays, network, inputs)
    outputs = list(layers.values())[-1].shape
    expected |= layers
    optional = ("policy/log_std", "action/low", "action/high")
    expected |= {name: ArraySpec(outputs, np.dtype(F32)) for name in optional if name in arrays}
    check_arrays(arrays, expected, where)
    for name in expected:
        if np.isnan(arrays[name]).any():
            raise Damaged(f"{where} does not hold a policy: {name} has entries that are no numbers.")
