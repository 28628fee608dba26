"""How the targets of a critic change from one step to the next: what it may be fitted to beside their values.

Advantages are made of v(s') − v(s). In a slow system such changes are small beside the values: a critic whose error is
a thousandth of a value may have most of a change wrong.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Changes(NamedTuple):
    """One entry per sample: the step to the sample after it."""

    next_x: Float[Array, "sample obs"]
    change: Float[Array, " sample"]
    """By how much the target is larger there."""
    weight: Float[Array, " sample"]
    """How much it counts: 0 where the next sample is none of the same trajectory."""

    def beside(self, target: Float[Array, " sample"], weight: Float[Array, " sample"]) -> "Changes":
        """With weights such that all changes together count as much as all values.

        The squared errors of the values are in units of the variance of the targets, those of the changes in units of
        the mean square of the changes. If nothing changes, the weights are 0.
        """
        middle = jnp.sum(weight * target) / jnp.sum(weight)
        about_values = jnp.sum(weight * (target - middle) ** 2)
        about_changes = jnp.sum(self.weight * self.change**2)
        price = jnp.where(about_changes > 0, about_values / about_changes, 0.0)
        return self._replace(weight=price * self.weight)

    def less(self, known: Float[Array, " sample"]) -> "Changes":
        """What is left of the changes if so much of each is explained otherwise."""
        return self._replace(change=self.change - known)
