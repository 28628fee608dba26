"""The projected step: its target against closed forms and brute force, its laws, its prices, and that it learns."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

from kemeny.criterion import Average, Discounted
from kemeny.learning.arrays import from_arrays, to_arrays
from kemeny.learning.estimates import estimate
from kemeny.learning.learner import Learner
from kemeny.learning.networks import CategoricalPolicy, Perceptron
from kemeny.learning.samples import Samples, concatenate
from kemeny.learning.settings import CriticFit, Networks, Passes, Projection, TrustRegion
from kemeny.learning.steps.direction import Case
from kemeny.learning.steps.project import Project, price_of_region, relative_entropy, weights
from kemeny.learning.steps.protocol import Limits, Outcome
from kemeny.learning.update import update
from kemeny.runs.assembly import make_step
from kemeny.runs.settings import from_flat
from kemeny.tabular import zoo
from kemeny.tabular.linear_programme import linear_programme
from tests.model_source import ModelSource
from tests.test_learner import BOX, CHOICE, SMALL, begin, flat, random_batch

FEW = Passes(policy_epochs=3, policy_minibatch=20, policy_step_size=3e-3)
PROJECTED = dataclasses.replace(SMALL, step=Project(FEW))
LIMITED = dataclasses.replace(PROJECTED, limits=(0.0,))
NO_LIMITS = Limits(jnp.zeros(0), 1.0)
estimated = jax.jit(estimate)
found_price = jax.jit(price_of_region, static_argnums=2)


def samples_with(weight, action=None, log_prob=None, advantage=None):
    """Samples of one state."""
    n = len(weight)
    weight, nothing = jnp.array(weight, jnp.float32), jnp.zeros(n)
    return Samples(
        x=jnp.ones((n, 2)),
        action=jnp.arange(n) if action is None else action,
        log_prob=nothing if log_prob is None else log_prob,
        advantage=(nothing if advantage is None else advantage,),
        target=(nothing,),
        weight=weight,
    )


# The target


def entropy_by_hand(weight, advantage, beta):
    """E[w log w] in double precision."""
    share = weight / weight.sum()
    tilted = share * np.exp((advantage - advantage.max()) / beta)
    tilted /= tilted.sum()
    seen = tilted > 0
    return np.sum(tilted[seen] * np.log(tilted[seen] / share[seen]))


@pytest.mark.parametrize("delta", [1e-4, 0.02, 0.5])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_price_of_the_region_solves_its_equation(delta, weighted):
    """Oracle: the least of a fine grid of β at which the relative entropy is at most δ."""
    rng = np.random.default_rng(0)
    weight = rng.random(200) if weighted else np.ones(200)
    advantage = rng.normal(size=200) ** 3
    advantage -= np.average(advantage, weights=weight)
    samples = samples_with(weight)
    beta = float(found_price(samples, jnp.array(advantage, jnp.float32), delta))
    grid = np.geomspace(1e-2, 1e6, 40_001)
    least = grid[np.searchsorted([-entropy_by_hand(weight, advantage, b) for b in grid], -delta)]
    assert beta == pytest.approx(least, rel=5e-3)
    assert float(relative_entropy(samples, jnp.array(advantage, jnp.float32), jnp.array(beta))) == pytest.approx(
        delta, rel=1e-2
    )


def test_without_a_bound_only_the_best_counts():
    """Where even the best samples alone are within δ, and where all are alike."""
    samples = samples_with([1.0, 1.0, 2.0])
    advantage = jnp.array([1.0, 1.0, -1.0])
    beta = found_price(samples, advantage, 5.0)
    np.testing.assert_allclose(weights(samples, advantage, beta)[0], [2, 2, 0], atol=1e-6)
    beta = found_price(samples, jnp.zeros(3), 0.02)
    np.testing.assert_allclose(weights(samples, jnp.zeros(3), beta)[0], 1)


@pytest.mark.parametrize("delta", [0.001, 0.02, 0.2])
def test_the_target_of_a_bandit_with_two_actions(delta):
    """The better action's probability is the q > p at which KL(q‖p) = δ, whatever the advantages."""
    p = 0.3

    def excess(q):
        return q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p)) - delta

    q = brentq(excess, p, 1 - 1e-9)
    samples, advantage = samples_with([p, 1 - p]), jnp.array([0.7, -0.3]) * 5
    weight, _ = weights(samples, advantage, found_price(samples, advantage, delta))
    np.testing.assert_allclose(weight, [q / p, (1 - q) / (1 - p)], rtol=1e-3)


@pytest.mark.parametrize("delta", [0.02, 0.1])
def test_the_network_comes_to_the_target(delta):
    """In one state: π_k·exp(A/β)/Z, with β from the grid."""
    network = Perceptron.init(Networks(hidden=(4,)), jax.random.key(0), 2, 3, 1.0)
    policy = CategoricalPolicy(network)
    old = np.asarray(jax.nn.softmax(policy(jnp.ones(2)).logits), np.float64)
    advantage = np.array([1.0, -2.0, 0.5])
    advantage -= old @ advantage
    log_prob, in_float32 = jnp.log(jnp.array(old, jnp.float32)), jnp.array(advantage, jnp.float32)
    samples = samples_with(old, log_prob=log_prob, advantage=in_float32)
    beta = brentq(lambda b: entropy_by_hand(old, advantage, b) - delta, 1e-1, 1e4)
    target = old * np.exp(advantage / beta)
    target /= target.sum()
    # The target is on the edge of the trust region: what is beyond it by rounding must not be shortened by much.
    region = TrustRegion(delta=delta, backtrack=0.99)
    step = Project(Passes(policy_step_size=1e-3, policy_epochs=1_000), region=region)
    after, _, report = jax.jit(step)(policy, samples, NO_LIMITS, step.init(policy), jax.random.key(0))
    assert report.outcome == Outcome.ACCEPTED
    new = np.asarray(jax.nn.softmax(after(jnp.ones(2)).logits))
    np.testing.assert_allclose(new, target, atol=0.02 * np.abs(target - old).max())
    assert report.kl <= delta
    np.testing.assert_allclose(report.details.multiplier_kl, beta, rtol=1e-2)  # in the units of the advantages


# Laws of the step


def priced_surrogate(state, after, samples, price=()):
    """By hand, in double precision."""
    ratio = after.policy(samples.x).log_prob(samples.action) - state.policy(samples.x).log_prob(samples.action)
    reward, *costs = (np.asarray(of, np.float64) for of in samples.advantage)
    priced = reward - sum(nu * cost for nu, cost in zip(price, costs, strict=True))
    return np.mean(np.exp(np.asarray(ratio, np.float64)) * (priced - priced.mean()))


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
def test_a_step_improves_the_surrogate_within_the_trust_region(spec):
    state = begin(PROJECTED, spec)
    for seed in range(3):
        batch = random_batch(spec, seed)
        samples, _ = estimated(PROJECTED, state, batch)
        after, metrics = update(PROJECTED, state, batch)
        assert metrics.step.outcome == Outcome.ACCEPTED
        kl = np.mean(after.policy(samples.x).kl(state.policy(samples.x)))
        np.testing.assert_allclose(metrics.step.kl, kl, rtol=1e-3)
        assert 0 < kl <= PROJECTED.step.region.delta
        assert metrics.step.improvement > 0
        np.testing.assert_allclose(metrics.step.improvement, priced_surrogate(state, after, samples), rtol=1e-3)
        state = after


def test_a_broken_batch_changes_nothing():
    """No parameter, moment or price; they go through a checkpoint."""
    batch = random_batch(BOX, signals=2)
    state, _ = update(LIMITED, begin(LIMITED), batch._replace(signals=(batch.signals[0], batch.signals[1] + 1)))
    assert state.step.price > 0
    for broken in (0, 1):
        signals = tuple(s.at[3, 2].set(np.nan) if i == broken else s for i, s in enumerate(batch.signals))
        after, metrics = update(LIMITED, state, batch._replace(signals=signals))
        assert metrics.step.outcome == Outcome.NON_FINITE
        assert metrics.step.kl == metrics.step.improvement == 0
        np.testing.assert_array_equal(flat((after.policy, after.step)), flat((state.policy, state.step)))
    restored = from_arrays(begin(LIMITED), to_arrays(state), "the test")
    (one, metrics), (other, _) = update(LIMITED, state, batch), update(LIMITED, restored, batch)
    assert metrics.step.outcome == Outcome.ACCEPTED
    np.testing.assert_array_equal(flat((one.policy, one.step)), flat((other.policy, other.step)))


def take(step, policy, samples, limits=NO_LIMITS, state=None):
    state = step.init(policy, len(limits.excess)) if state is None else state
    return jax.jit(step)(policy, samples, limits, state, jax.random.key(0))


def samples_of(spec, costs=0, seed=0):
    learner = dataclasses.replace(PROJECTED, limits=(0.0,) * costs)
    state = begin(learner, spec)
    return state.policy, estimated(learner, state, random_batch(spec, seed, signals=1 + costs))[0]


def test_equal_advantages_are_flat():
    policy, samples = samples_of(BOX)
    _, memory, _ = take(PROJECTED.step, policy, samples)  # moments that would go on by themselves
    after, later, report = take(PROJECTED.step, policy, samples._replace(advantage=(jnp.full(100, 0.5),)), state=memory)
    assert report.outcome == Outcome.FLAT
    np.testing.assert_array_equal(flat((after, later)), flat((policy, memory)))


def test_a_step_that_is_too_long_is_shortened_or_refused():
    """The passes stop only after a minibatch has found the policy beyond δ, with a better surrogate."""
    policy, samples = samples_of(BOX)
    near = {"delta": 3e-4}
    _, _, report = take(Project(FEW, region=TrustRegion(**near)), policy, samples)
    assert report.outcome == Outcome.ACCEPTED
    assert report.details.tries > 1
    assert 1e-4 < report.kl <= 3e-4
    refusing = Project(FEW, region=TrustRegion(**near, backtrack_tries=1))
    after, memory, report = take(refusing, policy, samples)
    assert report.outcome == Outcome.LINE_SEARCH
    np.testing.assert_array_equal(flat((after, memory)), flat((policy, refusing.init(policy))))


@pytest.mark.parametrize("costs", [0, 1])
def test_weights_count_samples(costs):
    """One of weight 2 counts as two; with the batch as one minibatch, so that the order does not matter."""
    policy, samples = samples_of(CHOICE, costs)
    twice = jnp.array([3, 17, 17, 60])
    weighted = samples._replace(weight=samples.weight.at[twice].add(1))
    repeated = concatenate(samples, jax.tree.map(lambda column: column[twice], samples))
    step, limits = Project(dataclasses.replace(FEW, policy_minibatch=1_000)), Limits(jnp.full(costs, 0.05), 1.0)
    (after, _, report), (expected, _, other) = (take(step, policy, some, limits) for some in (weighted, repeated))
    assert report.outcome == Outcome.ACCEPTED
    np.testing.assert_allclose(report.details.multiplier_kl, other.details.multiplier_kl, rtol=1e-3)
    distance = np.linalg.norm(flat(after) - flat(policy))
    assert np.linalg.norm(flat(after) - flat(expected)) < 1e-2 * distance


# Limits


def test_prices_follow_the_excess_and_are_never_negative():
    """By hand: α·σ_r/σ_c per step of excess, at most one; and on top the same again without α."""
    policy, samples = samples_of(BOX, costs=1)
    step = Project(FEW, Projection(multiplier_step_size=0.25))
    sigma_r, sigma_c = (np.std(np.asarray(of, np.float64)) for of in samples.advantage)
    slope, price = 2.0, sigma_r / sigma_c
    one_step = slope * sigma_c * np.sqrt(2 * 0.02)
    memory = step.init(policy, 1)
    run = jax.jit(step)
    for excess, kept, used in [
        (0.4 * one_step, 0.1 * price, 0.5 * price),
        (7.0 * one_step, 0.35 * price, 1.35 * price),
        (-0.2 * one_step, 0.3 * price, 0.1 * price),
        (-9.0 * one_step, 0.05 * price, 0.0),
        (-9.0 * one_step, 0.0, 0.0),
    ]:
        _, memory, report = run(policy, samples, Limits(jnp.array([excess]), slope), memory, jax.random.key(0))
        np.testing.assert_allclose(memory.price, [kept], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(report.details.limited.multiplier_cost, [used], rtol=1e-3, atol=1e-5)
        assert report.details.limited.case == (Case.ACTIVE if used else Case.INACTIVE)


def test_the_step_is_better_by_its_prices():
    """KL ≤ δ and a better surrogate of the reward less priced costs, whether the limit is kept or broken."""
    state = begin(LIMITED)
    for seed, mean in enumerate([0.3, 0.1, -0.3]):
        reward, cost = random_batch(BOX, seed, signals=2).signals
        batch = random_batch(BOX, seed)._replace(signals=(reward, cost + (mean - cost.mean())))
        samples, _ = estimated(LIMITED, state, batch)
        after, metrics = update(LIMITED, state, batch)
        limited = metrics.step.details.limited
        assert metrics.step.outcome == Outcome.ACCEPTED
        assert metrics.step.kl <= 0.02
        assert priced_surrogate(state, after, samples, limited.multiplier_cost) > 0
        cost_alone = samples._replace(advantage=(samples.advantage[1],))
        np.testing.assert_allclose(limited.surrogate_cost_change, priced_surrogate(state, after, cost_alone), rtol=1e-2)
        if mean > 0:
            assert limited.surrogate_cost_change < 0
        state = after


def test_units_of_the_cost_do_not_matter():
    """A cost in cents has a price per cent, and the policy is the same; a slack limit changes nothing at all."""
    policy, samples = samples_of(BOX, costs=1)
    in_cents = samples._replace(advantage=(samples.advantage[0], 100 * samples.advantage[1]))
    (one, _, report), (other, _, cents), (slack, _, _), (free, _, _) = (
        take(PROJECTED.step, policy, some, Limits(jnp.array(excess), 1.0))
        for some, excess in [
            (samples, [0.05]),
            (in_cents, [5.0]),
            (samples, [-1e6]),
            (samples._replace(advantage=samples.advantage[:1]), []),
        ]
    )
    np.testing.assert_allclose(flat(other), flat(one), rtol=1e-3, atol=1e-5)
    multipliers = [float(r.details.limited.multiplier_cost[0]) for r in (report, cents)]
    assert multipliers[0] == pytest.approx(100 * multipliers[1], rel=1e-3)
    np.testing.assert_allclose(flat(slack), flat(free), rtol=1e-5, atol=1e-7)
    assert not np.allclose(flat(one), flat(free), rtol=1e-3, atol=1e-5)


# Learning


def learner_with(step, iterations, **changes):
    return Learner(
        iterations=iterations,
        networks=Networks(hidden=(16,)),
        critic=CriticFit(critic_step_size=3e-3, critic_epochs=3),
        step=step,
        **changes,
    )


@pytest.mark.parametrize("criterion", [Average(), Discounted(0.9)], ids=["average", "discounted"])
def test_it_learns_the_best_policy_of_a_model(criterion):
    """From the uniform policy it goes 95 % of the way to the best of all deterministic policies."""
    mdp = zoo.garnet(states=5, actions=3, branches=3, seed=5)
    mdp.rewards[:] = np.random.default_rng(5).random((5, 3))
    best = max(
        mdp.evaluate(np.array(actions), criterion).rho for actions in itertools.product(range(3), repeat=mdp.n_states)
    )
    learner = learner_with(Project(Passes(policy_step_size=3e-3)), 40, criterion=criterion)
    source = ModelSource(mdp, [], num_envs=20, batch_length=50)
    state, history = source.learn(learner, 40)
    assert all(metrics.step.kl <= learner.step.region.delta for metrics in history)
    uniform = mdp.evaluate(mdp.uniform_policy, criterion).rho
    assert mdp.evaluate(source.policy(state), criterion).rho > uniform + 0.95 * (best - uniform)


@pytest.mark.parametrize("limit", [1.5, 0.6])
def test_it_comes_to_the_constrained_optimum(limit):
    """Near the best reward that keeps the limit, which the first policy keeps (1.5) or breaks (0.6)."""
    mdp, iterations = zoo.queue_admission(capacity=4), 80
    best = linear_programme(mdp, limit)
    source = ModelSource(mdp, [mdp.costs - limit], num_envs=40, batch_length=100)
    learner = learner_with(Project(Passes(policy_step_size=3e-3)), iterations, limits=(0.0,))
    state, history = source.learn(learner, iterations)
    policy = source.policy(state)
    assert mdp.evaluate(policy).rho >= 0.95 * best.gain
    assert mdp.evaluate(policy, signal="cost").rho <= 1.05 * limit
    prices = [metrics.step.details.limited.multiplier_cost[0] for metrics in history[-30:]]
    assert np.mean(prices) == pytest.approx(best.price, rel=0.5)


def test_the_settings_reach_the_step():
    settings = {"step": "project", "delta": 0.5, "policy_epochs": 3, "multiplier_step_size": 0.3, "backtrack": 0.5}
    step = make_step(from_flat(settings))
    assert step == Project(Passes(policy_epochs=3), Projection(0.3), TrustRegion(delta=0.5, backtrack=0.5))
