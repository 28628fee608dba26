"""Chains against closed forms, rational arithmetic and linear systems from the definitions."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given
from hypothesis import strategies as st

from kemeny.tabular import Chain, zoo

from . import oracles
from .strategies import SEEDS, ergodic_chains, repeatable, structured_chains


@repeatable
@given(ergodic_chains())
def test_stationary_limiting_and_fundamental_satisfy_their_equations(P):
    chain = Chain(P)
    n, d, Z, limit = chain.n, chain.stationary, chain.fundamental, chain.limiting
    np.testing.assert_allclose(d, oracles.stationary(P), atol=1e-12)
    np.testing.assert_allclose(d @ P, d, atol=1e-14)
    np.testing.assert_allclose(Z @ (np.eye(n) - P + limit), np.eye(n), atol=1e-9)
    np.testing.assert_allclose(limit, oracles.cesaro_limit(P), atol=1e-9)
    np.testing.assert_allclose(chain.deviation, Z - limit, atol=1e-9)


@repeatable
@given(ergodic_chains())
def test_first_passage_and_kemeny_agree_with_their_definitions(P):
    chain = Chain(P)
    np.testing.assert_allclose(chain.first_passage, oracles.first_passage(P), rtol=1e-9)
    np.testing.assert_allclose(np.full(chain.n, chain.kemeny), oracles.kemeny_by_passage(P), rtol=1e-9)
    assert chain.kemeny == pytest.approx(np.trace(chain.fundamental), rel=1e-9)
    assert np.diag(chain.first_passage) == pytest.approx(1 / chain.stationary, rel=1e-9)


@repeatable
@given(ergodic_chains())
def test_first_passage_is_the_papers_formula(P):
    """M = (I − Z + E·Z_dg)·D (§4.1)."""
    chain = Chain(P)
    n, Z = chain.n, chain.fundamental
    formula = (np.eye(n) - Z + np.ones((n, n)) @ np.diag(np.diag(Z))) @ np.diag(1 / chain.stationary)
    np.testing.assert_allclose(chain.first_passage, formula, rtol=1e-8, atol=1e-8)


@repeatable
@given(ergodic_chains())
def test_kemeny_is_at_most_its_spectral_bound(P):
    """κ ≤ 1 + (n−1)/(1−λ*) with |λ| (Appendix C), and κ = 1 + Σ 1/(1−λ)."""
    chain = Chain(P)
    assert chain.kemeny <= chain.kemeny_bound * (1 + 1e-9)
    rest = chain.eigenvalues[1:]
    assert chain.kemeny == pytest.approx(1 + np.sum(1 / (1 - rest)).real, rel=1e-8)


def test_spectral_bound_needs_the_modulus():
    """A lazy cycle has complex eigenvalues: with real parts in place of moduli the bound would be wrong."""
    P = np.roll(np.eye(5), 1, axis=1) * 0.9 + np.eye(5) * 0.1
    chain = Chain(P)
    assert np.abs(np.imag(chain.eigenvalues)).max() > 0.5
    assert chain.slem == pytest.approx(max(abs(0.1 + 0.9 * np.exp(2j * np.pi * k / 5)) for k in range(1, 5)), rel=1e-12)


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.1), (0.5, 0.5), (1e-3, 2e-3), (1.0, 0.25)])
def test_two_state_closed_form(a, b):
    chain, total = zoo.two_state(a, b), a + b
    np.testing.assert_allclose(chain.stationary, [b / total, a / total], rtol=1e-12)
    assert chain.kemeny == pytest.approx(1 + 1 / total, rel=1e-12)
    np.testing.assert_allclose(chain.first_passage, [[total / b, 1 / a], [1 / b, total / a]], rtol=1e-12)
    Z = np.array([[b + a / total, a - a / total], [b - b / total, a + b / total]]) / total
    np.testing.assert_allclose(chain.fundamental, Z, rtol=1e-11, atol=1e-12)
    assert chain.slem == pytest.approx(abs(1 - total), abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_cycle_closed_form(n):
    chain = zoo.cycle(n)
    assert chain.periods == (n,)
    np.testing.assert_allclose(chain.stationary, 1 / n, rtol=1e-12)
    assert chain.kemeny == pytest.approx((n + 1) / 2, rel=1e-12)
    ahead = (np.arange(n)[None, :] - np.arange(n)[:, None]) % n
    np.testing.assert_allclose(chain.first_passage, np.where(ahead == 0, n, ahead), rtol=1e-12)
    if n > 1:
        assert chain.kemeny_bound == float("inf")


@pytest.mark.parametrize(("n", "up", "down"), [(20, 0.3, 0.4), (7, 0.5, 0.2), (30, 0.25, 0.25)])
def test_birth_death_closed_form(n, up, down):
    chain = zoo.birth_death(n, up, down)
    weight = (up / down) ** np.arange(n)
    np.testing.assert_allclose(chain.stationary, weight / weight.sum(), rtol=1e-10)
    angles = np.pi * np.arange(1, n) / n
    kappa = 1 + np.sum(1 / (up + down - 2 * np.sqrt(up * down) * np.cos(angles)))
    assert chain.kemeny == pytest.approx(kappa, rel=1e-11)


@pytest.mark.parametrize("link", [1.0, 1e-6, 1e-10, 1e-13])
def test_nearly_decomposable_chain_is_accurate_in_every_entry(link):
    """Compared with rational arithmetic; a least-squares solve loses the digits that GTH elimination keeps."""
    P = zoo.nearly_decomposable(link).P
    exact = oracles.stationary_exact(P)
    np.testing.assert_allclose(Chain(P).stationary, exact, rtol=1e-14 * 10)
    if link <= 1e-10:
        assert np.abs(oracles.stationary(P) / exact - 1).max() > 1e-9


def test_kemeny_of_a_nearly_decomposable_chain():
    """Two halves joined by probability p: κ = 1 + Σ 1/(1−λ) over the three other eigenvalues, in closed form."""
    p, q = 1e-12, 0.3
    inner = np.array([[1 - q, q], [q, 1 - q]])
    P = np.kron(np.array([[1 - p, p], [p, 1 - p]]), inner)
    eigenvalues = [1 - 2 * p, 1 - 2 * q, (1 - 2 * p) * (1 - 2 * q)]
    expected = 1 + 1 / (2 * p) + 1 / (2 * q) + 1 / (1 - eigenvalues[2])
    assert Chain(P).kemeny == pytest.approx(expected, rel=1e-12)


@repeatable
@given(structured_chains())
def test_classes_and_periods_against_reachability(P):
    chain = Chain(P)
    n = len(P)
    reach = np.linalg.matrix_power(np.eye(n) + P, n) > 0
    recurrent = [s for s in range(n) if all(reach[t, s] for t in range(n) if reach[s, t])]
    assert sorted(np.concatenate(chain.classes.recurrent)) == recurrent
    assert sorted(chain.classes.transient) == sorted(set(range(n)) - set(recurrent))
    for states, period in zip(chain.classes.recurrent, chain.periods, strict=True):
        returns, power = [], np.eye(n)
        for t in range(1, 3 * n * n + 1):
            power = np.minimum((power @ P) > 0, 1).astype(float)
            if power[states[0], states[0]] > 0:
                returns.append(t)
        assert period == np.gcd.reduce(returns)


@repeatable
@given(structured_chains())
def test_limiting_and_deviation_of_any_chain(P):
    """Several classes, periods and transient states: P* is the Cesàro limit and Z inverts I − P + P*."""
    chain = Chain(P)
    n = len(P)
    np.testing.assert_allclose(chain.limiting, oracles.cesaro_limit(P), atol=1e-7)
    np.testing.assert_allclose(chain.fundamental @ (np.eye(n) - P + chain.limiting), np.eye(n), atol=1e-8)


@repeatable
@given(structured_chains(), SEEDS)
def test_bias_is_the_sum_of_reward_minus_gain(P, seed):
    chain = Chain(P)
    assume(chain.is_unichain)
    r = np.random.default_rng(seed).standard_normal(len(P))
    gain, bias = chain.gain_and_bias(r)
    np.testing.assert_allclose(gain, (oracles.cesaro_limit(P) @ r)[0], atol=1e-7)
    np.testing.assert_allclose(bias, oracles.bias_by_sum(P, r, terms=3000), atol=1e-5)
    np.testing.assert_allclose(bias, chain.deviation @ r, atol=1e-9)
    np.testing.assert_allclose(r - gain + P @ bias, bias, atol=1e-9)
    assert chain.stationary @ bias == pytest.approx(0, abs=1e-9)


@repeatable
@given(ergodic_chains(max_states=5), st.sampled_from([0.25, 0.01]))
def test_mixing_time_is_the_first_time_within_the_distance(P, distance):
    chain = Chain(P)
    d, power, t = oracles.stationary(P), np.eye(len(P)), 0
    while 0.5 * np.abs(power - d).sum(axis=1).max() > distance:
        power, t = power @ P, t + 1
    assert chain.mixing_time(distance) == t


def test_stationary_against_simulation():
    chain = zoo.birth_death(6, 0.3, 0.35)
    share = oracles.visits_by_simulation(chain.P.toarray(), 60_000, np.random.default_rng(0))
    np.testing.assert_allclose(chain.stationary, share, atol=0.02)


def test_unichain_with_transient_states():
    P = np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8], [0.0, 0.6, 0.4]])
    chain = Chain(P)
    assert chain.is_unichain
    assert not chain.is_irreducible
    np.testing.assert_allclose(chain.stationary, [0, 3 / 7, 4 / 7], rtol=1e-14)
    assert chain.recurrent_chain().kemeny == pytest.approx(1 + 1 / 1.4, rel=1e-12)
    assert chain.trace == pytest.approx(np.trace(chain.fundamental), rel=1e-12)


@repeatable
@given(ergodic_chains())
def test_sparse_and_dense_agree(P):
    dense, sparse = Chain(P), Chain(sp.csr_array(P))
    np.testing.assert_allclose(sparse.stationary, dense.stationary, rtol=1e-9)
    assert sparse.kemeny == pytest.approx(dense.kemeny, rel=1e-9)
    r = np.arange(len(P), dtype=float)
    for mine, theirs in zip(sparse.gain_and_bias(r), dense.gain_and_bias(r), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-8)


def test_the_bias_is_exact_where_the_first_state_is_rare():
    """A queue that is almost always full: the share of state 0 is 2⁻⁵⁹. By detailed balance, in whole numbers,
    d(s)·down·(h(s) − h(s−1)) = Σ_{t ≥ s} d(t)·(r(t) − ρ)."""
    n = 60
    chain = Chain(zoo.birth_death(n, up=0.5, down=0.25).dense())
    d = [Fraction(2**s, 2**n - 1) for s in range(n)]
    gain = sum(s * share for s, share in enumerate(d))
    rises = [sum(d[t] * (t - gain) for t in range(s, n)) / (d[s] / 4) for s in range(1, n)]
    found, bias = chain.gain_and_bias(np.arange(n))
    assert found == pytest.approx(float(gain), rel=1e-14)
    np.testing.assert_allclose(np.diff(bias), [float(rise) for rise in rises], rtol=1e-10)
