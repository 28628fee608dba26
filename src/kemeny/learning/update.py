"""One update of policy and critics from one batch: the same lines for every algorithm.

    rollout → samples with the advantage of each signal → policy step → critics refitted → next state

Pure and traceable: `lax.scan` over updates equals a loop. An unconstrained algorithm is one with no limits.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from kemeny.learning import lambda_choice
from kemeny.learning.critic import annealed, refit
from kemeny.learning.estimates import Estimate
from kemeny.learning.first_batch import prepare
from kemeny.learning.learner import Learner, State
from kemeny.learning.reset_cost import ResetCost
from kemeny.learning.reuse import ImportanceMetrics, estimate_all, importance_metrics
from kemeny.learning.running_mean import RunningMean
from kemeny.learning.samples import Samples
from kemeny.learning.steps.protocol import Limits, Outcome, Report
from kemeny.rollout import Rollout, flatten

STEP_STREAM = 1
"""Keeps a policy step's randomness apart from the critics'."""


class Metrics(NamedTuple):
    """What one update saw and did; `docs/metrics.md` explains each field."""

    rate: Float[Array, ""]
    objective: Float[Array, ""]
    realised_improvement: Float[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    advantage_std: Float[Array, ""]
    value_mean: Float[Array, ""]
    explained_variance: Float[Array, ""]
    luck_removed: Float[Array, ""] | None
    gae_lambda: Float[Array, ""] | None
    importance: ImportanceMetrics | None
    step: Report
    costs: "CostMetrics | None"
    reset: "ResetMetrics | None"
    deployed: "DeployedMetrics | None"
    critics: "CriticMetrics"


class CostMetrics(NamedTuple):
    """One entry per cost."""

    cost: Float[Array, " cost"]
    violation: Float[Array, " cost"]
    realised_cost_change: Float[Array, " cost"]
    running: "RunningCostMetrics | None"


class RunningCostMetrics(NamedTuple):
    """The costs over the last batches, one entry per cost."""

    running_cost: Float[Array, " cost"]
    running_cost_error: Float[Array, " cost"]


class ResetMetrics(NamedTuple):
    """What a fall cost in this batch, if that is looked for."""

    reset_cost: Float[Array, ""]
    fall_rate: Float[Array, ""]


class DeployedMetrics(NamedTuple):
    """One entry per cost."""

    deployed_cost: Float[Array, " cost"]
    deployed_gap: Float[Array, " cost"]


class CriticMetrics(NamedTuple):
    """How the critics were refitted."""

    critic_loss: Float[Array, " signal"]
    critic_skipped: Bool[Array, ""]


def plain_fields(metrics: Any) -> dict[str, Any]:
    """Every number of the metrics by its name, whatever it is grouped with; what is None is left out."""
    fields: dict[str, Any] = {}
    for name, value in metrics._asdict().items():
        if isinstance(value, tuple):
            fields |= plain_fields(value)
        elif value is not None:
            fields[name] = value
    return fields


def update(
    learner: Learner, state: State, rollout: Rollout, deployed: Float[Array | np.ndarray, " cost"] | None = None
) -> tuple[State, Metrics]:
    """Algorithm 2 (and its discounted and constrained kin), lines 4 to 10, for one batch.

    `deployed` is each cost per step of the policy that acted, as it is deployed, if limits are kept for that.

    Outside of a traced function, policy and critics are separate programs. JAX runs them in the background, and the
    policy does not wait for the critics: the next batch can be collected while they are refitted.
    """
    improved, samples, work, metrics = _improve(learner, state, rollout, deployed)
    x, (step_size, key) = samples.x, work
    fits = []
    for signal, (critic, optimizer) in enumerate(zip(improved.critics, state.optimizers, strict=True)):
        target, weight, equations = samples.goals(signal)
        fits.append(
            refit(learner.critic, critic, optimizer, x, target, weight, step_size, key, learner.reuse, equations)
        )
    critics, optimizers, losses, broken = zip(*fits, strict=True)
    improved = dataclasses.replace(improved, critics=critics, optimizers=optimizers)
    return improved, metrics._replace(critics=CriticMetrics(jnp.stack(losses), jnp.stack(broken).any()))


class _CriticWork(NamedTuple):
    """With what the critics are refitted, beside the samples."""

    step_size: Float[Array, ""]
    key: PRNGKeyArray


@jax.jit
def _improve(
    learner: Learner, state: State, rollout: Rollout, deployed: Float[Array, " cost"] | None
) -> tuple[State, Samples, _CriticWork, Metrics]:
    """Everything but the critics (lines 4 to 8 and 10)."""
    seen = state.normalizer.update(flatten(rollout.observation))
    behind = state.behaviour if learner.pipeline else None
    state = prepare(learner, state, rollout)
    reset = _next_reset_cost(learner, state, rollout)
    samples, estimates, memory = estimate_all(learner, state, rollout)
    reward, costs = estimates[0], estimates[1:]
    choice = state.lambda_choice
    if choice is not None and reward.candidates is not None:
        x, action = flatten(state.normalizer(rollout.observation)), flatten(rollout.action)
        choice = lambda_choice.judge(choice, state.policy, x, action, reward.candidates)
    key, critic_key = jax.random.split(state.key)
    running = state.running_costs
    if running is not None:
        running = running.add(jnp.stack([cost.objective for cost in costs]), learner.cost_memory)
    gap = state.gap
    if gap is not None:
        assert deployed is not None, "what it costs as deployed is measured beside each batch"
        gap = gap.add(deployed - jnp.stack([cost.rate for cost in costs]), learner.gap_memory)
    limits = _limits(learner, costs, running, gap)._replace(delta_share=_delta_share(learner, state))
    policy, step, report = learner.step(
        state.policy, samples, limits, state.step, jax.random.fold_in(critic_key, STEP_STREAM)
    )
    skipped = jnp.where(report.outcome == Outcome.ACCEPTED, 0, state.skipped_in_a_row + 1)
    objective = jnp.stack([signal.objective for signal in estimates])
    realised = objective - state.objective
    metrics = Metrics(
        rate=reward.rate,
        objective=reward.objective,
        realised_improvement=realised[0],
        skipped_in_a_row=skipped,
        advantage_std=reward.advantage_std,
        value_mean=reward.value_mean,
        explained_variance=reward.explained_variance,
        luck_removed=reward.luck_removed,
        gae_lambda=None if state.lambda_choice is None else state.lambda_choice.value,
        importance=importance_metrics(samples),
        step=report,
        costs=CostMetrics(objective[1:], limits.excess, realised[1:], _running_metrics(running)) if costs else None,
        reset=_reset_metrics(state.reset_cost, reset),
        deployed=None if gap is None or deployed is None else DeployedMetrics(deployed, gap.mean),
        critics=CriticMetrics(jnp.zeros(len(estimates)), jnp.array(False)),
    )
    improved = dataclasses.replace(
        state,
        policy=policy,
        step=step,
        normalizer=seen,
        key=key,
        iteration=state.iteration + 1,
        skipped_in_a_row=skipped,
        objective=objective,
        memory=memory,
        lambda_choice=choice,
        running_costs=running,
        reset_cost=reset,
        behind=behind,
        gap=gap,
    )
    step_size = annealed(learner.critic.critic_step_size, state.iteration, learner.iterations)
    return improved, samples, _CriticWork(step_size, critic_key), metrics


def _limits(
    learner: Learner, costs: tuple[Estimate, ...], running: RunningMean | None, gap: RunningMean | None
) -> Limits:
    """How far each limit is exceeded: by the newest batch or by the mean over the last ones, as deployed if known."""
    if running is None:
        excess = jnp.array([cost.objective - limit for cost, limit in zip(costs, learner.limits, strict=True)])
    else:
        excess = running.mean - jnp.array(learner.limits)
    if gap is not None:
        excess = excess + learner.criterion.slope * gap.mean
    return Limits(excess, learner.criterion.slope)


def _delta_share(learner: Learner, state: State) -> float | Float[Array, ""]:
    """The share of δ that the next step may use: along a line from 1 to what is left at the end."""
    if learner.last_delta_share is None:
        return 1.0
    return learner.last_delta_share + annealed(1 - learner.last_delta_share, state.iteration, learner.iterations)


def _running_metrics(running: RunningMean | None) -> RunningCostMetrics | None:
    return None if running is None else RunningCostMetrics(running.mean, running.error)


def _next_reset_cost(learner: Learner, state: State, rollout: Rollout) -> ResetCost | None:
    if state.reset_cost is None or learner.fall_target is None:
        return None
    return state.reset_cost.after(learner.fall_target, rollout)


def _reset_metrics(now: ResetCost | None, after: ResetCost | None) -> ResetMetrics | None:
    return None if now is None or after is None else ResetMetrics(now.value, after.falls.mean[0])
