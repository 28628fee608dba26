"""Every lemma, theorem and proposition, checked on random models and pairs of policies."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kemeny.criterion import Discounted
from kemeny.tabular import MDP, Chain, bounds, zoo
from kemeny.tabular.worst_case import climb, kappa_star, kemeny_constants, zeta_star

from . import oracles
from .strategies import SEEDS, comparisons, dirichlet_rows, models, repeatable

AVERAGE = [
    bounds.lemma_1,
    bounds.lemma_2,
    bounds.lemma_3,
    bounds.theorem_1,
    bounds.theorem_1_kl,
    bounds.theorem_1_tight,
    bounds.lemma_unichain,
    bounds.theorem_unichain,
]


@pytest.mark.parametrize("statement", AVERAGE, ids=lambda f: f.__name__)
@repeatable
@given(problem=comparisons())
def test_statements_hold_for_ergodic_models(statement, problem):
    P, r, old, new = problem
    certificate = statement(MDP(P, r), old, new)
    assert certificate.holds, str(certificate)
    assert math.isfinite(certificate.lower)


@pytest.mark.parametrize("statement", AVERAGE, ids=lambda f: f.__name__)
@repeatable
@given(problem=comparisons(transient=True))
def test_statements_hold_for_unichain_models(statement, problem):
    """Appendix D, and Lemma 3 and Theorem 1 with Tr(Z) in place of κ, which the paper does not claim."""
    P, r, old, new = problem
    mdp = MDP(P, r)
    assert len(mdp.chain(new).classes.transient) > 0
    assert statement(mdp, old, new).holds


@repeatable
@given(comparisons())
def test_certificates_are_made_of_the_papers_quantities(problem):
    """The oracles compute everything a second time from P, r and the policies."""
    P, r, old, new = problem
    mdp = MDP(P, r)
    chains = [np.einsum("sa,sat->st", pi, P) for pi in (old, new)]
    earned = [np.einsum("sa,sa->s", pi, r) for pi in (old, new)]
    d, d_new = (oracles.stationary(chain) for chain in chains)
    rho, rho_new = d @ earned[0], d_new @ earned[1]
    h = oracles.bias_by_sum(chains[0], earned[0], terms=4000)
    A = r - rho + P @ h - h[:, None]
    tv = 0.5 * np.abs(new - old).sum(axis=1)
    kl = (new * np.log(new / old)).sum(axis=1)
    kappa = oracles.kemeny_by_passage(chains[1])[0]
    surrogate = d @ (new * A).sum(axis=1)
    epsilon = np.abs((new * A).sum(axis=1)).max()
    xi = (kappa - 1) * (new * np.abs(A)).sum(axis=1).max()
    zeta = np.abs(np.linalg.inv(np.eye(len(d)) - chains[1] + d_new)).sum(axis=1).max()
    slack = {
        bounds.lemma_2: 2 * epsilon * 0.5 * np.abs(d_new - d).sum(),
        bounds.theorem_1: 2 * xi * (d @ tv),
        bounds.theorem_1_kl: xi * np.sqrt(2 * (d @ kl)),
        bounds.theorem_1_tight: 2 * (kappa - 1) * epsilon * (d @ tv),
        bounds.theorem_unichain: 2 * xi / (kappa - 1) * zeta * (d @ tv),
    }
    tolerance = 1e-7 * np.abs(r).max() * kappa
    for statement, expected in slack.items():
        certificate = statement(mdp, old, new)
        assert certificate.exact == pytest.approx(rho_new - rho, abs=tolerance)
        assert certificate.lower == pytest.approx(surrogate - expected, abs=tolerance), statement.__name__
        assert certificate.upper == pytest.approx(surrogate + expected, abs=tolerance), statement.__name__
    shift = bounds.lemma_3(mdp, old, new)
    assert shift.exact == pytest.approx(0.5 * np.abs(d_new - d).sum(), abs=1e-9)
    assert shift.upper == pytest.approx((kappa - 1) * (d @ tv), rel=1e-6, abs=1e-9)


@repeatable
@given(comparisons())
def test_bounds_are_ordered_from_loose_to_tight(problem):
    """KL form ⊇ Theorem 1 ⊇ the tight form: each uses one inequality less than the form before it."""
    P, r, old, new = problem
    mdp = MDP(P, r)
    loose, middle, tight = (f(mdp, old, new) for f in (bounds.theorem_1_kl, bounds.theorem_1, bounds.theorem_1_tight))
    slack = 1e-9 * np.abs(r).max()
    assert loose.lower <= middle.lower + slack
    assert middle.lower <= tight.lower + slack
    assert tight.upper <= middle.upper + slack


@repeatable
@given(comparisons())
def test_the_constant_of_the_new_policy_is_at_most_that_of_the_worst(problem):
    P, r, old, new = problem
    mdp = MDP(P, r)
    with_new, with_star = bounds.theorem_1(mdp, old, new), bounds.theorem_1(mdp, old, new, kappa="star")
    assert "κ(π')" in with_new.constants
    assert "κ*" in with_star.constants
    assert with_star.holds
    assert with_star.lower <= with_new.lower + 1e-9 * np.abs(r).max()


@repeatable
@given(comparisons())
def test_tight_penalty_is_of_second_order_and_the_papers_of_first(problem):
    P, r, old, new = problem
    assume(np.abs(new - old).max() > 0.05)
    mdp = MDP(P, r)
    penalties = []
    for step in (1e-3, 1e-4):
        near = old + step * (new - old)
        kappa = mdp.chain(old).kemeny
        penalties.append(
            [
                c.upper - c.constants["E[Ā]"]
                for c in (f(mdp, old, near, kappa) for f in (bounds.theorem_1, bounds.theorem_1_tight))
            ]
        )
    order = np.log10(np.array(penalties[0]) / np.array(penalties[1]))
    np.testing.assert_allclose(order, [1, 2], atol=0.1)


@repeatable
@given(comparisons(), st.sampled_from([0.1, 0.9, 0.99]))
def test_discounted_bounds_hold(problem, gamma):
    P, r, old, new = problem
    mdp = MDP(P, r, start=np.eye(len(r))[0])
    for statement in (bounds.schulman, bounds.achiam):
        plain, scaled = statement(mdp, old, new, gamma), statement(mdp, old, new, gamma, scaled=True)
        assert plain.holds, str(plain)
        assert scaled.exact == pytest.approx((1 - gamma) * plain.exact)
        assert scaled.lower == pytest.approx((1 - gamma) * plain.lower)
        exact = mdp.evaluate(new, Discounted(gamma)).rho - mdp.evaluate(old, Discounted(gamma)).rho
        assert plain.exact == pytest.approx(exact)


@repeatable
@given(comparisons(), st.sampled_from([0.3, 0.9]))
def test_discounted_bounds_are_made_of_the_published_constants(problem, gamma):
    P, r, old, new = problem
    start = np.eye(len(r))[0]
    mdp = MDP(P, r, start=start)
    chain, earned = np.einsum("sa,sat->st", old, P), (old * r).sum(axis=1)
    v = oracles.discounted_by_sum(chain, earned, gamma, 400)
    d = (1 - gamma) * oracles.discounted_by_sum(chain.T, start, gamma, 400)
    A = r + gamma * P @ v - v[:, None]
    expected, tv = (new * A).sum(axis=1), 0.5 * np.abs(new - old).sum(axis=1)
    first = d @ expected / (1 - gamma)
    tolerance = 1e-8 * np.abs(r).max() / (1 - gamma) ** 2
    trpo = first - 4 * gamma * np.abs(A).max() / (1 - gamma) ** 2 * tv.max() ** 2
    cpo = 2 * gamma * np.abs(expected).max() / (1 - gamma) ** 2 * (d @ tv)
    assert bounds.schulman(mdp, old, new, gamma).lower == pytest.approx(trpo, abs=tolerance)
    assert bounds.achiam(mdp, old, new, gamma).lower == pytest.approx(first - cpo, abs=tolerance)
    assert bounds.achiam(mdp, old, new, gamma).upper == pytest.approx(first + cpo, abs=tolerance)


@pytest.mark.parametrize("statement", [bounds.schulman, bounds.achiam], ids=lambda f: f.__name__)
def test_scaled_discounted_bounds_fall_without_limit(statement):
    """Proposition 1: they fall like −1/(1−γ); the exact value tends to ρ(π') − ρ(π), and Theorem 1 is constant."""
    mdp = zoo.garnet()
    old = mdp.uniform_policy
    new = 0.9 * old + 0.1 * mdp.policy(np.zeros(10, dtype=int))
    gaps = np.array([1e-2, 1e-3, 1e-4, 1e-5])
    found = [statement(mdp, old, new, 1 - gap, scaled=True) for gap in gaps]
    lower = np.array([c.lower for c in found])
    assert np.all(np.diff(lower) < 0)
    order = -np.diff(np.log10(-lower))[-1] / np.diff(np.log10(gaps))[-1]
    assert order == pytest.approx(1, abs=0.05)
    average = bounds.theorem_1(mdp, old, new)
    assert found[-1].exact == pytest.approx(average.exact, abs=1e-4)
    assert lower[-1] < average.lower < average.exact


@repeatable
@given(comparisons())
def test_worst_case_degradation(problem):
    """ρ(π') − ρ(π) ≥ −ξ√(2δ) for a step that raises the surrogate, such as a tilt along the advantage."""
    P, r, old, _ = problem
    mdp = MDP(P, r)
    A = mdp.evaluate(old).advantage
    tilted = old * np.exp(A / max(np.abs(A).max(), 1e-12))
    tilted /= tilted.sum(axis=1, keepdims=True)
    certificate = bounds.degradation(mdp, old, tilted)
    assert certificate.holds
    pair = bounds.compare(mdp, old, tilted)
    xi = (mdp.chain(tilted).kemeny - 1) * pair.largest_advantage
    assert certificate.lower == pytest.approx(-xi * np.sqrt(2 * pair.mean_kl), rel=1e-9)
    assert bounds.degradation(mdp, old, tilted, delta=1.0 + pair.mean_kl).lower <= certificate.lower


@repeatable
@given(comparisons(), SEEDS)
def test_worst_case_violation(problem, seed):
    """ρ_c(π') ≤ b + ξ_c√(2δ), where b is the surrogate cost of the step."""
    P, r, old, new = problem
    costs = np.random.default_rng(seed).random(r.shape)
    mdp = MDP(P, r, costs=costs)
    pair = bounds.compare(mdp, old, new, signal="cost")
    limit = pair.old.rho + pair.surrogate
    certificate = bounds.violation(mdp, old, new, limit)
    assert certificate.holds
    assert certificate.exact == pytest.approx(MDP(P, costs).evaluate(new).rho, abs=1e-12)
    xi = (mdp.chain(new).kemeny - 1) * pair.largest_advantage
    assert certificate.upper == pytest.approx(limit + xi * np.sqrt(2 * pair.mean_kl), rel=1e-9)


@repeatable
@given(comparisons())
def test_pinsker_and_jensen(problem):
    """E[TV] ≤ E[√(KL/2)] ≤ √(E[KL]/2)."""
    P, r, old, new = problem
    pair = bounds.compare(MDP(P, r), old, new)
    middle = pair.old.visitation @ np.sqrt(np.maximum(pair.kl, 0) / 2)
    assert pair.mean_tv <= middle + 1e-9
    assert middle <= np.sqrt(max(pair.mean_kl, 0) / 2) + 1e-9


def test_an_action_that_was_never_taken_makes_only_the_kl_bound_infinite():
    mdp = zoo.two_state_mdp()
    old, new = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[0.5, 0.5], [0.5, 0.5]])
    assert bounds.theorem_1_kl(mdp, old, new).lower == -math.inf
    assert bounds.theorem_1_kl(mdp, old, new).holds
    assert math.isfinite(bounds.theorem_1(mdp, old, new).lower)


def test_a_violated_bound_does_not_hold():
    sample = bounds.theorem_1(zoo.two_state_mdp(), np.array([0, 0]), np.array([1, 1]))
    assert sample.holds
    wrong = bounds.Certificate("x", "y", lower=1.0, exact=0.5, upper=2.0, constants={"κ*": 3.0})
    assert not wrong.holds
    assert "1 ≤ y = 0.5 ≤ 2  (κ* = 3)" in str(wrong)


# κ*


@repeatable
@given(models(max_states=4), SEEDS)
def test_no_random_policy_beats_kappa_star(problem, seed):
    """The maximum is attained by a deterministic policy (the principal minors are linear in each row)."""
    P, r = problem
    mdp = MDP(P, r)
    worst = kappa_star(mdp)
    assert worst.exact
    assert mdp.chain(worst.policy).kemeny == pytest.approx(worst.value, rel=1e-9)
    policies = dirichlet_rows(np.random.default_rng(seed), (300, *r.shape), 0.3)
    chains = np.einsum("gsa,sat->gst", policies, P)
    assert kemeny_constants(chains).max() <= worst.value * (1 + 1e-9)


@repeatable
@given(models(), SEEDS)
def test_kappa_is_a_ratio_of_affine_functions_of_one_row(problem, seed):
    """Along a line in the policy of one state κ = (a + bx)/(c + dx): the cross-ratio of four points stays the same."""
    P, r = problem
    rng = np.random.default_rng(seed)
    policy, x = dirichlet_rows(rng, r.shape, 1.0), np.array([0.0, 0.2, 0.6, 1.0])
    values = []
    for share in x:
        mixed = policy.copy()
        mixed[0] = (1 - share) * np.eye(r.shape[1])[0] + share * np.eye(r.shape[1])[1]
        values.append(MDP(P, r).chain(mixed).kemeny)
    k = np.array(values)
    assume(np.ptp(k) > 1e-3)

    def cross(y):
        return (y[0] - y[2]) * (y[1] - y[3]) / ((y[0] - y[3]) * (y[1] - y[2]))

    assert cross(k) == pytest.approx(cross(x), rel=1e-6)


@repeatable
@given(models(max_states=5), SEEDS)
def test_climbing_gives_a_lower_bound_that_no_change_of_one_state_improves(problem, seed):
    P, r = problem
    mdp = MDP(P, r)
    start = np.random.default_rng(seed).integers(r.shape[1], size=len(r))
    value, policy = climb(mdp, start)
    assert value == pytest.approx(mdp.chain(policy).kemeny, rel=1e-9)
    assert mdp.chain(start).kemeny <= value * (1 + 1e-9)
    assert value <= kappa_star(mdp).value * (1 + 1e-9)
    for s in range(len(r)):
        for a in range(r.shape[1]):
            changed = policy.copy()
            changed[s] = a
            assert mdp.chain(changed).kemeny <= value * (1 + 1e-8)


def test_kappa_star_by_search_finds_the_enumerated_one():
    mdp = zoo.garnet(6, 3, 2, seed=4)
    exact, searched = kappa_star(mdp), kappa_star(mdp, enumerate_up_to=0)
    assert exact.exact
    assert not searched.exact
    assert searched.value == pytest.approx(exact.value, rel=1e-9)


def test_kappa_star_is_infinite_where_a_policy_has_two_classes():
    assert kappa_star(zoo.machine_replacement()).value == math.inf
    assert zeta_star(zoo.machine_replacement()).value == math.inf


def test_zeta_star_is_not_attained_by_a_deterministic_policy():
    """Unlike κ*: on this model, found by search, a random policy has a larger ‖Z‖∞ than any deterministic one."""
    P = np.array(
        [
            [[0.21, 0.78, 0.01], [0.01, 0.74, 0.25]],
            [[0.01, 0.03, 0.96], [0.14, 0.7, 0.16]],
            [[0.0, 0.37, 0.63], [0.62, 0.08, 0.3]],
        ]
    )
    mdp = MDP(P, np.zeros((3, 2)))
    worst = zeta_star(mdp)
    assert not worst.exact
    norms = [np.abs(np.linalg.inv(np.eye(3) - Q + oracles.stationary(Q))).sum(axis=1).max()
             for Q in (P[np.arange(3), p] for p in oracles.policies(3, 2))]  # fmt: skip
    assert worst.value == pytest.approx(max(norms), rel=1e-9)
    mixed = mdp.chain(np.array([[1.0, 0.0], [0.54, 0.46], [1.0, 0.0]]))
    assert mixed.zeta > 1.01 * worst.value
    certificate = bounds.lemma_unichain(
        mdp, mdp.uniform_policy, np.array([[1.0, 0.0], [0.54, 0.46], [1.0, 0.0]]), "star"
    )
    assert max(certificate.constants.values()) == pytest.approx(mixed.zeta), "the larger of the two must be used"


def test_zeta_is_the_norm_of_z():
    chain = Chain(zoo.garnet().transitions[:, 0])
    assert chain.zeta == pytest.approx(np.abs(chain.fundamental).sum(axis=1).max())
