"""How much more a policy costs as it is deployed than as it explores: a running average over batches.

Limits are kept for ρ̂_c + gap. Both are of the same policy, so the gap changes more slowly than the cost itself, and an
average over several batches may follow it.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

KEPT = 0.9
"""Share of the old in the average after a batch: it is over the last ten batches or so. The few environments in which
the policy acts as deployed give a tenth or a fifth of a batch's steps, so that together there are a batch's or two."""


class Gap(NamedTuple):
    """Sums of measured gaps and of their weights, in which a batch counts `KEPT` times as much as the one after it."""

    total: Float[Array, " cost"]
    weight: Float[Array, ""]

    @property
    def average(self) -> Float[Array, " cost"]:
        """Cost per step as deployed less that of exploring, over the batches so far, of which there must be one."""
        return self.total / self.weight


def nothing_measured(costs: int) -> Gap:
    """Before the first batch."""
    return Gap(jnp.zeros(costs, jnp.float32), jnp.zeros((), jnp.float32))


def measured(gap: Gap, deployed: Float[Array, " cost"], exploring: Float[Array, " cost"]) -> Gap:
    """After a batch with these costs per step."""
    return Gap(KEPT * gap.total + (1 - KEPT) * (deployed - exploring), KEPT * gap.weight + (1 - KEPT))
