"""Policies and critics as networks, and the distributions over actions that policies give.

Two hidden layers of tanh units by default (Appendix H). A Gaussian policy has a standard deviation that does not
depend on the state; a categorical one has one logit per action, or per option of each of several choices. KL
divergences are exact, not sampled.

Where an environment has masks, the last columns of an observation are the mask: a policy sees those before them, and
gives to the actions that are masked a logit that is a constant. Their probability and their gradient are exactly 0.

A kind of network is known by its name, which is stored in checkpoints: `experience/acting.py` has the same kind in
NumPy.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from kemeny.learning.quadratic import Quadratic
from kemeny.learning.settings import Activation, Networks
from kemeny.spaces import FORBIDDEN, Discrete, first_of_each
from kemeny.spec import Continuous, Spec

HIDDEN_GAIN = float(np.sqrt(2))
"""Orthogonal gain of hidden layers."""
POLICY_HEAD_GAIN = 0.01
"""A small last layer: the first policy acts alike in every state."""
CRITIC_HEAD_GAIN = 1.0


ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}


class Perceptron(eqx.Module):
    """Hidden layers and a linear head."""

    kind: ClassVar[str] = "perceptron"
    weights: tuple[Float[Array, "..."], ...]
    biases: tuple[Float[Array, "..."], ...]
    activation: Activation = eqx.field(static=True, default="tanh")

    @classmethod
    def init(cls, networks: Networks, key: PRNGKeyArray, inputs: int, outputs: int, head_gain: float) -> "Perceptron":
        """Orthogonal weights, zero biases."""
        sizes = (inputs, *networks.hidden, outputs)
        gains = [HIDDEN_GAIN] * len(networks.hidden) + [head_gain]
        keys = jax.random.split(key, len(gains))
        weights = tuple(
            jax.nn.initializers.orthogonal(gain)(k, (rows, columns), jnp.float32)
            for gain, k, rows, columns in zip(gains, keys, sizes[:-1], sizes[1:], strict=True)
        )
        return cls(weights, tuple(jnp.zeros(n, jnp.float32) for n in sizes[1:]), networks.activation)

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        """Apply to the last axis."""
        return self.inputs(x)[-1] @ self.weights[-1] + self.biases[-1]

    def inputs(self, x: Float[Array, "*batch in"]) -> list[Float[Array, "*batch _"]]:
        """What each layer is applied to, from x to the input of the head."""
        activate = ACTIVATIONS[self.activation]
        seen = [x]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            seen.append(activate(seen[-1] @ weight + bias))
        return seen

    @property
    def description(self) -> dict[str, str]:
        """What, beside its arrays, it takes to use this network: a checkpoint's facts have it."""
        return {"kind": self.kind, "activation": self.activation}


class Gaussian(NamedTuple):
    """Independent normal components, one deviation for the whole batch."""

    mean: Float[Array, "*batch act"]
    log_std: Float[Array, " act"]

    def log_prob(self, action: Float[Array, "*batch act"]) -> Float[Array, "*batch"]:
        """Log density, for the action as drawn (before clipping)."""
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return -0.5 * jnp.sum(z**2 + 2 * self.log_std + jnp.log(2 * jnp.pi), -1)

    def kl(self, other: "Gaussian") -> Float[Array, "*batch"]:
        """D_KL(self ‖ other)."""
        variance_ratio = jnp.exp(2 * (self.log_std - other.log_std))
        shift = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return 0.5 * jnp.sum(variance_ratio + shift**2 - 1 - 2 * (self.log_std - other.log_std), -1)

    def entropy(self) -> Float[Array, ""]:
        """Differential entropy, the same in every state."""
        return jnp.sum(self.log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e))


class Categorical(NamedTuple):
    """A choice among finitely many actions."""

    logits: Float[Array, "*batch act"]

    def log_prob(self, action: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Log probability."""
        log_p = jax.nn.log_softmax(self.logits)
        return jnp.take_along_axis(log_p, action[..., None], -1)[..., 0]

    def kl(self, other: "Categorical") -> Float[Array, "*batch"]:
        """D_KL(self ‖ other)."""
        log_p = jax.nn.log_softmax(self.logits)
        return jnp.sum(jnp.exp(log_p) * (log_p - jax.nn.log_softmax(other.logits)), -1)

    def entropy(self) -> Float[Array, ""]:
        """Entropy, averaged over the batch."""
        log_p = jax.nn.log_softmax(self.logits)
        return -jnp.mean(jnp.sum(jnp.exp(log_p) * log_p, -1))


class Categoricals(NamedTuple):
    """Several choices, independent of each other, each among finitely many options."""

    logits: Float[Array, "*batch choice option"]
    """`FORBIDDEN` where a choice has fewer options than another."""

    def log_prob(self, action: Int[Array, "*batch choice"]) -> Float[Array, "*batch"]:
        """Log probability of all choices together."""
        return jnp.sum(Categorical(self.logits).log_prob(action), -1)

    def kl(self, other: "Categoricals") -> Float[Array, "*batch"]:
        """D_KL(self ‖ other): the sum over the choices, for they are independent."""
        return jnp.sum(Categorical(self.logits).kl(Categorical(other.logits)), -1)

    def entropy(self) -> Float[Array, ""]:
        """Entropy of all choices together, averaged over the batch."""
        return self.logits.shape[-2] * Categorical(self.logits).entropy()


Distribution = Gaussian | Categorical | Categoricals


class GaussianPolicy(eqx.Module):
    """π(a|s) = N(network(s), diag exp(2·log_std)): for Box actions."""

    network: Perceptron
    log_std: Float[Array, " act"]

    def __call__(self, x: Float[Array, "*batch obs"]) -> Gaussian:
        """The distribution in each (normalised) state."""
        return Gaussian(self.network(x), self.log_std)


class CategoricalPolicy(eqx.Module):
    """π(a|s) = softmax(network(s)), over the actions that are not masked: for Discrete actions."""

    network: Perceptron
    masked: bool = eqx.field(static=True, default=False)

    def __call__(self, x: Float[Array, "*batch obs"]) -> Categorical:
        """The distribution in each (normalised) state."""
        return Categorical(_logits(self.network, self.masked, x))


class CategoricalsPolicy(eqx.Module):
    """π(a|s) = Πᵢ softmax(networkᵢ(s)), over the options that are not masked: for MultiDiscrete and MultiBinary.

    The network gives the logits of the choices one after the other.
    """

    network: Perceptron
    choices: tuple[int, ...] = eqx.field(static=True)
    masked: bool = eqx.field(static=True, default=False)

    def __call__(self, x: Float[Array, "*batch obs"]) -> Categoricals:
        """The distribution in each (normalised) state."""
        logits = _logits(self.network, self.masked, x)
        most = max(self.choices)
        if min(self.choices) == most:
            return Categoricals(logits.reshape(*logits.shape[:-1], len(self.choices), most))
        option = np.arange(most)
        exists = option < np.array(self.choices)[:, None]
        place = np.where(exists, first_of_each(self.choices)[:, None] + option, 0)
        return Categoricals(jnp.where(exists, logits[..., place], FORBIDDEN))


def _logits(network: Perceptron, masked: bool, x: Float[Array, "*batch obs"]) -> Float[Array, "*batch out"]:
    """The network's outputs; where there are masks, `FORBIDDEN` in place of those that are masked."""
    if not masked:
        return network(x)
    outputs = network.biases[-1].size
    return jnp.where(x[..., -outputs:] > 0, network(x[..., :-outputs]), FORBIDDEN)


PolicyNetwork = GaussianPolicy | CategoricalPolicy | CategoricalsPolicy
"""The policy that learns; `experience.acting.Policy` is the one that acts."""


class Critic(eqx.Module):
    """v(s) = mean + unit · network(s) + quadratic(s): the bias of one signal under the average criterion, else its
    discounted value. Not every critic has a quadratic part.

    The unit and the mean make learning the same whatever the scale and offset of the signal. They are settled by the
    first batch that shows what the signal is like (`first_batch.py`).
    """

    network: Perceptron
    mean: Float[Array, ""]
    unit: Float[Array, ""]
    settled: Bool[Array, ""]
    quadratic: Quadratic | None = None

    def __call__(self, x: Float[Array, "*batch obs"]) -> Float[Array, "*batch"]:
        """The value of each (normalised) state."""
        value = self.mean + self.unit * self.network(x)[..., 0]
        return value if self.quadratic is None else value + self.quadratic(x)


def build_policy(networks: Networks, spec: Spec, key: PRNGKeyArray) -> PolicyNetwork:
    """An untrained policy for an environment's observations and actions."""
    network = Perceptron.init(networks, key, spec.features, spec.action.outputs, POLICY_HEAD_GAIN)
    match spec.action:
        case Continuous(low=low):
            assert networks.log_std is not None, "settings know which deviation the paper has"
            return GaussianPolicy(network, jnp.full(len(low), networks.log_std, jnp.float32))
        case Discrete():
            return CategoricalPolicy(network, spec.mask > 0)
        case several:
            return CategoricalsPolicy(network, several.choices, spec.mask > 0)


def build_critic(networks: Networks, spec: Spec, key: PRNGKeyArray, quadratic: bool = False) -> Critic:
    """An untrained critic of one signal, with or without a quadratic part."""
    network = Perceptron.init(networks, key, spec.observation.size, 1, CRITIC_HEAD_GAIN)
    beside = Quadratic.init(spec) if quadratic else None
    return Critic(
        network,
        mean=jnp.zeros(()),
        unit=jnp.ones(()),
        settled=jnp.array(False),
        quadratic=beside,
    )
