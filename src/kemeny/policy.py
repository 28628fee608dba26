"""Policies and critics as networks, and the distributions over actions that policies give.

Two hidden layers of tanh units by default (Appendix H). A Gaussian policy has a standard deviation that does not
depend on the state; a categorical one has a logit an action. KL divergences are exact, not sampled.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

HIDDEN_GAIN = float(np.sqrt(2))
"""Orthogonal gain of hidden layers."""
POLICY_HEAD_GAIN = 0.01
"""A small last layer: the first policy acts alike in every state."""
CRITIC_HEAD_GAIN = 1.0


class Network(eqx.Module):
    """A perceptron with tanh hidden layers and a linear head."""

    weights: tuple[Float[Array, "..."], ...]
    biases: tuple[Float[Array, "..."], ...]

    @classmethod
    def init(cls, key: PRNGKeyArray, sizes: tuple[int, ...], head_gain: float) -> "Network":
        """Orthogonal weights, zero biases; `sizes` runs from input to output."""
        gains = [HIDDEN_GAIN] * (len(sizes) - 2) + [head_gain]
        keys = jax.random.split(key, len(gains))
        weights = tuple(
            jax.nn.initializers.orthogonal(gain)(k, (rows, columns), jnp.float32)
            for gain, k, rows, columns in zip(gains, keys, sizes[:-1], sizes[1:], strict=True)
        )
        return cls(weights, tuple(jnp.zeros(n, jnp.float32) for n in sizes[1:]))

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        """Apply to the last axis."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = jnp.tanh(x @ weight + bias)
        return x @ self.weights[-1] + self.biases[-1]


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


Distribution = Gaussian | Categorical


class GaussianPolicy(eqx.Module):
    """π(a|s) = N(network(s), diag exp(2·log_std)): for Box actions."""

    network: Network
    log_std: Float[Array, " act"]

    def __call__(self, x: Float[Array, "*batch obs"]) -> Gaussian:
        """The distribution in each (normalised) state."""
        return Gaussian(self.network(x), self.log_std)


class CategoricalPolicy(eqx.Module):
    """π(a|s) = softmax(network(s)): for Discrete actions."""

    network: Network

    def __call__(self, x: Float[Array, "*batch obs"]) -> Categorical:
        """The distribution in each (normalised) state."""
        return Categorical(self.network(x))


Policy = GaussianPolicy | CategoricalPolicy


class Critic(eqx.Module):
    """v(s), the bias of one signal under the average criterion, its discounted value otherwise."""

    network: Network

    def __call__(self, x: Float[Array, "*batch obs"]) -> Float[Array, "*batch"]:
        """The value of each (normalised) state."""
        return self.network(x)[..., 0]
