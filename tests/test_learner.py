"""Laws of one update, on batches whose right answer is known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from kemeny.learning import update as learner
from kemeny.criterion import Average, Discounted
from kemeny.learning.update import CriticFit, Learner, Networks, init, update
from kemeny.rollout import Rollout
from kemeny.spec import Continuous, Discrete, Spec
from kemeny.learning.steps.trust_region import Outcome, TrustRegion
from tests import oracles

BOX = Spec(3, Continuous(-np.ones(2, np.float32), np.ones(2, np.float32)), None)
CHOICE = Spec(3, Discrete(4), None)
SMALL = Learner(networks=Networks(hidden=(8, 8)), critic=CriticFit(critic_epochs=2, critic_minibatch=20), iterations=10)


def random_batch(spec, seed=0, time=20, envs=5, signals=1, signal=None):
    rng = np.random.default_rng(seed)
    rows = (time, envs)
    discrete = isinstance(spec.action, Discrete)
    action = rng.integers(spec.action.n, size=rows) if discrete else rng.normal(size=(*rows, spec.action.size))
    return Rollout(
        observation=jnp.array(rng.normal(size=(*rows, spec.observation_size)), jnp.float32),
        action=jnp.array(action, jnp.int32 if discrete else jnp.float32),
        signal=jnp.array(rng.normal(size=(*rows, signals)) if signal is None else signal, jnp.float32),
        next_observation=jnp.array(rng.normal(size=(*rows, spec.observation_size)), jnp.float32),
        terminal=jnp.zeros(rows, bool),
        cut=jnp.array(rng.random(rows) < 0.1),
        start_observation=jnp.array(rng.normal(size=(envs, spec.observation_size)), jnp.float32),
    )


def begin(learning=SMALL, spec=BOX):
    return init(learning, spec, jax.random.key(0))


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
@pytest.mark.parametrize("criterion", [Average(), Discounted(0.9)], ids=["average", "discounted"])
@pytest.mark.parametrize("seed", range(3))
def test_a_step_improves_the_surrogate_within_the_trust_region(spec, criterion, seed):
    learning = dataclasses.replace(SMALL, criterion=criterion)
    state, batch = begin(learning, spec), random_batch(spec, seed)
    after, metrics = update(learning, state, batch)
    assert metrics.outcome == Outcome.ACCEPTED
    assert metrics.improvement > 0
    # The KL that the update reports is that between the policies it left behind.
    x = state.normalizer(batch.observation)
    kl = np.mean(after.policy(x).kl(state.policy(x)))
    assert kl == pytest.approx(float(metrics.kl), rel=1e-3)
    assert 0 < kl <= learning.region.delta
    assert after.iteration == 1
    assert after.normalizer.count == 100


def test_delta_bounds_the_step():
    small, large = (
        update(dataclasses.replace(SMALL, region=TrustRegion(delta=delta)), begin(), random_batch(BOX))[1].kl
        for delta in (1e-4, 1e-2)
    )
    assert small <= 1e-4 < large


@pytest.mark.parametrize("what", ["reward", "huge"])
def test_a_broken_batch_changes_no_parameter(what):
    state, batch = begin(), random_batch(BOX)
    signal = np.array(batch.signal)
    signal[3, 2, 0] = np.nan if what == "reward" else np.inf
    after, metrics = update(SMALL, state, batch._replace(signal=jnp.array(signal)))
    assert metrics.outcome == Outcome.NON_FINITE
    assert metrics.skipped_in_a_row == 1
    assert metrics.critic_skipped
    np.testing.assert_array_equal(flat(after.policy), flat(state.policy))
    np.testing.assert_array_equal(flat(after.critics), flat(state.critics))
    np.testing.assert_array_equal(flat(after.optimizers), flat(state.optimizers))
    again, metrics = update(SMALL, after, batch)
    assert metrics.outcome == Outcome.ACCEPTED
    assert metrics.skipped_in_a_row == 0
    assert not np.array_equal(flat(again.policy), flat(state.policy))


def test_negative_curvature_and_failed_searches_are_named_and_change_nothing():
    state, batch = begin(), random_batch(BOX)
    for region, outcome in [
        (TrustRegion(damping=-50.0), Outcome.CURVATURE),
        (TrustRegion(backtrack_tries=1, delta=30.0), Outcome.LINE_SEARCH),  # so long a step overshoots its own KL
    ]:
        after, metrics = update(dataclasses.replace(SMALL, region=region), state, batch)
        assert metrics.outcome == outcome
        np.testing.assert_array_equal(flat(after.policy), flat(state.policy))
        assert not np.array_equal(flat(after.critics), flat(state.critics))  # the critic still learns


@pytest.mark.parametrize("damping", [-0.1, -1.0])
def test_the_entropy_is_that_of_the_policy_that_was_kept(damping):
    """Also where the search found an acceptable point that negative curvature forbids."""
    learning = dataclasses.replace(SMALL, region=TrustRegion(damping=damping))
    state = begin(learning)
    after, metrics = update(learning, state, random_batch(BOX))
    assert metrics.outcome == Outcome.CURVATURE
    np.testing.assert_array_equal(metrics.entropy, after.policy(jnp.zeros((1, BOX.observation_size))).entropy())


def test_nothing_to_learn_is_flat():
    """Every action as good as every other: no gradient, no step, and no division by zero."""
    batch = random_batch(BOX, signal=np.zeros((20, 5, 1)))
    zero_critic = jax.tree.map(jnp.zeros_like, begin().critics)
    state = dataclasses.replace(begin(), critics=zero_critic)
    after, metrics = update(SMALL, state, batch)
    assert metrics.outcome == Outcome.FLAT
    np.testing.assert_array_equal(flat(after.policy), flat(state.policy))


def test_an_update_compiles_once():
    learning = dataclasses.replace(SMALL, iterations=11)
    state = begin(learning)
    state, _ = update(learning, state, random_batch(BOX, 0))
    compiled = learner._move._cache_size(), learner._refit._cache_size()
    for seed in range(1, 4):
        state, _ = update(learning, state, random_batch(BOX, seed))
    update(dataclasses.replace(learning, iterations=12), state, random_batch(BOX, 4))  # nor for a longer run
    assert (learner._move._cache_size(), learner._refit._cache_size()) == compiled


def test_the_critics_rate_is_annealed_to_zero():
    """After the last iteration of the run nothing moves any more."""
    learning = dataclasses.replace(SMALL, iterations=2)
    state = begin(learning)
    moves = []
    for seed in range(3):
        after, _ = update(learning, state, random_batch(BOX, seed))
        moves.append(np.abs(flat(after.critics) - flat(state.critics)).max())
        state = after
    assert moves[0] > moves[1] > moves[2] == 0


def one_hot_mdp(seed, states=4, actions=3):
    rng = np.random.default_rng(seed)
    P, r = oracles.random_mdp(rng, states, actions)
    return rng, P, r, Spec(states, Discrete(actions), None)


def linear(learning):
    """No hidden layer: with one-hot observations the policy is a table of logits, the critic a table of values."""
    return dataclasses.replace(learning, networks=Networks(hidden=()))


def softmax(logits):
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def sample_batch(rng, P, r, policy, time, envs):
    s, a, reward, s_next = oracles.simulate(rng, P, r, policy, time, envs)
    eye = np.eye(len(P), dtype=np.float32)
    return Rollout(
        observation=jnp.asarray(eye[s]),
        action=jnp.asarray(a, jnp.int32),
        signal=jnp.asarray(reward[..., None], jnp.float32),
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
    learning = linear(SMALL)
    state = begin(learning, spec)
    network = dataclasses.replace(state.policy.network, weights=(jnp.asarray(logits, jnp.float32),))
    values = jnp.asarray(oracles.bias(P, r, policy)[:, None], jnp.float32)
    critic = dataclasses.replace(state.critics[0].network, weights=(values,))
    state = dataclasses.replace(
        state,
        policy=dataclasses.replace(state.policy, network=network),
        critics=(dataclasses.replace(state.critics[0], network=critic),),
    )
    estimate = learner.estimate(learning, state, batch)[0]
    gradient = learner.policy_gradient(
        state.policy, batch.observation.reshape(-1, 4), batch.action.reshape(-1), estimate.advantage
    )
    sampled = np.asarray(jax.tree.leaves(gradient.network.weights)[0])
    np.testing.assert_allclose(sampled, exact, atol=0.05 * np.abs(exact).max())


@pytest.mark.parametrize(
    "criterion", [Average(), Average(rate="td"), Discounted(0.8)], ids=["reward", "td", "discounted"]
)
def test_the_critic_converges_to_the_exact_value(criterion):
    """Refitted on batch after batch of a fixed policy, the critic becomes the exact bias or discounted value."""
    rng, P, r, spec = one_hot_mdp(1)
    learning = dataclasses.replace(
        linear(SMALL),
        criterion=criterion,
        iterations=100,
        critic=CriticFit(critic_rate=0.03, critic_l2=0.0, critic_epochs=5),
        region=TrustRegion(delta=0.0),
    )
    state = begin(learning, spec)
    policy = softmax(np.asarray(state.policy.network.weights[0]))
    keep_inputs = state.normalizer
    for _ in range(60):
        state, metrics = update(learning, state, sample_batch(rng, P, r, policy, time=50, envs=40))
        state = dataclasses.replace(state, normalizer=keep_inputs)
    assert metrics.outcome == Outcome.FLAT  # δ = 0 keeps the policy where it is
    value = np.asarray(state.critics[0](jnp.eye(4)))
    average = isinstance(criterion, Average)
    exact = oracles.bias(P, r, policy) if average else oracles.discounted_value(P, r, policy, 0.8)
    if average:
        assert abs(float(metrics.value_mean)) < 0.1  # the gauge: centred, not drifting
        value, exact = value - value.mean(), exact - exact.mean()
    np.testing.assert_allclose(value, exact, atol=0.12)
    assert float(metrics.rate) == pytest.approx(oracles.average_reward(P, r, policy), abs=0.1)
