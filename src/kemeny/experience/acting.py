"""The policy in plain NumPy: fast to sample with, and all that deployment needs."""

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from kemeny.errors import Damaged, UserError
from kemeny.spec import ArraySpec, Box, Continuous, Discrete, Space, Spaces, Spec, Unit, check_arrays, check_finite

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
TYPES_OF_NUMBERS = {Box.kind: "biuf", Discrete.kind: "iu"}
"""NumPy's letters for the types that observations may have."""


class Policy:
    """A trained policy. `policy(s)` is the mean (or likeliest) action, `policy.sample(s, rng)` explores.

    Both take one observation or a batch of them, as the environment gives them (the normaliser is inside), and return
    one action or a batch of them, as the environment takes them. `head`, `explore` and `mode` are for pools, which
    convert observations and actions themselves.
    """

    def __init__(
        self, arrays: Mapping[str, np.ndarray], network: Mapping[str, str] = PERCEPTRON, spaces: Spaces | None = None
    ) -> None:
        """`arrays` are named as in a checkpoint, and `network` describes their network as a checkpoint's facts do.

        `spaces` are those of the environment. If they are None, as for checkpoints that do not have them, observations
        are vectors (a single whole number is that of a state), and discrete actions begin at 0.
        """
        self._network: Actor = NETWORKS[network["kind"]](arrays, network)
        self._shift = np.asarray(arrays["normalizer/mean"], F32)
        self._scale = np.asarray(arrays["normalizer/scale"], F32)
        self._clip = np.asarray(arrays["normalizer/clip"], F32)
        self.continuous = "policy/log_std" in arrays
        self._std = np.exp(np.asarray(arrays["policy/log_std"], F32)) if self.continuous else None
        self._low, self._high = arrays.get("action/low"), arrays.get("action/high")
        self.unit = Unit(arrays["action/shift"], arrays["action/scale"]) if "action/scale" in arrays else None
        """What the environment calls the policy's 0 and 1; None if both call them the same."""
        self._spaces = spaces

    @property
    def observation_size(self) -> int:
        """Length of the observation it was trained on."""
        return len(self._shift)

    @property
    def action_size(self) -> int:
        """Number of components of an action, or of actions to choose from."""
        return self._network.outputs

    @property
    def bounded(self) -> bool:
        """Whether it knows the bounds of its actions, as all that were trained do."""
        return self._low is not None

    def __call__(self, observation: ArrayLike) -> np.ndarray:
        """The action without exploration: the mean, within the bounds, or the likeliest."""
        head, single = self._user_head(observation)
        action = self._for_environment(self.mode(head))
        return action[0] if single else action

    def sample(self, observation: ArrayLike, rng: np.random.Generator) -> np.ndarray:
        """An action drawn from the policy, within the bounds."""
        head, single = self._user_head(observation)
        action = self._for_environment(self.explore(head, self.noise(rng, len(head))))
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
        """Actions as drawn, in the policy's unit: mean + std·noise, or the largest of logits + Gumbel noise."""
        if self._std is not None:
            return head + self._std * noise
        return (head + noise).argmax(-1)

    def mode(self, head: np.ndarray) -> np.ndarray:
        """The mean, in the policy's unit, or the likeliest action."""
        return head if self.continuous else head.argmax(-1)

    def _for_environment(self, action: np.ndarray) -> np.ndarray:
        """Actions of the policy as the environment takes them: what `envs.spaces.Actions` does for a pool."""
        space = None if self._spaces is None else self._spaces.action
        if not self.continuous:
            return action + space.start if isinstance(space, Discrete) else action
        if self.unit is not None:
            action = self.unit.shift + self.unit.scale * action
        if self._low is not None:
            action = np.clip(action, self._low, self._high)
        return action if space is None else action.reshape(len(action), *space.shape)

    def _user_head(self, observation: ArrayLike) -> tuple[np.ndarray, bool]:
        """Means or logits for a batch, or for a single observation."""
        try:
            array = np.asarray(observation)
        except ValueError as error:
            raise UserError(f"An observation must be an array of numbers: {error}.") from error
        space = self._observation_space(array)
        if array.ndim == 0 and space.shape == (1,):
            array = array[None]
        single = array.shape == space.shape
        numbers = array.dtype.kind in TYPES_OF_NUMBERS[space.kind]
        if not numbers or not (single or array.shape[1:] == space.shape):
            raise UserError(
                f"The policy was trained on {_told(space)}, not on observations of shape {array.shape} "
                f"and type {array.dtype}."
            )
        batch = array[None] if single else array
        if isinstance(space, Discrete):
            strange = batch[(batch < space.start) | (batch >= space.start + space.n)]
            if strange.size:
                raise UserError(f"The policy was trained on {_told(space)}, not on {strange[0]}.")
        rows = space.rows(batch)
        if not np.isfinite(rows).all():
            raise UserError("The observation has an entry that is not a finite number, for which there is no action.")
        return self.head(rows), single

    def _observation_space(self, given: np.ndarray) -> Space:
        if self._spaces is not None:
            return self._spaces.observation
        a_state = np.issubdtype(given.dtype, np.integer) and given.ndim == 0 and self.observation_size > 1
        return Discrete(self.observation_size) if a_state else Box((self.observation_size,))


def check_fits(policy: Policy, spec: Spec, env: str) -> None:
    """Refuse an environment with other observations or actions than those that the policy was trained on."""
    its = _sizes(policy.observation_size, policy.action_size, policy.continuous)
    other = _sizes(spec.observation.size, spec.action.size, isinstance(spec.action, Continuous))
    if its != other:
        raise UserError(f"The policy was trained with {its}, but {env} has {other}: it needs a policy of its own.")
    unit = spec.action.unit if isinstance(spec.action, Continuous) else None
    if policy.bounded and not _same(policy.unit, unit):
        raise UserError(
            f"The policy was trained with actions between other bounds than those of {env}, or by an older Kemeny that "
            "did not map actions to such bounds: it needs a policy of its own."
        )


def check_policy(
    arrays: Mapping[str, np.ndarray], network: Mapping[str, str], spaces: Spaces | None, where: object
) -> None:
    """Refuse arrays that are not those of a policy: layers that do not fit each other, numbers that are none."""
    kind = network.get("kind")
    if kind not in NETWORKS:
        raise UserError(
            f"{where} holds a network of a kind that this Kemeny does not know ({kind!r}): upgrade to use it."
        )
    inputs = math.prod(arrays["normalizer/mean"].shape) if "normalizer/mean" in arrays else 0
    expected = {name: ArraySpec((inputs,), np.dtype(F32)) for name in ("normalizer/mean", "normalizer/scale")}
    expected["normalizer/clip"] = ArraySpec((), np.dtype(F32))
    expected |= NETWORKS[kind].expected(arrays, network, inputs)
    outputs = list(expected.values())[-1].size
    for together in (("policy/log_std",), ("action/low", "action/high"), ("action/shift", "action/scale")):
        if any(name in arrays for name in together):
            expected |= {name: ArraySpec((outputs,), np.dtype(F32)) for name in together}
    check_arrays(arrays, expected, where)
    check_finite(arrays, expected, where)
    if spaces is not None:
        sizes = _sizes(inputs, outputs, "policy/log_std" in arrays)
        described = _sizes(spaces.observation.size, spaces.action.size, isinstance(spaces.action, Box))
        if sizes != described:
            raise Damaged(f"{where} holds a policy with {sizes}, but says that it has {described}.")


def _told(space: Space) -> str:
    if isinstance(space, Discrete):
        return f"whole numbers from {space.start} to {space.start + space.n - 1}"
    return f"observations of length {space.size}" if space.shape else "single numbers"


def _sizes(observation: int, action: int, continuous: bool) -> str:
    actions = f"actions of length {action}" if continuous else f"{action} actions to choose from"
    return f"observations of length {observation} and {actions}"


def _same(one: Unit | None, other: Unit | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
