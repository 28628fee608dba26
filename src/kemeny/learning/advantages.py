"""Advantage estimates and critic targets from a batch, by one recursion for both criteria (Appendix G)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kemeny.criterion import Bellman

Signal = Float[Array, "time env"]
Lambda = float | Float[Array, ""]


def gae(
    bellman: Bellman,
    reward: Signal,
    value: Signal,
    next_value: Signal,
    trace: Signal,
    lam: Lambda,
    kept: Signal | None = None,
) -> Signal:
    """λ-weighted sum of temporal differences.

        δₜ = rₜ − offset + discount · v(sₜ₊₁) − v(sₜ)
        Aₜ = δₜ + discount · λ · traceₜ · Aₜ₊₁

    `next_value` is 0 after a terminal step; `trace` is 0 where a trajectory was cut or ended, and the last row of a
    batch ends every trace. The critic's target is Aₜ + v(sₜ). At λ = 0 that is the one-step target
    r − offset + discount · v(s'), at λ = 1 the Monte Carlo sum, bootstrapped at the end of the batch (the paper's
    special case drops that term, and sums rₜ where it means rₜ').

    If another policy acted, `kept` is min(1, π/μ) of each action, π being the policy that is evaluated and μ the one
    that acted, and Aₜ₊₁ is multiplied by its keptₜ₊₁: V-trace's sum with both truncations at 1 (Espeholt et al. 2018,
    eq. 1 and remark 2). The critic's target is then keptₜ · Aₜ + v(sₜ).
    """
    delta = reward - bellman.offset + bellman.discount * next_value - value
    decay = bellman.discount * lam * trace
    if kept is not None:
        decay = decay * jnp.concatenate([kept[1:], jnp.ones_like(kept[:1])])

    def backwards(advantage, row):
        delta_t, decay_t = row
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    _, advantage = jax.lax.scan(backwards, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return advantage
