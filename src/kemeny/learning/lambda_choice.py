"""λ from the data: the one whose advantages improve the policy most, judged on batches that it has not seen.

A short trace has little noise and, where the critic is poor, a wrong direction; a long one has the right direction and
much noise. Both can be measured. Let gᵢ be the policy gradient of the newest batch with λᵢ, mᵢ the mean of those of
earlier batches, and H the Fisher matrix. The noise of a batch is independent of that of earlier ones, so

    E[gⱼᵀ H⁻¹ mᵢ] = μⱼᵀ H⁻¹ μᵢ,    μᵢ = E gᵢ:

products of true gradients, without the noise. With i = j this is the signal sᵢ, and mᵢᵀH⁻¹mᵢ − sᵢ, times the number of
batches in the mean, is the noise Nᵢ of one batch. A step along the mean gradient of n batches with λᵢ gains

    μ_Jᵀ H⁻¹ μᵢ / √(sᵢ + Nᵢ/n)

per unit of √KL, if the gradient with the long λ_J is the true one. The λᵢ that gains most is chosen. λ_J is the longest
whose own signal earlier batches confirm: beyond it, all is noise.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Num

from kemeny.learning.networks import PolicyNetwork
from kemeny.learning.steps import trust_region

LAMBDAS = (0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
FIRST = LAMBDAS.index(0.9)
"""The λ of the first batches, as long as nothing is known."""
BATCHES_BEFORE_A_CHOICE = 10
BATCHES_AHEAD = 20.0
"""n: a policy moves along the mean of the gradients of about so many batches. With 1 the greediest λ is chosen, which
soon points nowhere; with 50, too noisy a one (`docs/results.md`)."""
GRADIENT_MEMORY = 0.95
"""Share of the mean gradient that is kept at each batch: a mean over about 40 batches."""
PRODUCT_MEMORY = 0.97
"""The same for the products, which are single numbers with much noise."""
STANDARD_ERRORS = 2.0
"""A signal so many standard errors above 0 is confirmed."""
DAMPING = 0.3
"""Added to the diagonal of H."""
ITERATIONS = 10
"""Of conjugate gradient."""
EVERY = 5
"""H is the Fisher matrix of each fifth state: it only compares directions, and costs a fifth of the time."""
SMALLEST_SPREAD = 1e-12
"""Of advantages: below, they are all alike."""
SMALLEST_SQUARE = 1e-30
"""Of the length of a gradient: below, there is none, and no λ is better than another."""


class LambdaChoice(eqx.Module):
    """What earlier batches say of each λ."""

    gradient: Float[Array, "lambda parameter"]
    """The mean policy gradient with each λ."""
    product: Float[Array, "lambda lambda"]
    """The mean of gⱼᵀH⁻¹mᵢ, row i and column j."""
    square: Float[Array, " lambda"]
    """The mean of (gᵢᵀH⁻¹mᵢ)²."""
    noise: Float[Array, " lambda"]
    """Nᵢ."""
    batches: Int[Array, ""]
    """Batches so far."""
    index: Int[Array, ""]
    """Of the λ that is chosen."""

    @property
    def value(self) -> Float[Array, ""]:
        """The λ that is chosen."""
        return jnp.array(LAMBDAS)[self.index]


def init(policy: PolicyNetwork) -> LambdaChoice:
    """Before the first batch."""
    number, parameters = len(LAMBDAS), ravel_pytree(policy)[0].size
    return LambdaChoice(
        gradient=jnp.zeros((number, parameters)),
        product=jnp.zeros((number, number)),
        square=jnp.zeros(number),
        noise=jnp.zeros(number),
        batches=jnp.zeros((), jnp.int32),
        index=jnp.array(FIRST, jnp.int32),
    )


def judge(
    choice: LambdaChoice,
    policy: PolicyNetwork,
    x: Float[Array, "sample obs"],
    action: Num[Array, "sample *act"],
    advantages: Float[Array, "lambda sample"],
) -> LambdaChoice:
    """After one more batch, on which the policy acted: its advantages with each λ judge the gradients before it."""
    gradient, own, product = _compare(choice, policy, x, action, advantages)
    sound = jnp.isfinite(gradient).all() & jnp.isfinite(product).all() & jnp.isfinite(own).all()
    signal = jnp.diag(product)
    averaged = jnp.minimum(choice.batches, _length(GRADIENT_MEMORY))
    judged = choice.batches > 0  # the first batch has none before it to judge

    def mean(old: Array, new: Array, memory: float, earlier: Array) -> Array:
        """Forgets, but for the first batches, which count alike."""
        share = jnp.maximum(1 - memory, 1 / (earlier + 1))
        return jnp.where(sound, (1 - share) * old + share * new, old)

    def judgement(old: Array, new: Array) -> Array:
        return jnp.where(judged, mean(old, new, PRODUCT_MEMORY, choice.batches - 1), old)

    known = LambdaChoice(
        gradient=mean(choice.gradient, gradient, GRADIENT_MEMORY, choice.batches),
        product=judgement(choice.product, product),
        square=judgement(choice.square, signal**2),
        noise=judgement(choice.noise, (own - signal) * averaged),
        batches=choice.batches + 1,
        index=choice.index,
    )
    index = jnp.where(known.batches > BATCHES_BEFORE_A_CHOICE, _best(known), FIRST)
    return eqx.tree_at(lambda one: one.index, known, index.astype(jnp.int32))


def _compare(
    choice: LambdaChoice, policy: PolicyNetwork, x: Array, action: Array, advantages: Array
) -> tuple[Array, Array, Array]:
    """gᵢ, mᵢᵀH⁻¹mᵢ and gⱼᵀH⁻¹mᵢ. Advantages are scaled to a deviation of 1, so that the noise of all λ is alike."""
    theta, unravel = ravel_pytree(policy)
    centred = advantages - advantages.mean(1, keepdims=True)
    scaled = centred / jnp.maximum(centred.std(1, keepdims=True), SMALLEST_SPREAD)
    _, pull = jax.vjp(lambda point: unravel(point)(x).log_prob(action), theta)
    gradient = jax.vmap(lambda advantage: pull(advantage / len(x))[0])(scaled)
    product = trust_region.fisher_product(lambda point: unravel(point)(x[::EVERY]), theta, DAMPING)
    solve = jax.vmap(lambda mean: trust_region.conjugate_gradient(product, mean, ITERATIONS)[0])
    direction = solve(choice.gradient)
    return gradient, jnp.sum(choice.gradient * direction, 1), direction @ gradient.T


def _best(choice: LambdaChoice) -> Int[Array, ""]:
    """The number of the λ with the largest gain."""
    number, signal = np.arange(len(LAMBDAS)), jnp.diag(choice.product)
    judged = jnp.minimum(choice.batches - 1, _length(PRODUCT_MEMORY))
    error = jnp.sqrt(jnp.maximum(choice.square - signal**2, 0) / judged)
    longest = jnp.max(jnp.where(signal > STANDARD_ERRORS * error, number, 0))
    length = jnp.maximum(signal, 0) + jnp.maximum(choice.noise, 0) / BATCHES_AHEAD
    gain = choice.product[:, longest] / jnp.sqrt(jnp.maximum(length, SMALLEST_SQUARE))
    return jnp.argmax(gain)


def _length(memory: float) -> float:
    """How many batches a mean that forgets is worth: as much noise is left in a plain mean of so many."""
    return (1 + memory) / (1 - memory)
