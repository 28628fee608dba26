"""From a rollout and the critics to samples: advantages, targets, and what the batch says of each signal."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kemeny.criterion import Criterion
from kemeny.learning.advantages import gae
from kemeny.learning.learner import Learner, State
from kemeny.learning.networks import Critic
from kemeny.learning.normalizer import Normalizer
from kemeny.learning.samples import Samples
from kemeny.rollout import Outcomes, Rollout, flatten


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
        lam = learner.gae_lambda if number == 0 else learner.cost_gae_lambda
        if rollout.outcomes is not None:
            mean = rollout.outcomes.reward if number == 0 else signal
            after = _mean_after(critic, normalize, rollout.outcomes)
            signal, next_value = _without_luck(criterion, signal, mean, value, next_value, after, trace, lam)
        rate = criterion.estimate_rate(signal, value, next_value)
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


def _mean_after(critic: Critic, normalize: Normalizer, outcomes: Outcomes) -> Float[Array, "time env"]:
    """E[v(sₜ₊₁) | sₜ, aₜ]."""
    parts = jax.lax.map(lambda one: one[1] * critic(normalize(one[0])), (outcomes.observation, outcomes.probability))
    return parts.sum(0)


def _without_luck(
    criterion: Criterion,
    signal: Float[Array, "time env"],
    mean_signal: Float[Array, "time env"],
    value: Float[Array, "time env"],
    next_value: Float[Array, "time env"],
    mean_next_value: Float[Array, "time env"],
    trace: Float[Array, "time env"],
    lam: float,
) -> tuple[Float[Array, "time env"], Float[Array, "time env"]]:
    """The signal and the value after each step, without the share of chance that can be told.

    What came differs from its mean by luck, lₜ = rₜ + v(sₜ₊₁) − E[rₜ + v(sₜ₊₁) | sₜ, aₜ], a martingale difference.
    Subtracting β·lₜ changes no expectation. With an exact critic and β = 1 it takes away all noise but that of the
    actions (the approximating martingale process of Henderson & Glynn 2002); with a poor critic it adds noise. So β is
    the share that leaves the advantages the least variance in this batch, between 0 and 1.
    """
    bellman = criterion.bellman(criterion.estimate_rate(signal, value, next_value))
    luck = signal - mean_signal + bellman.discount * (next_value - mean_next_value)
    advantage = gae(bellman, signal, value, next_value, trace, lam)
    zero = jnp.zeros_like(luck)
    lucky = gae(bellman._replace(offset=0.0), luck, zero, zero, trace, lam)
    share = jnp.clip(jnp.mean((advantage - advantage.mean()) * lucky) / jnp.mean(lucky**2), 0, 1)
    share = jnp.where(jnp.isfinite(share), share, 0.0)
    return signal - share * (signal - mean_signal), next_value - share * (next_value - mean_next_value)
