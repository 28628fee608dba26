"""How the targets of a critic change from one step to the next: what it may be fitted to beside their values.

Advantages are made of v(s') − v(s). In a slow system such changes are small beside the values: a critic whose error is
a thousandth of a value may have most of a change wrong.

Fitting changes has a price. Targets look ahead with the critic as it was, so most of a change of the targets is that of
the old critic: the fit holds on to what is known. And a target counts what the action drawn there brought, so that the
change of the targets leaves out the advantage of the action in between. With a policy that hardly explores this is
little. What luck adds to a step would be left out as well, so it must be known and subtracted (`luck.py`).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Changes(NamedTuple):
    """One entry per sample: the step from it to the next one."""

    next_x: Float[Array, "sample obs"]
    change: Float[Array, " sample"]
    """By how much the target is larger there."""
    weight: Float[Array, " sample"]
    """How much it counts: 0 where the next sample is not of the same trajectory."""

    def weighted(self, weight: Float[Array, " sample"]) -> "Changes":
        """With the weights multiplied by those of the samples."""
        return self._replace(weight=weight * self.weight)

    def balanced(self, target: Float[Array, " sample"], weight: Float[Array, " sample"]) -> "Changes":
        """With weights such that all changes together count as much as all values.

        The squared errors of the values are in units of the variance of the targets, those of the changes in units of
        the mean square of the changes. If nothing changes, the weights are 0.
        """
        middle = jnp.sum(weight * target) / jnp.sum(weight)
        of_values = jnp.sum(weight * (target - middle) ** 2)
        of_changes = jnp.sum(self.weight * self.change**2)
        return self._replace(weight=self.weight * jnp.where(of_changes > 0, of_values / of_changes, 0.0))

    def less(self, known: Float[Array, " sample"]) -> "Changes":
        """The changes less `known`, what something else explains of them."""
        return self._replace(change=self.change - known)


def changes_of(
    x: Float[Array, "time env obs"], target: Float[Array, " sample"], trace: Float[Array, "time env"]
) -> Changes:
    """From each step to the next of the same trajectory: `trace` is 0 where it was cut or ended.

    After the last step of a batch nothing is known: it stands for its own successor, with weight 0.
    """
    time, copies = trace.shape

    def after(samples: Array) -> Array:
        return jnp.concatenate([samples[copies:], samples[-copies:]])

    flat, weight = x.reshape(time * copies, -1), trace.reshape(-1).at[-copies:].set(0.0)
    return Changes(after(flat), after(target) - target, weight)
