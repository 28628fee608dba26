"""Fisher products, conjugate gradient and backtracking, each against what it must equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from kemeny.learning.networks import CategoricalPolicy, GaussianPolicy, Perceptron
from kemeny.learning.settings import Networks, TrustRegion
from kemeny.learning.steps.trust_region import Candidate, backtrack, conjugate_gradient, fisher_product

X = jnp.array(np.random.default_rng(0).normal(size=(40, 3)), jnp.float32)


@pytest.fixture(params=["gaussian", "categorical"])
def problem(request):
    """A small policy as a function of its flat parameters, and those parameters."""
    network = Perceptron.init(Networks(hidden=(4,)), jax.random.key(1), 3, 2, 1.0)
    policy = (
        GaussianPolicy(network, jnp.array([-0.5, 0.1])) if request.param == "gaussian" else CategoricalPolicy(network)
    )
    theta, unravel = ravel_pytree(policy)
    return (lambda point: unravel(point)(X)), theta


def test_fisher_product_is_the_hessian_of_the_mean_kl(problem):
    distribution, theta = problem
    here = distribution(theta)
    hessian = jax.jit(jax.hessian(lambda point: jnp.mean(distribution(point).kl(here))))(theta)
    product = fisher_product(distribution, theta, damping=0.0)
    columns = jax.jit(jax.vmap(product))(jnp.eye(theta.size))
    np.testing.assert_allclose(columns, hessian, atol=2e-5)
    assert np.linalg.eigvalsh(np.asarray(columns)).min() > -1e-5


def test_fisher_product_is_the_covariance_of_the_score(problem):
    """H = E[∇log π ∇log πᵀ] (Appendix E), by sampling actions."""
    distribution, theta = problem
    here = distribution(theta)
    key = jax.random.key(2)
    draws = 4_000
    if hasattr(here, "mean"):
        actions = here.mean + jnp.exp(here.log_std) * jax.random.normal(key, (draws, *here.mean.shape))
    else:
        actions = jax.random.categorical(key, here.logits, shape=(draws, 40))
    score = jax.jit(jax.vmap(jax.jacobian(lambda point, action: distribution(point).log_prob(action)), (None, 0)))
    scores = np.asarray(score(theta, actions)).reshape(-1, theta.size)
    product = fisher_product(distribution, theta, damping=0.0)
    expected = jax.jit(jax.vmap(product))(jnp.eye(theta.size))
    np.testing.assert_allclose(scores.T @ scores / len(scores), expected, atol=0.06)


def test_damping_is_added_to_the_diagonal(problem):
    distribution, theta = problem
    x = jnp.arange(theta.size, dtype=jnp.float32)
    difference = fisher_product(distribution, theta, 0.25)(x) - fisher_product(distribution, theta, 0.0)(x)
    np.testing.assert_allclose(difference, 0.25 * x, rtol=1e-3, atol=1e-3)


@pytest.mark.exact  # as many iterations as dimensions: rounding decides how much of the last residual is left
def test_conjugate_gradient_solves():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(8, 8))
    H = jnp.array(root @ root.T + np.eye(8), jnp.float32)
    g = jnp.array(rng.normal(size=8), jnp.float32)
    x, least = conjugate_gradient(lambda v: H @ v, g, 8)
    np.testing.assert_allclose(x, np.linalg.solve(H, g), rtol=2e-3, atol=1e-4)
    assert 0 < least <= np.linalg.eigvalsh(H).max() * 1.001


def test_conjugate_gradient_keeps_the_galerkin_identity():
    """xᵀHx = g·x after any number of iterations: why √(2δ/g·x) is the right length for a truncated solve."""
    rng = np.random.default_rng(4)
    root = rng.normal(size=(20, 20))
    H = jnp.array(root @ root.T + 0.5 * np.eye(20), jnp.float32)
    g = jnp.array(rng.normal(size=20), jnp.float32)
    x, _ = conjugate_gradient(lambda v: H @ v, g, 5)
    assert float(x @ H @ x) == pytest.approx(float(g @ x), rel=1e-3)


def test_conjugate_gradient_reports_negative_curvature():
    H = jnp.diag(jnp.array([1.0, -1.0]))
    _, least = conjugate_gradient(lambda v: H @ v, jnp.array([0.5, 1.0]), 5)
    assert least <= 0


def test_conjugate_gradient_of_zero_is_zero():
    x, least = conjugate_gradient(lambda v: 2 * v, jnp.zeros(3), 5)
    np.testing.assert_array_equal(x, np.zeros(3))
    assert least > 0


def test_backtracking_takes_the_longest_acceptable_step():
    def judge(point):
        return Candidate(point[0], jnp.zeros(()), point[0] <= 0.7)

    search = backtrack(judge, jnp.zeros(1), jnp.ones(1), TrustRegion(backtrack=0.8, backtrack_tries=10))
    assert search.accepted
    assert search.tries == 3  # 1, 0.8, 0.64
    np.testing.assert_allclose(search.theta, [0.64], rtol=1e-6)


def test_backtracking_returns_the_old_parameters_bit_for_bit():
    theta = jnp.array([0.1, 1 / 3, -2.7])

    def judge(point):
        return Candidate(jnp.zeros(()), jnp.zeros(()), jnp.array(False))

    search = backtrack(judge, theta, jnp.ones(3), TrustRegion())
    assert not search.accepted
    assert search.tries == 10
    np.testing.assert_array_equal(search.theta, theta)
