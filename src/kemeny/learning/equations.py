"""Bellman's equation as something to fit a critic to, where the environment knows what may come of an action.

    discount · E[v(s') | s, a] − v(s) = offset − E[r | s, a]

On average over the actions of a policy it holds for the value of that policy, and nothing in it but the offset (ρ̂, or 0
under a discount) was estimated by an older critic. Advantages are made of its left-hand side. In a slow system that is
small beside the values: a critic whose error is a thousandth of a value may have most of a step wrong, and targets,
which say how large values are, hardly show it. So a critic that is linear in features is fitted to both, by the same
least squares. (Of a cost, E r is not known: the cost as it came takes its place. And with `--pipeline` the actions are
those of the policy before.)

The mean over what may come is known, so that luck adds nothing to the squared errors (with one next state drawn
instead, it would: Baird 1995). The action is drawn, and the squared errors also count by how much actions differ: a fit
to the equations alone would make actions look more alike than they are. With a policy that hardly explores this is
little.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

PART = 0.01
"""What all equations count, with all targets as 1. A target is precise as a share of the value, so this is enough to
settle what targets leave open. With 0.3 or 1 it was worse: what targets say was given up (`docs/tasks.md`)."""


class Equations(NamedTuple):
    """One entry per sample, for a critic that is linear in features φ."""

    rise: Float[Array, "sample feature"]
    """discount · E φ(s') − φ(s)."""
    goal: Float[Array, " sample"]
    """offset − E r; of a cost offset − r."""
    weight: Float[Array, " sample"]
    """How much it counts."""

    def weighted(self, weight: Float[Array, " sample"]) -> "Equations":
        """With the weights multiplied by those of the samples."""
        return self._replace(weight=weight * self.weight)

    def less(self, constant: Float[Array, ""]) -> "Equations":
        """For the value less a constant, the first of the features being 1."""
        return self._replace(goal=self.goal - constant * self.rise[:, 0])


def counted(
    target: Float[Array, " sample"], goal: Float[Array, " sample"], share: Float[Array, " sample"]
) -> Float[Array, " sample"]:
    """How much each equation counts beside a target: together `PART` of what all targets do.

    Both are in units of their own deviations, since the goals of equations have the size of rewards and targets that of
    values. If all goals are the same, they count nothing.
    """
    of_targets, of_goals = _variance(target, share), _variance(goal, share)
    # Of equal goals the variance is not 0 but its rounding, by which the equations would outweigh everything.
    return jnp.full_like(target, jnp.where(jnp.ptp(goal) > 0, PART * of_targets / of_goals, 0.0))


def _variance(values: Float[Array, " sample"], share: Float[Array, " sample"]) -> Float[Array, ""]:
    share = share / jnp.sum(share)
    return jnp.sum(share * (values - jnp.sum(share * values)) ** 2)
