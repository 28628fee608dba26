"""κ* and ζ*: the largest κ and the largest ζ of all policies of a model.

κ = Tr(I − P + 1uᵀ)⁻¹ for any u that sums to 1. Changing the row of one state is a rank-one change of the matrix, so κ
is a ratio of two affine functions of that row. Such a ratio has its maximum over a simplex at a corner, whatever the
other rows are: κ* is attained by a deterministic policy. The norm ζ = ‖Z‖∞ has no such form, so its maximum over
deterministic policies is only a lower bound on ζ*.
"""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np

from kemeny.errors import UserError
from kemeny.tabular.mdp import MDP

ENUMERATE_UP_TO = 20_000
"""All deterministic policies are tried if there are at most this many: about a second for ten states."""

SINGULAR = 1e13
"""A trace above this means that the matrix is singular: rounding turns 1/0 into numbers ten times as large or more."""


@dataclasses.dataclass(frozen=True, eq=False)
class WorstCase:
    """The largest constant found, and the policy that has it."""

    value: float
    policy: np.ndarray
    exact: bool
    """Whether `value` is the maximum over all policies; otherwise it is a lower bound on the maximum."""


def kappa_star(mdp: MDP, restarts: int = 8, seed: int = 0, enumerate_up_to: int = ENUMERATE_UP_TO) -> WorstCase:
    """κ* = max over policies of Kemeny's constant (Lemma 3).

    Exact if there are few enough deterministic policies to try all of them; otherwise a lower bound, the best of a few
    searches that change one state at a time. Infinite if a deterministic policy has several recurrent classes.
    """
    if has_few_policies(mdp, enumerate_up_to):
        value, policy = enumerate_policies(mdp, kemeny_constants)
        return WorstCase(value, policy, exact=True)
    rng = np.random.default_rng(seed)
    found = [climb(mdp, draw_policy(mdp, rng)) for _ in range(restarts)]
    value, policy = max(found, key=lambda pair: pair[0])
    return WorstCase(value, policy, exact=False)


def zeta_star(mdp: MDP, enumerate_up_to: int = ENUMERATE_UP_TO) -> WorstCase:
    """The largest ‖Z‖∞ of all deterministic policies, a lower bound on ζ* (Appendix D); for small models."""
    if not has_few_policies(mdp, enumerate_up_to):
        raise UserError(
            f"ζ* is found by trying all {count_policies(mdp)} deterministic policies, more than "
            f"{enumerate_up_to}; use the constant of the new policy instead: zeta='new'."
        )
    value, policy = enumerate_policies(mdp, zeta_constants)
    return WorstCase(value, policy, exact=False)


def choices(mdp: MDP) -> np.ndarray:
    """The number of allowed actions in each state."""
    return np.full(mdp.n_states, mdp.n_actions) if mdp.allowed is None else mdp.allowed.sum(axis=1)


def has_few_policies(mdp: MDP, limit: int) -> bool:
    """Whether there are at most `limit` deterministic policies; their number may be too large for a float."""
    return float(np.log(choices(mdp)).sum()) <= np.log(limit + 0.5)


def count_policies(mdp: MDP) -> str:
    """The number of deterministic policies as text, such as 2^22 or, if states forbid actions, about 10^5.7."""
    if mdp.allowed is None:
        return f"{mdp.n_actions}^{mdp.n_states}"
    return f"about 10^{float(np.log10(choices(mdp)).sum()):.1f}"


def draw_policy(mdp: MDP, rng: np.random.Generator) -> np.ndarray:
    """A random deterministic policy."""
    if mdp.allowed is None:
        return rng.integers(mdp.n_actions, size=mdp.n_states)
    return np.where(mdp.allowed, rng.random(mdp.allowed.shape), -1.0).argmax(axis=1)


def kemeny_constants(P: np.ndarray) -> np.ndarray:
    """κ of each chain in a stack; infinite for a chain with several recurrent classes."""
    trace = np.trace(resolvent(P), axis1=1, axis2=2)
    # The matrix of such a chain is singular: with rounding, the trace of its inverse is huge, positive or negative.
    return np.where((trace >= 1 - 1e-9) & (trace < SINGULAR), trace, np.inf)


def zeta_constants(P: np.ndarray) -> np.ndarray:
    """‖Z‖∞ of each chain in a stack: with X = (I − P + 1uᵀ)⁻¹, d = uᵀX and Z = X + 1dᵀ(I − X)."""
    X = resolvent(P)
    several = ~np.isfinite(kemeny_constants(P))
    X = np.where(several[:, None, None], 0, X)
    d = X.mean(axis=1)
    shift = d - np.einsum("bi,bij->bj", d, X)
    return np.where(several, np.inf, np.abs(X + shift[:, None, :]).sum(axis=2).max(axis=1))


def resolvent(P: np.ndarray) -> np.ndarray:
    """(I − P + 1uᵀ)⁻¹ for each chain in a stack, with u uniform; infinite where the matrix is exactly singular."""
    n = P.shape[-1]
    matrix = np.eye(n) - P + 1 / n
    try:
        return np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        if len(P) == 1:
            return np.full(P.shape, np.inf)
        return np.concatenate([resolvent(half) for half in np.array_split(P, 2)])


def enumerate_policies(mdp: MDP, constants: Callable[[np.ndarray], np.ndarray]) -> tuple[float, np.ndarray]:
    """The largest constant of all deterministic policies, and a policy that has it; computed in batches."""
    transitions, states = mdp.transitions, np.arange(mdp.n_states)
    allowed = np.ones((mdp.n_states, mdp.n_actions), dtype=bool) if mdp.allowed is None else mdp.allowed
    every = itertools.product(*(np.flatnonzero(row).tolist() for row in allowed))
    best, arg = -np.inf, np.zeros(mdp.n_states, dtype=np.int64)
    while block := list(itertools.islice(every, 2000)):
        policies = np.array(block)
        values = constants(transitions[states[None, :], policies])
        top = int(np.argmax(values))
        if values[top] > best:
            best, arg = float(values[top]), policies[top]
    return best, arg


def climb(mdp: MDP, policy: np.ndarray) -> tuple[float, np.ndarray]:
    """Change the action of the one state that raises κ most; repeat until no change raises it.

    With δ = P(·|s, a) − P_π(·|s) and X = (I − P_π + 1uᵀ)⁻¹ (Sherman and Morrison):
    Tr X' = Tr X + δᵀX²e_s / (1 − δᵀX e_s).
    """
    transitions, states = mdp.transitions, np.arange(mdp.n_states)
    policy = policy.copy()
    while True:
        P = transitions[states, policy]
        if not np.isfinite(kemeny_constants(P[None])[0]):
            return np.inf, policy
        X = resolvent(P[None])[0]
        delta = transitions - P[:, None, :]
        if mdp.allowed is not None:
            delta[~mdp.allowed] = 0  # no change, so no rise
        rise = np.einsum("sat,ts->sa", delta, X @ X) / (1 - np.einsum("sat,ts->sa", delta, X))
        s, a = np.unravel_index(int(np.argmax(rise)), rise.shape)
        if rise[s, a] <= 1e-9 * np.trace(X):
            return float(np.trace(X)), policy
        policy[s] = a
