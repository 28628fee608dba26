"""Both criteria against chains that are solved exactly."""

import numpy as np
import pytest

from kemeny.criterion import Average, Discounted
from kemeny.errors import UserError
from tests import oracles


@pytest.fixture(params=range(4))
def mdp(request):
    rng = np.random.default_rng(request.param)
    P, r = oracles.random_mdp(rng)
    return P, r, rng.dirichlet(np.ones(3), size=4)


def solve(P, r, policy, bellman):
    """v = r − offset + discount·P v, pinned at v(s₀) = 0 where the equation leaves a constant free."""
    P_pi, r_pi = np.einsum("sa,sat->st", policy, P), np.sum(policy * r, 1)
    A = np.eye(4) - bellman.discount * P_pi
    return np.linalg.lstsq(A, r_pi - bellman.offset, rcond=None)[0]


def test_average_equation_gives_the_bias(mdp):
    P, r, policy = mdp
    v = solve(P, r, policy, Average().bellman(oracles.average_reward(P, r, policy)))
    exact = oracles.bias(P, r, policy)
    np.testing.assert_allclose(v - v[0], exact - exact[0], atol=1e-10)


def test_discounted_equation_gives_the_discounted_value(mdp):
    P, r, policy = mdp
    v = solve(P, r, policy, Discounted(0.9).bellman(np.nan))  # the rate is no part of it
    np.testing.assert_allclose(v, oracles.discounted_value(P, r, policy, 0.9), rtol=1e-10)


def test_discounted_tends_to_average(mdp):
    """v_γ − ρ/(1−γ) = v̄ + O(1−γ): Proposition 2, an error of order one."""
    P, r, policy = mdp
    rho, exact = oracles.average_reward(P, r, policy), oracles.bias(P, r, policy)
    gaps = np.array([1e-3, 1e-4])
    errors = [np.abs(solve(P, r, policy, Discounted(1 - gap).bellman(0.0)) - rho / gap - exact).max() for gap in gaps]
    order = np.log(errors[0] / errors[1]) / np.log(gaps[0] / gaps[1])
    assert 0.9 < order < 1.1


def test_td_rate_is_exact_wherever_the_batch_comes_from():
    """With the exact bias, r + v(s') − v(s) averages to ρ from every state, not only from the stationary ones."""
    rng = np.random.default_rng(0)
    P, r = oracles.random_mdp(rng)
    policy = rng.dirichlet(np.ones(3), size=4)
    v = oracles.bias(P, r, policy)
    rho = oracles.average_reward(P, r, policy)
    s = 2  # a batch that never leaves one state
    expected_next = np.einsum("a,at,t->", policy[s], P[s], v)
    estimate = Average(rate_by="td").estimate_rate(policy[s] @ r[s], np.array(v[s]), np.array(expected_next))
    assert estimate == pytest.approx(rho, abs=1e-10)
    assert Average().estimate_rate(np.array([policy[s] @ r[s]]), v, v) != pytest.approx(rho, abs=1e-3)


def test_gauge():
    targets = np.array([1.0, 2.0, 6.0])
    np.testing.assert_array_equal(Average().fix_gauge(targets, targets.mean()), [-2.0, -1.0, 3.0])
    np.testing.assert_array_equal(Average(gauge="free").fix_gauge(targets, targets.mean()), targets)
    np.testing.assert_array_equal(Discounted(0.9).fix_gauge(targets, targets.mean()), targets)


def test_units_of_a_limit():
    assert Average().objective(2.0, 70.0) == 2.0
    assert Average().slope == 1.0
    assert Discounted(0.9).objective(2.0, 70.0) == 70.0
    assert Discounted(0.9).slope == pytest.approx(10.0)


@pytest.mark.parametrize("gamma", [1.0, 1.5, -0.1, float("nan")])
def test_a_discount_of_one_points_to_the_average_criterion(gamma):
    with pytest.raises(UserError, match="atrpo"):
        Discounted(gamma)
