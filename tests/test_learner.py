"""Laws of one update, on batches whose right answer is known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from kemeny.criterion import Average, Discounted
from kemeny.learning.critic import refit
from kemeny.learning.estimates import estimate
from kemeny.learning.learner import Learner, init
from kemeny.learning.settings import CriticFit, Networks, Passes, TrustRegion
from kemeny.learning.steps.clip import Clip
from kemeny.learning.steps.natural import Natural
from kemeny.learning.steps.project import Project
from kemeny.learning.steps.protocol import Outcome
from kemeny.learning.steps.surrogate import policy_gradient
from kemeny.learning.update import _improve, update
from kemeny.rollout import Rollout
from kemeny.spaces import Discrete
from kemeny.spec import Continuous, Spec, vector
from tests import oracles

BOX = Spec(vector(3), Continuous(-np.ones(2, np.float32), np.ones(2, np.float32)), None)
CHOICE = Spec(vector(3), Discrete(4), None)
SMALL = Learner(networks=Networks(hidden=(8, 8)), critic=CriticFit(critic_epochs=2, critic_minibatch=20), iterations=10)


def random_batch(spec, seed=0, time=20, envs=5, signals=1):
    rng = np.random.default_rng(seed)
    rows, size = (time, envs), spec.observation.size
    discrete = isinstance(spec.action, Discrete)
    action = rng.integers(spec.action.n, size=rows) if discrete else rng.normal(size=(*rows, spec.action.size))
    return Rollout(
        observation=jnp.array(rng.normal(size=(*rows, size)), jnp.float32),
        action=jnp.array(action, jnp.int32 if discrete else jnp.float32),
        signals=tuple(jnp.array(rng.normal(size=(*rows, signals)).transpose(2, 0, 1), jnp.float32)),
        next_observation=jnp.array(rng.normal(size=(*rows, size)), jnp.float32),
        terminal=jnp.zeros(rows, bool),
        cut=jnp.array(rng.random(rows) < 0.1),
        start_observation=jnp.array(rng.normal(size=(envs, size)), jnp.float32),
    )


def begin(learner=SMALL, spec=BOX, room=None):
    """A state whose normaliser, the identity, counts as filled (what a first batch settles: test_first_batch.py)."""
    room = random_batch(spec, signals=1 + len(learner.limits)) if room is None else room
    state = init(learner, spec, jax.random.key(0), room)
    return dataclasses.replace(state, normalizer=dataclasses.replace(state.normalizer, count=jnp.array(1e-6)))


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
@pytest.mark.parametrize("criterion", [Average(), Discounted(0.9)], ids=["average", "discounted"])
@pytest.mark.parametrize("seed", range(3))
def test_a_step_improves_the_surrogate_within_the_trust_region(spec, criterion, seed):
    learner = dataclasses.replace(SMALL, criterion=criterion)
    state, batch = begin(learner, spec), random_batch(spec, seed)
    after, metrics = update(learner, state, batch)
    assert metrics.step.outcome == Outcome.ACCEPTED
    assert metrics.step.improvement > 0
    # The KL that the update reports is that between the policies it left behind.
    x = state.normalizer(batch.observation)
    kl = np.mean(after.policy(x).kl(state.policy(x)))
    assert kl == pytest.approx(float(metrics.step.kl), rel=1e-3)
    assert 0 < kl <= learner.step.region.delta
    assert after.iteration == 1
    assert after.normalizer.count == pytest.approx(100)


def test_delta_bounds_the_step():
    learners = (dataclasses.replace(SMALL, step=Natural(TrustRegion(delta=delta))) for delta in (1e-4, 1e-2))
    small, large = (update(learner, begin(), random_batch(BOX))[1].step.kl for learner in learners)
    assert small <= 1e-4 < large


@pytest.mark.parametrize("what", ["reward", "huge"])
def test_a_broken_batch_changes_no_parameter(what):
    state, batch = begin(), random_batch(BOX)
    reward = batch.signals[0].at[3, 2].set(np.nan if what == "reward" else np.inf)
    after, metrics = update(SMALL, state, batch._replace(signals=(reward,)))
    assert metrics.step.outcome == Outcome.NON_FINITE
    assert metrics.skipped_in_a_row == 1
    assert metrics.critics.critic_skipped
    np.testing.assert_array_equal(flat(after.policy), flat(state.policy))
    np.testing.assert_array_equal(flat(after.critics), flat(state.critics))
    np.testing.assert_array_equal(flat(after.optimizers), flat(state.optimizers))
    again, metrics = update(SMALL, after, batch)
    assert metrics.step.outcome == Outcome.ACCEPTED
    assert metrics.skipped_in_a_row == 0
    assert not np.array_equal(flat(again.policy), flat(state.policy))


def test_negative_curvature_and_failed_searches_are_named_and_change_nothing():
    state, batch = begin(), random_batch(BOX)
    for region, outcome in [
        (TrustRegion(damping=-50.0), Outcome.CURVATURE),
        (TrustRegion(backtrack_tries=1, delta=30.0, damping=0.01), Outcome.LINE_SEARCH),  # it overshoots its own KL
    ]:
        after, metrics = update(dataclasses.replace(SMALL, step=Natural(region)), state, batch)
        assert metrics.step.outcome == outcome
        np.testing.assert_array_equal(flat(after.policy), flat(state.policy))
        assert not np.array_equal(flat(after.critics), flat(state.critics))  # the critic still learns


@pytest.mark.exact
@pytest.mark.parametrize("damping", [-0.1, -1.0])
def test_the_entropy_is_that_of_the_policy_that_was_kept(damping):
    """Also where the search found an acceptable point that negative curvature forbids."""
    learner = dataclasses.replace(SMALL, step=Natural(TrustRegion(damping=damping)))
    state = begin(learner)
    after, metrics = update(learner, state, random_batch(BOX))
    assert metrics.step.outcome == Outcome.CURVATURE
    np.testing.assert_array_equal(metrics.step.entropy, after.policy(jnp.zeros((1, BOX.observation.size))).entropy())


def test_nothing_to_learn_is_flat():
    """Every action as good as every other: no gradient, no step, and no division by zero."""
    batch = random_batch(BOX)._replace(signals=(jnp.zeros((20, 5)),))
    zero_critic = jax.tree.map(jnp.zeros_like, begin().critics)
    state = dataclasses.replace(begin(), critics=zero_critic)
    after, metrics = update(SMALL, state, batch)
    assert metrics.step.outcome == Outcome.FLAT
    np.testing.assert_array_equal(flat(after.policy), flat(state.policy))


def test_an_update_compiles_once():
    learner = dataclasses.replace(SMALL, iterations=11)
    state = begin(learner)
    state, _ = update(learner, state, random_batch(BOX, 0))
    compiled = _improve._cache_size(), refit._cache_size()
    for seed in range(1, 4):
        state, _ = update(learner, state, random_batch(BOX, seed))
    update(dataclasses.replace(learner, iterations=12), state, random_batch(BOX, 4))  # nor for a longer run
    assert (_improve._cache_size(), refit._cache_size()) == compiled


def test_the_critics_step_size_is_annealed_to_zero():
    """After the last iteration of the run nothing moves any more."""
    learner = dataclasses.replace(SMALL, iterations=2)
    state = begin(learner)
    moves = []
    for seed in range(3):
        after, _ = update(learner, state, random_batch(BOX, seed))
        moves.append(np.abs(flat(after.critics[0].network) - flat(state.critics[0].network)).max())
        state = after
    assert moves[0] > moves[1] > moves[2] == 0


FAST = Passes(policy_step_size=1e-2, policy_minibatch=20)
"""Passes that soon come to the edge of the trust region."""


@pytest.mark.parametrize("step", [Natural(), Clip(FAST), Project(FAST)], ids=["natural", "clip", "project"])
def test_the_trust_region_narrows_along_a_line(step):
    """In the middle of the run a step is one of the δ between, at the end one of the last δ."""
    learner = dataclasses.replace(SMALL, step=step, last_delta_share=0.1, iterations=2)
    narrow = dataclasses.replace(begin(learner), iteration=jnp.array(1, jnp.int32))

    def steps_as(share, iteration):
        delta = share * 0.02
        changed = {"delta": delta} if isinstance(step, Clip) else {"region": TrustRegion(delta)}
        other = dataclasses.replace(learner, step=dataclasses.replace(step, **changed), last_delta_share=None)
        state = dataclasses.replace(narrow, iteration=jnp.array(iteration, jnp.int32))
        moved, _ = update(learner, state, random_batch(BOX))
        same, metrics = update(other, state, random_batch(BOX))
        assert metrics.step.outcome == Outcome.ACCEPTED
        np.testing.assert_allclose(flat(moved.policy), flat(same.policy), rtol=1e-4, atol=1e-6)

    steps_as(1.0, 0)
    steps_as(0.55, 1)
    steps_as(0.1, 2)
    steps_as(0.1, 3)  # an extended run's, until its new end is known


def one_hot_mdp(seed, states=4, actions=3):
    rng = np.random.default_rng(seed)
    P, r = oracles.random_mdp(rng, states, actions)
    return rng, P, r, Spec(vector(states), Discrete(actions), None)


def linear(learner):
    """No hidden layer: with one-hot observations the policy is a table of logits, the critic a table of values."""
    return dataclasses.replace(learner, networks=Networks(hidden=()))


def softmax(logits):
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def sample_batch(rng, P, r, policy, time, envs):
    s, a, reward, s_next = oracles.simulate(rng, P, r, policy, time, envs)
    eye = np.eye(len(P), dtype=np.float32)
    return Rollout(
        observation=jnp.asarray(eye[s]),
        action=jnp.asarray(a, jnp.int32),
        signals=(jnp.asarray(reward, jnp.float32),),
        next_observation=jnp.asarray(eye[s_next]),
        terminal=jnp.zeros(s.shape, bool),
        cut=jnp.zeros(s.shape, bool),
        start_observation=jnp.asarray(eye[s[0]]),
    )


def test_the_sampled_gradient_is_the_gradient_of_the_average_reward():
    """∇ρ by finite differences of the exact ρ, against the gradient that an update takes from a batch."""
    rng, P, r, spec = one_hot_mdp(0)
    logits = rng.normal(size=(4, 3))
    policy = softmax(logits)
    exact = np.empty_like(logits)
    for index in np.ndindex(*logits.shape):
        up, down = logits.copy(), logits.copy()
        up[index] += 1e-5
        down[index] -= 1e-5
        difference = oracles.average_reward(P, r, softmax(up)) - oracles.average_reward(P, r, softmax(down))
        exact[index] = difference / 2e-5

    batch = sample_batch(rng, P, r, policy, time=400, envs=1_000)
    learner = linear(SMALL)
    state = begin(learner, spec)
    network = dataclasses.replace(state.policy.network, weights=(jnp.asarray(logits, jnp.float32),))
    values = jnp.asarray(oracles.bias(P, r, policy)[:, None], jnp.float32)
    critic = dataclasses.replace(state.critics[0].network, weights=(values,))
    state = dataclasses.replace(
        state,
        policy=dataclasses.replace(state.policy, network=network),
        critics=(dataclasses.replace(state.critics[0], network=critic),),
    )
    samples, _ = estimate(learner, state, batch)
    gradient = policy_gradient(state.policy, samples, samples.advantage[0])
    sampled = np.asarray(jax.tree.leaves(gradient.network.weights)[0])
    np.testing.assert_allclose(sampled, exact, atol=0.05 * np.abs(exact).max())


@pytest.mark.parametrize(
    "criterion", [Average(), Average(rate_by="td"), Discounted(0.8)], ids=["reward", "td", "discounted"]
)
def test_the_critic_converges_to_the_exact_value(criterion):
    """Refitted on batch after batch of a fixed policy, the critic becomes the exact bias or discounted value."""
    rng, P, r, spec = one_hot_mdp(1)
    learner = dataclasses.replace(
        linear(SMALL),
        criterion=criterion,
        iterations=100,
        critic=CriticFit(critic_step_size=0.03, critic_l2=0.0, critic_epochs=5),
        step=Natural(TrustRegion(delta=0.0)),
    )
    state = begin(learner, spec)
    policy = softmax(np.asarray(state.policy.network.weights[0]))
    keep_inputs = state.normalizer
    for _ in range(60):
        state, metrics = update(learner, state, sample_batch(rng, P, r, policy, time=50, envs=40))
        state = dataclasses.replace(state, normalizer=keep_inputs)
    assert metrics.step.outcome == Outcome.FLAT  # δ = 0 keeps the policy where it is
    value = np.asarray(state.critics[0](jnp.eye(4)))
    average = isinstance(criterion, Average)
    exact = oracles.bias(P, r, policy) if average else oracles.discounted_value(P, r, policy, 0.8)
    if average:
        assert abs(float(metrics.value_mean)) < 0.1  # the gauge: centred, not drifting
        value, exact = value - value.mean(), exact - exact.mean()
    np.testing.assert_allclose(value, exact, atol=0.12)
    assert float(metrics.rate) == pytest.approx(oracles.average_reward(P, r, policy), abs=0.1)


@pytest.mark.parametrize("gae_lambda", [0.8, None], ids=["λ given", "λ from the data"])
def test_a_batch_whose_rewards_are_all_equal_leaves_the_policy_as_it_is(gae_lambda):
    """All that its advantages could show is the critic's error, of which this critic has much."""
    learner = dataclasses.replace(SMALL, gae_lambda=gae_lambda)
    state, batch = begin(learner), random_batch(BOX)
    equal = batch._replace(signals=(jnp.full_like(batch.signals[0], -1.0),))
    differs = equal._replace(signals=(equal.signals[0].at[3, 2].set(0.0),))
    ends = equal._replace(terminal=equal.terminal.at[3, 2].set(True))
    (after, metrics), *others = [update(learner, state, one) for one in (equal, differs, ends)]
    assert metrics.step.outcome == Outcome.FLAT
    assert np.array_equal(flat(after.policy), flat(state.policy))
    assert not np.array_equal(flat(after.critics[0].network), flat(state.critics[0].network))
    for stepped, metrics in others:
        assert metrics.step.outcome == Outcome.ACCEPTED
        assert not np.array_equal(flat(stepped.policy), flat(state.policy))
