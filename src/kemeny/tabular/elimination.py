"""Elimination without subtraction: solves with I − P that stay accurate when a chain almost falls into two parts.

Grassmann, Taksar and Heyman (1985) eliminate the states of a chain one by one and never subtract: the diagonal entry
of I − P is computed as the sum of the other entries of its row. Every number is then a sum or a product of positive
numbers, so each has a small *relative* error, however small the probability that links two parts of the chain.
"""

import dataclasses

import numpy as np
from scipy.linalg import solve_triangular


@dataclasses.dataclass(frozen=True, eq=False)
class Elimination:
    """I − P without the row and column of `ground`, as the product upper · lower of two triangular factors."""

    ground: int
    """The state that is left out."""

    order: np.ndarray
    """The other states, in the order of the factors' rows."""

    upper: np.ndarray
    lower: np.ndarray
    stationary: np.ndarray
    """The stationary distribution over all states."""

    def solve(self, right: np.ndarray) -> np.ndarray:
        """G·b, where G is the inverse of I − P without the ground state; the entry of the ground state is 0."""
        result = np.zeros(np.shape(right))
        if len(self.order):
            inner = np.asarray(right, dtype=float)[self.order]
            inner = solve_triangular(self.upper, inner, lower=False)
            result[self.order] = solve_triangular(self.lower, inner, lower=True)
        return result

    def inverse(self) -> np.ndarray:
        """G over all states: G(s, t) is the expected number of visits to t, from s, before the ground state."""
        return self.solve(np.eye(len(self.stationary)))


def eliminate(P: np.ndarray, ground: int) -> Elimination:
    """Factor I − P by GTH elimination; every state of the chain must be able to reach `ground`.

    Eliminating state k adds to each remaining pair (i, j) the probability of going i → k → … → k → j.
    """
    n = len(P)
    order = np.delete(np.arange(n), ground)
    states = np.concatenate([[ground], order])
    work = np.array(P[np.ix_(states, states)], dtype=float)
    leave = np.ones(n)
    for k in range(n - 1, 0, -1):
        leave[k] = work[k, :k].sum()
        work[k, :k] /= leave[k]
        work[:k, :k] += np.multiply.outer(work[:k, k], work[k, :k])
    visits = np.zeros(n)
    visits[0] = 1.0
    for k in range(1, n):
        visits[k] = visits[:k] @ work[:k, k] / leave[k]
    stationary = np.empty(n)
    stationary[states] = visits / visits.sum()
    upper = -np.triu(work, 1)
    np.fill_diagonal(upper, leave)
    lower = -np.tril(work, -1)
    np.fill_diagonal(lower, 1.0)
    return Elimination(ground, order, upper[1:, 1:], lower[1:, 1:], stationary)
