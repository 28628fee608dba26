"""From a rollout and the critics to samples: advantages, targets, and what the batch says of each signal."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from kemeny.learning.advantages import gae
from kemeny.learning.learner import Learner, State
from kemeny.learning.samples import Samples
from kemeny.rollout import Rollout, flatten


class Estimate(NamedTuple):
    """What a batch and the critic say about one signal as a whole."""

    rate: Float[Array, ""]
    """ρ̂."""
    objective: Float[Array, ""]
    """J, in the units in which a limit is written."""
    value_mean: Float[Array, ""]
    advantage_std: Float[Array, ""]
    explained_variance: Float[Array, ""]
    """Share of the targets' variance that the critic knew before it was refitted."""


def estimate(learner: Learner, state: State, rollout: Rollout) -> tuple[Samples, tuple[Estimate, ...]]:
    """Advantages and critic targets of each sample, ρ̂ and J of each signal (Algorithm 2, lines 4 to 8)."""
    criterion = learner.criterion
    normalize = state.normalizer
    x, next_x, start_x = map(normalize, (rollout.observation, rollout.next_observation, rollout.start_observation))
    trace = jnp.where(jnp.logical_or(rollout.terminal, rollout.cut), 0.0, 1.0)
    advantages, targets, estimates = [], [], []
    for number, (signal, critic) in enumerate(zip(rollout.signals, state.critics, strict=True)):
        value = critic(x)
        next_value = jnp.where(rollout.terminal, 0, critic(next_x))
        rate = criterion.estimate_rate(signal, value, next_value)
        lam = learner.gae_lambda if number == 0 else learner.cost_gae_lambda
        advantage = gae(criterion.bellman(rate), signal, value, next_value, trace, lam)
        target = criterion.fix_gauge(advantage + value)
        objective = criterion.objective(rate, critic(start_x).mean())
        value, advantage, target = flatten(value), flatten(advantage), flatten(target)
        unexplained = jnp.var(target - value) / jnp.var(target)
        advantages.append(advantage)
        targets.append(target)
        estimates.append(Estimate(rate, objective, value.mean(), advantage.std(), 1 - unexplained))
    x, action = flatten(x), flatten(rollout.action)
    samples = Samples(
        x=x,
        action=action,
        log_prob=state.policy(x).log_prob(action),
        advantage=tuple(advantages),
        target=tuple(targets),
        weight=jnp.ones(len(x), x.dtype),
    )
    return samples, tuple(estimates)
