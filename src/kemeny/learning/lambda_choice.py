"""λ from the data: the one whose advantages improve the policy most, judged on batches that it has not seen.

A short trace has little noise and, where the critic is poor, a wrong direction; a long one has the right direction and
much noise. Both can be measured. Let gᵢ be the policy gradient of the newest batch with λᵢ, mᵢ the mean of those of
earlier batches, and H the Fisher matrix. The noise of a batch is independent of that of earlier ones, so

    E[gⱼᵀ H⁻¹ mᵢ] = E[gⱼ]ᵀ H⁻¹ E[mᵢ]:

a product of true gradients, in which noise has no part. A step along mᵢ of a given KL divergence therefore gains, in
proportion,

    E[gⱼᵀ H⁻¹ mᵢ] / √(mᵢᵀ H⁻¹ mᵢ)

if the gradient with the long λⱼ is the true one. Noise in mᵢ makes the step longer without a gain, bias turns it away.
The λᵢ that gains most is chosen. The judge λⱼ is the longest whose own product, i = j, is surely positive: beyond it,
nothing but noise can be seen.
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
GRADIENT_MEMORY = 0.95
"""Share of the mean gradient that is kept at each batch, which makes it one over about 40 batches. A policy moves along
such means: the λ that is best for a single step is shorter, and soon points nowhere (`docs/algorithms.md`)."""
PRODUCT_MEMORY = 0.97
"""The same for the products, which are single numbers with much noise."""
STANDARD_ERRORS = 2.0
"""A product so many of them above 0 is surely positive."""
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
    length: Float[Array, " lambda"]
    """The mean of mᵢᵀH⁻¹mᵢ."""
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
        length=jnp.zeros(number),
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
    gradient, length, product = _compare(choice, policy, x, action, advantages)
    sound = jnp.isfinite(gradient).all() & jnp.isfinite(product).all() & jnp.isfinite(length).all()
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
        square=judgement(choice.square, jnp.diag(product) ** 2),
        length=judgement(choice.length, length),
        batches=choice.batches + 1,
        index=choice.index,
    )
    index = jnp.where(known.batches > BATCHES_BEFORE_A_CHOICE, _best(known), FIRST)
    return eqx.tree_at(lambda one: one.index, known, index.astype(jnp.int32))


def _compare(
    choice: LambdaChoice, policy: PolicyNetwork, x: Array, action: Array, advantages: Array
) -> tuple[Array, Array, Array]:
    """gᵢ, mᵢᵀH⁻¹mᵢ and gⱼᵀH⁻¹mᵢ. Advantages have a deviation of 1, so that every batch counts alike."""
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
    number, own = np.arange(len(LAMBDAS)), jnp.diag(choice.product)
    judged = jnp.minimum(
        choice.batches - 1, (1 + PRODUCT_MEMORY) / (1 - PRODUCT_MEMORY)
    )  # as many as the mean is worth
    error = jnp.sqrt(jnp.maximum(choice.square - own**2, 0) / judged)
    longest = jnp.max(jnp.where(own > STANDARD_ERRORS * error, number, 0))
    gain = choice.product[:, longest] / jnp.sqrt(jnp.maximum(choice.length, SMALLEST_SQUARE))
    return jnp.argmax(gain)
