"""Laws of the clipped step, and that it learns on a model whose best policy is known."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import kemeny
from kemeny.criterion import Average, Discounted
from kemeny.errors import UserError
from kemeny.learning.arrays import from_arrays, to_arrays
from kemeny.learning.estimates import estimate
from kemeny.learning.learner import Learner
from kemeny.learning.minibatches import minibatches
from kemeny.learning.settings import Clipping, CriticFit, Networks, Passes
from kemeny.learning.steps.clip import Clip
from kemeny.learning.steps.passes import LARGEST_GRADIENT
from kemeny.learning.steps.protocol import Limits, Outcome
from kemeny.learning.steps.surrogate import policy_gradient, standardized
from kemeny.learning.update import update
from kemeny.runs.assembly import make_learner
from kemeny.runs.settings import from_flat
from kemeny.tabular import zoo
from tests.model_source import ModelSource
from tests.test_learner import BOX, CHOICE, SMALL, begin, flat, random_batch

CLIPPED = dataclasses.replace(SMALL, step=Clip(Passes(policy_epochs=3, policy_minibatch=20)))
NO_LIMITS = Limits(jnp.zeros(0), 1.0)
SPECS = pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
estimated = jax.jit(estimate)


def samples_of(spec, seed=0):
    state = begin(CLIPPED, spec)
    return state, estimated(CLIPPED, state, random_batch(spec, seed))[0]


def take(step, policy, samples, seed=0):
    return jax.jit(step)(policy, samples, NO_LIMITS, step.init(policy), jax.random.key(seed))


@SPECS
def test_nothing_is_clipped_at_the_start(spec):
    """At ratio 1 the gradient of the clipped surrogate is that of the surrogate, and Adam is given it, shortened."""
    state, samples = samples_of(spec)
    advantage, _ = standardized(samples)
    clip = Clip(Passes(policy_epochs=1, policy_minibatch=100))
    gradient = flat(policy_gradient(state.policy, samples, advantage))
    clipped = flat(jax.grad(clip._clipped_surrogate)(state.policy, samples, advantage))
    np.testing.assert_allclose(clipped, gradient, rtol=1e-5, atol=1e-7)
    _, moments, report = take(clip, state.policy, samples)
    np.testing.assert_allclose(report.gradient_norm, np.linalg.norm(gradient), rtol=1e-5)
    (adam,) = [part for part in jax.tree.leaves(moments, is_leaf=has_moments) if has_moments(part)]
    shortened = gradient * min(1, LARGEST_GRADIENT / np.linalg.norm(gradient))
    np.testing.assert_allclose(flat(adam.mu), -0.1 * shortened, rtol=1e-4, atol=1e-7)  # 0.1 is 1 − β₁


def has_moments(part):
    return hasattr(part, "mu")


def test_beyond_the_clip_nothing_is_gained():
    """A ratio beyond 1 ± ε in the direction that its advantage asks for has no gradient; against it, it has."""
    state, samples = samples_of(CHOICE)
    clip = Clip()
    beyond = samples._replace(log_prob=samples.log_prob - 0.5)  # every ratio is e^½
    slope = jax.grad(clip._clipped_surrogate)
    assert not np.any(flat(slope(state.policy, beyond, jnp.ones(100))))
    assert np.any(flat(slope(state.policy, beyond, -jnp.ones(100))))
    below = samples._replace(log_prob=samples.log_prob + 0.5)
    assert not np.any(flat(slope(state.policy, below, -jnp.ones(100))))
    assert np.any(flat(slope(state.policy, below, jnp.ones(100))))


@SPECS
@pytest.mark.parametrize("seed", range(3))
def test_a_step_improves_the_surrogate(spec, seed):
    state, batch = begin(CLIPPED, spec), random_batch(spec, seed)
    after, metrics = update(CLIPPED, state, batch)
    assert metrics.step.outcome == Outcome.ACCEPTED
    assert metrics.step.details.minibatches == 15
    # What is reported is true of the policies that it left behind.
    samples, _ = estimated(CLIPPED, state, batch)
    advantage = np.asarray(samples.advantage[0], np.float64)
    old, new = state.policy(samples.x), after.policy(samples.x)
    ratio = np.exp(np.asarray(new.log_prob(samples.action) - old.log_prob(samples.action), np.float64))
    improvement = np.mean(ratio * (advantage - advantage.mean()))
    assert improvement > 0
    np.testing.assert_allclose(metrics.step.improvement, improvement, rtol=1e-3)
    np.testing.assert_allclose(metrics.step.kl, np.mean(new.kl(old)), rtol=1e-3)
    np.testing.assert_allclose(metrics.step.entropy, new.entropy(), rtol=1e-5)
    np.testing.assert_allclose(metrics.step.details.clipped_share, np.mean(np.abs(ratio - 1) > 0.2), atol=1e-6)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_broken_batch_changes_no_parameter_and_no_moment(number):
    batch = random_batch(BOX)
    state, _ = update(CLIPPED, begin(CLIPPED), batch)  # moments that are not 0
    broken = batch._replace(signals=(batch.signals[0].at[3, 2].set(number),))
    after, metrics = update(CLIPPED, state, broken)
    assert metrics.step.outcome == Outcome.NON_FINITE
    assert metrics.skipped_in_a_row == 1
    assert metrics.step.kl == metrics.step.improvement == metrics.step.details.minibatches == 0
    np.testing.assert_array_equal(flat(after.policy), flat(state.policy))
    np.testing.assert_array_equal(flat(after.step), flat(state.step))
    assert np.any(flat(after.step))
    again, metrics = update(CLIPPED, after, batch)
    assert metrics.step.outcome == Outcome.ACCEPTED
    assert not np.array_equal(flat(again.policy), flat(state.policy))
    assert not np.array_equal(flat(again.step), flat(state.step))


@pytest.mark.parametrize("constant", [0.0, 0.5])
def test_equal_advantages_are_flat(constant):
    state, samples = samples_of(BOX)
    samples = samples._replace(advantage=(jnp.full(100, constant),))
    policy, moments, report = take(CLIPPED.step, state.policy, samples)
    assert report.outcome == Outcome.FLAT
    assert report.details.minibatches == 0
    np.testing.assert_array_equal(flat(policy), flat(state.policy))
    np.testing.assert_array_equal(flat(moments), flat(CLIPPED.step.init(state.policy)))


def test_it_stops_where_the_divergence_exceeds_delta():
    """Soon after: what comes on top of δ is the step of one minibatch, and the noise of its estimate."""
    state, samples = samples_of(BOX)
    many = Passes(policy_epochs=20, policy_minibatch=20, policy_step_size=1e-3)
    (_, _, free), (_, _, bounded), (_, _, still) = (
        take(Clip(many, delta=delta), state.policy, samples) for delta in (1e9, 1e-4, 0.0)
    )
    assert free.details.minibatches == 100
    assert bounded.details.minibatches < 20
    assert free.kl > 2e-3
    assert 0.5e-4 < bounded.kl < 3e-4
    assert still.details.minibatches == 1  # the first minibatch finds the policy where it began


def loop_that_breaks(passes, delta, policy, samples, key):
    """The step written out: passes over minibatches, left at once where one finds the policy too far away."""
    optimizer = optax.chain(optax.clip_by_global_norm(LARGEST_GRADIENT), optax.adam(passes.policy_step_size))
    advantage, _ = standardized(samples)

    @jax.jit
    def consider(current, moments, part):
        some, some_advantage = part
        slope = jax.grad(lambda candidate: -Clip(passes)._clipped_surrogate(candidate, some, some_advantage))
        change, moments = optimizer.update(slope(current), moments)
        return jnp.mean(current(some.x).kl(policy(some.x))), optax.apply_updates(current, change), moments

    moments, taken = optimizer.init(policy), 0
    current = policy
    for epoch in jax.random.split(key, passes.policy_epochs):
        parts = minibatches(epoch, (samples, advantage), passes.policy_minibatch)
        for number in range(100 // passes.policy_minibatch):
            part = jax.tree.map(lambda column, number=number: column[number], parts)
            divergence, *moved = consider(current, moments, part)
            if divergence > delta:
                return current, taken
            (current, moments), taken = moved, taken + 1
    return current, taken


@pytest.mark.parametrize(
    ("spec", "delta"), [(BOX, 1e9), (BOX, 3e-3), (CHOICE, 3e-3)], ids=["box", "box, near", "discrete, near"]
)
def test_it_is_a_loop_that_breaks(spec, delta):
    """Minibatches so small that one of them may find the policy near after another found it too far away."""
    state, samples = samples_of(spec)
    passes = Passes(policy_epochs=2, policy_minibatch=4, policy_step_size=3e-3)
    expected, taken = loop_that_breaks(passes, delta, state.policy, samples, jax.random.key(0))
    policy, _, report = take(Clip(passes, delta=delta), state.policy, samples)
    assert report.details.minibatches == taken
    assert (taken == 50) == (delta == 1e9)
    np.testing.assert_allclose(flat(policy), flat(expected), rtol=1e-3, atol=1e-5)


def test_samples_left_over_and_order_follow_from_the_key():
    """The same key gives the same step, another key another one."""
    state, samples = samples_of(BOX)
    step = Clip(Passes(policy_epochs=2, policy_minibatch=30))
    (first, _, report), (again, _, _), (other, _, _) = (take(step, state.policy, samples, seed) for seed in (0, 0, 1))
    assert report.details.minibatches == 6
    np.testing.assert_array_equal(flat(first), flat(again))
    assert not np.array_equal(flat(first), flat(other))


@pytest.mark.parametrize("criterion", [Average(), Discounted(0.9)], ids=["average", "discounted"])
def test_it_learns_the_best_policy_of_a_model(criterion):
    """From the uniform policy it goes 95 % of the way to the best of all deterministic policies."""
    mdp = zoo.garnet(states=5, actions=3, branches=3, seed=5)
    mdp.rewards[:] = np.random.default_rng(5).random((5, 3))
    best = max(
        mdp.evaluate(np.array(actions), criterion).rho for actions in itertools.product(range(3), repeat=mdp.n_states)
    )
    learner = Learner(
        criterion=criterion,
        iterations=30,
        networks=Networks(hidden=(16,)),
        critic=CriticFit(critic_step_size=3e-3, critic_epochs=3),
        step=Clip(Passes(policy_step_size=3e-3)),
    )
    source = ModelSource(mdp, [], num_envs=20, batch_length=50)
    state, history = source.learn(learner, 30)
    assert all(metrics.step.outcome == Outcome.ACCEPTED for metrics in history)
    uniform = mdp.evaluate(mdp.uniform_policy, criterion).rho
    learned = mdp.evaluate(source.policy(state), criterion).rho
    assert learned > uniform + 0.95 * (best - uniform)


def test_its_moments_are_saved_with_the_rest():
    state, _ = update(CLIPPED, begin(CLIPPED), random_batch(BOX))
    arrays = to_arrays(state)
    assert np.any([np.any(array) for name, array in arrays.items() if name.startswith("step/") and "/mu/" in name])
    restored = from_arrays(begin(CLIPPED), arrays, "the test")
    np.testing.assert_array_equal(flat(restored.step), flat(state.step))
    batch = random_batch(BOX, 1)
    (one, _), (other, _) = update(CLIPPED, state, batch), update(CLIPPED, restored, batch)
    np.testing.assert_array_equal(flat((one.policy, one.step)), flat((other.policy, other.step)))


LIMITED = {"cost": "speed", "limit": 2.0, "step": "clip"}


@pytest.mark.parametrize("algorithm", ["acpo", "cpo"])
def test_limits_are_refused(algorithm, tmp_path):
    with pytest.raises(UserError, match=f"step clip keeps no limits on costs.*{algorithm}.*--step clip"):
        make_learner(from_flat({**LIMITED, "algorithm": algorithm}))
    with pytest.raises(UserError, match="keeps no limits"):
        kemeny.train("HalfCheetah-v3", out=tmp_path / "run", algorithm=algorithm, **LIMITED)
    assert not (tmp_path / "run").exists()


def test_the_settings_reach_the_step():
    settings = {"step": "clip", "delta": 0.5, "clip_ratio": 0.1, "policy_step_size": 1e-2, "policy_epochs": 3}
    step = make_learner(from_flat({**settings, "policy_minibatch": 7})).step
    assert step == Clip(Passes(1e-2, 3, 7), Clipping(0.1), delta=0.5)
