"""What the first batch fixes before anything is learned from it: observation statistics, units of the critics."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kemeny.criterion import Criterion
from kemeny.learning.learner import Learner, State
from kemeny.learning.networks import Critic
from kemeny.rollout import Rollout, flatten

SMALLEST_USUAL, LARGEST_USUAL = 0.03, 10.0
"""A signal whose size is between these is of order one: critics learn in its own unit, as the paper's do."""


def prepare(learner: Learner, state: State, rollout: Rollout) -> State:
    """The state in which a batch is learned from; after the first batch, the state as it is.

    A policy that stepped under one normaliser and acted under another would leave the trust region. The first policy
    acts nearly alike in all states under any normaliser, so the batch is used as if it had acted under the new one.
    """
    ends = rollout.terminal.any()
    critics = tuple(
        jax.lax.cond(
            critic.settled,
            lambda critic, signal: critic,
            lambda critic, signal: _with_unit(critic, learner.criterion, signal, ends),
            critic,
            signal,
        )
        for critic, signal in zip(state.critics, rollout.signals, strict=True)
    )
    filled = state.normalizer.filled(flatten(rollout.observation))
    reset_cost = state.reset_cost
    if reset_cost is not None and learner.fall_target is not None:
        reset_cost = reset_cost.settled(learner.fall_target, critics[0].unit)
    return dataclasses.replace(state, normalizer=filled, critics=critics, reset_cost=reset_cost)


def _with_unit(critic: Critic, criterion: Criterion, signal: Float[Array, "time env"], ends: Array) -> Critic:
    """The critic in a unit in which the signal is of order one, around the value of its mean.

    As long as the signal is 0 everywhere, nothing is settled.
    """
    rate, size = signal.mean(), _size(signal)
    usual = (size >= SMALLEST_USUAL) & (size <= LARGEST_USUAL)
    unit = jnp.where(usual, 1.0, size)
    far = (jnp.abs(rate) > LARGEST_USUAL * unit) & ~ends  # where tasks end, a constant is worth less
    mean = jnp.where(far, criterion.value_of_constant(rate), 0.0)
    settled = (size > 0) & jnp.isfinite(size) & jnp.isfinite(mean)  # else the next batch decides
    unit, mean = jnp.where(settled, unit, 1.0), jnp.where(settled, mean, 0.0)
    return dataclasses.replace(critic, unit=unit, mean=mean, settled=settled)


def _size(signal: Float[Array, "time env"]) -> Float[Array, ""]:
    """The spread without the tenth at either end, which falls do not change; if it is 0, the deviation, or the mean."""
    low, high = jnp.quantile(signal, jnp.array([0.1, 0.9]))
    spread, deviation = high - low, signal.std()
    return jnp.where(spread > 0, spread, jnp.where(deviation > 0, deviation, jnp.abs(signal.mean())))
