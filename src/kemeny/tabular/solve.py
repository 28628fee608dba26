"""Optimal policies for the average reward: policy iteration and value iteration, dense and sparse.

The other solvers live beside this module and are offered here too: `multichain_policy_iteration` for models with
several recurrent classes, `linear_programme` with and without a limit on the cost, and Algorithm 1 of the paper as
`certified_policy_iteration`.

Every solver ends with a vector h, and for *any* h the best gain of every start lies between the smallest and the
largest entry of max_a [r + P·h] − h (Puterman 1994, Theorem 8.5.5): the stopping rule of all of them, and their
certificate.
"""

from typing import Any

import numpy as np

from kemeny.errors import UserError
from kemeny.tabular.certified import certified_policy_iteration
from kemeny.tabular.linear_programme import linear_programme
from kemeny.tabular.mdp import MDP
from kemeny.tabular.multichain import multichain_policy_iteration
from kemeny.tabular.solution import Solution
from kemeny.tabular.sparse import KRYLOV_TOLERANCE, SparseChain

__all__ = [
    "Solution",
    "certified_policy_iteration",
    "linear_programme",
    "modified_policy_iteration",
    "multichain_policy_iteration",
    "policy_iteration",
    "relative_value_iteration",
]

TIE = 1e-12
"""An action must beat the present one by this share of the largest value: less is rounding, and would cycle."""

LOOSE = 1e-2
"""Residual of an early evaluation, relative to the reward, where the policy is far from optimal anyway."""

FORCING = 0.1
"""Residual of the next evaluation, relative to how far the optimality equation is from holding now."""


def backup(mdp: MDP, h: np.ndarray) -> np.ndarray:
    """max_a [r + P·h], action by action, so that nothing of the size S × A is made."""
    best = mdp.by_action[0] @ h
    best += mdp.rewards_by_action[0]
    for matrix, reward in zip(mdp.by_action[1:], mdp.rewards_by_action[1:], strict=True):
        value = matrix @ h
        value += reward
        np.maximum(best, value, out=best)
    return best


def greedy(mdp: MDP, h: np.ndarray, current: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The maximising actions and their values; the current action is kept where nothing beats it by more than a tie."""
    policy = np.zeros(mdp.n_states, dtype=np.int64)
    best = mdp.by_action[0] @ h + mdp.rewards_by_action[0]
    kept = best.copy()
    for a in range(1, mdp.n_actions):
        value = mdp.by_action[a] @ h + mdp.rewards_by_action[a]
        better = value > best
        policy[better] = a
        best[better] = value[better]
        if current is not None:
            kept[current == a] = value[current == a]
    if current is not None:
        margin = TIE * max(float(np.abs(best).max()), 1e-300)
        policy = np.where(best > kept + margin, policy, current)
    return policy, best


def policy_iteration(mdp: MDP, initial: Any = None, tolerance: float = 1e-9, max_iterations: int = 1000) -> Solution:
    """Howard's policy iteration for models whose policies have one recurrent class (Puterman 1994, §8.6).

    Large sparse models are evaluated by a Krylov method, started at the last bias and only as exactly as the
    policy deserves. It stops when the policy no longer changes and the gain is known to `tolerance` (relative to
    the rewards), or as well as rounding lets it be known.
    """
    policy = np.argmax(mdp.rewards, axis=1) if initial is None else np.asarray(initial)
    evaluator = Evaluator(mdp)
    goal = tolerance * max(float(np.abs(mdp.rewards).max()), 1e-300)
    for iteration in range(1, max_iterations + 1):
        gain, h = evaluator(policy)
        improved, best = greedy(mdp, h, policy)
        rise = best - h
        low, high = float(rise.min()), float(rise.max())
        if np.array_equal(improved, policy):
            if high - low <= goal or evaluator.is_exact:
                return Solution("policy iteration", gain, h, policy, iteration, (low, high))
            # With the greedy policy unchanged the span is twice the residual, so this evaluation is the last.
            evaluator.tighten(FORCING * goal)
        else:
            evaluator.tighten(FORCING * (high - low))
        policy = improved
    raise UserError(f"Policy iteration has not settled after {max_iterations} iterations; raise max_iterations.")


class Evaluator:
    """Gain and bias of one policy after another, each started from the one before."""

    def __init__(self, mdp: MDP):
        self.mdp = mdp
        self.bias: np.ndarray | None = None
        self.tolerance = LOOSE
        self.use_krylov = True
        self.is_exact = not mdp.is_sparse

    def __call__(self, policy: np.ndarray) -> tuple[float, np.ndarray]:
        """ρ and h of a deterministic policy; a policy with several recurrent classes is an error that names them."""
        chain = self.mdp.chain(policy)
        reward = self.mdp.rewards[np.arange(self.mdp.n_states), policy]
        if not chain.is_sparse:
            if not chain.is_unichain:
                raise UserError(
                    f"A policy on the way has {chain.classes}, so its gain depends on the start; use "
                    "multichain_policy_iteration."
                )
            # (I − P + 1uᵀ)x = r is the Bellman equation with the gauge u·x = ρ, for any u that sums to 1.
            found = np.linalg.solve(np.eye(chain.n) - chain.P + 1 / chain.n, reward)
            return float(found.mean()), found - found.mean()
        solver = SparseChain(chain.P, self.use_krylov)
        gain, self.bias = solver.gain_and_bias(reward, self.bias, self.tolerance)
        self.use_krylov = solver.use_krylov
        self.is_exact = not solver.use_krylov or self.tolerance <= KRYLOV_TOLERANCE
        return gain, self.bias

    def tighten(self, residual: float) -> None:
        """Ask for a residual no larger than this from now on."""
        scale = max(float(np.abs(self.mdp.rewards).max()), 1e-300)
        self.tolerance = max(KRYLOV_TOLERANCE, min(self.tolerance, residual / scale))


def relative_value_iteration(
    mdp: MDP, tolerance: float = 1e-8, step: float = 0.95, max_iterations: int = 1_000_000, initial: Any = None
) -> Solution:
    """h ← h + step·(max_a [r + P·h] − h), until the gain is known to within `tolerance` (White 1963; Puterman §8.5).

    `step` below 1 is the aperiodicity transform of Schweitzer (1971): each transition becomes a lazy one, which
    leaves policies, gains and biases as they are and makes periodic models converge.
    """
    check_step(step)
    h = np.zeros(mdp.n_states) if initial is None else np.array(initial, dtype=float)
    low, high = -np.inf, np.inf
    for iteration in range(1, max_iterations + 1):
        rise = backup(mdp, h)
        rise -= h
        low, high = float(rise.min()), float(rise.max())
        if high - low <= tolerance:
            policy, _ = greedy(mdp, h)
            return Solution("relative value iteration", (low + high) / 2, h, policy, iteration, (low, high))
        rise *= step
        h += rise
        h -= h[0]
    raise UserError(not_converged("Relative value iteration", max_iterations, low, high))


def modified_policy_iteration(
    mdp: MDP, tolerance: float = 1e-8, sweeps: int = 50, step: float = 0.95, max_iterations: int = 100_000
) -> Solution:
    """Improve over all actions, then sweep over the policy's own transitions alone (Puterman & Shin 1978).

    A sweep costs 1/A of a backup; sweeps go on until they have taken most of what this policy has to give, or
    `sweeps`.
    """
    check_step(step)
    h = np.zeros(mdp.n_states)
    states, low, high = np.arange(mdp.n_states), -np.inf, np.inf
    swept, P, reward = np.empty(0), mdp.by_action[0], mdp.rewards_by_action[0]
    for iteration in range(1, max_iterations + 1):
        policy, best = greedy(mdp, h)
        rise = best - h
        low, high = float(rise.min()), float(rise.max())
        if high - low <= tolerance:
            return Solution("modified policy iteration", (low + high) / 2, h, policy, iteration, (low, high))
        h += step * rise
        if not np.array_equal(policy, swept):
            swept, P, reward = policy, mdp.chain(policy).P, mdp.rewards[states, policy]
        for _ in range(sweeps):
            inner = P @ h
            inner += reward
            inner -= h
            h += step * inner
            if inner.max() - inner.min() <= 0.1 * (high - low):
                break
        h -= h[0]
    raise UserError(not_converged("Modified policy iteration", max_iterations, low, high))


def check_step(step: float) -> None:
    """The aperiodicity transform needs 0 < step ≤ 1."""
    if not 0 < step <= 1:
        raise UserError(f"The step must be above 0 and at most 1, not {step:g}.")


def not_converged(method: str, iterations: int, low: float, high: float) -> str:
    """The sentence for a gain that is still uncertain, and the two usual reasons."""
    return (
        f"{method} knows the gain only to be in [{low:.6g}, {high:.6g}] after {iterations} iterations: use "
        "policy_iteration if the model mixes slowly, multichain_policy_iteration if its gain depends on the start, or "
        "a step below 1 if it is periodic."
    )
