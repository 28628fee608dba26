"""Elimination without subtraction: solves with I − P that stay accurate when a chain hardly holds together.

Grassmann, Taksar and Heyman (1985) eliminate the states of a chain one by one and never subtract: the diagonal of
I − P is read off as the sum of the other entries of its row. Every number is then a sum or product of positive ones,
so each comes out with a small *relative* error, however small the probability that links two halves of the chain.
"""

import dataclasses

import numpy as np
from scipy.linalg import solve_triangular


@dataclasses.dataclass(frozen=True, eq=False)
class Elimination:
    """I − P without the row and column of `ground`, as upper · lower triangular factors."""

    ground: int
    order: np.ndarray
    """The other states in the order of the factors."""

    upper: np.ndarray
    lower: np.ndarray
    stationary: np.ndarray
    """The stationary distribution over all states."""

    def solve(self, right: np.ndarray) -> np.ndarray:
        """G·b, with G the inverse of the grounded I − P, and 0 for the ground state."""
        return self._scatter(right, transposed=False)

    def solve_transposed(self, right: np.ndarray) -> np.ndarray:
        """Gᵀ·b."""
        return self._scatter(right, transposed=True)

    def _scatter(self, right: np.ndarray, transposed: bool) -> np.ndarray:
        result = np.zeros(np.shape(right))
        if len(self.order):
            inner = np.asarray(right, dtype=float)[self.order]
            if transposed:
                inner = solve_triangular(self.lower, inner, lower=True, trans=1)
                inner = solve_triangular(self.upper, inner, lower=False, trans=1)
            else:
                inner = solve_triangular(self.upper, inner, lower=False)
                inner = solve_triangular(self.lower, inner, lower=True)
            result[self.order] = inner
        return result

    def inverse(self) -> np.ndarray:
        """G as a matrix over all states: G(s, t) is the expected number of visits to t, from s, before the ground."""
        return self.solve(np.eye(len(self.stationary)))


def eliminate(P: np.ndarray, ground: int) -> Elimination:
    """Factor I − P of a chain in which every state reaches `ground`, by GTH elimination.

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
