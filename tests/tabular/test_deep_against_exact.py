"""The deep code's advantage estimates against the exact ones, on trajectories of zoo models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kemeny.criterion import Average, Discounted
from kemeny.learning.advantages import gae
from kemeny.tabular import zoo

estimate = jax.jit(gae, static_argnames="lam")
STEPS, TRAJECTORIES = 400, 500


def sample(name, criterion):
    mdp = zoo.model(name)
    policy = np.random.default_rng(1).dirichlet(np.ones(mdp.n_actions), size=mdp.n_states)
    return mdp, mdp.evaluate(policy, criterion), mdp.sample(policy, STEPS, np.random.default_rng(2), TRAJECTORIES)


def estimates(value, path, v, lam):
    trace = np.ones(path.rewards.shape)
    arrays = (path.rewards, v[path.states], v[path.next_states], trace)
    return np.asarray(estimate(value.bellman, *(jnp.asarray(x) for x in arrays), lam))


def mean_by_pair(mdp, path, advantages, rows):
    """The mean estimate for each state and action, and its standard error; trajectories are independent."""
    size = mdp.n_states * mdp.n_actions
    pair = path.states[rows] * mdp.n_actions + path.actions[rows] + size * np.arange(TRAJECTORIES)
    count = np.bincount(pair.ravel(), minlength=size * TRAJECTORIES).reshape(TRAJECTORIES, size)
    total = np.bincount(pair.ravel(), advantages[rows].ravel(), minlength=size * TRAJECTORIES).reshape(count.shape)
    n = np.maximum(count.sum(axis=0), 1)
    mean = total.sum(axis=0) / n
    error = np.sqrt(((total - mean * count) ** 2).sum(axis=0)) / n
    return (x.reshape(mdp.n_states, -1) for x in (mean, error, n))


@pytest.mark.parametrize("criterion", [Average(), Discounted(0.9)], ids=["average", "discounted"])
@pytest.mark.parametrize("lam", [0.0, 0.9])
@pytest.mark.parametrize("name", ["garnet", "inventory", "machine_replacement"])
def test_gae_with_the_exact_critic_has_the_exact_advantage_as_its_mean(name, criterion, lam):
    mdp, value, path = sample(name, criterion)
    advantages = estimates(value, path, value.value, lam)
    mean, error, count = mean_by_pair(mdp, path, advantages, slice(0, STEPS - 50))
    seen = count > 500
    assert seen.sum() >= 8
    slack = 4.5 * error + 1e-4 * max(1.0, np.abs(value.value).max())
    assert np.all(np.abs(mean - value.advantage)[seen] < slack[seen])
    assert np.abs(value.advantage[seen]).max() > 5 * np.median(slack[seen]), "too noisy to tell anything"


@pytest.mark.parametrize("criterion", [Average(), Discounted(0.9)], ids=["average", "discounted"])
def test_a_critic_fitted_to_its_own_targets_converges_to_the_exact_values(criterion):
    """Tabular regression on A + v, repeated: the bias up to a constant, or the discounted value."""
    mdp, value, path = sample("garnet", criterion)
    rate = float(criterion.estimate_rate(path.rewards, np.zeros(1), np.zeros(1)))
    assert rate == pytest.approx(value.chain.gain_and_bias((value.policy * mdp.rewards).sum(axis=1))[0], abs=0.01)
    exact = value.value
    fitted = np.zeros(mdp.n_states)
    where = path.states.ravel()
    count = np.maximum(np.bincount(where, minlength=mdp.n_states), 1)
    scored = type(value)(**{**vars(value), "bellman": criterion.bellman(rate)})
    for _ in range(30):
        targets = estimates(scored, path, fitted, 0.5) + fitted[path.states]
        targets = criterion.fix_gauge(targets, targets.mean())
        fitted = np.bincount(where, targets.ravel(), minlength=mdp.n_states) / count
    if isinstance(criterion, Average):
        fitted, exact = fitted - value.visitation @ fitted, exact - value.visitation @ exact
    np.testing.assert_allclose(fitted, exact, atol=0.03)
    assert np.ptp(exact) > 0.5
