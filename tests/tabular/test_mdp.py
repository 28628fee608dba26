"""Models: values of both criteria against sums, limits between them, files, samples and environments."""

import gymnasium
import numpy as np
import pytest
import scipy.sparse as sp
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from kemeny.criterion import Average, Discounted
from kemeny.tabular import MDP, zoo

from . import oracles
from .strategies import SEEDS, comparisons, models, repeatable


def as_sparse(P, r, **settings):
    return MDP([sp.csr_array(P[:, a]) for a in range(P.shape[1])], r, **settings)


@repeatable
@given(comparisons())
def test_average_values_from_their_definitions(problem):
    P, r, policy, _ = problem
    value = MDP(P, r).evaluate(policy)
    chain, earned = np.einsum("sa,sat->st", policy, P), np.einsum("sa,sa->s", policy, r)
    d = oracles.stationary(chain)
    scale = np.abs(r).max()
    assert value.rho == pytest.approx(d @ earned, abs=1e-12 * scale)
    np.testing.assert_allclose(value.bias, oracles.bias_by_sum(chain, earned, terms=4000), atol=1e-8 * scale)
    np.testing.assert_allclose(value.action_bias, r - value.rho + P @ value.bias, atol=1e-11 * scale)
    np.testing.assert_allclose(np.einsum("sa,sa->s", policy, value.action_bias), value.bias, atol=1e-10 * scale)
    np.testing.assert_allclose(value.advantage, value.action_bias - value.bias[:, None], atol=1e-12 * scale)
    np.testing.assert_allclose(value.stationary, d, atol=1e-12)


@repeatable
@given(comparisons(), st.sampled_from([0.0, 0.5, 0.9]))
def test_discounted_values_from_their_definitions(problem, gamma):
    P, r, policy, _ = problem
    start = np.eye(len(r))[0]
    value = MDP(P, r, start=start).evaluate(policy, Discounted(gamma))
    chain, earned = np.einsum("sa,sat->st", policy, P), np.einsum("sa,sa->s", policy, r)
    scale = np.abs(r).max()
    v = oracles.discounted_by_sum(chain, earned, gamma, 400)
    np.testing.assert_allclose(value.value, v, atol=1e-9 * scale)
    np.testing.assert_allclose(value.action_value, r + gamma * (P @ v), atol=1e-9 * scale)
    visits = (1 - gamma) * oracles.discounted_by_sum(chain.T, start, gamma, 400)
    np.testing.assert_allclose(value.visitation, visits, atol=1e-9)
    assert value.rho == pytest.approx(visits @ earned / (1 - gamma), abs=1e-8 * scale)


@repeatable
@given(comparisons())
def test_one_affine_equation_serves_both_criteria(problem):
    P, r, policy, _ = problem
    mdp = MDP(P, r)
    for criterion in (Average(), Discounted(0.7)):
        value = mdp.evaluate(policy, criterion)
        offset, discount = value.bellman
        earned = np.einsum("sa,sa->s", policy, r)
        right = earned - offset + discount * (value.chain.P @ value.value)
        np.testing.assert_allclose(value.value, right, atol=1e-10 * np.abs(r).max())


@repeatable
@given(comparisons())
def test_dense_and_sparse_models_agree(problem):
    P, r, policy, _ = problem
    dense, sparse = MDP(P, r), as_sparse(P, r)
    deterministic = policy.argmax(axis=1)
    for pi in (policy, deterministic):
        for criterion in (Average(), Discounted(0.8)):
            mine, theirs = sparse.evaluate(pi, criterion), dense.evaluate(pi, criterion)
            for field in ("rho", "value", "action_value", "advantage", "visitation"):
                np.testing.assert_allclose(
                    getattr(mine, field), getattr(theirs, field), atol=1e-8 * np.abs(r).max(), err_msg=field
                )
    np.testing.assert_array_equal(sparse.transitions, dense.transitions)


@pytest.mark.parametrize("name", [n for n in zoo.MODELS if n not in ("multichain", *zoo.LARGE)])
def test_discounted_values_tend_to_average_values(name):
    """V_γ − ρ/(1−γ) → V̄, Q_γ − ρ/(1−γ) → Q̄ and A_γ → Ā with an error of order 1−γ (Prop. 2, Cor. 1)."""
    mdp = zoo.model(name)
    policy = mdp.uniform_policy
    average = mdp.evaluate(policy)
    errors = []
    for gap in (1e-4, 1e-5):
        found = mdp.evaluate(policy, Discounted(1 - gap))
        errors.append(
            [
                np.abs(found.value - average.rho / gap - average.bias).max(),
                np.abs(found.action_value - average.rho / gap - average.action_bias).max(),
                np.abs(found.advantage - average.advantage).max(),
                np.abs(found.visitation - average.stationary).max(),
                abs(gap * found.rho - average.rho),
            ]
        )
    coarse, fine = np.array(errors)
    order = np.log10(coarse / np.maximum(fine, 1e-300))
    # A quantity without an error at any γ has no order.
    assert np.all((np.abs(order - 1) < 0.1) | (coarse < 1e-9)), order
    assert (coarse > 1e-9).sum() >= 2


def test_gain_and_bias_for_each_start_state():
    mdp = zoo.multichain()
    gain, bias = mdp.gain_and_bias(np.array([1, 0, 0]))
    np.testing.assert_allclose(gain, [2, 2, 1], atol=1e-12)
    np.testing.assert_allclose(bias, [-12, 0, 0], atol=1e-12)


@repeatable
@given(models(), SEEDS)
def test_a_file_stores_the_whole_model(tmp_path_factory, problem, seed):
    P, r = problem
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("models") / "model.npz"
    for make in (MDP, as_sparse):
        mdp = make(P, r, costs=rng.random(r.shape), start=rng.dirichlet(np.ones(len(r))), name="mine")
        mdp.save(path)
        back = MDP.load(path)
        assert back.is_sparse == mdp.is_sparse
        assert back.name == "mine"
        np.testing.assert_array_equal(back.transitions, mdp.transitions)
        for field in ("rewards", "costs", "start"):
            np.testing.assert_array_equal(getattr(back, field), getattr(mdp, field))


def test_numpy_savez_writes_a_model(tmp_path):
    mdp = zoo.riverswim()
    np.savez(tmp_path / "river.npz", P=mdp.transitions, r=mdp.rewards)
    back = MDP.load(tmp_path / "river.npz")
    assert back.name == "river"
    assert back.evaluate(back.uniform_policy).rho == mdp.evaluate(mdp.uniform_policy).rho


def test_rewards_per_transition_are_averaged():
    P = np.array([[[0.25, 0.75]], [[1.0, 0.0]]])
    r = np.array([[[4.0, 8.0]], [[1.0, 99.0]]])
    np.testing.assert_allclose(MDP(P, r).rewards, [[7.0], [1.0]])
    np.testing.assert_allclose(MDP(P, [3.0, 5.0]).rewards, [[3.0], [5.0]])


@pytest.mark.parametrize("sparse", [False, True])
def test_samples_follow_the_model(sparse):
    mdp = zoo.access_control(servers=3)
    if sparse:
        mdp = as_sparse(mdp.transitions, mdp.rewards)
    rng = np.random.default_rng(0)
    policy = rng.dirichlet(np.ones(2), size=mdp.n_states)
    path = mdp.sample(policy, 400, rng, trajectories=500)
    np.testing.assert_array_equal(path.states[1:], path.next_states[:-1])
    np.testing.assert_array_equal(path.rewards, mdp.rewards[path.states, path.actions])
    exact = mdp.evaluate(policy)
    late = path.states[100:].ravel()
    share = np.bincount(late, minlength=mdp.n_states) / late.size
    np.testing.assert_allclose(share, exact.stationary, atol=0.006)
    assert path.rewards[100:].mean() == pytest.approx(exact.rho, abs=0.02)
    s, a, t = path.states.ravel(), path.actions.ravel(), path.next_states.ravel()
    counts = np.zeros((mdp.n_states, 2, mdp.n_states))
    np.add.at(counts, (s, a, t), 1)
    assert not np.any((counts > 0) & (mdp.transitions == 0)), "a transition of probability 0 was drawn"
    seen = counts.sum(axis=2) > 3000
    assert seen.sum() >= 6
    np.testing.assert_allclose(counts[seen] / counts[seen].sum(axis=1, keepdims=True), mdp.transitions[seen], atol=0.03)


def test_toy_text_environment_becomes_continuing():
    """FrozenLake without slipping: the shortest way to the goal is six moves, so the best gain is 1/6."""
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    mdp = MDP.from_gymnasium(env)
    down, right = 1, 2
    policy = np.zeros(16, dtype=int)
    for state, action in zip((0, 4, 8, 9, 13, 14), (down, down, right, down, right, right), strict=True):
        policy[state] = action
    policy[[1, 2, 3, 5, 6, 7, 10, 11, 12, 15]] = down
    policy[12] = right
    gain, _ = mdp.gain_and_bias(policy)
    assert gain[0] == pytest.approx(1 / 6, abs=1e-12)
    fined = MDP.from_gymnasium(env, reset_cost=3.0).gain_and_bias(policy)[0]
    assert fined[0] == pytest.approx((1 - 3) / 6, abs=1e-12)


def test_as_gymnasium_passes_the_environment_checker():
    mdp = zoo.queue_admission(capacity=4)
    check_env(mdp.as_gymnasium(), skip_render_check=True)


def test_environment_pays_what_the_model_pays():
    mdp = zoo.queue_admission(capacity=4)
    env = mdp.as_gymnasium()
    assert mdp.costs is not None
    state, info = env.reset(seed=3)
    assert state == info["state"] == 0
    total, cost, steps = 0.0, 0.0, 40_000
    for _ in range(steps):
        before, action = int(state), 1
        state, reward, terminated, truncated, info = env.step(np.int64(action))
        assert reward == mdp.rewards[before, action]
        assert info["cost"] == mdp.costs[before, action]
        assert info["state"] == state
        assert not terminated
        assert not truncated
        total, cost = total + reward, cost + info["cost"]
    always = np.ones(mdp.n_states, dtype=int)
    assert total / steps == pytest.approx(mdp.evaluate(always).rho, abs=0.05)
    assert cost / steps == pytest.approx(mdp.evaluate(always, signal="cost").rho, abs=0.1)


def test_environment_is_repeatable():
    env = zoo.garnet().as_gymnasium()
    runs = []
    for _ in range(2):
        first, _ = env.reset(seed=7)
        runs.append([int(first)] + [int(env.step(np.int64(t % 3))[0]) for t in range(50)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 3
