"""The best point of a trust region cut by linear limits, in closed form (Appendix F).

    maximise  g·x   subject to   ½ xᵀHx ≤ δ   and   cᵢ + bᵢ·x ≤ 0   for each limit i.

In the inner product of H the feasible set is a ball cut by half-spaces. At the optimum some set A of limits binds, and
the best point of the ball on which exactly those bind has a closed form, so trying every A finds it: for one limit
these are the familiar two points, INACTIVE (A empty: TRPO's step) and ACTIVE. If no point of the ball obeys the limits,
RECOVERY goes as far as the ball allows toward the nearest point that does.

The optimum lies in the span of H⁻¹g and H⁻¹bᵢ, so all that is needed of the problem is the Gram matrix of g and bᵢ
in H⁻¹: q = gᵀH⁻¹g, rᵢ = gᵀH⁻¹bᵢ, sᵢⱼ = bᵢᵀH⁻¹bⱼ. (The paper's dual has two slips: the sign of 2νr and a factor
½ on λδ; see `docs/constraints.md`.)
"""

import enum
import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

ROUNDING = 20
"""Units in the last place by which a sum of a few numbers of size 1 may be off."""
BLUR = 1000
"""Angles below √(BLUR · unit in the last place) do not show in a Gram matrix: limits so nearly parallel are told apart
no further, and a point that breaks one of them by less than that angle will do where there is no better."""


class Case(enum.IntEnum):
    """Which of the closed forms the step took."""

    INACTIVE = 0  # no limit binds: the step is TRPO's
    ACTIVE = 1  # the step ends on a limit
    RECOVERY = 2  # no point of the trust region obeys the limits: reduce cost only


class Gram(NamedTuple):
    """The problem, in the inner product of H⁻¹."""

    q: Float[Array, ""]
    r: Float[Array, " limit"]
    s: Float[Array, "limit limit"]
    c: Float[Array, " limit"]
    """How far each limit is exceeded now (negative: slack)."""
    delta: float | Float[Array, ""]


Vector = Float[Array, " parameter"]
Vectors = Float[Array, "limit parameter"]


def gram(
    product: Callable[[Vector], Vector],
    g: Vector,
    ng: Vector,
    b: Vectors,
    nb: Vectors,
    c: Array,
    delta: float | Float[Array, ""],
) -> tuple[Gram, Vectors]:
    """The problem of these gradients, from approximations ng of H⁻¹g and nb of H⁻¹b; and better ones of H⁻¹b.

    Conjugate gradient stops early, so that g·nb, b·ng and ngᵀH nb differ: measured on HalfCheetah, as cosines, 0.994,
    0.976 and 0.986, where the length of a step along the limit goes with 1/√(1 − cosine²). Here b is solved for exactly
    in the span of all the directions, at the price of one product with H each, so that a planned step ends on its limit
    and on the ball. ng stays as it is, so that a limit that does not bind changes nothing of TRPO's step.
    """
    q = g @ ng
    if not len(b):
        return Gram(q, jnp.zeros(0, q.dtype), jnp.zeros((0, 0), q.dtype), c, delta), nb
    span = jnp.concatenate([ng[None], nb])
    inner = span @ jnp.stack([product(x) for x in span]).T
    length = jnp.sqrt(jnp.diag(inner))
    per_length = 1 / jnp.where(length > 0, length, 1)
    span, inner = span * per_length[:, None], inner * per_length * per_length[:, None]
    onto = span @ b.T
    lengths, axes = jnp.linalg.eigh((inner + inner.T) / 2)
    spanned = lengths > BLUR * jnp.finfo(q.dtype).eps  # directions that are almost parallel span less
    along = axes @ (jnp.where(spanned, 1 / jnp.where(spanned, lengths, 1), 0)[:, None] * (axes.T @ onto))
    return Gram(q, b @ ng, onto.T @ along, c, delta), along.T @ span


class Plan(NamedTuple):
    """x = along_g · H⁻¹g + Σᵢ along_b[i] · H⁻¹bᵢ, and the multipliers of the problem; recovery has none (NaN)."""

    along_g: Float[Array, ""]
    along_b: Float[Array, " limit"]
    case: Int[Array, ""]
    lam: Float[Array, ""]
    """λ of the trust region, 1/along_g; 0 where the best point is not on its edge."""
    nu: Float[Array, " limit"]
    """ν of each limit, −along_b/along_g; where λ = 0, the combination of b that g is."""


class _Unit(NamedTuple):
    """The problem with a ball of radius 1 and gradients of length 1 (or 0), in which all roundings are alike."""

    g: Float[Array, ""]
    """The length of g: 1, or 0 where there is nothing to gain."""
    cosine: Float[Array, " limit"]
    cosines: Float[Array, "limit limit"]
    c: Float[Array, " limit"]


class _Point(NamedTuple):
    reach: Float[Array, ""]
    along_b: Float[Array, " limit"]
    nu: Float[Array, " limit"]
    gain: Float[Array, ""]
    excess: Float[Array, ""]
    """By how much the worst limit is broken; infinite if there is no such point in the ball."""
    terms: Float[Array, ""]
    """The sizes of the terms that make up `excess`: its rounding is in proportion."""
    nearest: Float[Array, " limit"]
    """Coefficients of the point nearest to 0 on which the chosen limits bind,"""
    nearest_excess: Float[Array, ""]
    distance: Float[Array, ""]
    """and its squared length."""


def _binding(p: _Unit, active: Bool[Array, " limit"]) -> _Point:
    """The best point of the ball on which the limits `active` bind, and how it stands with all of them."""
    eps = jnp.finfo(p.c.dtype).eps
    among_active = jnp.where(active & active[:, None], p.cosines, jnp.eye(active.size, dtype=p.c.dtype))
    lengths, axes = jnp.linalg.eigh(among_active)
    independent = lengths[0] > BLUR * eps / 2
    sides = jnp.stack([jnp.where(active, p.c, 0), jnp.where(active, p.cosine, 0)])
    to_limit, along_limit = -(sides @ axes / jnp.where(independent, lengths, 1)) @ axes.T

    distance = -p.c @ to_limit
    tangent = p.g + p.cosine @ along_limit
    # Where g is a combination of the active b, sliding along the limits gains nothing; where it almost is, the tangent
    # is a small difference, and taking it for longer than it may be keeps the point inside the ball.
    unsure = jnp.where(active.any(), ROUNDING * eps, 0)
    movable = tangent > unsure
    reach = jnp.where(movable, jnp.sqrt(jnp.maximum(1 - distance, 0) / jnp.where(movable, tangent + unsure, 1)), 0)
    along_b = to_limit + reach * along_limit

    # A point is judged by where it is, on the active limits too.
    def excess(reach, along_b, exists):
        return jnp.where(exists, jnp.max(p.c + reach * p.cosine + p.cosines @ along_b), jnp.inf)

    return _Point(
        reach=reach,
        along_b=along_b,
        nu=0 - along_limit - jnp.where(movable, to_limit / jnp.where(reach > 0, reach, 1), 0),
        gain=reach * p.g + p.cosine @ along_b,
        excess=excess(reach, along_b, independent & (distance <= 1)),
        terms=1 + reach + jnp.abs(along_b).sum(),
        nearest=to_limit,
        nearest_excess=excess(0.0, to_limit, independent),
        distance=distance,
    )


def plan(p: Gram) -> Plan:
    """The optimum, as coefficients of H⁻¹g and H⁻¹bᵢ. The work doubles with each limit; ten are no trouble."""
    radius, size_g, size_b = jnp.sqrt(2 * p.delta), jnp.sqrt(p.q), jnp.sqrt(jnp.diag(p.s))
    per_radius, per_g, per_b = (1 / jnp.where(size > 0, size, 1) for size in (radius, size_g, size_b))
    if not p.c.size:
        along_g = jnp.where(size_g > 0, radius * per_g, 0)
        return Plan(along_g, p.c, jnp.array(Case.INACTIVE), size_g * per_radius, p.c)
    unit = _Unit(
        g=jnp.where(size_g > 0, 1.0, 0.0).astype(p.q.dtype),
        cosine=p.r * per_g * per_b,
        cosines=p.s * per_b * per_b[:, None],
        c=jnp.where(size_b > 0, p.c * per_b * per_radius, jnp.sign(p.c)),  # where b = 0, kept or not is all there is
    )
    subsets = jnp.array(list(itertools.product([False, True], repeat=p.c.size)))
    points = jax.vmap(_binding, (None, 0))(unit, subsets)
    eps = jnp.finfo(p.c.dtype).eps
    exact, blurred = points.excess <= ROUNDING * eps * points.terms, points.excess <= jnp.sqrt(BLUR * eps)
    feasible = jnp.where(exact.any(), exact, blurred)
    best = jnp.argmax(jnp.where(feasible, points.gain, -jnp.inf))
    possible = feasible.any()

    # Recovery: to the edge of the ball, toward the nearest point that obeys all limits; where no point does, for they
    # contradict each other, away from the one exceeded most.
    distance = jnp.where(points.nearest_excess <= jnp.sqrt(BLUR * eps), points.distance, jnp.inf)
    closest = jnp.argmin(distance)
    worst = jnp.argmax(jnp.where(size_b > 0, unit.c, -jnp.inf))
    away = jnp.where((jnp.arange(p.c.size) == worst) & (unit.c > 0) & (size_b > 0), -1.0, 0.0)
    toward = jnp.where(jnp.isfinite(distance[closest]), points.nearest[closest], away)
    length = jnp.sqrt(toward @ unit.cosines @ toward)
    recovery = toward / jnp.where(length > 0, length, 1)

    binds = subsets[best].any()
    reach = points.reach[best]
    on_edge = reach > 0
    return Plan(
        along_g=jnp.where(possible, reach, 0) * radius * per_g,
        along_b=jnp.where(possible, points.along_b[best], recovery) * radius * per_b,
        case=jnp.where(possible, jnp.where(binds, Case.ACTIVE, Case.INACTIVE), Case.RECOVERY),
        lam=jnp.where(possible, jnp.where(on_edge, size_g * per_radius / jnp.where(on_edge, reach, 1), 0), jnp.nan),
        nu=jnp.where(possible, points.nu[best] * size_g * per_b, jnp.nan),
    )
