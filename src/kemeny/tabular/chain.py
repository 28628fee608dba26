"""A finite Markov chain and its exact quantities: d, P*, Z, M and Kemeny's constant.

Conventions differ between texts. Here:

* M(s, s) = 1/d(s) is the mean *return* time, so κ = Σ d(s')·M(s, s') = Tr(Z) includes it (§4.1). Many texts, and R's
  markovchain, leave it out and call Tr(Z) − 1 Kemeny's constant. The paper's bounds use κ − 1.
* P* is the Cesàro limit, so P*, Z and the bias exist for periodic chains too.
* Eigenvalues may be complex: the SLEM is the second largest *modulus* of an eigenvalue (Appendix C).
"""

import functools
from typing import Any

import numpy as np
import scipy.sparse as sp

from kemeny.errors import UserError
from kemeny.tabular.elimination import Elimination, eliminate
from kemeny.tabular.sparse import SparseChain, TraceEstimate
from kemeny.tabular.structure import Classes, find_classes, find_period, stochastic

DENSE_LIMIT = 3000
"""A sparse chain with more states than this refuses to make a dense matrix (n² floats, 72 MB at the limit)."""


RARE = 1e-2
"""A state is rare if its share of the time is below this fraction of the largest share."""


class Chain:
    """A Markov chain, from a dense or a sparse transition matrix. Each quantity is computed when it is first read."""

    def __init__(self, P: Any):
        """Check that each row of P is a probability distribution, up to rounding, and keep it in float64."""
        if sp.issparse(P):
            self.P: Any = sp.csr_array(P, dtype=float)
        else:
            self.P = np.array(P, dtype=float)
        if self.P.ndim != 2 or self.P.shape[0] != self.P.shape[1] or self.P.shape[0] == 0:
            raise UserError(f"A transition matrix must be square and not empty, but this one has shape {self.P.shape}.")
        self.P = stochastic(self.P)
        self.grid: tuple[int, ...] | None = None

    @classmethod
    def trusted(cls, P: Any, grid: tuple[int, ...] | None = None) -> "Chain":
        """Make a chain from a matrix that is known to be stochastic, without checking or copying it.

        `grid` is the shape of the grid whose points are the states, if they are: see `MDP`.
        """
        chain = cls.__new__(cls)
        chain.P, chain.grid = P, grid
        return chain

    @property
    def n(self) -> int:
        """The number of states."""
        return self.P.shape[0]

    @property
    def is_sparse(self) -> bool:
        """Whether the transition matrix is stored as a sparse matrix."""
        return sp.issparse(self.P)

    def __repr__(self) -> str:
        return f"Chain({self.n} states, {'sparse' if self.is_sparse else 'dense'})"

    # Structure

    @functools.cached_property
    def classes(self) -> Classes:
        """The recurrent classes and the transient states."""
        return find_classes(self.P)

    @property
    def is_unichain(self) -> bool:
        """Whether the chain has one recurrent class; it may have transient states too."""
        return self.classes.is_unichain

    @property
    def is_irreducible(self) -> bool:
        """Whether every state can reach every other state."""
        return self.classes.is_irreducible

    @functools.cached_property
    def periods(self) -> tuple[int, ...]:
        """The period of each recurrent class, in the order of `classes.recurrent`."""
        return tuple(find_period(self.P, states) for states in self.classes.recurrent)

    @property
    def is_aperiodic(self) -> bool:
        """Whether every recurrent class has period 1."""
        return max(self.periods) == 1

    def recurrent_chain(self) -> "Chain":
        """The chain on its only recurrent class, without the transient states."""
        self._require_unichain("The recurrent chain")
        states = self.classes.recurrent[0]
        return Chain.trusted(self.P[states][:, states])

    # Stationary behaviour

    @functools.cached_property
    def stationary(self) -> np.ndarray:
        """d, with dᵀP = dᵀ: the share of time that the chain spends in each state, for any start."""
        if self.is_sparse:
            return self.sparse.stationary
        return self.elimination.stationary

    @functools.cached_property
    def limiting(self) -> np.ndarray:
        """P*, the Cesàro limit of Pᵗ; row s holds the share of time in each state after a start in s."""
        if self.is_unichain:
            return np.tile(self.stationary, (self.n, 1))
        P = self.dense()
        limit = np.zeros((self.n, self.n))
        transient = self.classes.transient
        inner = np.eye(len(transient)) - P[np.ix_(transient, transient)]
        for states in self.classes.recurrent:
            share = eliminate(P[np.ix_(states, states)], 0).stationary
            limit[np.ix_(states, states)] = share
            absorbed = np.linalg.solve(inner, P[np.ix_(transient, states)].sum(axis=1))
            limit[np.ix_(transient, states)] = np.outer(absorbed, share)
        return limit

    @functools.cached_property
    def fundamental(self) -> np.ndarray:
        """Z = (I − P + P*)⁻¹, the fundamental matrix of Kemeny and Snell."""
        return self.deviation + self.limiting

    @functools.cached_property
    def deviation(self) -> np.ndarray:
        """Z − P*, so that the bias of a reward vector is (Z − P*)·r.

        For a unichain it is (I − 1dᵀ)·G·(I − 1dᵀ), where G is the inverse of I − P without the row and column of one
        recurrent state, the ground state.
        """
        if not self.is_unichain:
            limit = self.limiting
            return np.linalg.inv(np.eye(self.n) - self.dense() + limit) - limit
        visits = self.elimination.inverse()
        visits -= self.stationary @ visits
        return visits - np.outer(visits.sum(axis=1), self.stationary)

    @functools.cached_property
    def first_passage(self) -> np.ndarray:
        """M(s, s'), the mean number of steps to reach s' from s; M(s, s) = 1/d(s), the mean return time.

        M(s, t) = (G1)(s) − (G1)(t) + (G(t, t) − G(s, t))/d(t). This is the formula of §4.1 with G, the inverse of
        I − P without the ground state, in place of Z: the terms by which they differ cancel.
        """
        self._require_irreducible("The matrix of mean first passage times")
        visits = self.elimination.inverse()
        steps = visits.sum(axis=1)
        M = steps[:, None] - steps[None, :] + (np.diag(visits) - visits) / self.stationary
        np.fill_diagonal(M, 1 / self.stationary)
        return M

    # Kemeny's constant and mixing

    @property
    def kemeny(self) -> float:
        """κ = Tr(Z) = Σ d(s')·M(s, s'), the same for every s; it includes the return time, M(s, s) = 1/d(s)."""
        self._require_irreducible("Kemeny's constant")
        return self.trace

    @functools.cached_property
    def trace(self) -> float:
        """Tr(Z) of a unichain. It equals κ if no state is transient, and takes the place of κ in Lemma 3 otherwise."""
        if self.is_sparse and self.n > DENSE_LIMIT:
            raise UserError(
                f"Kemeny's constant of a sparse chain with {self.n} states would need a dense matrix; "
                "use kemeny_estimate(), which returns an estimate and its standard error."
            )
        visits = self.elimination.inverse()
        return float(1 + np.trace(visits) - self.stationary @ visits.sum(axis=1))

    def kemeny_estimate(self, probes: int = 60, seed: int = 0) -> TraceEstimate:
        """Estimate κ from random probes, with its standard error; this needs no dense matrix."""
        self._require_irreducible("Kemeny's constant")
        return self.sparse.kemeny(probes, np.random.default_rng(seed))

    @functools.cached_property
    def zeta(self) -> float:
        """‖Z‖∞, the largest absolute row sum: the constant of the unichain bound (Appendix D)."""
        return float(np.abs(self.fundamental).sum(axis=1).max())

    @functools.cached_property
    def eigenvalues(self) -> np.ndarray:
        """All eigenvalues, the largest modulus first; they may be complex."""
        values = np.linalg.eigvals(self.dense())
        return values[np.argsort(-np.abs(values), kind="stable")]

    @functools.cached_property
    def slem(self) -> float:
        """The second largest modulus of an eigenvalue (SLEM); it is 1 if the chain is periodic."""
        self._require_unichain("The second largest modulus of an eigenvalue")
        if self.n == 1:
            return 0.0
        if not self.is_aperiodic:
            return 1.0
        return float(np.abs(self.eigenvalues[1]))

    @property
    def kemeny_bound(self) -> float:
        """1 + (n − 1)/(1 − SLEM), an upper bound on κ (Appendix C); it is infinite for a periodic chain."""
        self._require_irreducible("The upper bound on Kemeny's constant")
        return 1 + (self.n - 1) / (1 - self.slem) if self.slem < 1 else float("inf")

    def mixing_time(self, distance: float = 0.25) -> int:
        """The first t at which every row of Pᵗ is within `distance` of d in total variation.

        The distance never grows with t, so the powers P, P², P⁴, … enclose this t and bisection finds it.
        """
        self._require_unichain("The mixing time")
        if not self.is_aperiodic:
            raise UserError(
                f"The chain has period {self.periods[0]}, so it never mixes; the lazy chain Chain(0.5·I + 0.5·P) does."
            )
        powers = [self.dense()]
        while self._distance(powers[-1]) > distance:
            powers.append(powers[-1] @ powers[-1])
        reached, time = np.eye(self.n), 0
        if self._distance(reached) <= distance:
            return 0
        for exponent in range(len(powers) - 1, -1, -1):
            attempt = reached @ powers[exponent]
            if self._distance(attempt) > distance:
                reached, time = attempt, time + 2**exponent
        return time + 1

    def _distance(self, power: np.ndarray) -> float:
        return float(0.5 * np.abs(power - self.stationary).sum(axis=1).max())

    # Values

    def gain_and_bias(self, reward: np.ndarray) -> tuple[float, np.ndarray]:
        """ρ and h with h = r − ρ + P·h and d·h = 0, the average-reward Bellman equation (Appendix A)."""
        self._require_unichain("A gain that is the same for every start state")
        reward = np.asarray(reward, dtype=float)
        if self.is_sparse:
            gain, relative = self.sparse.gain_and_bias(reward)
        else:
            gain = float(self.stationary @ reward)
            relative = self.elimination.solve(reward - gain)
        return gain, relative - self.stationary @ relative

    # Solvers

    @functools.cached_property
    def elimination(self) -> Elimination:
        """The factors of I − P; the ground state is the first recurrent state, or if it is rare, the most frequent one.

        Between two visits to a rare state all others are visited so often that sums over these visits, in which the
        terms of the bias cancel, would lose their digits.
        """
        self._require_unichain("The stationary distribution")
        found = eliminate(self.dense(), int(self.classes.recurrent[0][0]))
        frequent = int(np.argmax(found.stationary))
        is_rare = found.stationary[found.ground] < RARE * found.stationary[frequent]
        return eliminate(self.dense(), frequent) if is_rare else found

    @functools.cached_property
    def sparse(self) -> SparseChain:
        """The solver for large sparse chains."""
        self._require_unichain("The stationary distribution")
        return SparseChain(sp.csr_array(self.P), self.grid)

    def dense(self) -> np.ndarray:
        """P as a dense matrix; raises an error if the matrix would be too large."""
        if not self.is_sparse:
            return self.P
        if self.n > DENSE_LIMIT:
            raise UserError(
                f"This quantity needs a dense {self.n} × {self.n} matrix (the limit is {DENSE_LIMIT} states); for "
                "large sparse chains use stationary, gain_and_bias and kemeny_estimate."
            )
        return self.P.toarray()

    def _require_unichain(self, what: str) -> None:
        if not self.classes.is_unichain:
            raise UserError(
                f"{what} needs one recurrent class, but this chain has {self.classes}; "
                "use limiting, which has one row per start state, or make a chain of one class."
            )

    def _require_irreducible(self, what: str) -> None:
        self._require_unichain(what)
        if not self.classes.is_irreducible:
            raise UserError(
                f"{what} needs an irreducible chain, but this one has {self.classes}; "
                "use recurrent_chain(), or zeta, which the bounds for unichain models use instead."
            )
