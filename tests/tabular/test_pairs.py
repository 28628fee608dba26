"""Models that list their pairs of state and action."""

import numpy as np
import pytest
import scipy.sparse as sp

from kemeny.errors import UserError
from kemeny.tabular import MDP, solve

STATES, ACTIONS = [1, 0, 1], [1, 0, 0]
ROWS = np.array([[0.5, 0.5], [0.9, 0.1], [0.0, 1.0]])
REWARDS, COSTS = [-2.0, 3.0, 0.0], [1.0, 2.0, 3.0]


@pytest.mark.parametrize("form", [np.array, sp.csr_array, sp.coo_array], ids=["dense", "csr", "coo"])
def test_the_same_model_as_with_a_mask(form):
    """Pairs in any order; the answer is 3·5/6 − 2/6."""
    mdp = MDP.from_pairs(STATES, ACTIONS, form(ROWS), REWARDS, COSTS, start=[0, 1], name="machine")
    P = np.zeros((2, 2, 2))
    P[STATES, ACTIONS] = ROWS
    other = MDP(P, [[3, 9], [0, -2]], [[2, 9], [3, 1]], allowed=[[1, 0], [1, 1]])
    assert mdp.is_sparse == (form is not np.array)
    for field in ("transitions", "rewards", "costs", "allowed", "rewards_by_action"):
        np.testing.assert_array_equal(getattr(mdp, field), getattr(other, field), err_msg=field)
    assert (mdp.name, mdp.start.tolist()) == ("machine", [0, 1])
    assert solve.linear_programme(mdp).gain == pytest.approx(13 / 6)


def test_many_actions_of_which_a_state_has_few():
    """A ring of 3,000 states with 500 actions, two per state: a mixed policy costs no more than its transitions."""
    n, states = 3000, np.repeat(np.arange(3000), 2)
    actions = (states * 7 + np.tile([0, 1], n)) % 500
    rows = sp.csr_array((np.ones(2 * n), ((np.arange(2 * n)), (states + np.tile([1, 2], n)) % n)), shape=(2 * n, n))
    mdp = MDP.from_pairs(states, actions, rows, np.tile([1.0, 0.0], n))
    assert mdp.P.nnz == 2 * n
    chain = mdp.chain(mdp.uniform_policy)
    assert chain.P.nnz == 2 * n
    assert chain.P.has_sorted_indices
    np.testing.assert_allclose(chain.P.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"states": [0, 0, 1], "actions": [0, 0, 0]}, "state 0 and action 0 is listed twice"),
        ({"states": [0, 1]}, r"states of the pairs have shape \(2,\), but there are 3 rows"),
        ({"states": [0, 2, 1]}, "name state 2, but the transitions have 2 columns"),
        ({"actions": [0, -1, 1]}, "actions of the pairs must be whole numbers from 0"),
        ({"actions": [0.0, 1.0, 1.0]}, "whole numbers"),
        ({"actions": [0, 1, 10**15]}, "number the actions of each state from 0"),
        ({"states": [0, 0, 0], "actions": [0, 1, 2]}, "State 1 has no allowed action"),
        ({"r": [1.0, 2.0]}, r"rewards have shape \(2,\), but they need one entry per pair: \(3,\)"),
        ({"P": ROWS[0]}, r"must be L × S"),
        ({"P": ROWS * 2}, r"Row \(state 0, action 0\) of the transition matrix sums to 2"),
    ],
)
@pytest.mark.parametrize("form", [np.array, sp.csr_array], ids=["dense", "sparse"])
def test_pairs_that_are_refused(changes, sentence, form):
    given = {"states": STATES, "actions": ACTIONS, "P": ROWS, "r": REWARDS} | changes
    with pytest.raises(UserError, match=sentence):
        MDP.from_pairs(**given | {"P": form(given["P"])})
