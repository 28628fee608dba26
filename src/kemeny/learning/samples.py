"""A batch as the learner uses it: flat samples with their advantages and targets.

Samples of several batches can be concatenated; `estimates.py` makes them from a rollout.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from kemeny.learning.equations import Equations


class Samples(NamedTuple):
    """One entry per step of the batch."""

    x: Float[Array, "sample obs"]
    """The observation, normalised."""
    action: Num[Array, "sample *act"]
    """As the policy drew it."""
    log_prob: Float[Array, " sample"]
    """Log-probability of the action under the policy that is to be improved."""
    advantage: tuple[Float[Array, " sample"], ...]
    """Reward first, then each cost."""
    target: tuple[Float[Array, " sample"], ...]
    """What each critic is refitted to."""
    weight: Float[Array, " sample"]
    """How much the sample counts: one of weight 2 counts as two."""
    value_size: tuple[Float[Array, " sample"], ...] | None = None
    """What the errors of each critic are divided by (`state_weight.py`); None if by nothing."""
    equations: tuple[Equations, ...] | None = None
    """Bellman's equation for each critic; None if critics are fitted to targets alone."""
    importance: Float[Array, " sample"] | None = None
    """How much likelier the action is under the policy that is to be improved than under the one that acted, up to a
    limit; None if that is the same policy."""

    def goals(self, signal: int) -> tuple[Float[Array, " sample"], Float[Array, " sample"], Equations | None]:
        """What a critic is refitted to: its targets, how much each sample counts, and Bellman's equations."""
        weight = self.weight if self.value_size is None else self.weight / self.value_size[signal] ** 2
        return self.target[signal], weight, None if self.equations is None else self.equations[signal].weighted(weight)

    def average(self, values: Float[Array, " sample"]) -> Float[Array, ""]:
        """The weighted mean over the samples."""
        return jnp.sum(self.weight * values) / jnp.sum(self.weight)

    def average_over_actions(self, values: Float[Array, " sample"]) -> Float[Array, ""]:
        """The mean as if the policy that is to be improved had acted, in the same states."""
        if self.importance is None:
            return self.average(values)
        return self._replace(weight=self.weight * self.importance).average(values)


def concatenate(*parts: Samples) -> Samples:
    """The samples of several batches as those of one."""
    return jax.tree.map(lambda *columns: jnp.concatenate(columns), *parts)
