"""Policies that are optimal for a discount: against all policies one by one, a linear programme, and long sums."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from kemeny.criterion import Discounted
from kemeny.errors import UserError
from kemeny.tabular import MDP, discounted, queues, solve, zoo
from kemeny.tabular.solve import discounted_policy_iteration
from tests.tabular import oracles
from tests.tabular.strategies import models, repeatable

GAMMAS = st.sampled_from([0.0, 0.3, 0.9, 0.999])


def values_of_all_policies(P, r, gamma):
    """One row per deterministic policy."""
    states = np.arange(len(P))
    return np.array([
        np.linalg.solve(np.eye(len(P)) - gamma * P[states, policy], r[states, policy])
        for policy in oracles.policies(*r.shape)
    ])  # fmt: skip


@repeatable
@given(models(), GAMMAS)
def test_the_policy_is_the_best_of_all_in_every_start_state(model, gamma):
    mdp = MDP(*model)
    found = discounted_policy_iteration(mdp, gamma)
    best = values_of_all_policies(mdp.transitions, mdp.rewards, gamma).max(axis=0)
    scale = np.abs(mdp.rewards).max() / (1 - gamma) + 1
    np.testing.assert_allclose(found.value, best, atol=1e-9 * scale, rtol=0)
    np.testing.assert_allclose(found.value, mdp.evaluate(found.policy, Discounted(gamma)).value, atol=1e-9 * scale)
    assert (found.value_bounds[0] <= best + 1e-9 * scale).all()
    assert (found.value_bounds[1] >= best - 1e-9 * scale).all()
    assert found.loss <= 1e-8 * scale


@repeatable
@given(models(), GAMMAS, st.integers(0, 2**32 - 1))
def test_the_bounds_hold_for_any_values(model, gamma, seed):
    mdp = MDP(*model)
    P, r = mdp.transitions, mdp.rewards
    best = values_of_all_policies(P, r, gamma).max(axis=0)
    scale = np.abs(r).max() / (1 - gamma) + 1
    value = best + np.random.default_rng(seed).normal(size=len(P))
    low, high = discounted.value_bounds((r + gamma * P @ value).max(axis=1), value, gamma)
    assert (low <= best + 1e-9 * scale).all()
    assert (high >= best - 1e-9 * scale).all()


@pytest.mark.parametrize("gamma", [0.5, 0.95])
def test_the_values_are_those_of_the_linear_programme(gamma):
    """min Σ v subject to v ≥ r + γ·P·v for every action (d'Epenoux 1963)."""
    rng = np.random.default_rng(3)
    P, r = rng.dirichlet(np.full(30, 0.1), size=(30, 4)), rng.normal(size=(30, 4))
    rows = (gamma * P - np.eye(30)[:, None, :]).reshape(-1, 30)
    programme = linprog(np.ones(30), A_ub=rows, b_ub=-r.ravel(), bounds=(None, None))
    np.testing.assert_allclose(discounted_policy_iteration(MDP(P, r), gamma).value, programme.x, atol=1e-6)


def test_forbidden_actions_are_not_taken():
    P = np.broadcast_to(np.eye(2), (2, 2, 2))
    r = np.array([[0.0, 1.0], [0.0, 1.0]])
    found = discounted_policy_iteration(MDP(P, r, allowed=[[True, False], [True, True]]), 0.5)
    assert found.policy.tolist() == [0, 1]
    np.testing.assert_allclose(found.value, [0, 2])


def test_a_sparse_model_that_is_too_large_to_factorise_has_the_values_of_long_sums():
    mdp = queues.n_model(50)
    assert mdp.is_sparse
    assert mdp.n_states > 1500
    found = discounted_policy_iteration(mdp, 0.9)
    value = np.zeros(mdp.n_states)
    for _ in range(400):
        value = mdp.forbid(mdp.rewards + 0.9 * mdp.expect(value)).max(axis=1)
    np.testing.assert_allclose(found.value, value, rtol=1e-10)
    assert found.loss < 1e-9 * np.abs(value).max()


def test_the_loss_of_a_discount_vanishes_as_the_discount_tends_to_one():
    """A short way to a small reward, a long way to a large one: below a critical discount the short way seems better.

    States 0 to 4 lead on; state 0 can pay 1 and stay; state 4 pays 10 and leads back. The long way earns 10 in 5 steps,
    2 per step. It seems better if 10·γ⁴/(1 − γ⁵) > 1/(1 − γ).
    """
    P, r = np.zeros((5, 2, 5)), np.zeros((5, 2))
    P[np.arange(5), :, (np.arange(5) + 1) % 5] = 1
    P[0, 1], r[0, 1], r[4] = np.eye(5)[0], 1, 10
    mdp = MDP(P, r)
    gammas = np.array([0.5, 0.6, 0.65, 0.68, 0.7, 0.8, 0.99])
    gains = [mdp.gain_and_bias(discounted_policy_iteration(mdp, gamma).policy)[0][0] for gamma in gammas]
    np.testing.assert_allclose(gains, np.where(10 * gammas**4 / (1 - gammas**5) > 1 / (1 - gammas), 2, 1))
    assert len(set(np.round(gains, 9))) == 2
    assert solve.policy_iteration(mdp).gain == pytest.approx(2)


def test_bad_input_is_refused_in_a_sentence():
    mdp = MDP(np.broadcast_to(np.eye(2), (2, 2, 2)), np.ones((2, 2)))
    with pytest.raises(UserError, match="The discount must be at least 0 and below 1, not 1"):
        discounted_policy_iteration(mdp, 1.0)
    with pytest.raises(UserError, match="did not converge in 1 iterations; raise max_iterations"):
        discounted_policy_iteration(zoo.riverswim(), 0.99, max_iterations=1)
