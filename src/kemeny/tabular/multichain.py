"""Policy iteration where the gain depends on the start: several recurrent classes, dense models."""

import dataclasses
from typing import Any

import numpy as np

from kemeny.errors import UserError
from kemeny.tabular.chain import DENSE_LIMIT
from kemeny.tabular.mdp import MDP

TIE = 1e-10
"""Differences below this share of the largest value are rounding; acting on them would cycle."""


@dataclasses.dataclass(frozen=True, eq=False)
class MultichainSolution:
    """An optimal policy, with gain and bias for each start."""

    gain: np.ndarray
    """The best reward per step from each start."""

    bias: np.ndarray
    """h of the policy found; with `gain` it solves both optimality equations."""

    policy: np.ndarray
    iterations: int

    def residuals(self, mdp: MDP) -> tuple[float, float]:
        """Errors in g = max_a P·g and in g + h = max_a [r + P·h], the latter over actions that keep the gain."""
        reach = mdp.expect(self.gain)
        keeps = reach >= reach.max(axis=1, keepdims=True) - TIE * scale_of(self.gain)
        value = np.where(keeps, mdp.rewards + mdp.expect(self.bias), -np.inf)
        return (
            float(np.abs(reach.max(axis=1) - self.gain).max()),
            float(np.abs(value.max(axis=1) - self.gain - self.bias).max()),
        )


def multichain_policy_iteration(mdp: MDP, initial: Any = None, max_iterations: int = 1000) -> MultichainSolution:
    """Howard's policy iteration in full: improve the gain where possible, otherwise the bias (Puterman §9.2)."""
    if mdp.n_states > DENSE_LIMIT:
        raise UserError(
            f"multichain_policy_iteration needs dense {mdp.n_states} × {mdp.n_states} matrices (the limit is "
            f"{DENSE_LIMIT} states)."
        )
    policy = np.argmax(mdp.rewards, axis=1) if initial is None else np.array(initial)
    for iteration in range(1, max_iterations + 1):
        gain, bias = mdp.gain_and_bias(policy)
        improved = improve(policy, mdp.expect(gain))
        if np.array_equal(improved, policy):
            reach = mdp.expect(gain)
            keeps = reach >= reach.max(axis=1, keepdims=True) - TIE * scale_of(gain)
            improved = improve(policy, np.where(keeps, mdp.rewards + mdp.expect(bias), -np.inf))
            if np.array_equal(improved, policy):
                return MultichainSolution(gain, bias, policy, iteration)
        policy = improved
    raise UserError(f"Policy iteration has not settled after {max_iterations} iterations; raise max_iterations.")


def improve(policy: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The best action in each state, the present one where nothing clearly beats it."""
    present = value[np.arange(len(policy)), policy]
    margin = TIE * scale_of(value[np.isfinite(value)])
    return np.where(value.max(axis=1) > present + margin, value.argmax(axis=1), policy)


def scale_of(values: np.ndarray) -> float:
    """The largest absolute value, never 0."""
    return max(float(np.abs(values).max()), 1e-300)
