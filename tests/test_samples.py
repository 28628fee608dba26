"""Samples can be put together and weighted: one of weight 2 counts as two, wherever samples are averaged."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kemeny.learning.critic import refit
from kemeny.learning.estimates import estimate
from kemeny.learning.samples import Samples, concatenate
from kemeny.learning.settings import CriticFit, Passes
from kemeny.learning.steps.clip import Clip
from kemeny.learning.steps.direction import Case
from kemeny.learning.steps.natural import Natural
from kemeny.learning.steps.protocol import Limits, Outcome
from kemeny.learning.steps.surrogate import policy_gradient, standardized, surrogate
from kemeny.learning.update import plain_fields
from tests.test_learner import BOX, CHOICE, SMALL, begin, flat, random_batch

estimated = jax.jit(estimate)
NO_LIMITS = Limits(jnp.zeros(0), 1.0)
TWICE = jnp.array([3, 17, 17, 60])
"""The samples that are there more than once; one of them three times."""


def samples_of(spec, seed=0, costs=0, time=20):
    """A state, and the samples that its policy and critics make of a random batch."""
    learner = dataclasses.replace(SMALL, limits=(0.0,) * costs)
    state = begin(learner, spec)
    return state, estimated(learner, state, random_batch(spec, seed, time=time, signals=1 + costs))[0]


def repeated(samples: Samples) -> Samples:
    return concatenate(samples, jax.tree.map(lambda column: column[TWICE], samples))


def weighted(samples: Samples) -> Samples:
    return samples._replace(weight=samples.weight.at[TWICE].add(1))


def assert_close(one, other, origin, tolerance=1e-3):
    """Within a share of how far they went."""
    distance = np.linalg.norm(flat(one) - flat(origin))
    assert distance > 0
    assert np.linalg.norm(flat(one) - flat(other)) < tolerance * distance


def test_the_samples_of_two_batches_are_those_of_one():
    _, long = samples_of(BOX, 0, costs=1)
    _, short = samples_of(BOX, 1, costs=1, time=8)
    both = concatenate(long, short)
    assert both.x.shape == (140, 3)
    for whole, first, second in zip(jax.tree.leaves(both), jax.tree.leaves(long), jax.tree.leaves(short), strict=True):
        np.testing.assert_array_equal(whole, np.concatenate([first, second]))
    assert len(both.advantage) == len(both.target) == 2
    mean = (100 * long.average(long.advantage[0]) + 40 * short.average(short.advantage[0])) / 140
    np.testing.assert_allclose(both.average(both.advantage[0]), mean, rtol=1e-5)


def test_the_average_is_that_of_the_samples_as_often_as_they_count():
    _, samples = samples_of(BOX)
    counted, twice = weighted(samples), repeated(samples)
    assert counted.weight[17] == 3
    np.testing.assert_allclose(counted.average(samples.target[0] ** 2), np.mean(twice.target[0] ** 2), rtol=1e-5)
    alone = samples._replace(weight=jnp.zeros(100).at[5].set(0.5))
    np.testing.assert_allclose(alone.average(samples.target[0]), samples.target[0][5], rtol=1e-6)


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
def test_weights_in_the_surrogates_and_their_gradient(spec):
    """Of both steps, at a policy at which some ratios are clipped."""
    state, samples = samples_of(spec)
    rng = np.random.default_rng(0)
    elsewhere = jax.tree.map(lambda leaf: leaf + jnp.array(rng.normal(0, 0.3, leaf.shape), jnp.float32), state.policy)
    clipped_surrogate = Clip()._clipped_surrogate
    found = []
    for some in (weighted(samples), repeated(samples)):
        advantage, spread = standardized(some)
        np.testing.assert_allclose(some.average(advantage), 0, atol=1e-6)
        plain = surrogate(elsewhere(some.x), some, advantage)
        clipped = clipped_surrogate(elsewhere, some, advantage)
        assert abs(plain - clipped) > 1e-3
        gradient = flat(policy_gradient(state.policy, some, advantage))
        slope = flat(jax.grad(clipped_surrogate)(elsewhere, some, advantage))
        found.append(np.concatenate([[spread, plain, clipped], gradient, slope]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
    unweighted = standardized(samples)[1]
    assert abs(found[0][0] - unweighted) > 1e-3  # the weights do matter


@pytest.mark.parametrize(("spec", "costs"), [(CHOICE, 0), (BOX, 1)], ids=["without limits", "with one"])
def test_weights_in_the_natural_step(spec, costs):
    state, samples = samples_of(spec, costs=costs)
    limits = Limits(jnp.full(costs, 0.01), 1.0)
    step = jax.jit(Natural())
    (policy, _, report), (expected, _, expected_report), (other, _, _) = (
        step(state.policy, some, limits, None, jax.random.key(0))
        for some in (weighted(samples), repeated(samples), samples)
    )
    assert report.outcome == Outcome.ACCEPTED
    if costs:
        assert report.details.diagnosis.case == Case.ACTIVE
    assert_close(policy, expected, state.policy)
    with pytest.raises(AssertionError):
        assert_close(policy, other, state.policy)
    for name, value in plain_fields(report).items():
        np.testing.assert_allclose(value, plain_fields(expected_report)[name], rtol=2e-3, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
def test_weights_in_the_clipped_step(spec):
    """With the batch as a single minibatch, so that the order of the samples does not matter."""
    state, samples = samples_of(spec)
    clip = Clip(Passes(policy_epochs=3, policy_minibatch=1_000))
    step, start = jax.jit(clip), clip.init(state.policy)
    (policy, _, report), (expected, _, expected_report), (other, _, _) = (
        step(state.policy, some, NO_LIMITS, start, jax.random.key(0))
        for some in (weighted(samples), repeated(samples), samples)
    )
    assert report.outcome == Outcome.ACCEPTED
    assert_close(policy, expected, state.policy)
    with pytest.raises(AssertionError):
        assert_close(policy, other, state.policy)
    for name, value in plain_fields(report).items():
        np.testing.assert_allclose(value, plain_fields(expected_report)[name], rtol=2e-3, atol=1e-6, err_msg=name)


def test_weights_in_the_fit_of_a_critic():
    """Its loss and where it goes; again with a single minibatch."""
    state, samples = samples_of(BOX)
    fit = CriticFit(critic_epochs=3, critic_minibatch=1_000)
    (critic, _, loss, _), (expected, _, expected_loss, _), (_, _, other_loss, _) = (
        refit(fit, state.critics[0], state.optimizers[0], some.x, some.target[0], some.weight, 0.01, jax.random.key(0))
        for some in (weighted(samples), repeated(samples), samples)
    )
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)
    assert abs(loss - other_loss) > 1e-3
    assert_close(critic, expected, state.critics[0])


def test_the_loss_of_small_minibatches_is_unbiased():
    """Over a whole pass, the mean of the minibatches' losses is the weighted loss of the batch."""
    state, samples = samples_of(BOX)
    samples = weighted(samples)
    fit = CriticFit(critic_epochs=1, critic_minibatch=20, critic_l2=0.0)
    _, _, loss, _ = refit(
        fit, state.critics[0], state.optimizers[0], samples.x, samples.target[0], samples.weight, 0.0, jax.random.key(0)
    )
    errors = (state.critics[0](samples.x) - samples.target[0]) ** 2
    np.testing.assert_allclose(loss, samples.average(errors), rtol=1e-5)
