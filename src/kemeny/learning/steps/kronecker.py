"""The Fisher matrix of a policy as Kronecker products, one per layer (Martens & Grosse 2015; ACKTR: Wu et al. 2017).

A layer maps its inputs a to h = ā V, where ā is a with a 1 behind it, and V the weights with the biases as last row.
With g = ∂log π/∂h, the layer's block of the Fisher matrix is E[āāᵀ ⊗ ggᵀ]. It is approximated by A ⊗ G, where
A = E[āāᵀ] and G = E[ggᵀ]. Different layers are taken as independent. The block of a Gaussian's log deviations is
2·I exactly.

The expectation over actions in G is exact, not sampled: G = E[Jᵀ F J], with J = ∂(outputs)/∂h and F the Hessian of the
KL divergence in the outputs. It costs two backward passes per output.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from kemeny.learning.networks import Distribution, GaussianPolicy, PolicyNetwork
from kemeny.learning.samples import Samples
from kemeny.learning.settings import Factors, TrustRegion
from kemeny.learning.steps.solver import Product, Solve, Vector
from kemeny.learning.steps.trust_region import power_of_two

LOG_STD_CURVATURE = 2.0
"""The second derivative of the KL divergence of two Gaussians in a log deviation."""

Square = Float[Array, "_ _"]


class Pair(NamedTuple):
    """The two factors of one layer."""

    a: Square
    """E[āāᵀ]: of the layer's inputs and a 1."""
    g: Square
    """E[ggᵀ]: of the score's gradient in what the layer gives, before activation."""


class Averages(NamedTuple):
    """Running averages over the batches, from 0."""

    pairs: tuple[Pair, ...]
    weight: Float[Array, ""]
    """Of all batches so far: at first less than 1, by which the averages are too small."""


def kronecker_factors(policy: PolicyNetwork, samples: Samples) -> tuple[Pair, ...]:
    """The factors of each layer on this batch."""
    network, share = policy.network, samples.weight / jnp.sum(samples.weight)
    ones = jnp.ones((len(share), 1), samples.x.dtype)
    inputs = network.inputs(samples.x[:, : len(network.weights[0])])  # a mask, if there is one, comes after these
    with_one = [jnp.concatenate([a, ones], axis=1) for a in inputs]
    gradient_factors = _gradient_factors(policy, samples, share)
    return tuple(Pair((share[:, None] * a).T @ a, g) for a, g in zip(with_one, gradient_factors, strict=True))


def _gradient_factors(policy: PolicyNetwork, samples: Samples, share: Float[Array, " sample"]) -> tuple[Square, ...]:
    """G of each layer. Every sample gets biases of its own: the gradient in a bias is that in what the layer gives."""

    def distribution(biases: tuple[Float[Array, "sample _"], ...]) -> Distribution:
        def of_one(x, own):
            return dataclasses.replace(policy, network=dataclasses.replace(policy.network, biases=own))(x)

        return jax.vmap(of_one)(samples.x, biases)

    biases = tuple(jnp.broadcast_to(bias, (len(share), bias.size)) for bias in policy.network.biases)
    here, jacobian = jax.linearize(distribution, biases)
    transpose = jax.linear_transpose(jacobian, biases)

    def curvature(tangent):
        return jax.jvp(jax.grad(lambda candidate: jnp.sum(candidate.kl(here))), (here,), (tangent,))[1]

    def add(total, unit):
        """Jᵀ(e eᵀF)J for one output e: their sum over the outputs is JᵀFJ."""
        *rest, last = (jnp.zeros_like(bias) for bias in biases)
        output = jacobian((*rest, last + unit))
        (left,), (right,) = transpose(output), transpose(curvature(output))
        return tuple(g + (share[:, None] * u).T @ v for g, u, v in zip(total, left, right, strict=True)), None

    nothing = tuple(jnp.zeros((bias.size, bias.size), bias.dtype) for bias in policy.network.biases)
    total, _ = jax.lax.scan(add, nothing, jnp.eye(policy.network.biases[-1].size))
    return tuple((g + g.T) / 2 for g in total)


def damped(pair: Pair, damping: float) -> Pair:
    """Factored Tikhonov damping: (A + π√λ I) ⊗ (G + √λ/π I), π² the ratio of their mean eigenvalues (M&G, §6.3)."""
    mean_a, mean_g = (jnp.trace(factor) / len(factor) for factor in pair)
    known = (mean_a > 0) & (mean_g > 0)
    pi = jnp.where(known, jnp.sqrt(mean_a / jnp.where(known, mean_g, 1)), 1)
    root = jnp.sqrt(damping)
    return Pair(pair.a + pi * root * jnp.eye(len(pair.a)), pair.g + root / pi * jnp.eye(len(pair.g)))


def inverse(factor: Square) -> Square:
    """Of a factor; 0 in directions in which it is 0 up to rounding, as without damping it may be."""
    values, axes = jnp.linalg.eigh(factor)
    seen = values > len(values) * jnp.finfo(values.dtype).eps * values[-1]
    return (axes * jnp.where(seen, 1 / jnp.where(seen, values, 1), 0)) @ axes.T


@dataclasses.dataclass(frozen=True)
class KroneckerFactors:
    """x = (A ⊗ G)⁻¹g layer by layer, then as long as is best along it for the true H."""

    factors: Factors = dataclasses.field(default_factory=Factors)

    def init(self, policy: PolicyNetwork) -> Averages:
        """Averages over no batch."""

        shapes = [weight.shape for weight in policy.network.weights]
        pairs = (Pair(jnp.zeros((rows + 1, rows + 1)), jnp.zeros((columns, columns))) for rows, columns in shapes)
        return Averages(tuple(pairs), jnp.zeros(()))

    def prepare(
        self, policy: PolicyNetwork, samples: Samples, product: Product, region: TrustRegion, state: Averages
    ) -> tuple[Solve, Averages]:
        """The factors are averaged and inverted once per batch, whatever the number of gradients."""
        decay = self.factors.factor_decay
        new = Averages(kronecker_factors(policy, samples), jnp.ones(()))
        averages = jax.tree.map(lambda old, now: decay * old + (1 - decay) * now, state, new)
        unbiased = [jax.tree.map(lambda factor: factor / averages.weight, pair) for pair in averages.pairs]
        inverses = [jax.tree.map(inverse, damped(pair, region.damping)) for pair in unbiased]
        _, unravel = ravel_pytree(policy)

        def solve(g: Vector) -> tuple[Vector, Float[Array, ""]]:
            scale = power_of_two(g)
            g = g * scale
            x = ravel_pytree(_apply(inverses, unravel(g), region.damping))[0]
            # The best multiple of x for H itself, with which xᵀHx = g·x, as after conjugate gradient.
            xhx, xx = x @ product(x), x @ x
            moves = xx > 0
            length = jnp.where(moves, (g @ x) / jnp.where(moves, xhx, 1), 0)
            return length * x / scale, jnp.where(moves, xhx / jnp.where(moves, xx, 1), jnp.inf)

        return solve, averages


def _apply(inverses: list[Pair], gradient: PolicyNetwork, damping: float) -> PolicyNetwork:
    """(A ⊗ G)⁻¹ in each layer, on gradients of the policy's shape."""
    solved = [
        pair.a @ jnp.concatenate([weight, bias[None]]) @ pair.g
        for pair, weight, bias in zip(inverses, gradient.network.weights, gradient.network.biases, strict=True)
    ]
    network = dataclasses.replace(
        gradient.network, weights=tuple(v[:-1] for v in solved), biases=tuple(v[-1] for v in solved)
    )
    if isinstance(gradient, GaussianPolicy):
        log_std = gradient.log_std / (LOG_STD_CURVATURE + damping)
        return dataclasses.replace(gradient, network=network, log_std=log_std)
    return dataclasses.replace(gradient, network=network)
