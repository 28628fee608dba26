"""Advantage estimates and critic targets from a batch, by one recursion for both criteria (Appendix G)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kemeny.criterion import Bellman

Signal = Float[Array, "time env"]


def gae(bellman: Bellman, reward: Signal, value: Signal, next_value: Signal, trace: Signal, lam: float) -> Signal:
    """λ-weighted sum of temporal differences.

        δₜ = rₜ − offset + discount · v(sₜ₊₁) − v(sₜ)
        Aₜ = δₜ + discount · λ · traceₜ · Aₜ₊₁

    `next_value` is 0 after a terminal step; `trace` is 0 where a trajectory was cut or ended, and the last row of a
    batch ends every trace. The critic's target is Aₜ + v(sₜ). At λ = 0 that is the one-step target
    r − offset + discount · v(s'), at λ = 1 the Monte Carlo sum, bootstrapped at the end of the batch (the paper's
    special case drops that term, and sums rₜ where it means rₜ').
    """
    delta = reward - bellman.offset + bellman.discount * next_value - value
    decay = bellman.discount * lam * trace

    def backwards(advantage, row):
        delta_t, decay_t = row
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    _, advantage = jax.lax.scan(backwards, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return advantage
