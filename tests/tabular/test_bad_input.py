"""Bad input gets a message that names the row, the class or the number, and says what to use instead."""

import gymnasium
import numpy as np
import pytest
import scipy.sparse as sp

from kemeny.criterion import Discounted
from kemeny.errors import Renormalised, UserError
from kemeny.tabular import MDP, Chain, bounds, solve, zoo
from kemeny.tabular.worst_case import zeta_star

GOOD = np.array([[0.5, 0.5], [0.2, 0.8]])
TWO_CLASSES = np.array([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
TRANSIENT = np.array([[0.5, 0.5], [0.0, 1.0]])


def broken(value, row=1, column=0):
    P = GOOD.copy()
    P[row, column] = value
    return P


@pytest.mark.parametrize("form", [np.array, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("P", "sentence"),
    [
        (broken(0.3), r"Row 1 of the transition matrix sums to 1\.1, not to 1\."),
        (np.full((2, 2), 0.4), r"Row 0 .* sums to 0\.8, not to 1 \(2 rows are wrong\)"),
        (broken(-0.2), r"Row 1 .* negative probability, -0\.2 \(column 0\)"),
        (broken(np.nan), r"Row 1 .* not finite \(column 0\)"),
        (broken(np.inf), r"Row 1 .* not finite \(column 0\)"),
        (np.ones((2, 3)) / 3, r"square and not empty, but this one has shape \(2, 3\)"),
    ],
)
def test_matrices_that_are_not_chains(form, P, sentence):
    with pytest.raises(UserError, match=sentence):
        Chain(form(P))


@pytest.mark.parametrize("form", [np.array, sp.csr_array], ids=["dense", "sparse"])
def test_rounding_is_mended_in_a_copy(form):
    """Three rows: one with a negative zero of rounding, one whose sum is off by rounding, one that is exact."""
    given = form([[1 + 2e-16, -2e-16, 0.0], [0.3, 0.3, 0.4 - 3e-10], [0.1, 0.2, 0.7]])
    before = given.copy()
    with pytest.warns(Renormalised, match=r"1 row was divided by its sum.* difference, 3\.0e-10, is in row 1\."):
        P = np.asarray(Chain(given).dense())
    assert (P >= 0).all()
    assert np.abs(P.sum(axis=1) - 1).max() < 1e-15
    np.testing.assert_allclose(P, before.toarray() if sp.issparse(before) else before, atol=3e-10)
    assert P[2].tolist() == [0.1, 0.2, 0.7]
    assert abs(given - before).max() == 0
    assert Chain(P).stationary.sum() == pytest.approx(1, abs=1e-15)


def test_rounding_is_mended_everywhere_that_probabilities_are_given():
    row = [1 + 2e-16, -2e-16]
    mdp = MDP([[row, [0.5, 0.5]], [[0.2, 0.8], [0.5, 0.5]]], np.zeros((2, 2)), start=row)
    assert mdp.transitions.min() == 0
    assert mdp.start.tolist() == [1, 0]
    assert mdp.policy([row, [0.5, 0.5]]).tolist() == [[1, 0], [0.5, 0.5]]


@pytest.mark.parametrize("form", [np.array, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ([1 + 2e-12, -2e-12], r"Row 0 .* negative probability, -2e-12 \(column 1\)"),
        ([0.5, 0.5 - 2e-9], r"Row 0 .* sums to 0\.999999998, not to 1"),
    ],
)
def test_what_is_more_than_rounding_is_refused(form, row, sentence):
    with pytest.raises(UserError, match=sentence):
        Chain(form([row, [0.2, 0.8]]))


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: Chain(TWO_CLASSES).stationary, r"2 recurrent classes \(\{0\} and \{2\}\); transient states \{1\}"),
        (lambda: Chain(sp.csr_array(TWO_CLASSES)).stationary, r"2 recurrent classes .* use limiting"),
        (lambda: Chain(TWO_CLASSES).kemeny, "Kemeny's constant needs one recurrent class"),
        (lambda: Chain(TWO_CLASSES).slem, "needs one recurrent class"),
        (lambda: Chain(TRANSIENT).kemeny, r"irreducible chain, .*transient states \{0\}; use recurrent_chain"),
        (lambda: Chain(TRANSIENT).first_passage, "mean first passage times needs an irreducible chain"),
        (lambda: zoo.cycle(4).mixing_time(), r"period 4, so it never mixes; the lazy chain"),
        (lambda: zoo.birth_death(4000).kemeny, r"use kemeny_estimate\(\)"),
        (lambda: zoo.birth_death(4000).eigenvalues, r"dense 4000 × 4000 matrix"),
        (lambda: zoo.birth_death(50).kemeny_estimate(3), "at least 6 probes, not 3"),
    ],
)
def test_quantities_that_a_chain_does_not_have(ask, sentence):
    with pytest.raises(UserError, match=sentence):
        ask()


def two_actions(P=GOOD, r=None, **settings):
    return MDP(np.stack([GOOD, P], axis=1), np.zeros((2, 2)) if r is None else r, **settings)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: two_actions(broken(0.3)), r"Row \(state 1, action 1\) of the transition matrix sums to 1\.1"),
        (
            lambda: MDP([sp.csr_array(GOOD), sp.csr_array(broken(-0.1))], np.zeros((2, 2))),
            r"\(state 1, action 1\).*-0\.1",
        ),
        (lambda: MDP([sp.csr_array(GOOD), sp.csr_array(np.eye(3))], np.zeros((2, 2))), r"action 1 has shape \(3, 3\)"),
        (lambda: MDP(sp.csr_array(GOOD), np.zeros((2, 1))), "a list with one S × S matrix per action"),
        (lambda: MDP(GOOD, np.zeros((2, 1))), r"S × A × S, but this one has shape \(2, 2\)"),
        (lambda: two_actions(r=np.zeros((2, 3))), r"rewards have shape \(2, 3\), but the transitions need \(2, 2\)"),
        (lambda: two_actions(costs=np.zeros(5)), r"costs have shape \(5,\)"),
        (lambda: two_actions(r=[[0, 1], [np.nan, 0]]), "rewards of state 1, action 0 are not finite"),
        (lambda: two_actions(start=[0.5, 0.6]), r"start distribution sums to 1\.1"),
        (lambda: two_actions(start=[1.0]), r"start distribution has shape \(1,\)"),
    ],
)
def test_models_that_are_not_valid(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (np.array([0, 2]), "takes action 2 in state 1, but actions are 0 to 1"),
        (np.array([0.0, 1.0]), "must hold integers"),
        (np.array([0, 1, 0]), r"shape \(3,\)|3 actions"),
        (np.array([[0.5, 0.6], [1.0, 0.0]]), r"Row 0 of the policy sums to 1\.1"),
        (np.array([[1.0, 0.0, 0.0]] * 2), r"shape \(2, 3\)"),
    ],
)
def test_policies_that_are_not_valid(policy, sentence):
    for use in (two_actions().evaluate, two_actions().chain):
        with pytest.raises(UserError, match=sentence):
            use(policy)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: zoo.multichain().evaluate(np.array([1, 0, 0])), r"2 recurrent classes \(\{1\} and \{2\}\)"),
        (lambda: solve.policy_iteration(zoo.multichain()), "use multichain_policy_iteration"),
        (
            lambda: solve.relative_value_iteration(zoo.multichain(), max_iterations=500),
            r"after 500 iterations .* in \[1, 2\]",
        ),
        (lambda: solve.modified_policy_iteration(zoo.multichain(), max_iterations=500), "depends on the start"),
        (
            lambda: solve.linear_programme(zoo.multichain()),
            "State 2 cannot reach the states that the best policy visits",
        ),
        (lambda: solve.linear_programme(zoo.queue_admission(), -1.0), "at or below -1: the least possible is 0"),
        (lambda: solve.linear_programme(zoo.queue_admission(), np.nan), "must be a finite number"),
        (lambda: solve.linear_programme(zoo.riverswim(), 1.0), "has no costs"),
        (lambda: solve.relative_value_iteration(zoo.riverswim(), step=1.5), "at most 1, not 1.5"),
        (lambda: zoo.model("pacman"), "no model 'pacman'; its models are two_state"),
        (lambda: zoo.garnet(3, branches=9), "3 states cannot have 9 branches"),
        (lambda: two_actions().evaluate(np.array([0, 0]), Discounted(0.9)).bias, "no bias; use value"),
        (lambda: MDP.load("no/such/file.npz"), "does not exist"),
        (lambda: MDP.from_gymnasium(gymnasium.make("CartPole-v1")), "no transition table"),
        (lambda: zeta_star(zoo.access_control()), "use the constant of the new policy"),
    ],
)
def test_requests_that_cannot_be_met(ask, sentence):
    with pytest.raises(UserError, match=sentence):
        ask()


def test_bounds_refuse_steps_that_they_do_not_apply_to():
    mdp = zoo.queue_admission()
    old, never, always = mdp.uniform_policy, np.zeros(22, dtype=int), np.ones(22, dtype=int)
    worse, better = (0.9 * old + 0.1 * mdp.policy(p) for p in (never, always))
    with pytest.raises(UserError, match=r"E\[Ā\] ≥ 0, but this step has"):
        bounds.degradation(mdp, old, worse)
    with pytest.raises(UserError, match="outside the trust region of δ = 1e-06"):
        bounds.degradation(mdp, old, better, delta=1e-6)
    with pytest.raises(UserError, match=r"keeps the limit 0\.1, but the surrogate cost of this step is"):
        bounds.violation(mdp, old, better, limit=0.1)
    with pytest.raises(UserError, match="proves nothing; use kappa='new'"):
        bounds.theorem_1(mdp, old, better, kappa="star")


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda path: path.write_text("hello"), "not a .npz file of plain arrays"),
        (lambda path: path.write_bytes(b""), "not a .npz file of plain arrays"),
        (lambda path: np.savez(path, Q=np.eye(2)), r"needs the arrays P .* it contains Q"),
        (lambda path: np.savez(path, P=np.array([{}]), r=np.zeros(1)), "not a .npz file of plain arrays"),
        (
            lambda path: np.savez(path, P=np.ones((2, 1, 2)), r=np.zeros((2, 1))),
            r"Row \(state 0, action 0\).* sums to 2",
        ),
        (
            lambda path: np.savez(
                path, P_data=np.ones(3), P_indices=np.arange(3), P_indptr=np.arange(4), r=np.zeros((2, 1))
            ),
            "do not fit 2 states and 1 actions",
        ),
    ],
)
def test_files_that_are_not_models(tmp_path, write, sentence):
    path = tmp_path / "model.npz"
    write(path)
    with pytest.raises(UserError, match=sentence):
        MDP.load(path)
