"""The pieces of a trust-region step: Fisher-vector products, conjugate gradient, backtracking.

All of it acts on flat parameter vectors. A candidate is a value: a rejected one cannot be left behind.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kemeny.learning.networks import Distribution
from kemeny.learning.settings import TrustRegion

Vector = Float[Array, " parameter"]
SMALLEST_RESIDUAL = 1e-10
"""Of ‖g‖²: a residual below this is rounding, with float32's seven digits."""
LARGEST_EXPONENT = 100
"""Of the power of two by which a gradient is scaled: it and its inverse are far from float32's limits."""


def fisher_product(
    distribution: Callable[[Vector], Distribution],
    theta: Vector,
    damping: float,
    average: Callable[[Array], Array] = jnp.mean,
) -> Callable[[Vector], Vector]:
    """x ↦ (H + damping·I) x, H the Hessian of the average KL divergence at θ, without forming H.

    Gauss–Newton form: H = Jᵀ F J, where J is the Jacobian of the distributions' parameters and F the Hessian of the
    KL in them. Exact at θ, for the gradient of the KL vanishes there. The forward pass is linearised once and reused
    by every product, which the jvp of a gradient cannot do (`benchmarks/fisher.py` has the ratio).
    """
    here, jacobian = jax.linearize(distribution, theta)
    transpose = jax.linear_transpose(jacobian, theta)

    def curvature(tangent):
        def average_kl(candidate: Any) -> Float[Array, ""]:
            return average(candidate.kl(here))

        return jax.jvp(jax.grad(average_kl), (here,), (tangent,))[1]

    return lambda x: transpose(curvature(jacobian(x)))[0] + damping * x


def power_of_two(g: Vector) -> Float[Array, ""]:
    """A factor that brings g to a size near 1 and rounds nothing: squares of a tiny gradient would underflow."""
    return jnp.exp2(-jnp.clip(jnp.frexp(jnp.max(jnp.abs(g)))[1], -LARGEST_EXPONENT, LARGEST_EXPONENT).astype(g.dtype))


def conjugate_gradient(
    product: Callable[[Vector], Vector], g: Vector, iterations: int
) -> tuple[Vector, Float[Array, ""]]:
    """Approximate H⁻¹g, and the least curvature pᵀHp / pᵀp met on the way (≤ 0 means that H is not positive).

    It stops where the residual is a rounding error of g: going on would divide one such error by another.
    """
    scale = power_of_two(g)
    g = g * scale
    enough = SMALLEST_RESIDUAL * (g @ g)

    def iterate(_, carry):
        x, residual, p, rr, least = carry
        hp = product(p)
        php, pp = p @ hp, p @ p
        solved = rr <= enough
        alpha = jnp.where(solved, 0, rr / jnp.where(solved, 1, php))
        x, residual = x + alpha * p, residual - alpha * hp
        rr_next = residual @ residual
        beta = jnp.where(solved, 0, rr_next / jnp.where(solved, 1, rr))
        least = jnp.where(solved, least, jnp.minimum(least, php / jnp.where(solved, 1, pp)))
        return x, residual, residual + beta * p, rr_next, least

    start = (jnp.zeros_like(g), g, g, g @ g, jnp.array(jnp.inf, g.dtype))
    x, _, _, _, least = jax.lax.fori_loop(0, iterations, iterate, start)
    return x / scale, least


class Candidate(NamedTuple):
    """What backtracking asks of a point before accepting it."""

    improvement: Float[Array, ""]
    """Surrogate reward at the point, less that at θ."""
    kl: Float[Array, ""]
    acceptable: Bool[Array, ""]


class Search(NamedTuple):
    """Where backtracking ended."""

    theta: Vector
    candidate: Candidate
    tries: Int[Array, ""]
    """Step lengths tried, the accepted one included."""
    accepted: Bool[Array, ""]


def backtrack(judge: Callable[[Vector], Candidate], theta: Vector, step: Vector, region: TrustRegion) -> Search:
    """The longest of θ + coefficientʲ·step, j = 0, 1, …, that `judge` accepts; θ itself if there is none."""

    def candidate(tries):
        return theta + region.backtrack**tries * step

    def unsettled(carry):
        tries, judged = carry
        return ~judged.acceptable & (tries < region.backtrack_tries)

    def shorten(carry):
        tries, _ = carry
        return tries + 1, judge(candidate(tries))

    nothing = Candidate(jnp.zeros(()), jnp.zeros(()), jnp.array(False))
    tries, judged = jax.lax.while_loop(unsettled, shorten, (jnp.array(0), nothing))
    accepted = judged.acceptable
    return Search(
        theta=jnp.where(accepted, candidate(tries - 1), theta),
        candidate=judged,
        tries=tries,
        accepted=accepted,
    )
