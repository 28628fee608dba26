"""Policies that are optimal for a discount, so that their long-run average can be compared with the best one.

Kemeny maximises averages. A discount is a wrong answer to that question, and this module says how wrong it is.
"""

import dataclasses

import numpy as np

from kemeny.criterion import Discounted
from kemeny.errors import UserError
from kemeny.tabular.mdp import MDP, solve_discounted
from kemeny.tabular.sweeps import Sweeps


@dataclasses.dataclass(frozen=True, eq=False)
class DiscountedSolution:
    """A policy that is optimal for a discount, in every start state."""

    gamma: float
    policy: np.ndarray
    """The action in each state."""

    value: np.ndarray
    """V_γ of the policy."""

    value_bounds: tuple[np.ndarray, np.ndarray]
    """The best value of each state lies between these two, for any model (MacQueen 1966; Puterman 1994, §6.6.2)."""

    iterations: int

    @property
    def loss(self) -> float:
        """How much the policy loses to the best one at most, in the worst start state: rounding."""
        return float((self.value_bounds[1] - self.value).max())


def discounted_policy_iteration(
    mdp: MDP, gamma: float, initial: np.ndarray | None = None, max_iterations: int = 1000
) -> DiscountedSolution:
    """Howard's policy iteration for the discounted criterion: each policy is evaluated exactly (Puterman 1994, §6.4).

    It ends when no action is better than that of the policy by more than rounding errors. `initial` is the first
    policy; by default it takes the largest reward of the step.
    """
    gamma = Discounted(gamma).gamma
    sweeps, states = Sweeps(mdp), np.arange(mdp.n_states)
    policy = mdp.rewards_by_action.argmax(axis=0) if initial is None else np.asarray(initial)
    value = None
    for iteration in range(1, max_iterations + 1):
        value = solve_discounted(mdp.chain(policy), mdp.rewards[states, policy], gamma, guess=value)
        better, found = sweeps.improve(gamma * value, policy)  # max_a [r + γ·P·v]
        if np.array_equal(better, policy):
            return DiscountedSolution(gamma, policy, value, value_bounds(found.best, value, gamma), iteration)
        policy = better.astype(np.int64)
    raise UserError(f"Policy iteration did not converge in {max_iterations} iterations; raise max_iterations.")


def value_bounds(best: np.ndarray, value: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on the best values from any v and max_a [r + γ·P·v], which is `best`."""
    rise, further = best - value, gamma / (1 - gamma)
    return best + further * rise.min(), best + further * rise.max()
