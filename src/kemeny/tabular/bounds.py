"""The paper's statements about two policies, each as a certificate: lower bound, exact value, upper bound, constants.

All are about an old policy π and a new policy π'. The paper states Lemma 3 and Theorem 1 with κ* = max κ; their proofs
use only κ(π'), which is smaller and is the default here (`kappa="new"`). A certificate names the constant it used.

Both are stated for irreducible chains. They hold for every unichain if κ is replaced by Tr(Z): a unichain is the limit
of irreducible chains, and both sides of Lemma 3 are continuous. Appendix D has another bound for that case, with ‖Z‖∞.

The statements with reuse take the states from batches of several past policies instead of from π alone. They are not in
the paper; docs/theory.md proves them.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy.special import rel_entr

from kemeny.criterion import Average, Criterion, Discounted
from kemeny.errors import UserError
from kemeny.tabular.mdp import MDP, PolicyValues, SignalName, average_over
from kemeny.tabular.structure import stochastic
from kemeny.tabular.worst_case import count_policies, kappa_star, zeta_star

Constant = Literal["new", "star"] | float
"""Which κ or ζ a bound uses: that of the new policy, the largest of all policies, or a given number."""

ROUNDING = 1e-9
"""A certificate still holds if it is violated by this much, relative to the numbers compared: rounding errors."""


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A statement of the paper with the numbers of two given policies."""

    statement: str
    """Its place in the paper, or its source."""

    quantity: str
    """What is bounded, in symbols."""

    lower: float
    exact: float
    upper: float
    constants: dict[str, float]
    """The constants in the bound, each under its symbol."""

    @property
    def holds(self) -> bool:
        """Whether lower ≤ exact ≤ upper, up to rounding."""
        sizes = [abs(x) for x in (self.lower, self.exact, self.upper) if math.isfinite(x)]
        slack = ROUNDING * max([1.0, *sizes])
        return self.lower - slack <= self.exact <= self.upper + slack

    def __str__(self) -> str:
        constants = ", ".join(f"{symbol} = {value:.6g}" for symbol, value in self.constants.items())
        line = f"{self.lower:.6g} ≤ {self.quantity} = {self.exact:.6g} ≤ {self.upper:.6g}"
        return f"{self.statement}: {line}  ({constants})"


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Two policies and the quantities of both that the statements use.

    Means are over the batches: s∼d_i and a∼π_i with the weight ν_i. The only batch is that of the old policy, unless
    batches of past policies are reused.
    """

    mdp: MDP
    old: PolicyValues
    new: PolicyValues
    batches: tuple[tuple[float, PolicyValues], ...]
    """ν_i > 0 and π_i, the policy that collected the batch."""

    @property
    def difference(self) -> float:
        """ρ(π') − ρ(π)."""
        return self.new.rho - self.old.rho

    @functools.cached_property
    def expected_advantage(self) -> np.ndarray:
        """E_{a∼π'}[A(s, a)] for each state, where A is the advantage of the old policy."""
        return self.old.expected_advantage(self.new.policy)

    @property
    def surrogate(self) -> float:
        """E_{s∼d_π, a∼π'}[A(s, a)], or Σ ν_i·E_{s∼d_i, a∼π'}[A(s, a)]."""
        return sum(weight * float(past.visitation @ self.expected_advantage) for weight, past in self.batches)

    @property
    def epsilon(self) -> float:
        """ε = max_s |E_{a∼π'}[A(s, a)]|, the absolute value outside the expectation: it tends to 0 as π' → π."""
        return float(np.abs(self.expected_advantage).max())

    @property
    def largest_advantage(self) -> float:
        """max_s E_{a∼π'}|A(s, a)|, the absolute value inside the expectation: it does not tend to 0."""
        return float(average_over(self.new.policy, np.abs(self.old.advantage)).max())

    @functools.cached_property
    def tv(self) -> np.ndarray:
        """The total variation distance between the policies in each state."""
        return total_variation(self.new.policy, self.old.policy)

    @functools.cached_property
    def kl(self) -> np.ndarray:
        """KL(π' ‖ π) in each state; infinite where π' takes an action that π never takes."""
        return divergence(self.new.policy, self.old.policy)

    @property
    def mean_tv(self) -> float:
        """E_{s∼d_π}[TV(π', π)], or Σ ν_i·E_{s∼d_i}[TV(π', π_i)]."""
        return self._mean_tv_to(self.new)

    @property
    def mean_kl(self) -> float:
        """E_{s∼d_π}[KL(π' ‖ π)], or Σ ν_i·E_{s∼d_i}[KL(π' ‖ π_i)]."""
        pairs = ((weight, past, divergence(self.new.policy, past.policy)) for weight, past in self.batches)
        return sum(weight * mean(past.visitation, kl) for weight, past, kl in pairs)

    @property
    def step_kl(self) -> float:
        """Σ ν_i·E_{s∼d_i}[KL(π' ‖ π)]: the size of the step from π, over the states of all batches."""
        return sum(weight * mean(past.visitation, self.kl) for weight, past in self.batches)

    @property
    def drift(self) -> float:
        """Σ ν_i·E_{s∼d_i}[TV(π, π_i)]: how far the batches are from the old policy; 0 if there is only its own."""
        return self._mean_tv_to(self.old)

    def _mean_tv_to(self, values: PolicyValues) -> float:
        return sum(
            weight * float(past.visitation @ total_variation(values.policy, past.policy))
            for weight, past in self.batches
        )


def mean(visitation: np.ndarray, values: np.ndarray) -> float:
    """The mean over the states that are visited; in the others the values may be infinite."""
    visited = visitation > 0
    return float(visitation[visited] @ values[visited])


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(p ‖ q) along the last axis."""
    # A KL divergence is never negative, but rounding can make this sum negative where p and q agree.
    return np.maximum(rel_entr(p, q).sum(axis=-1), 0)


def total_variation(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """½ Σ|p − q| along the last axis."""
    return 0.5 * np.abs(p - q).sum(axis=-1)


def compare(
    mdp: MDP, old: Any, new: Any, criterion: Criterion | None = None, signal: SignalName = "reward"
) -> Comparison:
    """Evaluate two policies under the same criterion, for the reward or for the cost."""
    criterion = Average() if criterion is None else criterion
    values = mdp.evaluate(old, criterion, signal)
    return Comparison(mdp, values, mdp.evaluate(new, criterion, signal), batches=((1.0, values),))


def compare_reused(
    mdp: MDP, policies: Sequence[Any], new: Any, weights: Any = None, signal: SignalName = "reward"
) -> Comparison:
    """Compare a new policy with the first of these policies, where each of them has collected a batch.

    The policies are those of the batches, newest first; the first is the current policy π. The weights ν_i sum to 1.
    By default all are equal.
    """
    if len(policies) == 0:
        raise UserError("Reuse needs at least one policy: the current one, then older ones.")
    given = np.full(len(policies), 1 / len(policies)) if weights is None else np.asarray(weights, dtype=float)
    if given.shape != (len(policies),):
        raise UserError(f"There are {len(policies)} policies, but the weights have the shape {given.shape}.")
    nu = stochastic(given[None], "weights")[0]
    values = [mdp.evaluate(policy, signal=signal) for policy in policies]
    batches = tuple((float(weight), past) for weight, past in zip(nu, values, strict=True) if weight > 0)
    return Comparison(mdp, values[0], mdp.evaluate(new, signal=signal), batches)


def choose_kappa(pair: Comparison, kappa: Constant) -> tuple[str, float]:
    """The symbol and the value of the κ that a certificate uses."""
    if kappa == "new":
        return "κ(π')" if pair.new.chain.is_irreducible else "Tr Z(π')", pair.new.chain.trace
    if kappa == "star":
        return largest_kappa(pair.mdp)
    return "κ given", float(kappa)


def largest_kappa(mdp: MDP) -> tuple[str, float]:
    """The symbol and the value of κ*, which must be exact: a lower bound on κ* would prove nothing."""
    worst = kappa_star(mdp)
    if not worst.exact:
        raise UserError(
            f"With {count_policies(mdp)} deterministic policies, only a lower bound on κ* is known "
            f"({worst.value:.6g}), which proves nothing; use kappa='new'."
        )
    return "κ*", worst.value


def choose_zeta(pair: Comparison, zeta: Constant) -> tuple[str, float]:
    """The symbol and the value of the ζ that a unichain certificate uses."""
    if zeta == "new":
        return "ζ(π')", pair.new.chain.zeta
    if zeta == "star":
        # The proof needs only a constant ≥ ζ(π'), so the larger of the two is valid although ζ* is not known exactly.
        return "ζ* of deterministic policies", max(zeta_star(pair.mdp).value, pair.new.chain.zeta)
    return "ζ given", float(zeta)


# The average criterion


def lemma_1(mdp: MDP, old: Any, new: Any, signal: SignalName = "reward") -> Certificate:
    """ρ(π') − ρ(π) = E_{s∼d_π', a∼π'}[Ā(s, a)]: an identity, so lower = upper."""
    pair = compare(mdp, old, new, signal=signal)
    value = float(pair.new.visitation @ pair.expected_advantage)
    return Certificate("Lemma 1", "ρ(π') − ρ(π)", value, pair.difference, value, {})


def lemma_2(mdp: MDP, old: Any, new: Any, signal: SignalName = "reward") -> Certificate:
    """|ρ(π') − ρ(π) − E_{s∼d_π, a∼π'}[Ā]| ≤ 2ε·TV(d_π', d_π)."""
    pair = compare(mdp, old, new, signal=signal)
    shift = float(total_variation(pair.new.visitation, pair.old.visitation))
    constants = {"ε": pair.epsilon, "TV(d', d)": shift, "E[Ā]": pair.surrogate}
    return around("Lemma 2", pair, 2 * pair.epsilon * shift, constants)


def lemma_3(mdp: MDP, old: Any, new: Any, kappa: Constant = "new") -> Certificate:
    """TV(d_π', d_π) ≤ (κ − 1)·E_{s∼d_π}[TV(π', π)]."""
    pair = compare(mdp, old, new)
    symbol, value = choose_kappa(pair, kappa)
    return shift_certificate("Lemma 3", pair, value - 1, {symbol: value})


def theorem_1(mdp: MDP, old: Any, new: Any, kappa: Constant = "new", signal: SignalName = "reward") -> Certificate:
    """|ρ(π') − ρ(π) − E_{s∼d_π, a∼π'}[Ā]| ≤ 2ξ·E_{s∼d_π}[TV], ξ = (κ − 1)·max_s E_{a∼π'}|Ā|."""
    return form_tv("Theorem 1", compare(mdp, old, new, signal=signal), kappa)


def theorem_1_kl(mdp: MDP, old: Any, new: Any, kappa: Constant = "new", signal: SignalName = "reward") -> Certificate:
    """Theorem 1 with √(E[KL]/2) ≥ E[TV] in place of E[TV] (Pinsker, Jensen): the penalty is ξ·√(2·E[KL])."""
    return form_kl("Theorem 1, KL form", compare(mdp, old, new, signal=signal), kappa)


def theorem_1_tight(
    mdp: MDP, old: Any, new: Any, kappa: Constant = "new", signal: SignalName = "reward"
) -> Certificate:
    """Lemmas 2 and 3 without the last step of Theorem 1's proof: the penalty 2(κ − 1)·ε·E[TV] is of second order."""
    return form_tight("Lemmas 2 and 3", compare(mdp, old, new, signal=signal), kappa)


def lemma_unichain(mdp: MDP, old: Any, new: Any, zeta: Constant = "new") -> Certificate:
    """TV(d_π', d_π) ≤ ζ·E_{s∼d_π}[TV(π', π)], ζ = ‖Z‖∞ (Appendix D); states may be transient."""
    pair = compare(mdp, old, new)
    symbol, value = choose_zeta(pair, zeta)
    return shift_certificate("Appendix D, Lemma", pair, value, {symbol: value})


def theorem_unichain(
    mdp: MDP, old: Any, new: Any, zeta: Constant = "new", signal: SignalName = "reward"
) -> Certificate:
    """Theorem 1 with ξ̃ = ζ·max_s E_{a∼π'}|Ā| (Appendix D); states may be transient."""
    pair = compare(mdp, old, new, signal=signal)
    symbol, value = choose_zeta(pair, zeta)
    xi = value * pair.largest_advantage
    constants = {symbol: value, "ξ̃": xi, "E[TV]": pair.mean_tv, "E[Ā]": pair.surrogate}
    return around("Appendix D, Theorem", pair, 2 * xi * pair.mean_tv, constants)


def degradation(mdp: MDP, old: Any, new: Any, delta: float | None = None, kappa: Constant = "new") -> Certificate:
    """ρ(π') − ρ(π) ≥ −ξ·√(2δ) for a step with E[Ā] ≥ 0 and E[KL] ≤ δ (§5.1). By default δ is the step's E[KL]."""
    pair = compare(mdp, old, new)
    delta = check_improving_step(pair, delta)
    symbol, value = choose_kappa(pair, kappa)
    xi = (value - 1) * pair.largest_advantage
    lower = -penalty(xi, math.sqrt(2 * delta))
    return Certificate(
        "Worst-case degradation", "ρ(π') − ρ(π)", lower, pair.difference, math.inf, {symbol: value, "ξ": xi, "δ": delta}
    )


def violation(
    mdp: MDP, old: Any, new: Any, limit: float, delta: float | None = None, kappa: Constant = "new"
) -> Certificate:
    """ρ_c(π') ≤ b + ξ_c·√(2δ) for a step with surrogate cost at most b and E[KL] ≤ δ (Appendix F).

    The surrogate cost is ρ_c(π) + E_{s∼d_π, a∼π'}[Ā_c^π(s, a)]; the paper swaps the two policies in it.
    """
    pair = compare(mdp, old, new, signal="cost")
    surrogate = pair.old.rho + pair.surrogate
    if surrogate > limit + ROUNDING * max(1.0, abs(limit)):
        raise UserError(
            f"The worst-case violation applies to steps whose surrogate cost keeps the limit {limit:g}, but the "
            f"surrogate cost of this step is {surrogate:g}."
        )
    delta = check_delta(pair, delta)
    symbol, value = choose_kappa(pair, kappa)
    xi = (value - 1) * pair.largest_advantage
    upper = limit + penalty(xi, math.sqrt(2 * delta))
    return Certificate(
        "Worst-case violation",
        "ρ_c(π')",
        -math.inf,
        pair.new.rho,
        upper,
        {symbol: value, "ξ_c": xi, "δ": delta, "b": limit},
    )


# The average criterion, with the states of past policies: batches of π_i with the weights ν_i, see `compare_reused`


def reuse(
    mdp: MDP,
    policies: Sequence[Any],
    new: Any,
    weights: Any = None,
    kappa: Constant = "new",
    signal: SignalName = "reward",
) -> Certificate:
    """|ρ(π') − ρ(π) − Σ ν_i·E_{s∼d_i, a∼π'}[Ā]| ≤ 2ξ·Σ ν_i·E_{s∼d_i}[TV(π', π_i)]: Theorem 1 with reuse.

    ξ is that of Theorem 1, and Ā is the advantage of the current policy π in all batches.
    """
    return form_tv("Theorem 1 with reuse", compare_reused(mdp, policies, new, weights, signal), kappa)


def reuse_kl(
    mdp: MDP,
    policies: Sequence[Any],
    new: Any,
    weights: Any = None,
    kappa: Constant = "new",
    signal: SignalName = "reward",
) -> Certificate:
    """Theorem 1 with reuse and with E[KL] = Σ ν_i·E_{s∼d_i}[KL(π' ‖ π_i)]: the penalty is ξ·√(2·E[KL])."""
    return form_kl("Theorem 1 with reuse, KL form", compare_reused(mdp, policies, new, weights, signal), kappa)


def reuse_tight(
    mdp: MDP,
    policies: Sequence[Any],
    new: Any,
    weights: Any = None,
    kappa: Constant = "new",
    signal: SignalName = "reward",
) -> Certificate:
    """Lemmas 2 and 3 with reuse: the penalty is 2(κ − 1)·ε·Σ ν_i·E_{s∼d_i}[TV(π', π_i)].

    It is of second order in the step if all π_i are π. Otherwise it is of first order, with a slope that is
    proportional to the drift.
    """
    return form_tight("Lemmas 2 and 3 with reuse", compare_reused(mdp, policies, new, weights, signal), kappa)


def reuse_degradation(
    mdp: MDP,
    policies: Sequence[Any],
    new: Any,
    weights: Any = None,
    delta: float | None = None,
    kappa: Constant = "new",
) -> Certificate:
    """ρ(π') − ρ(π) ≥ −ξ·(√(2δ) + 2·drift) for a step with E[Ā] ≥ 0 and E[KL(π' ‖ π)] ≤ δ, means over all batches.

    drift = Σ ν_i·E_{s∼d_i}[TV(π, π_i)] is known before the step. By default δ is the step's E[KL].
    """
    pair = compare_reused(mdp, policies, new, weights)
    delta = check_improving_step(pair, delta)
    symbol, value = choose_kappa(pair, kappa)
    xi = (value - 1) * pair.largest_advantage
    lower = -penalty(xi, math.sqrt(2 * delta) + 2 * pair.drift)
    constants = {symbol: value, "ξ": xi, "δ": delta, "drift": pair.drift}
    return Certificate("Worst-case degradation with reuse", "ρ(π') − ρ(π)", lower, pair.difference, math.inf, constants)


# The discounted criterion


def schulman(mdp: MDP, old: Any, new: Any, gamma: float, scaled: bool = False) -> Certificate:
    """Theorem 1 of Schulman et al. (2015): ρ_γ(π') − ρ_γ(π) ≥ E[A_γ]/(1−γ) − 4γε/(1−γ)²·α², α = max_s TV.

    ε = max |A_γ(s, a)| over allowed pairs. The paper's eq. (3) has α in place of α², which is weaker and also true.
    `scaled` multiplies everything by 1 − γ; then, as γ → 1, the exact value tends to ρ(π') − ρ(π) and the bound to −∞
    (Proposition 1).
    """
    pair = compare(mdp, old, new, Discounted(gamma))
    alpha, epsilon = float(pair.tv.max()), float(np.abs(mdp.forbid(pair.old.advantage, 0.0)).max())
    lower = pair.surrogate / (1 - gamma) - 4 * gamma * epsilon / (1 - gamma) ** 2 * alpha**2
    constants = {"γ": gamma, "ε": epsilon, "α": alpha, "E[A]": pair.surrogate}
    return discounted_certificate("Schulman et al., Theorem 1", pair, lower, math.inf, constants, scaled)


def achiam(
    mdp: MDP, old: Any, new: Any, gamma: float, scaled: bool = False, signal: SignalName = "reward"
) -> Certificate:
    """Corollary 1 of Achiam et al. (2017): |ρ_γ(π') − ρ_γ(π) − E[A_γ]/(1−γ)| ≤ 2γε/(1−γ)²·E_{s∼d_π,γ}[TV].

    ε = max_s |E_{a∼π'}[A_γ(s, a)]|. `scaled` multiplies everything by 1 − γ (Proposition 1).
    """
    pair = compare(mdp, old, new, Discounted(gamma), signal)
    slack = 2 * gamma * pair.epsilon / (1 - gamma) ** 2 * pair.mean_tv
    middle = pair.surrogate / (1 - gamma)
    constants = {"γ": gamma, "ε": pair.epsilon, "E[TV]": pair.mean_tv, "E[A]": pair.surrogate}
    return discounted_certificate("Achiam et al., Corollary 1", pair, middle - slack, middle + slack, constants, scaled)


# Parts of the statements


def form_tv(statement: str, pair: Comparison, kappa: Constant) -> Certificate:
    """The penalty 2ξ·E[TV]."""
    symbol, value = choose_kappa(pair, kappa)
    xi = (value - 1) * pair.largest_advantage
    constants = {symbol: value, "ξ": xi, "E[TV]": pair.mean_tv, "E[Ā]": pair.surrogate}
    return around(statement, pair, 2 * xi * pair.mean_tv, constants)


def form_kl(statement: str, pair: Comparison, kappa: Constant) -> Certificate:
    """The penalty ξ·√(2·E[KL])."""
    symbol, value = choose_kappa(pair, kappa)
    xi = (value - 1) * pair.largest_advantage
    constants = {symbol: value, "ξ": xi, "E[KL]": pair.mean_kl, "E[Ā]": pair.surrogate}
    return around(statement, pair, penalty(xi, math.sqrt(2 * pair.mean_kl)), constants)


def form_tight(statement: str, pair: Comparison, kappa: Constant) -> Certificate:
    """The penalty 2(κ − 1)·ε·E[TV]."""
    symbol, value = choose_kappa(pair, kappa)
    constants = {symbol: value, "ε": pair.epsilon, "E[TV]": pair.mean_tv, "E[Ā]": pair.surrogate}
    return around(statement, pair, 2 * (value - 1) * pair.epsilon * pair.mean_tv, constants)


def around(statement: str, pair: Comparison, slack: float, constants: dict[str, float]) -> Certificate:
    """surrogate − slack ≤ ρ(π') − ρ(π) ≤ surrogate + slack."""
    middle = pair.surrogate
    return Certificate(statement, "ρ(π') − ρ(π)", middle - slack, pair.difference, middle + slack, constants)


def shift_certificate(statement: str, pair: Comparison, factor: float, constants: dict[str, float]) -> Certificate:
    """0 ≤ TV(d', d) ≤ factor · E[TV]."""
    exact = float(total_variation(pair.new.visitation, pair.old.visitation))
    upper = factor * pair.mean_tv
    return Certificate(statement, "TV(d', d)", 0.0, exact, upper, constants | {"E[TV]": pair.mean_tv})


def discounted_certificate(
    statement: str, pair: Comparison, lower: float, upper: float, constants: dict[str, float], scaled: bool
) -> Certificate:
    """A bound on ρ_γ(π') − ρ_γ(π) or, if `scaled`, on 1 − γ times that."""
    factor = 1 - constants["γ"] if scaled else 1.0
    quantity = "(1−γ)(ρ_γ(π') − ρ_γ(π))" if scaled else "ρ_γ(π') − ρ_γ(π)"
    return Certificate(statement, quantity, factor * lower, factor * pair.difference, factor * upper, constants)


def penalty(xi: float, step: float) -> float:
    """ξ·step; it is 0 where ξ = 0, even if the step is infinite."""
    return 0.0 if xi == 0 else xi * step


def check_improving_step(pair: Comparison, delta: float | None) -> float:
    """The δ of a step that the worst-case degradation applies to: one within δ that does not lower the surrogate."""
    if pair.surrogate < -ROUNDING * max(1.0, pair.epsilon):
        raise UserError(
            f"The worst-case degradation applies to steps with E[Ā] ≥ 0, but this step has E[Ā] = {pair.surrogate:g}."
        )
    return check_delta(pair, delta)


def check_delta(pair: Comparison, delta: float | None) -> float:
    """The size δ of the trust region: by default the step's E[KL]; an error if the step is outside."""
    if delta is None:
        return pair.step_kl
    if pair.step_kl > delta * (1 + ROUNDING):
        raise UserError(f"The step has E[KL] = {pair.step_kl:g}, which is outside the trust region of δ = {delta:g}.")
    return delta
