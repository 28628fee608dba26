"""Policy iteration for models whose gain depends on the start state: several recurrent classes, dense matrices."""

import dataclasses
from typing import Any

import numpy as np

from kemeny.errors import UserError
from kemeny.tabular.chain import DENSE_LIMIT
from kemeny.tabular.mdp import MDP
from kemeny.tabular.sparse import scale_of

TIE = 1e-10
"""Differences below this share of the largest value are rounding errors; acting on them could cycle for ever."""


@dataclasses.dataclass(frozen=True, eq=False)
class MultichainSolution:
    """An optimal policy, with its gain and bias for each start state."""

    gain: np.ndarray
    """The best reward per step from each start state."""

    bias: np.ndarray
    """h of the policy. With g the gain: g = max_a P·g, and g + h = max_a [r + P·h] over the actions with P·g = g."""

    policy: np.ndarray
    """The action in each state."""

    iterations: int


def multichain_policy_iteration(mdp: MDP, initial: Any = None, max_iterations: int = 1000) -> MultichainSolution:
    """Howard's policy iteration in its general form: improve the gain if possible, else the bias (Puterman §9.2)."""
    if mdp.n_states > DENSE_LIMIT:
        raise UserError(
            f"multichain_policy_iteration needs dense {mdp.n_states} × {mdp.n_states} matrices (the limit is "
            f"{DENSE_LIMIT} states)."
        )
    policy = np.argmax(mdp.forbid(mdp.rewards), axis=1) if initial is None else np.array(initial)
    for iteration in range(1, max_iterations + 1):
        gain, bias = mdp.gain_and_bias(policy)
        reach = mdp.forbid(mdp.expect(gain))
        improved = improve(policy, reach)
        if np.array_equal(improved, policy):
            keeps = reach >= reach.max(axis=1, keepdims=True) - TIE * scale_of(gain)
            improved = improve(policy, np.where(keeps, mdp.rewards + mdp.expect(bias), -np.inf))
            if np.array_equal(improved, policy):
                return MultichainSolution(gain, bias, policy, iteration)
        policy = improved
    raise UserError(f"Policy iteration did not converge in {max_iterations} iterations; raise max_iterations.")


def improve(policy: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The best action in each state; the present action stays unless another is better by more than a tie."""
    present = value[np.arange(len(policy)), policy]
    margin = TIE * scale_of(value[np.isfinite(value)])
    return np.where(value.max(axis=1) > present + margin, value.argmax(axis=1), policy)
