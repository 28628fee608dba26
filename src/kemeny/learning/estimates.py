"""From a rollout and the critics to samples: advantages, targets, and what the batch says of each signal."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from kemeny.learning.advantages import gae
from kemeny.learning.learner import Learner, State
from kemeny.learning.luck import mean_value, share_to_remove
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
    luck_removed: Float[Array, ""] | None
    """Share of what luck added to each step that was subtracted; None if it is not known (`luck.py`)."""


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
        lam = learner.gae_lambda if number == 0 else learner.cost_gae_lambda
        luck_removed = None
        if rollout.outcomes is not None:
            paid, came = signal, next_value
            mean_paid = rollout.outcomes.reward if number == 0 else paid
            mean_came = mean_value(lambda seen, critic=critic: critic(normalize(seen)), rollout.outcomes)
            bellman = criterion.bellman(criterion.estimate_rate(paid, value, came))
            luck_removed = share_to_remove(bellman, paid, mean_paid, value, came, mean_came, trace, lam)
            signal = paid - luck_removed * (paid - mean_paid)
            next_value = came - luck_removed * (came - mean_came)
        rate = criterion.estimate_rate(signal, value, next_value)
        advantage = gae(criterion.bellman(rate), signal, value, next_value, trace, lam)
        target = criterion.fix_gauge(advantage + value)
        objective = criterion.objective(rate, critic(start_x).mean())
        value, advantage, target = flatten(value), flatten(advantage), flatten(target)
        unexplained = jnp.var(target - value) / jnp.var(target)
        advantages.append(advantage)
        targets.append(target)
        estimates.append(Estimate(rate, objective, value.mean(), advantage.std(), 1 - unexplained, luck_removed))
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
