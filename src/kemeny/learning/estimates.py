"""From a rollout and the critics to samples: advantages, targets, and what the batch says of each signal."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from kemeny.learning import state_weight
from kemeny.learning.advantages import Lambda, gae
from kemeny.learning.equations import Equations, counted
from kemeny.learning.lambda_choice import LAMBDAS
from kemeny.learning.learner import Learner, State
from kemeny.learning.luck import mean_value, share_to_remove
from kemeny.learning.reset_cost import charged
from kemeny.learning.samples import Samples
from kemeny.rollout import Rollout, flatten

LARGEST_IMPORTANCE = 3.0
"""In the policy step, an action counts at most so many times as often as it was taken: beyond, a few samples would
outweigh all others."""
LARGEST_KEPT = 1.0
"""In the sums of temporal differences, which multiply such weights, at most once (V-trace's c̄ and ρ̄)."""


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
    target_mean: Float[Array, ""]
    """Of the critic's targets, before their gauge was fixed."""
    candidates: Float[Array, "lambda sample"] | None = None
    """The advantages with each λ that may be chosen; None if λ is given."""


def lambda_of(learner: Learner, state: State, signal: int) -> Lambda:
    """λ of the advantages of the reward (signal 0) or of a cost."""
    if signal > 0 and learner.cost_gae_lambda is not None:
        return learner.cost_gae_lambda
    if state.lambda_choice is not None:
        return state.lambda_choice.value
    assert learner.gae_lambda is not None, "where λ is not given, there is a choice"
    return learner.gae_lambda


def estimate(
    learner: Learner,
    state: State,
    rollout: Rollout,
    log_prob: Float[Array, "time env"] | None = None,
    newest: tuple[Estimate, ...] | None = None,
) -> tuple[Samples, tuple[Estimate, ...]]:
    """Advantages and critic targets of each sample, ρ̂ and J of each signal (Algorithm 2, lines 4 to 8).

    If no two rewards of a batch differ and nothing ended in it, the reward's advantages are 0: what they showed is the
    error of the critic. A step that followed it, batch after batch until a reward is found, would soon leave a policy
    that tries nothing any more.

    If another policy than the state's acted, `log_prob` is what it gave to the actions. Of an older batch, ρ̂ and the
    gauge are those of the `newest`.
    """
    criterion = learner.criterion
    normalize = state.normalizer
    x, next_x, start_x = map(normalize, (rollout.observation, rollout.next_observation, rollout.start_observation))
    trace = jnp.where(jnp.logical_or(rollout.terminal, rollout.cut), 0.0, 1.0)
    log_prob_now = state.policy(flatten(x)).log_prob(flatten(rollout.action))
    ratio = None if log_prob is None else jnp.exp(log_prob_now.reshape(log_prob.shape) - log_prob)
    kept = None if ratio is None else jnp.minimum(ratio, LARGEST_KEPT)
    signals = charged(rollout, state.reset_cost)
    rewards_differ = ~(jnp.ptp(signals[0]) == 0) | rollout.terminal.any()  # NaN does: it must be noticed
    rise = _rise(learner, state, rollout) if learner.critic.quadratic_fit == "bellman" else None
    advantages, targets, estimates, sizes, equations = [], [], [], [], []
    for number, (signal, critic) in enumerate(zip(signals, state.critics, strict=True)):
        value = critic(x)
        next_value = jnp.where(rollout.terminal, 0, critic(next_x))
        lam = lambda_of(learner, state, number)
        luck_removed, mean_paid = None, signal
        if rollout.outcomes is not None:
            paid, came = signal, next_value
            mean_paid = rollout.outcomes.reward if number == 0 else paid
            mean_came = mean_value(lambda seen, critic=critic: critic(normalize(seen)), rollout.outcomes)
            bellman = criterion.bellman(criterion.estimate_rate(paid, value, came))
            luck_removed = share_to_remove(bellman, paid, mean_paid, value, came, mean_came, trace, lam)
            signal = paid - luck_removed * (paid - mean_paid)
            next_value = came - luck_removed * (came - mean_came)
        rate = criterion.estimate_rate(signal, value, next_value) if newest is None else newest[number].rate
        bellman = criterion.bellman(rate)
        advantage = gae(bellman, signal, value, next_value, trace, lam, kept)
        for_critic = advantage
        if learner.critic_gae_lambda is not None:
            for_critic = gae(bellman, signal, value, next_value, trace, learner.critic_gae_lambda, kept)
        target = value + (for_critic if kept is None else kept * for_critic)
        target_mean = target.mean() if newest is None else newest[number].target_mean
        target = criterion.fix_gauge(target, target_mean)
        objective = criterion.objective(rate, critic(start_x).mean())
        candidates = None
        if number == 0 and learner.gae_lambda is None:
            other = [gae(bellman, signal, value, next_value, trace, one, kept) for one in LAMBDAS]
            candidates = jnp.where(rewards_differ, jnp.stack([flatten(advantage) for advantage in other]), 0)
        if number == 0:
            advantage = jnp.where(rewards_differ, advantage, 0)
        value, advantage, target = flatten(value), flatten(advantage), flatten(target)
        unexplained = jnp.var(target - value) / jnp.var(target)
        spread = advantage.std()
        if learner.state_weight != "equal":
            sizes.append(state_weight.value_size(value))
            if number == 0 and learner.state_weight == "relative":  # those of costs keep the units of their limits
                advantage = state_weight.relative(advantage, sizes[0])
                candidates = None if candidates is None else state_weight.relative(candidates, sizes[0])
        if rise is not None:
            share = 1 / sizes[number] ** 2 if sizes else jnp.ones_like(value)
            goal = bellman.offset - flatten(mean_paid)
            equations.append(Equations(rise, goal, counted(target, goal, share)))
        advantages.append(advantage)
        targets.append(target)
        explained = 1 - unexplained
        estimates.append(
            Estimate(rate, objective, value.mean(), spread, explained, luck_removed, target_mean, candidates)
        )  # fmt: skip
    samples = Samples(
        x=flatten(x),
        action=flatten(rollout.action),
        log_prob=log_prob_now,
        advantage=tuple(advantages),
        target=tuple(targets),
        weight=jnp.ones(rollout.steps, x.dtype),
        value_size=tuple(sizes) or None,
        equations=tuple(equations) or None,
        importance=None if ratio is None else flatten(jnp.minimum(ratio, LARGEST_IMPORTANCE)),
    )
    return samples, tuple(estimates)


def _rise(learner: Learner, state: State, rollout: Rollout) -> Float[Array, "sample feature"]:
    """How the features of the critics' quadratic parts rise in each step, the same for all critics."""
    quadratic, discount = state.critics[0].quadratic, learner.criterion.bellman(jnp.zeros(())).discount
    assert rollout.outcomes is not None, "settings refuse it where they are not known"
    assert quadratic is not None, "settings refuse it for networks alone"
    return quadratic.rises(flatten(state.normalizer(rollout.observation)), state.normalizer, rollout.outcomes, discount)
