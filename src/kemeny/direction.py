"""The best point of a trust region cut by linear limits, in closed form (Appendix F).

    maximise  g·x   subject to   ½ xᵀHx ≤ δ   and   cᵢ + bᵢ·x ≤ 0   for each limit i.

In the inner product of H the feasible set is a ball cut by half-spaces. At the optimum some set A of limits binds, and
the best point of the ball on which exactly those bind has a closed form, so trying every A finds it: for one limit
these are the familiar two points, INACTIVE (A empty: TRPO's step) and ACTIVE. If no point of the ball obeys the limits,
RECOVERY goes as far as the ball allows toward the nearest point that does.

The optimum lies in the span of H⁻¹g and H⁻¹bᵢ, so all that is needed of the problem is the Gram matrix of g and bᵢ
in H⁻¹: q = gᵀH⁻¹g, rᵢ = gᵀH⁻¹bᵢ, sᵢⱼ = bᵢᵀH⁻¹bⱼ. (The paper's dual has two slips: the sign of 2νr and a factor
½ on λδ; see `docs/paper.md`.)
"""

import enum
import itertools
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

RELATIVE_ZERO = 100
"""Squared lengths below this many units in the last place of what they were subtracted from count as 0."""


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
    delta: float


class Plan(NamedTuple):
    """x = along_g · H⁻¹g + Σᵢ along_b[i] · H⁻¹bᵢ; the multipliers are λ = 1/along_g and ν = −along_b/along_g."""

    along_g: Float[Array, ""]
    along_b: Float[Array, " limit"]
    case: Int[Array, ""]


class _Point(NamedTuple):
    along_g: Float[Array, ""]
    along_b: Float[Array, " limit"]
    gain: Float[Array, ""]
    feasible: Array
    nearest: Float[Array, " limit"]
    """Coefficients of the point nearest to 0 on which the chosen limits bind,"""
    distance: Float[Array, ""]
    """its squared length, infinite if it breaks another limit."""


def _positive(x: Array, scale: Array) -> Array:
    """√ and 1/√ are taken of x only where it exceeds the rounding of the numbers it came from."""
    return x > RELATIVE_ZERO * jnp.finfo(x.dtype).eps * scale


def _binding(p: Gram, active: tuple[int, ...], heeded: Array) -> _Point:
    """The best point of the ball on which the limits `active` bind and the others are left alone."""
    chosen = jnp.array(active, int)
    s_a = p.s[jnp.ix_(chosen, chosen)]
    solve = jnp.linalg.solve(s_a, jnp.stack([p.c[chosen], p.r[chosen]], 1))
    to_limit = jnp.zeros_like(p.c).at[chosen].set(-solve[:, 0])
    along_limit = jnp.zeros_like(p.c).at[chosen].set(-solve[:, 1])

    distance = p.c[chosen] @ solve[:, 0]
    tangent = p.q - p.r[chosen] @ solve[:, 1]
    movable = _positive(tangent, p.q)
    reach = jnp.sqrt(jnp.maximum(2 * p.delta - distance, 0) / jnp.where(movable, tangent, 1))
    reach = jnp.where(movable, reach, 0)

    others = jnp.array([i not in active for i in range(p.c.size)], bool) & heeded
    excess_there = p.c + p.s @ to_limit
    excess = excess_there + reach * (p.r + p.s @ along_limit)
    rounding = RELATIVE_ZERO * jnp.finfo(p.c.dtype).eps * (jnp.abs(p.c) + jnp.sqrt(2 * p.delta * jnp.diag(p.s)))
    sound = jnp.isfinite(solve).all() & heeded[chosen].all()
    return _Point(
        along_g=reach,
        along_b=to_limit + reach * along_limit,
        gain=p.r @ to_limit + reach * jnp.where(movable, tangent, 0),
        feasible=sound & (distance <= 2 * p.delta) & jnp.all(~others | (excess <= rounding)),
        nearest=to_limit,
        distance=jnp.where(sound & jnp.all(~others | (excess_there <= rounding)), distance, jnp.inf),
    )


def plan(p: Gram) -> Plan:
    """The optimum, as coefficients of H⁻¹g and H⁻¹bᵢ."""
    limits = p.c.size
    strength = jnp.diag(p.s)
    heeded = strength > 0  # no step changes a cost whose gradient is 0: nothing to plan for
    subsets = [a for n in range(limits + 1) for a in itertools.combinations(range(limits), n)]
    points = [_binding(p, active, heeded) for active in subsets]
    if limits == 0:
        return Plan(points[0].along_g, points[0].along_b, jnp.array(Case.INACTIVE))
    all_points = _Point(*(jnp.stack(field) for field in zip(*points, strict=True)))

    best = jnp.argmax(jnp.where(all_points.feasible, all_points.gain, -jnp.inf))
    feasible = all_points.feasible.any()

    # Recovery: to the edge of the ball, toward the nearest point that obeys all limits; where they contradict each
    # other, away from the one exceeded most.
    closest = jnp.argmin(all_points.distance)
    consistent = jnp.isfinite(all_points.distance[closest])
    worst = jnp.argmax(jnp.where(heeded, p.c / jnp.sqrt(jnp.where(heeded, strength, 1)), -jnp.inf))
    away = jnp.zeros_like(p.c).at[worst].set(-1.0)
    toward = jnp.where(consistent, all_points.nearest[closest], away)
    length = jnp.sqrt(toward @ p.s @ toward)
    recovery = toward * jnp.sqrt(2 * p.delta) / jnp.where(length > 0, length, 1)

    binds = jnp.array([bool(a) for a in subsets])[best]
    return Plan(
        along_g=jnp.where(feasible, all_points.along_g[best], 0),
        along_b=jnp.where(feasible, all_points.along_b[best], recovery),
        case=jnp.where(feasible, jnp.where(binds, Case.ACTIVE, Case.INACTIVE), Case.RECOVERY),
    )
