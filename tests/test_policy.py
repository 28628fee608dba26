"""Networks, and distributions over actions against scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from kemeny.learning.networks import Categorical, CategoricalPolicy, Gaussian, GaussianPolicy, Perceptron
from kemeny.learning.settings import Networks


def gaussians():
    rng = np.random.default_rng(0)
    first, second = (
        Gaussian(jnp.array(rng.normal(size=(5, 3)), jnp.float32), jnp.array(rng.normal(size=3) / 2, jnp.float32))
        for _ in range(2)
    )
    return first, second


def categoricals():
    rng = np.random.default_rng(1)
    return tuple(Categorical(jnp.array(rng.normal(size=(5, 4)), jnp.float32)) for _ in range(2))


def test_gaussian_log_prob_and_entropy_against_scipy():
    p, _ = gaussians()
    action = jnp.array(np.random.default_rng(2).normal(size=(5, 3)), jnp.float32)
    law = scipy.stats.norm(p.mean, np.exp(p.log_std))
    np.testing.assert_allclose(p.log_prob(action), law.logpdf(action).sum(1), rtol=1e-5)
    np.testing.assert_allclose(p.entropy(), law.entropy()[0].sum(), rtol=1e-5)


def test_gaussian_kl_against_samples():
    p, q = gaussians()
    draws = p.mean + np.exp(p.log_std) * np.random.default_rng(3).normal(size=(100_000, 1, 3)).astype(np.float32)
    estimate = np.mean(jax.vmap(p.log_prob)(draws) - jax.vmap(q.log_prob)(draws), 0)
    np.testing.assert_allclose(p.kl(q), estimate, rtol=0.03)
    np.testing.assert_array_equal(p.kl(p), np.zeros(5))


def test_categorical_against_scipy():
    p, q = categoricals()
    probabilities, others = (scipy.special.softmax(np.asarray(c.logits), 1) for c in (p, q))
    action = np.array([0, 1, 2, 3, 0])
    np.testing.assert_allclose(p.log_prob(jnp.asarray(action)), np.log(probabilities[np.arange(5), action]), rtol=1e-5)
    np.testing.assert_allclose(p.kl(q), scipy.stats.entropy(probabilities, others, axis=1), rtol=1e-5)
    np.testing.assert_allclose(p.entropy(), scipy.stats.entropy(probabilities, axis=1).mean(), rtol=1e-5)
    np.testing.assert_allclose(p.kl(p), np.zeros(5), atol=1e-7)


def test_networks_start_orthogonal_with_a_small_head():
    network = Perceptron.init(Networks(), jax.random.key(0), 5, 2, 0.01)
    hidden, head = np.asarray(network.weights[1]), np.asarray(network.weights[2])
    np.testing.assert_allclose(hidden.T @ hidden, 2 * np.eye(64), atol=1e-5)
    np.testing.assert_allclose(head.T @ head, 1e-4 * np.eye(2), atol=1e-9)
    assert all(np.all(np.asarray(bias) == 0) for bias in network.biases)


def test_policies_are_the_distributions_they_say():
    x = jnp.ones((7, 5))
    network = Perceptron.init(Networks(hidden=(8,)), jax.random.key(0), 5, 2, 1.0)
    gaussian = GaussianPolicy(network, jnp.array([-0.5, -0.5]))(x)
    np.testing.assert_array_equal(gaussian.mean, network(x))
    assert gaussian.log_prob(jnp.zeros((7, 2))).shape == (7,)
    assert CategoricalPolicy(network)(x).log_prob(jnp.zeros(7, int)).shape == (7,)


@pytest.mark.parametrize(
    ("activation", "function"), [("tanh", np.tanh), ("relu", lambda x: x * (x > 0))], ids=["tanh", "relu"]
)
def test_a_perceptron_written_out(activation, function):
    """Hidden layers of these units, and a head without."""
    rng = np.random.default_rng(0)
    network = Perceptron.init(Networks(hidden=(8, 6), activation=activation), jax.random.key(0), 5, 2, 1.0)
    network = jax.tree.map(lambda leaf: leaf + jnp.array(rng.normal(0, 0.3, leaf.shape), jnp.float32), network)
    x = rng.normal(size=(7, 5)).astype(np.float32)
    (first, second, head), (a, b, c) = (map(np.asarray, arrays) for arrays in (network.weights, network.biases))
    expected = function(function(x @ first + a) @ second + b) @ head + c
    np.testing.assert_allclose(network(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-6)
    assert (expected < 0).any()
    assert network.description == {"kind": "perceptron", "activation": activation}
