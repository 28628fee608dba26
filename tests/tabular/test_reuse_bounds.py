"""The improvement bounds with batches of past policies: they hold, are attained, and one batch gives the paper's."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kemeny.errors import UserError
from kemeny.tabular import MDP, bounds, zoo

from . import oracles
from .strategies import SEEDS, comparisons, dirichlet_rows, repeatable

REUSE = {
    bounds.reuse: bounds.theorem_1,
    bounds.reuse_kl: bounds.theorem_1_kl,
    bounds.reuse_tight: bounds.theorem_1_tight,
}
"""Each statement with reuse, and the statement for one batch."""

fewer = settings(repeatable, max_examples=25)
"""Each example has up to five policies."""

UNICHAIN = [name for name in zoo.MODELS if name not in ("multichain", *zoo.LARGE)]


def older(rng, policy, steps, share):
    """A policy and those before it: each is a mixture of the one after it with a random policy."""
    policies = [policy]
    for _ in range(steps):
        support = dirichlet_rows(rng, policy.shape, 0.5) * (policy > 0)
        policies.append((1 - share) * policies[-1] + share * support / support.sum(axis=1, keepdims=True))
    return policies


@st.composite
def reuses(draw, transient=False):
    """A model, policies from the newest to the oldest, their weights, and a new policy."""
    P, r, old, new = draw(comparisons(transient=transient))
    rng = np.random.default_rng(draw(SEEDS))
    policies = older(rng, old, draw(st.integers(0, 3)), draw(st.sampled_from([0.01, 0.1, 0.5])))
    return P, r, policies, rng.dirichlet(np.ones(len(policies))), new


def means(P, policies, weights, of):
    """Σ ν_i·E_{s∼d_i}[of(π_i)(s)], from the definition."""
    return sum(
        weight * oracles.stationary(np.einsum("sa,sat->st", policy, P)) @ of(policy)
        for weight, policy in zip(weights, policies, strict=True)
    )


def tv(p, q):
    return 0.5 * np.abs(p - q).sum(axis=-1)


# They hold


@fewer
@given(problem=reuses())
def test_statements_hold_for_ergodic_models(problem):
    P, r, policies, weights, new = problem
    for statement in REUSE:
        certificate = statement(MDP(P, r), policies, new, weights)
        assert certificate.holds, str(certificate)
        assert math.isfinite(certificate.lower)


@fewer
@given(problem=reuses(transient=True))
def test_statements_hold_for_unichain_models(problem):
    P, r, policies, weights, new = problem
    for statement in REUSE:
        certificate = statement(MDP(P, r), policies, new, weights)
        assert "Tr Z(π')" in certificate.constants
        assert certificate.holds, str(certificate)


@pytest.mark.parametrize("name", UNICHAIN)
def test_statements_hold_in_the_zoo(name):
    mdp, rng = zoo.model(name), np.random.default_rng(0)
    policies = older(rng, mdp.uniform_policy, steps=3, share=0.1)
    new = older(rng, mdp.uniform_policy, steps=1, share=0.1)[1]
    for statement in REUSE:
        certificate = statement(mdp, policies, new)
        assert certificate.holds, str(certificate)


@fewer
@given(reuses())
def test_certificates_are_made_of_the_quantities_that_they_name(problem):
    """The oracles compute everything a second time from P, r and the policies, with importance weights π'/π_i."""
    P, r, policies, weights, new = problem
    chains = [np.einsum("sa,sat->st", policy, P) for policy in (policies[0], new)]
    earned = [np.einsum("sa,sa->s", policy, r) for policy in (policies[0], new)]
    rho, rho_new = (oracles.stationary(chain) @ x for chain, x in zip(chains, earned, strict=True))
    h = oracles.bias_by_sum(chains[0], earned[0], terms=4000)
    A = r - rho + P @ h - h[:, None]
    kappa = oracles.kemeny_by_passage(chains[1])[0]
    surrogate = means(P, policies, weights, lambda past: (past * (new / past) * A).sum(axis=1))
    distance = means(P, policies, weights, lambda past: tv(new, past))
    kl = means(P, policies, weights, lambda past: (new * np.log(new / past)).sum(axis=1))
    xi = (kappa - 1) * (new * np.abs(A)).sum(axis=1).max()
    slack = {
        bounds.reuse: 2 * xi * distance,
        bounds.reuse_kl: xi * np.sqrt(2 * max(kl, 0)),
        bounds.reuse_tight: 2 * (kappa - 1) * np.abs((new * A).sum(axis=1)).max() * distance,
    }
    tolerance = 1e-7 * np.abs(r).max() * kappa
    for statement, expected in slack.items():
        certificate = statement(MDP(P, r), policies, new, weights)
        assert certificate.exact == pytest.approx(rho_new - rho, abs=tolerance)
        assert certificate.lower == pytest.approx(surrogate - expected, abs=tolerance), statement.__name__
        assert certificate.upper == pytest.approx(surrogate + expected, abs=tolerance), statement.__name__


@pytest.mark.parametrize("side", [1, -1], ids=["lower", "upper"])
def test_the_tight_form_is_attained(side):
    """No factor can be smaller. The action is the next state, Ā = r, and E_{a∼π'}[Ā] has one size and two signs."""
    P = np.broadcast_to(np.eye(2), (2, 2, 2))
    old, oldest, new = (np.array([[1 - x, x], [1 - y, y]]) for x, y in ((0.3, 0.4), (0.2, 0.35), (0.5, 0.5)))
    gain = side * np.array([[1.0], [-2.0]]) * np.array([-1.0, 1.0])
    mdp = MDP(P, gain - (old * gain).sum(axis=1, keepdims=True))
    certificate = bounds.reuse_tight(mdp, [old, oldest], new, [0.4, 0.6])
    bound = certificate.upper if side == -1 else certificate.lower
    assert certificate.exact == pytest.approx(bound, abs=1e-14)
    assert certificate.upper - certificate.lower > 0.1


# Special cases


@fewer
@given(reuses())
def test_one_batch_of_the_current_policy_gives_the_papers_statements(problem):
    """Bit for bit; a batch without weight changes nothing."""
    P, r, policies, _, new = problem
    mdp, current_only = MDP(P, r), np.eye(len(policies))[0]
    for statement, alone in REUSE.items():
        expected = alone(mdp, policies[0], new)
        for found in (statement(mdp, policies[:1], new), statement(mdp, policies, new, current_only)):
            assert (found.lower, found.exact, found.upper) == (expected.lower, expected.exact, expected.upper)
            assert found.constants == expected.constants


@fewer
@given(reuses())
def test_without_a_step_nothing_is_lost(problem):
    """At π' = π the surrogate and ε are 0 in every batch, and so is the tight penalty, however old the batches are."""
    P, r, policies, weights, _ = problem
    certificate = bounds.reuse_tight(MDP(P, r), policies, policies[0], weights)
    np.testing.assert_allclose([certificate.lower, certificate.upper], 0, atol=1e-9 * np.abs(r).max())


@fewer
@given(comparisons(), SEEDS)
def test_the_tight_penalty_is_of_second_order_only_without_drift(problem, seed):
    P, r, old, new = problem
    assume(np.abs(new - old).max() > 0.05)
    mdp = MDP(P, r)
    kappa = mdp.chain(old).kemeny
    drifted = older(np.random.default_rng(seed), old, steps=2, share=0.5)

    def penalty(step, policies):
        certificate = bounds.reuse_tight(mdp, policies, old + step * (new - old), kappa=kappa)
        return certificate.upper - certificate.constants["E[Ā]"]

    orders = [np.log10(penalty(1e-3, batches) / penalty(1e-4, batches)) for batches in ([old] * 3, drifted)]
    np.testing.assert_allclose(orders, [2, 1], atol=0.1)


@fewer
@given(reuses(), SEEDS)
def test_the_upper_bound_holds_for_a_cost(problem, seed):
    P, r, policies, weights, new = problem
    costs = np.random.default_rng(seed).random(r.shape)
    of_cost = bounds.reuse(MDP(P, r, costs=costs), policies, new, weights, signal="cost")
    of_reward = bounds.reuse(MDP(P, costs), policies, new, weights)
    assert of_cost.holds
    assert of_cost.upper == pytest.approx(of_reward.upper, abs=1e-12)


@fewer
@given(reuses())
def test_the_batches_are_those_of_one_policy(problem):
    """π_ν(a|s) = Σ ν_i d_i(s) π_i(a|s) / Σ ν_i d_i(s) has the mixture's states, and in the mean is as near to π'."""
    P, _, policies, weights, new = problem
    d = [oracles.stationary(np.einsum("sa,sat->st", policy, P)) for policy in policies]
    pairs = np.sum([w * x[:, None] * policy for w, x, policy in zip(weights, d, policies, strict=True)], axis=0)
    states = pairs.sum(axis=1)
    merged = pairs / states[:, None]
    np.testing.assert_allclose(oracles.stationary(np.einsum("sa,sat->st", merged, P)), states, atol=1e-9)
    chain = np.einsum("sa,sat->st", new, P)
    shift, kappa = tv(oracles.stationary(chain), states), oracles.kemeny_by_passage(chain)[0]
    nearer = states @ tv(new, merged)
    assert shift <= (kappa - 1) * nearer + 1e-9
    assert nearer <= means(P, policies, weights, lambda past: tv(new, past)) + 1e-9


# The trust region


@fewer
@given(reuses())
def test_worst_case_degradation(problem):
    P, r, policies, weights, _ = problem
    mdp, old = MDP(P, r), policies[0]
    A = mdp.evaluate(old).advantage
    tilted = old * np.exp(A / max(np.abs(A).max(), 1e-12))
    tilted /= tilted.sum(axis=1, keepdims=True)
    found = bounds.reuse_degradation(mdp, policies, tilted, weights)
    kl = (tilted * np.log(tilted / old)).sum(axis=1)
    delta = means(P, policies, weights, lambda _: kl)
    drift = means(P, policies, weights, lambda past: tv(old, past))
    distance = means(P, policies, weights, lambda past: tv(tilted, past))
    xi = (mdp.chain(tilted).kemeny - 1) * (tilted * np.abs(A)).sum(axis=1).max()
    assert found.holds
    assert found.lower == pytest.approx(-xi * (np.sqrt(2 * delta) + 2 * drift), rel=1e-6, abs=1e-9)
    assert distance <= np.sqrt(delta / 2) + drift + 1e-9, "what the statement rests on"
    alone = bounds.reuse_degradation(mdp, [old], tilted)
    assert alone.constants.pop("drift") == 0
    assert alone.constants == bounds.degradation(mdp, old, tilted).constants
    assert alone.lower == bounds.degradation(mdp, old, tilted).lower


@fewer
@given(reuses())
def test_drift_is_at_most_the_steps_and_the_shifts_of_the_states(problem):
    """E_{s∼d_i}[TV(π_j, π_{j+1})] exceeds the mean over the states of the step by at most TV(d_i, d_{j+1})·max TV."""
    P, r, policies, weights, _ = problem
    d = [oracles.stationary(np.einsum("sa,sat->st", policy, P)) for policy in policies]
    steps = [tv(newer, past) for newer, past in itertools.pairwise(policies)]
    sums = [
        sum(d[j + 1] @ steps[j] + tv(d[i], d[j + 1]) * steps[j].max() for j in range(i)) for i in range(len(policies))
    ]
    pair = bounds.compare_reused(MDP(P, r), policies, policies[0], weights)
    assert pair.drift <= weights @ sums + 1e-9
    largest = max((step.max() for step in steps), default=0.0)
    assert pair.drift <= largest * (weights @ np.arange(len(policies))) + 1e-9


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_steps_in_one_direction_need_the_whole_factor(batches):
    """With M equal weights and steps of TV η in every state, E[TV] = η·(M + 1)/2."""
    mdp, eta = zoo.two_state_mdp(), 0.03
    line = [np.array([[0.5 - eta * i, 0.5 + eta * i]] * 2) for i in range(batches + 1)]
    pair = bounds.compare_reused(mdp, line[1:], line[0])
    assert pair.mean_tv == pytest.approx(eta * (batches + 1) / 2)


# Input


def test_an_action_that_a_past_policy_never_took_makes_only_the_kl_form_infinite():
    mdp = zoo.two_state_mdp()
    never, new = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[0.5, 0.5], [0.5, 0.5]])
    assert bounds.reuse_kl(mdp, [new, never], new).lower == -math.inf
    assert math.isfinite(bounds.reuse(mdp, [new, never], new).lower)
    assert math.isfinite(bounds.reuse_kl(mdp, [new, never], new, weights=[1, 0]).lower)


@pytest.mark.parametrize(
    ("policies", "weights", "sentence"),
    [
        (0, None, "at least one policy"),
        (2, [1.0], r"There are 2 policies, but the weights have the shape \(1,\)"),
        (2, [0.5, 0.6], "weights sums to 1.1, not to 1"),
        (2, [1.5, -0.5], "weights has a negative probability, -0.5"),
    ],
)
def test_weights_that_are_no_distribution_are_refused(policies, weights, sentence):
    mdp = zoo.two_state_mdp()
    with pytest.raises(UserError, match=sentence):
        bounds.reuse(mdp, [mdp.uniform_policy] * policies, mdp.uniform_policy, weights)


def test_a_step_outside_the_trust_region_is_refused():
    mdp = zoo.two_state_mdp()
    old = mdp.uniform_policy
    steps = [old + np.outer([1, 1], [x, -x]) for x in (0.2, -0.2)]
    better = max(steps, key=lambda step: bounds.reuse(mdp, [old], step).constants["E[Ā]"])
    with pytest.raises(UserError, match="outside the trust region"):
        bounds.reuse_degradation(mdp, [old, better], better, delta=1e-3)
