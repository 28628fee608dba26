"""The first-order change of J that every policy step maximises (Lemma 1), and its gradient."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kemeny.learning.networks import Distribution, PolicyNetwork
from kemeny.learning.samples import Samples

SMALLEST_VARIATION = 1e-6
"""Advantages that vary by less than this share of the largest are equal but for rounding, and count as 0."""


def surrogate(candidate: Distribution, samples: Samples, advantage: Float[Array, " sample"]) -> Float[Array, ""]:
    """E[π(a|s)/π_k(a|s) · A], over actions of π_k, the policy that is to be improved."""
    return samples.average_over_actions(jnp.exp(candidate.log_prob(samples.action) - samples.log_prob) * advantage)


def policy_gradient(policy: PolicyNetwork, samples: Samples, advantage: Float[Array, " sample"]) -> PolicyNetwork:
    """g of Appendix E: the gradient of the surrogate at this policy, as a tree of its shape."""
    return jax.grad(lambda candidate: surrogate(candidate(samples.x), samples, advantage))(policy)


def centred(samples: Samples, advantage: Float[Array, " sample"]) -> Float[Array, " sample"]:
    """Advantages with mean 0."""
    return advantage - samples.average_over_actions(advantage)


def standardized(samples: Samples) -> tuple[Float[Array, " sample"], Float[Array, ""]]:
    """The reward's advantages with mean 0 and deviation 1, and the deviation that they had."""
    difference = centred(samples, samples.advantage[0])
    deviation = jnp.sqrt(samples.average_over_actions(difference**2))
    varies = ~(deviation <= SMALLEST_VARIATION * jnp.max(jnp.abs(samples.advantage[0])))  # NaN does: it must be noticed
    return jnp.where(varies, difference / jnp.where(varies, deviation, 1), 0), deviation
