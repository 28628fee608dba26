"""Solvers against each other, against the best of all policies, and against solutions computed by hand."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given

from kemeny.tabular import MDP, bounds, solve, zoo
from kemeny.tabular.certified import lower_bounds

from . import oracles
from .strategies import models, repeatable

UNICHAIN = [name for name in zoo.MODELS if name not in ("multichain", *zoo.LARGE)]


def as_sparse(mdp):
    P = mdp.transitions
    return MDP([sp.csr_array(P[:, a]) for a in range(P.shape[1])], mdp.rewards, costs=mdp.costs, name=mdp.name)


def optimality_residual(mdp, gain, bias):
    """The largest error in h = max_a [r − ρ + P·h]."""
    return np.abs((mdp.rewards - gain + mdp.transitions @ bias).max(axis=1) - bias).max()


def multichain_residual(mdp, gain, bias):
    """The largest error in g = max_a P·g and in g + h = max_a [r + P·h], the latter over the actions with P·g = g."""
    next_gain = mdp.transitions @ gain
    value = np.where(next_gain >= gain[:, None] - 1e-9, mdp.rewards + mdp.transitions @ bias, -np.inf)
    return max(np.abs(next_gain.max(axis=1) - gain).max(), np.abs(value.max(axis=1) - gain - bias).max())


@pytest.mark.parametrize("name", UNICHAIN)
def test_all_solvers_agree_on_the_zoo(name):
    mdp = zoo.model(name)
    best = solve.policy_iteration(mdp)
    assert str(best).startswith(f"policy iteration: gain {best.gain:.10g} in [")
    assert optimality_residual(mdp, best.gain, best.bias) < 1e-10 * max(1, np.abs(best.bias).max())
    assert mdp.evaluate(best.policy).rho == pytest.approx(best.gain, abs=1e-11)
    for model in (mdp, as_sparse(mdp)):
        for method in (solve.policy_iteration, solve.relative_value_iteration, solve.modified_policy_iteration):
            found = method(model)
            assert found.gain == pytest.approx(best.gain, abs=1e-8), method.__name__
            assert found.gain_bounds[0] - 1e-9 <= best.gain <= found.gain_bounds[1] + 1e-9
            assert mdp.evaluate(found.policy).rho == pytest.approx(best.gain, abs=1e-8)
        assert solve.linear_programme(model).gain == pytest.approx(best.gain, abs=1e-8)
    np.testing.assert_allclose(solve.multichain_policy_iteration(mdp).gain, best.gain, atol=1e-9)


@repeatable
@given(models(max_states=4))
def test_solvers_find_the_best_of_all_policies(problem):
    P, r = problem
    mdp = MDP(P, r)
    best = oracles.best_gain(P, r)[0]
    scale = np.abs(r).max()
    for method in (solve.policy_iteration, solve.relative_value_iteration, solve.modified_policy_iteration):
        found = method(mdp)
        low, high = found.gain_bounds
        assert low - 1e-7 * scale <= best <= high + 1e-7 * scale
        assert found.gain == pytest.approx(best, abs=1e-7 * scale)
    assert solve.linear_programme(mdp).gain == pytest.approx(best, abs=1e-7 * scale)


@repeatable
@given(models(max_states=4, transient=True))
def test_solvers_find_the_best_of_all_policies_with_transient_states(problem):
    P, r = problem
    mdp = MDP(P, r)
    best = oracles.best_gain(P, r)
    scale = np.abs(r).max()
    np.testing.assert_allclose(solve.multichain_policy_iteration(mdp).gain, best, atol=1e-7 * scale)
    found = solve.policy_iteration(mdp)
    assert found.gain == pytest.approx(best[0], abs=1e-7 * scale)
    assert optimality_residual(mdp, found.gain, found.bias) < 1e-9 * max(scale, np.abs(found.bias).max())


@pytest.mark.parametrize("seed", range(12))
def test_multichain_policy_iteration_finds_the_best_for_each_start(seed):
    """Random deterministic transitions: these models have classes of all kinds."""
    rng = np.random.default_rng(seed)
    n, actions = 5, 2
    P = np.eye(n)[rng.integers(n, size=(n, actions))]
    r = rng.integers(-3, 4, size=(n, actions)).astype(float)
    mdp = MDP(P, r)
    found = solve.multichain_policy_iteration(mdp)
    np.testing.assert_allclose(found.gain, oracles.best_gain(P, r), atol=1e-6)
    assert multichain_residual(mdp, found.gain, found.bias) < 1e-9


def test_closed_forms():
    two = zoo.two_state_mdp()
    assert solve.policy_iteration(two).gain == pytest.approx(0.6 / 0.7 - 0.2, abs=1e-12)
    assert two.evaluate(np.array([0, 0])).rho == pytest.approx(0.1 / 0.4, abs=1e-12)
    assert solve.policy_iteration(zoo.periodic(6)).gain == pytest.approx(2 / 6, abs=1e-12)
    assert solve.policy_iteration(zoo.transient()).gain == pytest.approx(1.25, abs=1e-12)
    many = solve.multichain_policy_iteration(zoo.multichain())
    np.testing.assert_allclose(many.gain, [2, 2, 1], atol=1e-12)
    assert many.policy[0] == 1


@pytest.mark.parametrize("n", [6, 12])
def test_riverswim_is_always_swimming_right(n):
    mdp = zoo.riverswim(n)
    best = solve.policy_iteration(mdp)
    np.testing.assert_array_equal(best.policy, 1)
    up = np.concatenate([[0.6], np.full(n - 1, 0.35)])
    down = np.concatenate([np.full(n - 1, 0.05), [0.4]])
    reward = np.eye(n)[n - 1]
    assert best.gain == pytest.approx(oracles.birth_death_gain(up, down, reward), rel=1e-12)


def test_machine_replacement_is_a_control_limit():
    best = solve.policy_iteration(zoo.machine_replacement())
    switch = int(np.argmax(best.policy))
    np.testing.assert_array_equal(best.policy, np.arange(8) >= switch)
    gains = []
    for limit in range(1, 8):
        policy = (np.arange(8) >= limit).astype(int)
        gains.append(zoo.machine_replacement().evaluate(policy).rho)
    assert best.gain == pytest.approx(max(gains), abs=1e-12)


def test_access_control_accepts_more_when_more_servers_are_free():
    best = solve.policy_iteration(zoo.access_control())
    accept = best.policy.reshape(11, 4)[1:]
    assert np.all(np.diff(accept, axis=0) >= 0), "with more free servers, more customers are accepted"
    assert np.all(np.diff(accept, axis=1) >= 0), "with a higher payment, more customers are accepted"
    assert accept[:, 3].all(), "the customers who pay most are never rejected"


def test_inventory_against_all_policies():
    mdp = zoo.inventory()
    best = solve.policy_iteration(mdp)
    assert best.gain == pytest.approx(oracles.best_gain(mdp.transitions, mdp.rewards).max(), abs=1e-9)
    # The best policy orders up to 3 when the stock is empty. Its chain of 4 states and its rewards, by hand:
    P = np.array([[0, 0.25, 0.5, 0.25], [0.75, 0.25, 0, 0], [0.25, 0.5, 0.25, 0], [0, 0.25, 0.5, 0.25]])
    r = np.array([-13 + 8.0, -1 + 8 * 0.75, -2 + 8.0, -3 + 8.0])
    assert best.gain == pytest.approx(oracles.stationary(P) @ r, abs=1e-12)


def test_aperiodicity_transform_is_needed_and_harmless():
    mdp = zoo.periodic()
    with pytest.raises(ValueError, match="step below 1 if it is periodic"):
        solve.relative_value_iteration(mdp, step=1.0, max_iterations=2000)
    for step in (0.3, 0.7, 0.95):
        assert solve.relative_value_iteration(mdp, step=step).gain == pytest.approx(0.5, abs=1e-8)


def test_gain_bounds_hold_before_convergence():
    mdp = zoo.access_control()
    best = solve.policy_iteration(mdp).gain
    for tolerance in (1.0, 0.1, 1e-3):
        found = solve.relative_value_iteration(mdp, tolerance=tolerance)
        assert found.gain_bounds[0] <= best <= found.gain_bounds[1]
        assert found.gain_bounds[1] - found.gain_bounds[0] <= tolerance


def test_large_sparse_model_by_krylov():
    """2,500 states: enough for policies to be evaluated by a Krylov method."""
    mdp = zoo.garnet(2500, 3, 4, sparse=True)
    best, swept = solve.policy_iteration(mdp), solve.modified_policy_iteration(mdp, tolerance=1e-9)
    assert best.gain == pytest.approx(swept.gain, abs=2e-9)
    assert best.gain_bounds[1] - best.gain_bounds[0] < 1e-8
    assert solve.relative_value_iteration(mdp, tolerance=1e-6).gain == pytest.approx(best.gain, abs=1e-6)


# The limit on the cost


def test_limited_optimum_is_feasible_and_no_mixture_beats_it():
    mdp = zoo.queue_admission(capacity=3)
    P, r, c = mdp.transitions, mdp.rewards, mdp.costs
    assert c is not None
    limit = 1.0
    found = solve.linear_programme(mdp, limit)
    value, cost = mdp.evaluate(found.policy).rho, mdp.evaluate(found.policy, signal="cost").rho
    assert value == pytest.approx(found.gain, abs=1e-9)
    assert cost == pytest.approx(found.cost, abs=1e-9)
    assert cost <= limit + 1e-9
    assert found.gain == pytest.approx(oracles.limited_gain(*oracles.gains_and_costs(P, r, c), limit), abs=1e-7)
    assert found.gain < solve.policy_iteration(mdp).gain - 0.01, "the limit does not bind, so nothing was tested"


def test_price_of_the_limit_is_the_slope_of_the_optimum():
    mdp = zoo.queue_admission()
    at, above = solve.linear_programme(mdp, 2.0), solve.linear_programme(mdp, 2.001)
    assert at.price > 0.01
    assert (above.gain - at.gain) / 0.001 == pytest.approx(at.price, rel=1e-4)
    slack = solve.linear_programme(mdp, 100.0)
    assert slack.price == 0
    assert slack.gain == pytest.approx(solve.policy_iteration(mdp).gain, abs=1e-9)


def test_limited_policy_is_random_in_at_most_one_state():
    for limit in (0.5, 1.0, 3.0):
        policy = solve.linear_programme(zoo.queue_admission(), limit).policy
        assert ((policy > 1e-9).sum(axis=1) > 1).sum() <= 1


# Algorithm 1


@pytest.mark.parametrize("name", UNICHAIN)
def test_algorithm_1_as_published_is_monotone_and_does_not_move(name):
    """On every model here the penalty, of first order, is larger than the improvement, also of first order."""
    run = solve.certified_policy_iteration(zoo.model(name), "paper", iterations=20)
    assert np.all(np.diff(run.gains) >= 0)
    assert run.steps == 0
    assert run.gap > 0.1, "the first policy was already optimal, so nothing was tested"


@pytest.mark.parametrize("name", [n for n in UNICHAIN if n != "access_control"])
def test_algorithm_1_tight_is_monotone_and_reaches_the_optimum(name):
    mdp = zoo.model(name)
    run = solve.certified_policy_iteration(mdp, "tight")
    assert run.steps > 0
    assert np.all(np.diff(run.gains) > -1e-12)
    assert all(c.holds and c.lower > 0 for c in run.certificates)
    assert run.gain == pytest.approx(solve.policy_iteration(mdp).gain, abs=1e-8)
    assert run.gap <= 1e-9
    rises = np.diff(run.gains)
    assert all(rise >= c.lower - 1e-12 for rise, c in zip(rises, run.certificates, strict=True))


@repeatable
@given(models(max_states=4))
def test_algorithm_1_on_random_models_with_the_exact_worst_constant(problem):
    """With κ*, both penalties give gains that never decrease, and the reported gap bounds the rest."""
    P, r = problem
    mdp = MDP(P, r)
    best = oracles.best_gain(P, r)[0]
    paper = solve.certified_policy_iteration(mdp, "paper", kappa="star", iterations=5)
    tight = solve.certified_policy_iteration(mdp, "tight", kappa="star", iterations=25)
    for run in (paper, tight):
        assert np.all(np.diff(run.gains) > -1e-12 * np.abs(r).max())
        assert best - run.gain <= run.gap + 1e-7 * np.abs(r).max()
    assert tight.gain >= paper.gain - 1e-12 * np.abs(r).max()


@pytest.mark.parametrize(("penalty", "statement"), [("paper", bounds.theorem_1_kl), ("tight", bounds.theorem_1_tight)])
def test_the_fast_search_and_the_certificate_are_the_same_bound(penalty, statement):
    mdp = zoo.garnet()
    rng = np.random.default_rng(0)
    policies = rng.dirichlet(np.ones(3), size=(5, 10))
    present = mdp.evaluate(mdp.uniform_policy)
    fast = lower_bounds(mdp, present, policies, penalty, "new")
    slow = [statement(mdp, mdp.uniform_policy, policy).lower for policy in policies]
    np.testing.assert_allclose(fast, slow, rtol=1e-9)
