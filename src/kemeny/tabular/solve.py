"""Optimal policies for the average reward: policy iteration and value iteration, dense and sparse.

The other solvers have modules of their own and can be imported from here too: `multichain_policy_iteration` for models
with several recurrent classes, `linear_programme` with and without a limit on the cost, and
`certified_policy_iteration`, which is Algorithm 1 of the paper.

Every solver in this module ends with a vector h. For *any* h, the best gain from every start state lies between the
smallest and the largest entry of max_a [r + P·h] − h (Puterman 1994, Theorem 8.5.5). These two numbers are returned as
`gain_bounds`, and the solvers stop when they are close enough.
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
"""An action must be better than the present one by this share of the largest value. A smaller difference is a rounding
error; acting on it could cycle for ever."""

LOOSE = 1e-2
"""The residual, relative to the rewards, to which the first policies are evaluated: they are far from optimal."""

FORCING = 0.1
"""The residual to which the next policy is evaluated, relative to the present error in the optimality equation."""


def backup(mdp: MDP, h: np.ndarray) -> np.ndarray:
    """max_a [r + P·h], computed action by action so that no S × A array is made."""
    best = mdp.by_action[0] @ h
    best += mdp.rewards_by_action[0]
    for matrix, reward in zip(mdp.by_action[1:], mdp.rewards_by_action[1:], strict=True):
        value = matrix @ h
        value += reward
        np.maximum(best, value, out=best)
    return best


def greedy(mdp: MDP, h: np.ndarray, current: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The maximising actions and their values; a current action stays unless another is better by more than a tie."""
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

    Policies of large sparse models are evaluated by a Krylov method, which starts from the previous bias and is more
    precise the closer the policy is to the optimum. The iteration stops when the policy no longer changes and the gain
    is known to within `tolerance` (relative to the rewards), or as precisely as rounding allows.
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
            # The policy did not change, so high − low is at most twice the residual: the next evaluation is the last.
            evaluator.tighten(FORCING * goal)
        else:
            evaluator.tighten(FORCING * (high - low))
        policy = improved
    raise UserError(f"Policy iteration did not converge in {max_iterations} iterations; raise max_iterations.")


class Evaluator:
    """Computes gain and bias of one policy after another; each solve starts from the bias of the policy before."""

    def __init__(self, mdp: MDP):
        self.mdp = mdp
        self.bias: np.ndarray | None = None
        self.tolerance = LOOSE
        self.use_krylov = True
        self.is_exact = not mdp.is_sparse

    def __call__(self, policy: np.ndarray) -> tuple[float, np.ndarray]:
        """ρ and h of a deterministic policy; an error names the classes if it has several recurrent classes."""
        chain = self.mdp.chain(policy)
        reward = self.mdp.rewards[np.arange(self.mdp.n_states), policy]
        if not chain.is_sparse:
            if not chain.is_unichain:
                raise UserError(
                    f"Policy iteration met a policy with {chain.classes}, so its gain depends on the start state; "
                    "use multichain_policy_iteration."
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
        """From now on, evaluate policies to a residual of at most this."""
        scale = max(float(np.abs(self.mdp.rewards).max()), 1e-300)
        self.tolerance = max(KRYLOV_TOLERANCE, min(self.tolerance, residual / scale))


def relative_value_iteration(
    mdp: MDP, tolerance: float = 1e-8, step: float = 0.95, max_iterations: int = 1_000_000, initial: Any = None
) -> Solution:
    """h ← h + step·(max_a [r + P·h] − h), until the gain is known to within `tolerance` (White 1963; Puterman §8.5).

    A `step` below 1 is the aperiodicity transform of Schweitzer (1971): the chain stays where it is with probability
    1 − step. The optimal policies, gains and biases are the same, and the iteration converges on periodic models too.
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
    """Improve the policy over all actions, then update h several times for this policy (Puterman & Shin 1978).

    Such an update, a sweep, reads the transitions of one action per state, so it costs 1/A of an improvement. Sweeps
    stop when they change h little, after `sweeps` at most.
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
    """Raise an error unless 0 < step ≤ 1, which the aperiodicity transform needs."""
    if not 0 < step <= 1:
        raise UserError(f"The step must be above 0 and at most 1, not {step:g}.")


def not_converged(method: str, iterations: int, low: float, high: float) -> str:
    """The message for a gain that is not known to the tolerance yet, with the usual reasons."""
    return (
        f"{method} did not reach the tolerance: after {iterations} iterations the gain is known to be in [{low:.6g}, "
        f"{high:.6g}]. Use policy_iteration if the model mixes slowly, multichain_policy_iteration if its gain depends "
        "on the start state, or a step below 1 if it is periodic."
    )
