"""Samples of the newest batch and of those before it, as if the policy of today had acted in all of them.

Generalised TRPO and PPO learn from the last M batches in this way (Queeney, Paschalidis & Cassandras 2021, 2022).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kemeny.learning.estimates import Estimate, estimate
from kemeny.learning.learner import Learner, State
from kemeny.learning.memory import Memory, recall, remember
from kemeny.learning.samples import Samples, concatenate
from kemeny.rollout import Rollout


class ImportanceMetrics(NamedTuple):
    """How near the policies that acted are to the one that is improved."""

    importance_mean: Float[Array, ""]
    effective_samples: Float[Array, ""]


def estimate_all(
    learner: Learner, state: State, rollout: Rollout
) -> tuple[Samples, tuple[Estimate, ...], Memory | None]:
    """The samples of all batches, what the newest one says of each signal, and what is remembered of them."""
    acted = None if state.behind is None else state.behind.log_prob(rollout)
    samples, estimates = estimate(learner, state, rollout, acted)
    if state.memory is None:
        return samples, estimates, None
    log_prob = samples.log_prob.reshape(rollout.cut.shape) if acted is None else acted
    recalled, weight = recall(state.memory, rollout, log_prob, state.iteration)
    older: Memory = jax.tree.map(lambda array: array[1:], recalled)

    def samples_of(batch: Memory) -> Samples:
        return estimate(learner, state, batch.rollout, batch.log_prob, estimates)[0]

    parts = jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), jax.vmap(samples_of)(older))
    if samples.importance is None:
        samples = samples._replace(importance=jnp.ones_like(samples.log_prob))
    everything = concatenate(samples, parts)
    everything = everything._replace(weight=jnp.repeat(weight, rollout.steps))
    return everything, estimates, remember(state.memory, rollout, log_prob)


def importance_metrics(samples: Samples) -> ImportanceMetrics | None:
    """None if one policy acted throughout, and is the one that is improved.

    The effective number of samples is Kish's: of so many that the policy of today had drawn, a mean would have as much
    noise.
    """
    if samples.importance is None:
        return None
    total = jnp.sum(samples.weight * samples.importance)
    return ImportanceMetrics(
        importance_mean=samples.average(samples.importance),
        effective_samples=total**2 / jnp.sum(samples.weight * samples.importance**2),
    )
