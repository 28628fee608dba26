"""Algorithm 1: policy iteration in which each step has a proof that it does not lower the gain.

The paper's penalty, ξ·√(2·E[KL]), is of first order in the size of the step. So is the improvement, and on almost every
model the penalty grows faster: the best step is no step. Lemmas 2 and 3 together give the penalty 2(κ−1)·ε·E[TV], in
which ε also tends to 0 with the step. This penalty is of second order, so a small enough step always improves the
bound. `penalty="paper"` is the paper's algorithm; `penalty="tight"` uses the second penalty and reaches the optimum.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from scipy.special import rel_entr

from kemeny.errors import RunError
from kemeny.tabular import bounds
from kemeny.tabular.mdp import MDP, PolicyValues
from kemeny.tabular.worst_case import kemeny_constants

Penalty = Literal["paper", "tight"]

GRID = np.logspace(-4, 5, 73)
"""The strengths of the tilt that are tried first, relative to the largest advantage; then finer around the best."""


@dataclasses.dataclass(frozen=True, eq=False)
class CertifiedRun:
    """The result of Algorithm 1: the last policy, and the steps that led to it."""

    policy: np.ndarray
    """The last policy, S × A."""

    gain: float
    """ρ of the last policy."""

    gap: float
    """max Ā(s, a) of the last policy: by Lemma 1 no policy has a gain larger than `gain + gap`."""

    certificates: tuple[bounds.Certificate, ...]
    """One proof per step that was taken."""

    gains: np.ndarray
    """ρ of every policy, including the first; it never decreases."""

    @property
    def steps(self) -> int:
        """The number of steps that were taken."""
        return len(self.certificates)


def certified_policy_iteration(
    mdp: MDP,
    penalty: Penalty = "tight",
    initial: Any = None,
    kappa: bounds.Constant = "new",
    iterations: int = 1000,
    tolerance: float = 1e-9,
) -> CertifiedRun:
    """Algorithm 1: π_{k+1} maximises a lower bound on ρ(π) − ρ(π_k).

    The maximum is searched among the tilts π ∝ π_k·exp(Ā/β) and among the mixtures of π_k with its greedy policy:
    one number is searched in each. `kappa="star"` is the paper's κ*; `"new"` is κ of the candidate, which is smaller,
    is all that the proof needs, and is finite even if some other policy has several recurrent classes. The iteration
    ends when no candidate has a positive bound, or when no policy can be better by more than `tolerance`.
    """
    policy = mdp.uniform_policy if initial is None else mdp.policy(initial)
    certify = bounds.theorem_1_kl if penalty == "paper" else bounds.theorem_1_tight
    if kappa == "star":
        _, kappa = bounds.largest_kappa(mdp)
    present = mdp.evaluate(policy)
    gains, certificates = [present.rho], []
    for _ in range(iterations):
        if present.advantage.max() <= tolerance:
            break
        candidate = best_candidate(mdp, present, penalty, kappa)
        if candidate is None:
            break
        certificate = certify(mdp, present.policy, candidate, kappa)
        present = mdp.evaluate(candidate)
        if not certificate.holds or present.rho < gains[-1] - bounds.ROUNDING * max(1.0, abs(gains[-1])):
            raise RunError(
                f"A certified step lowered the gain from {gains[-1]:.12g} to {present.rho:.12g}: {certificate}"
            )
        certificates.append(certificate)
        gains.append(present.rho)
    return CertifiedRun(
        present.policy, present.rho, float(present.advantage.max()), tuple(certificates), np.array(gains)
    )


def best_candidate(mdp: MDP, present: PolicyValues, penalty: Penalty, kappa: bounds.Constant) -> np.ndarray | None:
    """The candidate with the largest lower bound, or None if no bound is positive."""
    best, value = None, 0.0
    for family, grid in ((tilts(present), GRID), (mixtures(present), np.logspace(-6, 0, 49))):
        for _ in range(2):
            policies = family(grid)
            lower = lower_bounds(mdp, present, policies, penalty, kappa)
            top = int(np.argmax(lower))
            if lower[top] > value:
                best, value = policies[top], float(lower[top])
            grid = np.geomspace(grid[max(top - 1, 0)], grid[min(top + 1, len(grid) - 1)], 11)
    return best


def tilts(present: PolicyValues) -> Callable[[np.ndarray], np.ndarray]:
    """π ∝ π_k·exp(strength·Ā/max|Ā|), a stack with one policy per strength."""
    score = present.advantage / max(float(np.abs(finite(present.advantage)).max()), 1e-300)

    def family(strengths: np.ndarray) -> np.ndarray:
        # Among the actions that π_k uses, the largest exponent in each state is 0, so that nothing overflows.
        allowed = np.where(present.policy > 0, score, -np.inf)
        exponent = strengths[:, None, None] * (allowed - allowed.max(axis=1, keepdims=True))
        weight = present.policy * np.exp(exponent)
        return weight / weight.sum(axis=2, keepdims=True)

    return family


def mixtures(present: PolicyValues) -> Callable[[np.ndarray], np.ndarray]:
    """(1 − share)·π_k + share·greedy, as in conservative policy iteration (Kakade & Langford 2002)."""
    greedy = np.eye(present.policy.shape[1])[present.advantage.argmax(axis=1)]
    return lambda shares: present.policy + shares[:, None, None] * (greedy - present.policy)


def lower_bounds(
    mdp: MDP, present: PolicyValues, policies: np.ndarray, penalty: Penalty, kappa: bounds.Constant
) -> np.ndarray:
    """The certified improvement of each policy in a stack: the bounds of `bounds`, for all policies at once."""
    advantage = finite(present.advantage)
    expected_advantage = np.einsum("gsa,sa->gs", policies, advantage)
    if kappa == "new":
        chains = np.einsum("gsa,sat->gst", policies, mdp.transitions)
        factor = kemeny_constants(chains) - 1
    else:
        factor = float(kappa) - 1
    if penalty == "paper":
        size = np.einsum("gsa,sa->gs", policies, np.abs(advantage)).max(axis=1)
        kl = np.maximum(rel_entr(policies, present.policy).sum(axis=2), 0)
        distance = np.sqrt(2 * np.einsum("gs,s->g", np.where(present.visitation > 0, kl, 0), present.visitation))
        reduction = np.where(size > 0, size * distance, 0)
    else:
        distance = 0.5 * np.abs(policies - present.policy).sum(axis=2) @ present.visitation
        reduction = 2 * np.abs(expected_advantage).max(axis=1) * distance
    return expected_advantage @ present.visitation - factor * reduction


def finite(advantage: np.ndarray) -> np.ndarray:
    """The advantages, with 0 for forbidden pairs: no candidate takes them."""
    return np.where(np.isfinite(advantage), advantage, 0.0)
