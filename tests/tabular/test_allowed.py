"""Models that forbid actions: compared with models in which a forbidden action is a copy of an allowed one."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from kemeny.criterion import Average, Discounted
from kemeny.errors import UserError
from kemeny.tabular import MDP, bounds, solve, zoo
from kemeny.tabular.worst_case import climb, kappa_star, zeta_star

from . import oracles
from .strategies import SEEDS, models

repeatable = settings(max_examples=10, deadline=None, derandomize=True)

FORMS = pytest.mark.parametrize("form", ["dense", "sparse"])
STATEMENTS = (
    bounds.lemma_1,
    bounds.lemma_2,
    bounds.lemma_3,
    bounds.theorem_1,
    bounds.theorem_1_kl,
    bounds.theorem_unichain,
)
DISCOUNTED = (bounds.schulman, bounds.achiam)


def masked(P, r, allowed, form="dense", **settings):
    """A model whose forbidden pairs hold nonsense: it must be ignored."""
    P, r = P.copy(), np.array(r, dtype=float)
    P[~allowed], r[~allowed] = np.nan, np.inf
    if form == "sparse":
        P = [sp.csr_array(P[:, a]) for a in range(P.shape[1])]
    return MDP(P, r, allowed=allowed, **settings)


def copied(P, r, allowed, **settings):
    """The same decisions without a mask: a forbidden action does what the first allowed one does."""
    first, P, r = allowed.argmax(axis=1), P.copy(), r.copy()
    for s, a in np.argwhere(~allowed):
        P[s, a], r[s, a] = P[s, first[s]], r[s, first[s]]
    return MDP(P, r, **settings)


@st.composite
def restricted(draw):
    """A model and a mask that forbids at least one pair."""
    P, r = draw(models(max_states=4))
    rng = np.random.default_rng(draw(SEEDS))
    allowed = rng.random(r.shape) < 0.5
    allowed[np.arange(len(r)), rng.integers(r.shape[1], size=len(r))] = True
    allowed[0, rng.integers(r.shape[1])] = False
    allowed[0, (np.flatnonzero(~allowed[0])[0] + 1) % r.shape[1]] = True
    return P, r, allowed


def random_policy(allowed, rng):
    weights = allowed * (rng.random(allowed.shape) + 0.05)
    return weights / weights.sum(axis=1, keepdims=True)


def best_by_trying(P, r, allowed):
    """The best gain of all deterministic policies that take allowed actions."""
    states = np.arange(len(r))
    every = itertools.product(*(np.flatnonzero(row) for row in allowed))
    return max(oracles.stationary(P[states, list(pi)]) @ r[states, list(pi)] for pi in every)


@FORMS
@repeatable
@given(restricted())
def test_solvers_find_the_best_allowed_policy(form, problem):
    P, r, allowed = problem
    mdp, scale = masked(P, r, allowed, form), np.abs(r).max()
    best = best_by_trying(P, r, allowed)
    first = mdp.rewards_by_action.argmax(axis=0)
    found = [
        solve.policy_iteration(mdp, first),
        solve.relative_value_iteration(mdp, 1e-9 * scale),
        solve.modified_policy_iteration(mdp, 1e-9 * scale),
        solve.linear_programme(mdp),
    ]
    for solution in found:
        assert solution.gain == pytest.approx(best, abs=1e-8 * scale)
        assert mdp.evaluate(solution.policy).rho == pytest.approx(best, abs=1e-8 * scale)
    multichain = solve.multichain_policy_iteration(mdp)
    np.testing.assert_allclose(multichain.gain, best, atol=1e-8 * scale)
    assert allowed[np.arange(len(r)), multichain.policy].all()


@repeatable
@given(restricted(), st.sampled_from(["dense", "sparse"]), SEEDS)
def test_values_and_bounds_are_those_of_the_model_with_copies(problem, form, seed):
    P, r, allowed = problem
    rng = np.random.default_rng(seed)
    old, new = random_policy(allowed, rng), random_policy(allowed, rng)
    costs = rng.random(r.shape)
    mine, theirs = masked(P, r, allowed, form, costs=costs), copied(P, r, allowed, costs=costs)
    for criterion in (Average(), Discounted(0.9)):
        for signal, forbidden in (("reward", -np.inf), ("cost", np.inf)):
            value, other = mine.evaluate(old, criterion, signal), theirs.evaluate(old, criterion, signal)
            assert value.rho == pytest.approx(other.rho, abs=1e-9)
            for table, expected in ((value.advantage, other.advantage), (value.action_value, other.action_value)):
                np.testing.assert_allclose(table[allowed], expected[allowed], atol=1e-8)
                assert (table[~allowed] == forbidden).all()
            np.testing.assert_allclose(value.expected_advantage(new), other.expected_advantage(new), atol=1e-8)
    certificates = [(statement(mine, old, new), statement(theirs, old, new)) for statement in STATEMENTS]
    certificates += [(bound(mine, old, new, 0.9), bound(theirs, old, new, 0.9)) for bound in DISCOUNTED]
    for certificate, expected in certificates:
        assert certificate.holds
        given, known = ([c.lower, c.exact, c.upper] for c in (certificate, expected))
        np.testing.assert_allclose(given, known, rtol=1e-6, atol=1e-6)


@repeatable
@given(restricted())
def test_the_largest_constants_are_those_of_the_model_with_copies(problem):
    P, r, allowed = problem
    mine, theirs = masked(P, r, allowed), copied(P, r, allowed)
    for largest in (kappa_star, zeta_star):
        found = largest(mine)
        assert found.value == pytest.approx(largest(theirs).value)
        mine.policy(found.policy)
    searched = kappa_star(mine, enumerate_up_to=0)
    assert not searched.exact
    assert searched.value <= kappa_star(mine).value * (1 + 1e-9)
    assert climb(mine, searched.policy)[0] == pytest.approx(searched.value)
    mine.policy(searched.policy)


def test_certified_steps_reach_the_best_allowed_policy():
    """The busy action of the rich state is forbidden; busy, then idle: ρ = 0.6/0.9 − 0.2·0.3/0.9 = 0.6."""
    mdp, allowed = zoo.two_state_mdp(), np.array([[True, True], [True, False]])
    run = solve.certified_policy_iteration(masked(mdp.transitions, mdp.rewards, allowed), tolerance=1e-6)
    assert run.gain == pytest.approx(0.6, abs=1e-5)
    assert run.gap <= 1e-6


@FORMS
def test_a_limit_is_kept_with_allowed_actions_only(form):
    """A full queue cannot admit: where both actions do the same, one of them is forbidden."""
    free = zoo.queue_admission(capacity=5)
    allowed = np.ones((12, 2), dtype=bool)
    allowed[0::2, 1] = allowed[11, 1] = False
    mdp = masked(free.transitions, free.rewards, allowed, form, costs=free.costs)
    for limit in (0.5, 2.0, None):
        mine, theirs = solve.linear_programme(mdp, limit), solve.linear_programme(free, limit)
        assert (mine.gain, mine.cost, mine.price) == pytest.approx((theirs.gain, theirs.cost, theirs.price))
        assert (mine.policy[~allowed] == 0).all()


def test_several_recurrent_classes():
    """State 0 may no longer go to the good class: the best that is left pays 1 for ever, also from there."""
    free = zoo.multichain()
    allowed = np.ones((3, 3), dtype=bool)
    allowed[0, 1] = False
    mdp = masked(free.transitions, free.rewards - 5, allowed)  # all gains are negative: nothing is not better
    found = solve.multichain_policy_iteration(mdp)
    np.testing.assert_allclose(found.gain, [-4, -3, -4])
    assert found.policy[0] == 2
    with pytest.raises(UserError, match="State 0 cannot reach"):
        solve.linear_programme(mdp)


@FORMS
def test_a_model_as_it_is_stored(form, tmp_path):
    P, r = np.full((2, 3, 2), 0.5), [[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]]
    allowed = np.array([[0, 1, 1], [1, 0, 1]])
    mdp = masked(P, r, allowed == 1, form, costs=np.ones((2, 3)))
    if form == "sparse":
        assert mdp.P.nnz == 8
    mdp.save(tmp_path / "model.npz")
    for model in (mdp, MDP.load(tmp_path / "model.npz")):
        assert model.allowed.tolist() == (allowed == 1).tolist()
        assert model.rewards.tolist() == [[0, 1, 2], [0, 0, 4]]
        assert model.costs.tolist() == allowed.tolist()
        assert model.rewards_by_action.tolist() == [[-np.inf, 0], [1, -np.inf], [2, 4]]
        assert model.rewards_by_action.flags.c_contiguous
        assert model.transitions.sum(axis=2).tolist() == allowed.tolist()
        assert model.uniform_policy.tolist() == [[0, 0.5, 0.5], [0.5, 0, 0.5]]
        assert "4 allowed pairs" in repr(model)
    assert MDP(P, r, allowed=np.ones((2, 3))).allowed is None


def test_samples_and_the_environment_stay_within_the_mask():
    mdp, allowed = zoo.garnet(5, 3), np.tril(np.ones((5, 3), dtype=bool))
    mdp = masked(mdp.transitions, mdp.rewards, allowed)
    taken = mdp.sample(mdp.uniform_policy, 200, np.random.default_rng(0), trajectories=5)
    assert allowed[taken.states, taken.actions].all()
    assert len(np.unique(taken.states * 3 + taken.actions)) == allowed.sum()
    env = mdp.as_gymnasium()
    state, info = env.reset(seed=0)
    for _ in range(20):
        assert info["action_mask"].tolist() == allowed[state].tolist()
        state, _, _, _, info = env.step(np.flatnonzero(info["action_mask"])[-1])
    env.state[0] = 1
    with pytest.raises(UserError, match=r"action 2 in state 1, which is forbidden there; the allowed .* \{0, 1\}"):
        env.step(2)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda mdp: mdp.policy([0, 0, 1]), "takes action 0 in state 1, which is forbidden there"),
        (lambda mdp: mdp.chain([0, 0, 1]), r"forbidden there; the allowed actions are \{1\}"),
        (lambda mdp: mdp.evaluate(np.full((3, 2), 0.5)), "takes action 0 in state 1"),
        (lambda mdp: solve.multichain_policy_iteration(mdp, [0, 0, 0]), "takes action 0 in state 1"),
        (lambda mdp: MDP(mdp.P, [[0, 0]] * 3, allowed=[[1, 0]] * 2), "S × A × S"),
        (lambda mdp: MDP(mdp.transitions, mdp.rewards, allowed=[[1, 0]] * 2), r"shape \(2, 2\), but it needs \(3, 2\)"),
        (lambda mdp: MDP(mdp.transitions, mdp.rewards, allowed=[[1, 0.5]] * 3), "must hold True and False"),
        (
            lambda mdp: MDP(mdp.transitions, mdp.rewards, allowed=[[1, 0], [0, 0], [0, 0]]),
            r"State 1 has no allowed action; .* \(2 states have none\)",
        ),
        (lambda mdp: MDP(mdp.transitions, np.full((3, 2), -np.inf), allowed=mdp.allowed), "use allowed="),
        (
            lambda mdp: bounds.theorem_1(large(), large().uniform_policy, large().uniform_policy, kappa="star"),
            r"With about 10\^6\.0 deterministic policies",
        ),
    ],
)
def test_what_is_refused(ask, sentence):
    allowed = np.array([[True, True], [False, True], [True, True]])
    mdp = zoo.garnet(3, 2, 3)
    with pytest.raises(UserError, match=sentence):
        ask(masked(mdp.transitions, mdp.rewards, allowed))


def large():
    mdp = zoo.garnet(21, 2)
    return masked(mdp.transitions, mdp.rewards, np.arange(42).reshape(21, 2) != 0)
