"""Networks of queues against a construction state by state, and against published optima."""

import functools

import numpy as np
import pytest

from kemeny.errors import UserError
from kemeny.tabular import MDP, queues, solve, zoo

from . import oracles


def criss_cross_services(mu2, work_conserving):
    """What the two stations do in a state, for each action: rate, queue of the job, and its next queue."""

    def of_action(first_choice):
        def services(x):
            order = (first_choice, 2 - first_choice) if work_conserving else (first_choice,)
            chosen = [k for k in order if x[k] > 0][:1]
            first = [(2.0, k, 1 if k == 0 else None) for k in chosen]
            return first + ([(mu2, 1, None)] if x[1] > 0 else [])

        return services

    return [of_action(0), of_action(2)]


def n_model_services():
    def of_action(helps):
        def services(x):
            first = [(1.0, 0, None)] if x[0] > 0 else []
            if x[0] >= 2 and (helps or x[1] == 0):
                return [*first, (0.5, 0, None)]
            return first + ([(1.0, 1, None)] if x[1] > 0 else [])

        return services

    return [of_action(False), of_action(True)]


@pytest.mark.parametrize(
    ("model", "oracle"),
    [
        (
            queues.criss_cross("BM", truncation=3),
            lambda: oracles.network(3, [0.6, 0, 0.6], criss_cross_services(1.0, False), sum),
        ),
        (
            queues.criss_cross(truncation=2, arrival=0.7, mu2=1.1, work_conserving=True),
            lambda: oracles.network(2, [0.7, 0, 0.7], criss_cross_services(1.1, True), sum),
        ),
        (
            queues.n_model(truncation=5, load=0.8),
            lambda: oracles.network(5, [1.3 * 0.8, 0.4 * 0.8], n_model_services(), lambda x: 3 * x[0] + x[1]),
        ),
    ],
    ids=["criss-cross", "criss-cross, work-conserving", "N-model"],
)
def test_models_equal_a_construction_state_by_state(model, oracle):
    P, r = oracle()
    np.testing.assert_allclose(model.transitions, P, rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(model.rewards, r)
    assert model.P.has_canonical_format
    assert np.all(model.P.data > 0)
    assert model.P.indices.dtype == model.P.indptr.dtype == np.int32
    np.testing.assert_allclose(model.P.sum(axis=1), 1, rtol=1e-14)


@pytest.mark.parametrize(("regime", "cost", "truncation"), [("IL", 0.6706, 12), ("BL", 0.8432, 14)])
def test_light_traffic_reaches_the_published_optimum(regime, cost, truncation):
    found = solve.modified_policy_iteration(zoo.criss_cross(regime, truncation=truncation), tolerance=1e-5)
    assert found.gain == pytest.approx(-cost, abs=5e-5)


def test_every_regime_has_the_load_of_its_name():
    for regime, (arrival, mu2) in queues.CRISS_CROSS.items():
        assert arrival == {"L": 0.3, "M": 0.6, "H": 0.9}[regime[1]]
        assert mu2 == {"I": 1.5, "B": 1.0}[regime[0]]


@pytest.mark.parametrize("family", [functools.partial(zoo.criss_cross, "BH"), lambda n: zoo.n_model(truncation=n)])
def test_states_are_the_points_of_a_grid_and_the_edge_its_largest_coordinates(family):
    model = family(4)
    x = queues.lengths(model.grid)
    assert x.shape == (len(model.grid), model.n_states)
    np.testing.assert_array_equal(np.ravel_multi_index(tuple(x), model.grid), np.arange(model.n_states))
    np.testing.assert_array_equal(model.edge, (x == 4).any(axis=0))
    # What the truncation changed: jobs can arrive, and go on, everywhere except at the edge.
    grows = [np.any(queues.lengths(model.grid)[:, row.indices].sum(axis=0) > total) for row, total in rows_of(model, x)]
    assert set(np.flatnonzero(~np.array(grows))) <= set(np.flatnonzero(model.edge))


def rows_of(model, x):
    return [(model.by_action[0][[s]], x[:, s].sum()) for s in range(model.n_states)]


def test_edge_and_grid_survive_a_file(tmp_path):
    model = zoo.n_model(truncation=3)
    model.save(tmp_path / "n.npz")
    loaded = MDP.load(tmp_path / "n.npz")
    assert loaded.grid == model.grid == (4, 4)
    np.testing.assert_array_equal(loaded.edge, model.edge)


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda: zoo.criss_cross("XL"), "no regime 'XL'; its regimes are IL, BL"),
        (lambda: zoo.criss_cross("IL", truncation=1), "must be at least 2, not 1"),
        (lambda: zoo.criss_cross("IL", truncation=4, mu2=0.0), "mu2 must be a positive number, not 0"),
        (lambda: zoo.n_model(truncation=4, load=np.nan), "load must be a positive number"),
        (lambda: MDP(np.eye(2)[:, None], [0.0, 0.0], edge=[True]), r"shape \(1,\), but it needs \(2,\)"),
        (lambda: MDP(np.eye(2)[:, None], [0.0, 0.0], grid=(3, 2)), "has 6 points, but the model 2 states"),
    ],
)
def test_mistakes(mistake, sentence):
    with pytest.raises(UserError, match=sentence):
        mistake()
