"""Large sparse chains: both ways to solve against each other, closed forms, and κ within its standard error."""

import numpy as np
import pytest
import scipy.sparse as sp

from kemeny.tabular import Chain, zoo
from kemeny.tabular.sparse import SparseChain, krylov


def random_chain(n, seed=0):
    return sp.csr_array(zoo.garnet(n, 1, 4, seed=seed, sparse=True).by_action[0])


def test_krylov_and_direct_solves_agree(monkeypatch):
    monkeypatch.setattr("kemeny.tabular.sparse.NARROW_FILL", 0)
    P = random_chain(2500)
    by_krylov, direct = SparseChain(P), SparseChain(P, use_krylov=False)
    assert by_krylov.use_krylov
    assert not direct.use_krylov
    np.testing.assert_allclose(by_krylov.stationary, direct.stationary, rtol=1e-8, atol=1e-14)
    r = np.random.default_rng(0).standard_normal(2500)
    (gain, bias), (gain2, bias2) = by_krylov.gain_and_bias(r), direct.gain_and_bias(r)
    assert by_krylov.use_krylov, "the Krylov method was given up, so nothing was compared"
    assert gain == pytest.approx(gain2, abs=1e-12)
    np.testing.assert_allclose(bias - bias[0], bias2 - bias2[0], atol=1e-9)


def test_a_slow_queue_falls_back_to_the_factorisation():
    n, up, down = 20_000, 0.3, 0.4
    chain = zoo.birth_death(n, up, down)
    weight = (up / down) ** np.arange(n)
    np.testing.assert_allclose(chain.stationary, weight / weight.sum(), rtol=1e-9, atol=1e-300)
    assert not chain.sparse.use_krylov
    gain, bias = chain.gain_and_bias(np.minimum(np.arange(n), 5.0))
    assert gain == pytest.approx(float(weight @ np.minimum(np.arange(n), 5.0) / weight.sum()), rel=1e-12)
    residual = np.minimum(np.arange(n), 5.0) - gain + chain.P @ bias - bias
    assert np.abs(residual).max() < 1e-10 * np.abs(bias).max()


def test_a_rare_first_state_does_not_cost_the_digits():
    """The first state of this queue is rarer than 1e-20: cycles from it back to itself are too long for a float."""
    n, up, down = 40, 0.7, 0.1
    chain = zoo.birth_death(n, up, down)
    direct = SparseChain(sp.csr_array(chain.P), use_krylov=False)
    weight = (up / down) ** np.arange(n)
    weight /= weight.sum()
    assert weight[0] < 1e-20
    gain, bias = direct.gain_and_bias(np.arange(n, dtype=float))
    assert gain == pytest.approx(float(weight @ np.arange(n)), rel=1e-13)
    assert np.abs(np.arange(n) - gain + chain.P @ bias - bias).max() < 1e-10


def test_kemeny_estimate_covers_the_closed_form():
    """The exact κ is within 3.5 standard errors of each of 20 estimates, and the standard errors are not too large."""
    n, up, down = 400, 0.3, 0.35
    chain = zoo.birth_death(n, up, down)
    kappa = 1 + np.sum(1 / (up + down - 2 * np.sqrt(up * down) * np.cos(np.pi * np.arange(1, n) / n)))
    scores = []
    for seed in range(20):
        estimate = chain.kemeny_estimate(60, seed)
        scores.append((estimate.value - kappa) / estimate.standard_error)
        assert estimate.standard_error < 0.05 * kappa
    assert np.abs(scores).max() < 3.5
    assert 0.5 < np.std(scores) < 1.6


def test_kemeny_estimate_on_a_random_graph():
    chain = Chain(random_chain(800))
    estimate = chain.kemeny_estimate(90)
    assert abs(estimate.value - chain.kemeny) < 4 * estimate.standard_error
    assert estimate.standard_error < 0.02 * chain.kemeny
    assert "standard error" in str(estimate)


def test_deviate_is_the_deviation_matrix():
    P = random_chain(60)
    chain, block = Chain(P), np.random.default_rng(0).standard_normal((60, 3))
    np.testing.assert_allclose(chain.sparse.deviate(block), chain.deviation @ block, atol=1e-10)


def test_krylov_returns_none_when_it_stalls():
    """A cycle of 3,000 states needs 3,000 products, more than the method tries."""
    P = sp.csr_array(np.roll(np.eye(3000), 1, axis=1))
    right = np.random.default_rng(0).standard_normal(3000)
    assert krylov(lambda x: x - P @ x + x.mean(), right, None) is None
    assert krylov(lambda x: 2 * x, np.zeros(3), None) == pytest.approx(np.zeros(3))
