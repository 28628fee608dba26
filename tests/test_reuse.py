"""Learning from the last batches again: reductions, exact chains, and what is remembered."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kemeny.criterion import Average, Discounted
from kemeny.errors import UserError
from kemeny.learning.estimates import estimate
from kemeny.learning.memory import empty, recall, remember
from kemeny.learning.minibatches import minibatches
from kemeny.learning.reuse import estimate_all, importance_metrics
from kemeny.learning.samples import concatenate
from kemeny.learning.settings import Networks
from kemeny.learning.steps.surrogate import centred, policy_gradient, standardized, surrogate
from kemeny.learning.update import plain_fields, update
from kemeny.rollout import Rollout
from kemeny.runs.assembly import make_learner
from kemeny.runs.settings import from_flat
from kemeny.spaces import Discrete
from kemeny.spec import Spec, vector
from tests import oracles
from tests.test_learner import BOX, CHOICE, SMALL, begin, flat, random_batch

SPECS = pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
TWO = dataclasses.replace(SMALL, reuse=2)


def log_prob_of(policy, state, batch):
    """Of the actions of a batch, if this policy acted."""
    return policy(state.normalizer(batch.observation)).log_prob(batch.action)


def remembering(learner, state, *batches, policies=None):
    """The state after so many batches, the newest last, in which these policies acted."""
    memory = state.memory
    for batch, policy in zip(batches, policies or [state.policy] * len(batches), strict=True):
        memory = remember(memory, batch, log_prob_of(policy, state, batch))
    return dataclasses.replace(state, memory=memory, iteration=jnp.array(len(batches), jnp.int32))


def numbered(number):
    """A batch in which every number is this one."""
    return jax.tree.map(lambda array: jnp.full_like(array, number), random_batch(BOX, time=2, envs=3))


@pytest.mark.parametrize(
    ("seen", "numbers", "weights"),
    [
        (0, [9, 9, 9, 9], [1 / 4] * 4),
        (1, [9, 0, 9, 0], [1 / 2] * 4),
        (2, [9, 1, 0, 9], [1 / 2, 1, 1, 1 / 2]),
        (3, [9, 2, 1, 0], [1] * 4),
        (7, [9, 6, 5, 4], [1] * 4),
    ],
)
def test_each_batch_that_there_is_counts_once(seen, numbers, weights):
    memory = empty(numbered(0), 3)
    for number in range(seen):
        memory = remember(memory, numbered(number), jnp.full((2, 3), number, jnp.float32))
    recalled, weight = recall(memory, numbered(9), jnp.full((2, 3), 9.0), jnp.array(seen))
    np.testing.assert_array_equal(weight, np.array(weights, np.float32))
    assert recalled.log_prob.shape == (4, 2, 3)
    np.testing.assert_array_equal(recalled.log_prob[:, 1, 2], numbers)
    np.testing.assert_array_equal(recalled.rollout.signals[0][:, 1, 2], numbers)


def test_without_reuse_nothing_is_remembered_or_corrected():
    state = begin()
    assert state.memory is None
    samples, _, memory = estimate_all(SMALL, state, random_batch(BOX))
    assert memory is None
    assert samples.importance is None
    assert importance_metrics(samples) is None


@SPECS
def test_batches_of_the_same_policy_are_one_large_batch(spec):
    """The same samples, the same policy step; only ρ̂ and the gauge are those of the newest batch."""
    learner = dataclasses.replace(TWO, limits=(0.0,))
    first, second = (random_batch(spec, seed, signals=2) for seed in (0, 1))
    state = remembering(learner, begin(learner, spec), first)
    samples, estimates, memory = jax.jit(estimate_all)(learner, state, second)
    newest, expected_estimates = estimate(learner, state, second)
    both = concatenate(newest, estimate(learner, state, first, newest=expected_estimates)[0])
    np.testing.assert_allclose(samples.importance, np.ones(200), rtol=1e-5)
    for found, expected in zip(jax.tree.leaves(samples._replace(importance=None)), jax.tree.leaves(both), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
    for found, expected in zip(estimates, expected_estimates, strict=True):
        np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-5)
    np.testing.assert_array_equal(memory.rollout.action[0], second.action)
    value, next_value = (np.asarray(state.critics[0](seen)) for seen in (first.observation, first.next_observation))
    rate = float(second.signals[0].mean())
    older = oracles.gae_double_sum(first.signals[0], value, next_value, ~np.asarray(first.cut), rate, 1.0, 0.8)
    np.testing.assert_allclose(samples.advantage[0][100:], older.ravel(), rtol=1e-3, atol=1e-3)
    target = np.asarray(state.critics[0](samples.x) + samples.advantage[0])
    np.testing.assert_allclose(samples.target[0], target - target[:100].mean(), rtol=1e-3, atol=1e-3)
    assert abs(target[100:].mean() - target[:100].mean()) > 1e-2
    advantage, spread = standardized(samples)
    one, one_spread = standardized(both)
    np.testing.assert_allclose([spread, *advantage], [one_spread, *one], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        flat(policy_gradient(state.policy, samples, advantage)),
        flat(policy_gradient(state.policy, both, one)),
        rtol=1e-2, atol=1e-4,
    )  # fmt: skip


def test_the_first_update_is_that_of_its_batch_alone():
    """There is nothing else yet; but the critics see the samples in another order."""
    learner, batch = dataclasses.replace(SMALL, reuse=3), random_batch(BOX)
    alone, again = update(SMALL, begin(), batch), update(learner, begin(learner), batch)
    step = flat(alone[0].policy) - flat(begin().policy)
    assert np.linalg.norm(flat(again[0].policy) - flat(alone[0].policy)) < 1e-2 * np.linalg.norm(step)
    fields = plain_fields(again[1])
    assert fields["importance_mean"] == pytest.approx(1)
    assert fields["effective_samples"] == pytest.approx(100, rel=1e-5)
    assert again[0].optimizers[0].count == alone[0].optimizers[0].count == 2 * 100 // 20


@pytest.mark.parametrize("criterion", [Average(), Discounted(0.9)], ids=["average", "discounted"])
def test_weights_are_truncated_in_the_step_and_in_the_traces(criterion):
    """At 3 and at 1; a critic's target is V-trace's."""
    learner = dataclasses.replace(SMALL, criterion=criterion)
    state, batch = begin(learner), random_batch(BOX)
    ratio = np.random.default_rng(0).choice([0.25, 1.0, 2.0, 10.0], size=(20, 5)).astype(np.float32)
    samples, (found,) = estimate(learner, state, batch, log_prob_of(state.policy, state, batch) - np.log(ratio))
    np.testing.assert_allclose(samples.importance, np.minimum(ratio, 3).ravel(), rtol=1e-4)
    bellman, kept = criterion.bellman(found.rate), np.minimum(ratio, 1)
    value, next_value = (np.asarray(state.critics[0](x)) for x in (batch.observation, batch.next_observation))
    expected = oracles.vtrace_double_sum(
        np.asarray(batch.signals[0]), value, next_value, ~np.asarray(batch.cut), kept,
        bellman.offset, bellman.discount, learner.gae_lambda,
    )  # fmt: skip
    np.testing.assert_allclose(samples.advantage[0], expected.ravel(), rtol=1e-3, atol=1e-4)
    target = value + kept * expected
    target = target - (target.mean() if isinstance(criterion, Average) else 0)
    np.testing.assert_allclose(samples.target[0], target.ravel(), rtol=1e-3, atol=1e-4)


def test_at_the_policy_itself_the_surrogate_is_zero():
    """Whoever acted: else a candidate would seem better or worse by a constant."""
    state, batch = begin(), random_batch(BOX)
    noise = jnp.asarray(np.random.default_rng(0).normal(0, 0.7, (20, 5)), jnp.float32)
    samples, _ = estimate(SMALL, state, batch, log_prob_of(state.policy, state, batch) + noise)
    advantage, _ = standardized(samples)
    np.testing.assert_allclose(surrogate(state.policy(samples.x), samples, advantage), 0, atol=1e-6)
    assert abs(samples.average(samples.importance * samples.advantage[0])) > 1e-2
    metrics = importance_metrics(samples)
    weights = np.asarray(samples.importance, np.float64)
    np.testing.assert_allclose(metrics.effective_samples, weights.sum() ** 2 / (weights**2).sum(), rtol=1e-4)
    np.testing.assert_allclose(metrics.importance_mean, weights.mean(), rtol=1e-4)


class Chain:
    """A small model, three policies that follow each other, and batches in which each of them acted."""

    def __init__(self, criterion, lam, time=60, envs=500):
        rng = np.random.default_rng(1)
        self.P, self.r = oracles.random_mdp(rng)
        logits = np.cumsum(rng.normal(0, 0.35, (3, *self.r.shape)), 0)
        self.policies = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        self.criterion, self.lam, self.current = criterion, lam, self.policies[-1]
        average = isinstance(criterion, Average)
        self.rho = oracles.average_reward(self.P, self.r, self.current)
        self.v = oracles.bias(self.P, self.r, self.current) if average else oracles.discounted_value(
            self.P, self.r, self.current, criterion.gamma
        )  # fmt: skip
        bellman = criterion.bellman(self.rho)
        self.discount = bellman.discount
        self.advantage = self.r - bellman.offset + self.discount * self.P @ self.v - self.v[:, None]
        self.learner = dataclasses.replace(
            SMALL, criterion=criterion, gae_lambda=lam, networks=Networks(hidden=()), reuse=3
        )
        paths = [oracles.simulate(rng, self.P, self.r, policy, time, envs) for policy in self.policies]
        self.batches = [self.batch(path) for path in paths]
        self.spec = Spec(vector(4), Discrete(3), None)

    def batch(self, path):
        s, a, reward, s_next = path
        eye, nothing = jnp.eye(4), jnp.zeros(s.shape, bool)
        return Rollout(
            observation=eye[s], action=jnp.asarray(a, jnp.int32), signals=(jnp.asarray(reward, jnp.float32),),
            next_observation=eye[s_next], terminal=nothing, cut=nothing, start_observation=eye,
        )  # fmt: skip

    def samples(self):
        """Those of all three batches, with the exact critic, at the last policy."""
        state = begin(self.learner, self.spec, self.batches[0])
        networks = [self.as_network(state.policy, np.log(policy)) for policy in self.policies]
        critic = self.as_network(state.critics[0], self.v[:, None])
        state = dataclasses.replace(state, policy=networks[-1], critics=(critic,))
        state = remembering(self.learner, state, *self.batches[:2], policies=networks[:2])
        return state, estimate_all(self.learner, state, self.batches[2])[0]

    @staticmethod
    def as_network(module, weights):
        network = dataclasses.replace(module.network, weights=(jnp.asarray(weights, jnp.float32),))
        return dataclasses.replace(module, network=network)

    def exact_gradient(self):
        """With the exact expectation of the truncated sums: the state's share, the policy's, and what luck leaves."""
        shares, values = [], []
        for acted in self.policies:
            kept, counted = np.minimum(acted, self.current), np.minimum(3 * acted, self.current)
            # B(s) = E[kept · A | s] = Σ_a min(μ, π) · (advantage + discount · λ · P B)
            step = self.discount * self.lam * np.einsum("sa,sat->st", kept, self.P)
            B = np.linalg.solve(np.eye(4) - step, np.sum(kept * self.advantage, 1))
            d = oracles.stationary(np.einsum("sa,sat->st", acted, self.P))
            shares.append(d[:, None] * counted)
            values.append(self.advantage + self.discount * self.lam * self.P @ B)
        shares, values = np.array(shares) / np.sum(shares), np.array(values)
        values = values - np.sum(shares * values)
        weighted = np.sum(shares * values, 0)
        return weighted - weighted.sum(1, keepdims=True) * self.current


@pytest.mark.parametrize("criterion", [Average(), Discounted(0.9)], ids=["average", "discounted"])
@pytest.mark.parametrize("lam", [0.0, 0.8])
def test_the_gradient_is_that_of_the_exact_chain(criterion, lam):
    """With many samples; with λ = 0, where no trace is truncated, that is the true one over the states visited."""
    chain = Chain(criterion, lam)
    state, samples = chain.samples()
    gradient = policy_gradient(state.policy, samples, centred(samples, samples.advantage[0]))
    found, exact = np.asarray(gradient.network.weights[0]), chain.exact_gradient()
    assert np.abs(exact).max() > 0.05
    np.testing.assert_allclose(found, exact, atol=0.006)
    ratios = chain.current / chain.policies
    assert ratios[1].max() > 1.2
    uncorrected = samples._replace(importance=None)
    wrong = policy_gradient(state.policy, uncorrected, centred(uncorrected, samples.advantage[0])).network.weights[0]
    assert np.abs(np.asarray(wrong) - exact).max() > 0.012
    if lam == 0:
        assert ratios.max() < 3
        d = np.mean([oracles.stationary(np.einsum("sa,sat->st", acted, chain.P)) for acted in chain.policies], 0)
        np.testing.assert_allclose(exact, d[:, None] * chain.current * chain.advantage, atol=1e-10)


def test_a_pass_over_several_batches_is_as_long_as_over_one():
    drawn = minibatches(jax.random.key(0), jnp.arange(100), 7, batches=4)
    assert drawn.shape == (3, 7)
    assert len(np.unique(drawn)) == 21
    assert drawn.max() > 50


@pytest.mark.parametrize(("share", "reuse"), [(1.0, 1), ((2 / 5) ** 2, 4)])
def test_the_trust_region_that_batches_share(share, reuse):
    whole, shared = (make_learner(from_flat({"reuse": reuse, "reuse_region": how})) for how in ("whole", "shared"))
    assert whole.step.region.delta == 0.02
    assert shared.step.region.delta == pytest.approx(share * 0.02)
    clip = make_learner(from_flat({"reuse": reuse, "reuse_region": "shared", "step": "clip"})).step
    assert clip.delta == pytest.approx(share * 0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reuse": 0}, "--reuse is 0; it must be at least 1"),
        ({"reuse": 1000}, "--reuse is 1000; it must be at most 64"),
        ({"reuse": 1.5}, "reuse is '1.5'; it must be a whole number"),
        ({"reuse": 2, "next_value": "expected"}, "--reuse is for --next-value sampled"),
        ({"reuse_region": "half"}, "must be one of whole, shared"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(settings, message):
    with pytest.raises(UserError, match=message):
        make_learner(from_flat(settings))
