"""Solvers for large models: every part against a slow, obvious computation on a small one, and known answers."""

import functools

import numpy as np
import pytest
import scipy.sparse as sp

from kemeny.errors import UserError
from kemeny.tabular import MDP, Chain, blocks, choice, coarser, multigrid, policy_iteration, solve, sweeps, zoo
from kemeny.tabular.bicgstab import solve_chain
from kemeny.tabular.blocks import Blocks
from kemeny.tabular.rows import Rows

from . import oracles


def queue_chain(side=40, up=0.3, down=0.33):
    """Two queues side by side, which mix slowly: a sparse chain on a grid."""
    one = zoo.birth_death(side, up, down).P
    P = (sp.kron(one, sp.eye_array(side)) + sp.kron(sp.eye_array(side), one)) / 2
    return sp.csr_array(P), (side, side)


def bellman(P, r):
    """x of x − P·x + mean(x) = r, by a dense solve."""
    n = len(r)
    return np.linalg.solve(np.eye(n) - P.toarray() + 1 / n, r)


@pytest.fixture(params=[None, 7])
def size(request, monkeypatch):
    """Blocks as they are, in which a small model is one block, and blocks of seven states."""
    if request.param:
        monkeypatch.setattr(blocks.Blocks.__init__, "__defaults__", (request.param,))
    return request.param


def random_model(seed=0, n=60, actions=3, allowed=None):
    rng = np.random.default_rng(seed)
    P = rng.random((n, actions, n)) * (rng.random((n, actions, n)) < 0.2) + 1e-3
    P /= P.sum(axis=2, keepdims=True)
    return MDP([sp.csr_array(P[:, a]) for a in range(actions)], rng.standard_normal((n, actions)), allowed=allowed)


def test_a_sweep_is_the_best_over_all_actions(size):
    allowed = np.random.default_rng(1).random((60, 3)) < 0.7
    allowed[:, 1] = True
    mdp = random_model(allowed=allowed)
    h = np.random.default_rng(2).standard_normal(60)
    policy, found = sweeps.Sweeps(mdp).improve(h)
    values = np.where(allowed, mdp.rewards + mdp.transitions @ h, -np.inf)
    np.testing.assert_allclose(found.best, values.max(axis=1), rtol=1e-14)
    np.testing.assert_array_equal(policy, values.argmax(axis=1))
    rise = values.max(axis=1) - h
    assert found.mean == pytest.approx(rise.mean(), rel=1e-12)
    backup = sweeps.Sweeps(mdp).backup(h)
    np.testing.assert_array_equal(backup.best, found.best)
    assert backup[1:] == found[1:]
    assert (found.low, found.high) == pytest.approx((rise.min(), rise.max()), rel=1e-13)


def test_a_present_action_stays_in_a_tie(size):
    P = np.full((5, 2, 5), 0.2)
    mdp = MDP([sp.csr_array(P[:, a]) for a in range(2)], np.zeros((5, 2)))
    present = np.array([0, 1, 0, 1, 1])
    np.testing.assert_array_equal(sweeps.Sweeps(mdp).improve(np.arange(5.0), present)[0], present)
    better = MDP(mdp.by_action, np.array([[0.0, 1e-3]] * 5))
    np.testing.assert_array_equal(sweeps.Sweeps(better).improve(np.arange(5.0), present)[0], 1)


def test_blocks_give_the_same_on_any_number_of_cores(monkeypatch):
    P, grid = queue_chain()
    r = np.random.default_rng(0).standard_normal(P.shape[0])
    found = []
    for cores in (1, 2):
        monkeypatch.setattr(blocks, "available_cores", lambda cores=cores: cores)
        blocks.threads.cache_clear()
        parts = Blocks(len(r), 0, size=100)
        rows = Rows.of(P)
        inverse = multigrid.Merging(grid).hierarchy(rows)
        found.append(solve_chain(rows, r, np.zeros(len(r)), 1e-9, 500, parts, inverse))
    np.testing.assert_array_equal(found[0].x, found[1].x)
    blocks.threads.cache_clear()


@pytest.mark.parametrize("inverse", ["none", "grid", "pairs"])
def test_krylov_solves_the_bellman_equation(size, inverse):
    P, grid = queue_chain(30)
    r = np.random.default_rng(0).standard_normal(900)
    parts = Blocks(900, 0)
    merging = {"none": None, "grid": multigrid.Merging(grid), "pairs": multigrid.Merging()}[inverse]
    rows = Rows.of(P)
    hierarchy = None if merging is None else merging.hierarchy(rows)
    found = solve_chain(rows, r, np.zeros(900), 1e-10, 2000, parts, hierarchy)
    assert found.span <= 1e-10
    np.testing.assert_allclose(found.x, bellman(P, r), atol=1e-7)


def test_coarser_chains_save_most_iterations():
    P, grid = queue_chain(60)
    r = np.minimum(np.arange(3600) % 60, 20.0)
    parts = Blocks(3600, 0)
    rows = Rows.of(P)
    plain = solve_chain(rows, r, np.zeros(3600), 1e-6, 3000, parts)
    for merging in (multigrid.Merging(grid), multigrid.Merging()):
        helped = solve_chain(rows, r, np.zeros(3600), 1e-6, 3000, parts, merging.hierarchy(rows))
        assert helped.span <= 1e-6
        assert helped.iterations < plain.iterations / 3


def test_the_best_iterate_is_returned_when_iterations_run_out():
    P, _ = queue_chain(40)
    r = np.arange(1600) % 40 * 1.0
    parts = Blocks(1600, 0)
    rows = Rows.of(P)
    for limit in (1, 5, 20):
        found = solve_chain(rows, r, np.zeros(1600), 1e-12, limit, parts)
        residual = r - (found.x - P @ found.x + found.x.mean())
        assert found.iterations == limit
        assert np.ptp(residual) == pytest.approx(found.span, rel=1e-6)
        assert found.span <= np.ptp(r)


@pytest.mark.parametrize("grid", [(40, 40), None])
def test_merged_chains_are_chains(grid):
    P, _ = queue_chain(40)
    parts = multigrid.Merging(grid).parts(0, Rows.of(P))
    merged = multigrid.merge(Rows.of(P), parts).matrix()
    assert merged.shape[0] < 0.6 * P.shape[0]
    members = np.arange(merged.shape[0])[:, None] == parts.label
    expected = (members @ P.toarray() @ members.T) / members.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(merged.toarray(), expected, atol=1e-14)


def test_a_chain_of_a_policy_is_made_of_the_rows_of_the_model():
    mdp = zoo.garnet(30, 3, 4, sparse=True)
    policy = np.random.default_rng(0).integers(3, size=30)
    chain = Rows.of_policy(mdp.P, policy)
    np.testing.assert_array_equal(chain.matrix().toarray(), mdp.chain(policy).P.toarray())
    assert np.shares_memory(chain.weights, mdp.P.data)


def test_a_merged_model_is_the_mean_of_its_states():
    """By hand, with actions that only some states of a box allow."""
    rng = np.random.default_rng(1)
    P, r = rng.random((5, 2, 5)), rng.random((5, 2))
    P /= P.sum(axis=2, keepdims=True)
    allowed = np.array([[1, 1], [0, 1], [1, 0], [1, 0], [1, 1]], dtype=bool)
    mdp = MDP([sp.csr_array(P[:, a]) for a in range(2)], r, allowed=allowed, grid=(5,))
    merged = coarser.merged(mdp)
    assert merged.grid == (3,)
    np.testing.assert_array_equal(merged.allowed, [[1, 1], [1, 0], [1, 1]])
    members = np.kron(np.eye(3), [1, 1])[:, :5]
    for a in range(2):
        weights = members * allowed[:, a]
        weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1)
        np.testing.assert_allclose(merged.by_action[a].toarray(), weights @ P[:, a] @ members.T, atol=1e-15)
        np.testing.assert_allclose(merged.rewards[:, a], weights @ r[:, a], atol=1e-15)


@pytest.mark.parametrize("fine", [(7, 10), (3, 2), (1, 9)])
def test_interpolation_is_exact_for_linear_functions(fine):
    grid = tuple((side + 1) // 2 for side in fine)
    slope = np.array([1.5, -2.0]) * (np.array(grid) > 1)
    centres = np.stack(np.meshgrid(*(2 * np.arange(side) + 0.5 for side in grid), indexing="ij"), axis=-1)
    points = np.stack(np.meshgrid(*(np.arange(side) for side in fine), indexing="ij"), axis=-1)
    found = coarser.interpolate((centres @ slope).ravel(), fine)
    np.testing.assert_allclose(found, (points @ slope).ravel(), atol=1e-12)


def test_a_coarser_model_gives_a_guess_that_saves_work():
    """The policy after a few sweeps from 0 is unstable far out; on a grid the first policy is nearly right."""
    model = zoo.criss_cross("IH", truncation=24)
    plain = MDP(model.by_action, model.rewards)
    with_grid, without = solve.solve(model, precision=1e-6), solve.solve(plain, precision=1e-6)
    assert with_grid.gain == pytest.approx(without.gain, rel=1e-6)
    assert with_grid.iterations < 0.8 * without.iterations
    policy = sweeps.Sweeps(model).policy(policy_iteration.first_guess(model, np.zeros(model.n_states)))
    assert np.mean(policy == with_grid.policy) > 0.8


def test_ctrl_c_in_the_coarser_model_gives_bounds_of_the_model_itself(monkeypatch):
    model = zoo.criss_cross("IH", truncation=14)

    iterate = policy_iteration.iterate_small

    def interrupt(*arguments):
        iterate(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(policy_iteration, "iterate_small", interrupt)
    with pytest.raises(solve.Stopped) as stopped:
        solve.solve(model)
    best = stopped.value.solution
    monkeypatch.undo()
    gain = solve.solve(model).gain
    assert best.gain_bounds[0] <= gain <= best.gain_bounds[1]
    assert len(best.policy) == model.n_states


def test_the_stationary_distribution_of_a_large_chain(monkeypatch):
    """Two independent queues: the distribution is a product."""
    monkeypatch.setattr("kemeny.tabular.sparse.NARROW_FILL", 0)
    P, grid = queue_chain(70, 0.3, 0.33)
    chain = Chain.trusted(P, grid)
    assert chain.sparse.use_krylov, "the chain is factorised, so nothing is tested"
    one = (0.3 / 0.33) ** np.arange(70)
    one /= one.sum()
    np.testing.assert_allclose(chain.stationary, np.outer(one, one).ravel(), atol=1e-11)
    gain, bias = chain.gain_and_bias(np.arange(4900) // 70 * 1.0)
    assert gain == pytest.approx(one @ np.arange(70), rel=1e-10)
    residual = np.arange(4900) // 70 - gain + P @ bias - bias
    assert np.abs(residual).max() < 1e-10 * np.abs(bias).max()
    assert chain.sparse.use_krylov, "the Krylov method was given up"


@pytest.mark.parametrize("step", [0.95, 1.0])
def test_acceleration_finds_the_same_in_fewer_sweeps(step):
    mdp = zoo.criss_cross("BM", truncation=9)
    plain = solve.relative_value_iteration(mdp, 1e-7, step=step)
    fast = solve.relative_value_iteration(mdp, 1e-7, step=step, memory=5)
    assert fast.gain == pytest.approx(plain.gain, abs=1e-7)
    assert fast.method == "accelerated value iteration"
    assert fast.iterations < plain.iterations / 2


def test_large_policy_iteration_agrees_with_the_exact_one(monkeypatch):
    mdp = zoo.criss_cross("BM", truncation=9)
    exact = solve.policy_iteration(mdp)
    monkeypatch.setattr("kemeny.tabular.policy_iteration.DIRECT_FIRST", 100)
    for model in (mdp, MDP(mdp.by_action, mdp.rewards)):  # with and without a grid
        found = solve.policy_iteration(model)
        assert found.gain == pytest.approx(exact.gain, abs=1e-9 * 27)
        assert found.gain_bounds[0] - 1e-9 <= exact.gain <= found.gain_bounds[1] + 1e-9
        assert mdp.evaluate(found.policy).rho == pytest.approx(exact.gain, abs=1e-7)


@pytest.mark.parametrize(("regime", "cost"), [("IL", 0.6706), ("BL", 0.8432)])
def test_solve_reaches_published_optima(regime, cost):
    found = solve.solve(zoo.criss_cross(regime, truncation=16), precision=1e-5)
    assert -found.gain == pytest.approx(cost, abs=6e-5)
    low, high = found.gain_bounds
    assert high - low <= 1e-5 * abs(low) * 1.0001


def test_solve_says_what_it_chose_and_why(monkeypatch):
    small = solve.solve(zoo.riverswim())
    assert small.method == "policy iteration"
    assert "few enough" in small.reason
    mixing = solve.solve(zoo.garnet(2000, 3, 5, sparse=True), precision=1e-6)
    assert mixing.method == "accelerated value iteration"
    assert "fast enough" in mixing.reason
    between = solve.solve(zoo.criss_cross("IM", truncation=14), precision=1e-6)
    assert between.method == "modified policy iteration"
    assert "more seemed to be needed" in between.reason
    slow = solve.solve(zoo.criss_cross("IH", truncation=16), precision=1e-6)
    assert slow.method == "policy iteration"
    assert "not known well enough" in slow.reason
    monkeypatch.setattr(choice, "SMALL", 0)
    large = solve.solve(zoo.criss_cross("IM", truncation=14), precision=1e-6)
    assert large.method == "policy iteration"
    assert large.gain == pytest.approx(between.gain, rel=1e-6)


def test_the_precision_asked_for_is_reached():
    mdp = zoo.garnet(2000, 3, 5, sparse=True)
    wide, narrow = solve.solve(mdp, tolerance=1e-2), solve.solve(mdp, tolerance=1e-9)
    for found, tolerance in ((wide, 1e-2), (narrow, 1e-9)):
        assert found.gain_bounds[1] - found.gain_bounds[0] <= tolerance
    assert wide.gain_bounds[0] <= narrow.gain <= wide.gain_bounds[1]


@pytest.mark.parametrize(
    "search",
    [
        functools.partial(solve.solve, precision=1e-9),
        functools.partial(solve.relative_value_iteration, tolerance=1e-9),
        functools.partial(solve.modified_policy_iteration, tolerance=1e-9),
        solve.policy_iteration,
    ],
)
def test_ctrl_c_gives_what_is_known(search):
    mdp = zoo.criss_cross("BM", truncation=12)
    truth = solve.relative_value_iteration(mdp, 1e-6, memory=5).gain
    known = []

    def watch(now):
        assert not known or (now.low >= known[-1].low and now.high <= known[-1].high), "the bounds went apart"
        known.append(now)
        if len(known) == 10:
            raise KeyboardInterrupt

    with pytest.raises(solve.Stopped, match="the best gain is in") as stopped:
        search(mdp, watch=watch)
    low, high = stopped.value.solution.gain_bounds
    assert low - 1e-6 <= truth <= high + 1e-6
    assert (low, high) == (known[-1].low, known[-1].high)
    assert stopped.value.solution.policy.shape == (mdp.n_states,)


def test_truncation_is_raised_until_the_answer_stands_still():
    found = solve.truncate(functools.partial(zoo.criss_cross, "IL"), precision=1e-3, first=4)
    assert -found.gain == pytest.approx(0.6706, rel=2e-3)
    assert found.change <= 1e-3 * abs(found.gain)
    edges = [answer.edge for answer in found.answers]
    assert edges == sorted(edges, reverse=True)
    assert edges[-1] < 1e-3
    assert str(found).count("at the edge") == len(found.answers)


def test_a_truncation_that_keeps_growing_is_a_sentence():
    unstable = functools.partial(zoo.criss_cross, "IL", arrival=1.5)
    with pytest.raises(UserError, match=r"The gain still moves.*at the edge"):
        solve.truncate(unstable, first=4, largest=3000)
    with pytest.raises(UserError, match="has 125 states already"):
        solve.truncate(unstable, first=4, largest=100)
    with pytest.raises(UserError, match="precision must be above 0"):
        solve.truncate(unstable, precision=0)


def test_several_classes_are_named(monkeypatch):
    """Two halves that never meet: no policy has one gain for all starts."""
    half = zoo.garnet(900, 2, 5, sparse=True)
    P = [sp.block_diag([matrix, matrix], format="csr") for matrix in half.by_action]
    mdp = MDP(P, np.concatenate([half.rewards, half.rewards + 1]))
    monkeypatch.setattr("kemeny.tabular.policy_iteration.RELIEF", 5)
    with pytest.raises(UserError, match="2 recurrent classes"):
        solve.solve(mdp)


def test_the_expected_number_of_sweeps():
    assert choice.sweeps_left([2.0**-k for k in range(12)], 2.0**-20) == pytest.approx(9)
    assert choice.sweeps_left([1.0] * 12, 0.1) == np.inf


def test_oracle_of_the_best_gain(monkeypatch):
    mdp = random_model(n=4)
    monkeypatch.setattr("kemeny.tabular.policy_iteration.DIRECT_FIRST", 1)
    best = oracles.best_gain(mdp.transitions, mdp.rewards)[0]
    assert solve.solve(mdp, tolerance=1e-9).gain == pytest.approx(best, abs=1e-8)
