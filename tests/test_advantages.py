"""Advantage estimates against the double sum, their special cases and exact values."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from kemeny.criterion import Average, Bellman, Discounted
from kemeny.learning import advantages
from tests import oracles


def gae(bellman, *arrays_and_lam):
    *arrays, lam = arrays_and_lam
    return advantages.gae(bellman, *map(jnp.asarray, arrays), lam)


def batch(seed, time=7, envs=3):
    rng = np.random.default_rng(seed)
    reward, value, next_value = (rng.normal(size=(time, envs)).astype(np.float32) for _ in range(3))
    trace = (rng.random((time, envs)) > 0.3).astype(np.float32)
    return reward, value, next_value, trace


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("bellman", [Average().bellman(0.7), Discounted(0.9).bellman(0.7)])
def test_equals_the_double_sum(bellman, lam):
    arrays = batch(0)
    expected = oracles.gae_double_sum(*arrays, bellman.offset, bellman.discount, lam)
    np.testing.assert_allclose(gae(bellman, *arrays, lam), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("bellman", [Average().bellman(0.7), Discounted(0.9).bellman(0.7)])
def test_traces_that_are_kept_in_part(bellman, lam):
    """V-trace's sum against the slow one; if all is kept, there is no difference."""
    arrays, kept = batch(5), np.random.default_rng(6).random((7, 3)).astype(np.float32)
    expected = oracles.vtrace_double_sum(*arrays, kept, bellman.offset, bellman.discount, lam)
    found = advantages.gae(bellman, *map(jnp.asarray, arrays), lam, jnp.asarray(kept))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    whole = advantages.gae(bellman, *map(jnp.asarray, arrays), lam, jnp.ones((7, 3)))
    np.testing.assert_allclose(whole, gae(bellman, *arrays, lam), rtol=1e-6)


def test_ends_of_lambda():
    """λ = 0 is the one-step target (Algorithm 2, line 6); λ = 1 the Monte Carlo sum, bootstrapped at the end."""
    reward, value, next_value, _ = batch(1)
    next_value[:-1] = value[1:]  # one unbroken trajectory
    trace = np.ones_like(reward)
    rho = np.float32(0.3)
    one_step = gae(Bellman(rho, 1.0), reward, value, next_value, trace, 0.0) + value
    np.testing.assert_allclose(one_step, reward - rho + next_value, atol=1e-5)
    monte_carlo = gae(Bellman(rho, 1.0), reward, value, next_value, trace, 1.0) + value
    expected = np.cumsum((reward - rho)[::-1], 0)[::-1] + next_value[-1]
    np.testing.assert_allclose(monte_carlo, expected, atol=1e-5)


@pytest.mark.exact
@pytest.mark.parametrize("ends", list(itertools.product([True, False], repeat=4)))
def test_a_batch_equals_its_separate_pieces(ends):
    """Cuts at every position of a batch: nothing leaks from one trajectory into another."""
    reward, value, next_value, _ = batch(2, time=5, envs=1)
    bellman = Average().bellman(np.float32(0.2))
    trace = np.array([[0.0 if end else 1.0] for end in (*ends, True)], np.float32)
    whole = gae(bellman, reward, value, next_value, trace, 0.9)
    start = 0
    for t in range(5):
        if trace[t] == 0:
            piece = slice(start, t + 1)
            alone = gae(bellman, reward[piece], value[piece], next_value[piece], np.ones_like(trace[piece]), 0.9)
            np.testing.assert_array_equal(whole[piece], alone)
            start = t + 1


@pytest.mark.parametrize("criterion", [Average(), Discounted(0.9)])
def test_exact_values_give_the_exact_advantage(criterion):
    """With the exact v, GAE at any λ is an unbiased estimate of the exact advantage."""
    rng = np.random.default_rng(3)
    P, r = oracles.random_mdp(rng)
    policy = rng.dirichlet(np.ones(3), size=4)
    rho = oracles.average_reward(P, r, policy)
    average = isinstance(criterion, Average)
    v = oracles.bias(P, r, policy) if average else oracles.discounted_value(P, r, policy, 0.9)
    bellman = criterion.bellman(rho)
    q = r - bellman.offset + bellman.discount * P @ v
    exact = q - v[:, None]
    s, a, reward, s_next = oracles.simulate(rng, P, r, policy, time=50, envs=4_000)
    arrays = [x.astype(np.float32) for x in (reward, v[s], v[s_next], np.ones_like(reward))]
    for lam in (0.0, 0.9):
        estimate = np.asarray(gae(bellman, *arrays, lam))
        for state, action in itertools.product(range(4), range(3)):
            samples = estimate[(s == state) & (a == action)]
            error = samples.mean() - exact[state, action]
            # Traces overlap, so samples within a trajectory are correlated: allow a generous interval.
            assert abs(error) < 12 * samples.std() / np.sqrt(samples.size)


def test_a_constant_shift_of_the_bias_changes_nothing():
    """The gauge of v̄ is free: only differences of values enter under the average criterion."""
    reward, value, next_value, trace = batch(4)
    plain = gae(Average().bellman(0.1), reward, value, next_value, trace, 0.95)
    shifted = gae(Average().bellman(0.1), reward, value + 64, next_value + 64, trace, 0.95)
    np.testing.assert_allclose(plain, shifted, atol=2e-4)
