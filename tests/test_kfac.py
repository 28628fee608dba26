"""Kronecker factors: each against the dense matrix that it stands for, laws of the step, and that it learns."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from kemeny.criterion import Average, Discounted
from kemeny.learning.arrays import from_arrays, to_arrays
from kemeny.learning.estimates import estimate
from kemeny.learning.learner import Learner
from kemeny.learning.networks import CategoricalPolicy, CategoricalsPolicy, GaussianPolicy, Perceptron
from kemeny.learning.samples import Samples, concatenate
from kemeny.learning.settings import CriticFit, Factors, Networks, TrustRegion
from kemeny.learning.steps.direction import Case
from kemeny.learning.steps.kronecker import KroneckerFactors, Pair, damped, inverse, kronecker_factors
from kemeny.learning.steps.natural import Natural
from kemeny.learning.steps.protocol import Limits, Outcome
from kemeny.learning.steps.trust_region import fisher_product
from kemeny.learning.update import update
from kemeny.runs.assembly import make_step
from kemeny.runs.settings import from_flat
from kemeny.tabular import zoo
from tests.model_source import ModelSource
from tests.test_learner import BOX, CHOICE, SMALL, begin, flat, random_batch

KFAC = dataclasses.replace(SMALL, step=Natural(solver=KroneckerFactors()))
LIMITED = dataclasses.replace(KFAC, limits=(0.0,))
estimated = jax.jit(estimate)
rng = np.random.default_rng(0)


def samples_on(x, weight=None):
    """Samples of which only states and weights matter."""
    n = len(x)
    weight = np.ones(n) if weight is None else weight
    column = jnp.zeros(n)
    return Samples(jnp.array(x, jnp.float32), column, column, (column,), (column,), jnp.array(weight, jnp.float32))


def policies(hidden):
    """One of each kind, with what it sees in one state."""

    def network(outputs):
        made = Perceptron.init(Networks(hidden=hidden), jax.random.key(1), 3, outputs, 1.0)
        return dataclasses.replace(made, biases=tuple(b + 0.1 * jnp.arange(b.size) for b in made.biases))

    seen = rng.normal(size=3)
    return {
        "gaussian": (GaussianPolicy(network(2), jnp.array([-0.5, 0.3])), seen),
        "categorical": (CategoricalPolicy(network(4)), seen),
        "masked": (CategoricalPolicy(network(4), masked=True), [*seen, 1, 0, 1, 1]),
        "categoricals": (CategoricalsPolicy(network(5), (2, 3)), seen),
        "masked categoricals": (CategoricalsPolicy(network(5), (2, 3), masked=True), [*seen, 1, 1, 1, 0, 1]),
    }


def dense_fisher(policy, samples):
    """The Fisher matrix, and where in it the weights and biases of each layer are, row by row."""
    theta, unravel = ravel_pytree(policy)
    product = fisher_product(lambda point: unravel(point)(samples.x), theta, 0.0, samples.average)
    network = unravel(jnp.arange(theta.size, dtype=theta.dtype)).network
    layers = [np.vstack([w, b[None]]).ravel().astype(int) for w, b in zip(network.weights, network.biases, strict=True)]
    return np.asarray(jax.jit(jax.vmap(product))(jnp.eye(theta.size))), layers


def assert_blocks(policy, samples):
    """The Kronecker product of each layer is the block of the true Fisher matrix."""
    dense, layers = dense_fisher(policy, samples)
    pairs = jax.jit(kronecker_factors)(policy, samples)
    assert len(pairs) == len(layers)
    for where, pair in zip(layers, pairs, strict=True):
        block = dense[np.ix_(where, where)]
        assert np.abs(block).max() > 1e-3
        np.testing.assert_allclose(np.kron(pair.a, pair.g), block, atol=1e-5 * np.abs(block).max())


@pytest.mark.parametrize("kind", policies(()))
def test_one_sample_gives_the_true_fisher_matrix_of_each_layer(kind):
    """There the mean of products is the product of means; for each kind of action, with masks and without."""
    policy, seen = policies((4,))[kind]
    assert_blocks(policy, samples_on([seen]))


def test_a_linear_gaussian_policy_has_the_true_fisher_matrix():
    """G is the same in every state, so A ⊗ G is exact for any batch, weighted too; so is 2·I of the log deviations."""
    policy, _ = policies(())["gaussian"]
    samples = samples_on(rng.normal(size=(30, 3)), weight=rng.random(30))
    assert_blocks(policy, samples)
    dense, (layer,) = dense_fisher(policy, samples)
    log_std = np.setdiff1d(np.arange(len(dense)), layer)
    np.testing.assert_allclose(dense[np.ix_(log_std, log_std)], 2 * np.eye(2), atol=1e-5)


def mean_square(matrix):
    return matrix @ matrix.T / matrix.shape[1]


@pytest.mark.parametrize("damping", [1e-4, 0.3])
def test_the_inverse_is_that_of_the_damped_product(damping):
    """Oracle: np.kron of the damped factors, solved densely."""
    a, g = (mean_square(rng.normal(size=shape)) for shape in ((5, 9), (3, 7)))
    v = rng.normal(size=(5, 3))
    pi = np.sqrt((np.trace(a) / 5) / (np.trace(g) / 3))
    dense = np.kron(a + pi * np.sqrt(damping) * np.eye(5), g + np.sqrt(damping) / pi * np.eye(3))
    expected = np.linalg.solve(dense, v.ravel()).reshape(5, 3)
    pair = damped(Pair(jnp.array(a, jnp.float32), jnp.array(g, jnp.float32)), damping)
    np.testing.assert_allclose(inverse(pair.a) @ v @ inverse(pair.g), expected, rtol=1e-3, atol=1e-3)


def test_factors_of_zero_and_no_damping():
    """A layer of dead units has G = 0; without damping a singular factor has a pseudo-inverse."""
    dead = damped(Pair(jnp.eye(2), jnp.zeros((2, 2))), 0.04)
    np.testing.assert_allclose(dead.g, 0.2 * np.eye(2), rtol=1e-6)
    np.testing.assert_allclose(inverse(jnp.diag(jnp.array([2.0, 0.0]))), np.diag([0.5, 0]), atol=1e-6)


def state_and_samples(spec, seed=0, learner=KFAC):
    state = begin(learner, spec)
    return state, estimated(learner, state, random_batch(spec, seed, signals=1 + len(learner.limits)))[0]


def solver_on(policy, samples, memory, decay=0.9, damping=0.01):
    theta, unravel = ravel_pytree(policy)
    product = fisher_product(lambda point: unravel(point)(samples.x), theta, damping, samples.average)
    solver = KroneckerFactors(Factors(decay))
    solve, memory = solver.prepare(policy, samples, product, TrustRegion(damping=damping), memory)
    return solve, memory, product


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
def test_the_solution_is_that_of_the_blocks_with_the_best_length(spec):
    """Its direction is that of the damped blocks, solved densely; its length the best for the true Fisher matrix."""
    state, samples = state_and_samples(spec)
    policy, damping = state.policy, 0.01
    memory = KroneckerFactors().init(policy)
    g = jnp.array(rng.normal(size=flat(policy).size), jnp.float32)

    @jax.jit
    def solved(g):
        solve, _, product = solver_on(policy, samples, memory)
        x, least = solve(g)
        return x, least, product(x)

    x, least, hx = map(np.asarray, solved(g))
    dense, layers = dense_fisher(policy, samples)
    expected = np.asarray(g) / (2 + damping)  # the log deviations
    for where, pair in zip(layers, kronecker_factors(policy, samples), strict=True):
        a, b = (np.asarray(factor, np.float64) for factor in damped(pair, damping))
        expected[where] = np.linalg.solve(np.kron(a, b), np.asarray(g, np.float64)[where])
    multiple = x @ expected / (expected @ expected)
    for where in (*layers, np.setdiff1d(np.arange(len(g)), np.concatenate(layers))):  # the last are the log deviations
        assert np.linalg.norm(x[where] - multiple * expected[where]) <= 1e-2 * np.linalg.norm(x[where])
    H = dense + damping * np.eye(len(dense))
    np.testing.assert_allclose(hx, H @ x, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(x @ H @ x, g @ x, rtol=1e-3)
    np.testing.assert_allclose(least, x @ H @ x / (x @ x), rtol=1e-3)
    tiny, _, _ = solved(g * 1e-30)
    np.testing.assert_allclose(np.asarray(tiny) * 1e30, x, rtol=1e-3)
    assert not np.any(solved(g * 0)[0])


def test_averages_count_every_batch_once():
    """Of one batch the average is that batch; of two, the weights are 0.9 and 1 over their sum."""
    state, first = state_and_samples(BOX, 0)
    _, second = state_and_samples(BOX, 1)
    policy, decay = state.policy, 0.9
    memory = KroneckerFactors().init(policy)
    g = jnp.ones(flat(policy).size)

    @jax.jit
    def after(samples, memory):
        solve, memory, _ = solver_on(policy, samples, memory, decay)
        return solve(g)[0], memory

    alone, _ = jax.jit(lambda: (solver_on(policy, first, memory, 0.0)[0](g)[0], None))()
    x, memory = after(first, memory)
    np.testing.assert_allclose(x, alone, rtol=2e-2, atol=1e-3 * np.abs(alone).max())
    _, memory = after(second, memory)
    np.testing.assert_allclose(memory.weight, 0.1 * (0.9 + 1), rtol=1e-6)
    of_each = (kronecker_factors(policy, samples) for samples in (first, second))
    for mean, old, new in zip(memory.pairs, *of_each, strict=True):
        np.testing.assert_allclose(mean.a, 0.1 * (0.9 * old.a + new.a), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(mean.g, 0.1 * (0.9 * old.g + new.g), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
def test_a_step_improves_the_surrogate_within_the_trust_region(spec):
    state = begin(KFAC, spec)
    for seed in range(3):
        batch = random_batch(spec, seed)
        after, metrics = update(KFAC, state, batch)
        assert metrics.step.outcome == Outcome.ACCEPTED
        assert metrics.step.improvement > 0
        x = state.normalizer(batch.observation)
        kl = np.mean(after.policy(x).kl(state.policy(x)))
        assert kl == pytest.approx(float(metrics.step.kl), rel=1e-3)
        assert 0.3 * KFAC.step.region.delta < kl <= KFAC.step.region.delta
        state = after


def test_a_rejected_step_changes_no_parameter():
    """Nor, where numbers were not finite, the factors; they go through a checkpoint."""
    batch = random_batch(BOX)
    state, _ = update(KFAC, begin(KFAC), batch)
    broken = batch._replace(signals=(batch.signals[0].at[3, 2].set(np.nan),))
    after, metrics = update(KFAC, state, broken)
    assert metrics.step.outcome == Outcome.NON_FINITE
    np.testing.assert_array_equal(flat(after.policy), flat(state.policy))
    np.testing.assert_array_equal(flat(after.step), flat(state.step))
    np.testing.assert_allclose(state.step.weight, 0.1, rtol=1e-6)
    assert np.any(flat(state.step.pairs))
    restored = from_arrays(begin(KFAC), to_arrays(state), "the test")
    (one, metrics), (other, _) = update(KFAC, state, batch), update(KFAC, restored, batch)
    assert metrics.step.outcome == Outcome.ACCEPTED
    np.testing.assert_array_equal(flat((one.policy, one.step)), flat((other.policy, other.step)))


def test_a_step_that_is_too_long_changes_no_parameter():
    learner = dataclasses.replace(KFAC, step=Natural(TrustRegion(delta=30.0, backtrack_tries=1), KroneckerFactors()))
    state = begin(learner)
    after, metrics = update(learner, state, random_batch(BOX))
    assert metrics.step.outcome == Outcome.LINE_SEARCH
    np.testing.assert_array_equal(flat(after.policy), flat(state.policy))


@pytest.mark.parametrize("mean", [-0.02, 0.02])
def test_limits_are_kept_as_by_conjugate_gradient(mean):
    """The plan ends on the limit, a limit that is kept stays kept, and one that is broken comes nearer."""
    state, cases = begin(LIMITED), set()
    for seed in range(4):
        reward, cost = random_batch(BOX, seed, signals=2).signals
        batch = random_batch(BOX, seed)._replace(signals=(reward, cost + (mean - cost.mean())))
        _, metrics = update(LIMITED, state, batch)
        diagnosis, violation = metrics.step.details.diagnosis, metrics.costs.violation
        assert metrics.step.outcome == Outcome.ACCEPTED
        assert metrics.step.kl <= LIMITED.step.region.delta
        cases.add(int(diagnosis.case))
        change = diagnosis.surrogate_cost_change
        assert change < 0 if mean > 0 else violation + change <= 0
        if diagnosis.case == Case.ACTIVE:
            np.testing.assert_allclose(violation + diagnosis.predicted_cost_change, 0, atol=1e-4)
    assert Case.ACTIVE in cases


def test_weights_count_samples():
    """One of weight 2 counts as two."""
    state, samples = state_and_samples(CHOICE)
    twice = jnp.array([3, 17, 17, 60])
    weighted = samples._replace(weight=samples.weight.at[twice].add(1))
    repeated = concatenate(samples, jax.tree.map(lambda column: column[twice], samples))
    step, no_limits = jax.jit(KFAC.step), Limits(jnp.zeros(0), 1.0)
    (policy, _, report), (expected, _, _) = (
        step(state.policy, some, no_limits, state.step, jax.random.key(0)) for some in (weighted, repeated)
    )
    assert report.outcome == Outcome.ACCEPTED
    distance = np.linalg.norm(flat(policy) - flat(state.policy))
    assert np.linalg.norm(flat(policy) - flat(expected)) < 1e-2 * distance


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
        step=KFAC.step,
    )
    source = ModelSource(mdp, [], num_envs=20, batch_length=50)
    state, history = source.learn(learner, 30)
    assert all(metrics.step.kl <= learner.step.region.delta for metrics in history)
    uniform = mdp.evaluate(mdp.uniform_policy, criterion).rho
    assert mdp.evaluate(source.policy(state), criterion).rho > uniform + 0.95 * (best - uniform)


def test_the_settings_reach_the_step():
    step = make_step(from_flat({"step": "kfac", "delta": 0.5, "damping": 0.1, "factor_decay": 0.5}))
    assert step == Natural(TrustRegion(delta=0.5, damping=0.1), KroneckerFactors(Factors(0.5)))
