"""A finite Markov chain and its exact quantities: d, P*, Z, M and Kemeny's constant.

Conventions, which differ between texts:

* M(s, s) = 1/d(s) is the mean *return* time, so κ = Σ d(s')·M(s, s') = Tr(Z) counts it (§4.1). Many texts, and R's
  markovchain, leave it out and call Tr(Z) − 1 Kemeny's constant; the paper's bounds use κ − 1.
* P* is the Cesàro limit, so that it, Z and the bias exist for periodic chains too.
* Eigenvalues may be complex: the SLEM is the second largest *modulus* (Appendix C).
"""

import functools
from typing import Any

import numpy as np
import scipy.sparse as sp

from kemeny.errors import UserError
from kemeny.tabular.elimination import Elimination, eliminate
from kemeny.tabular.sparse import SparseChain, TraceEstimate
from kemeny.tabular.structure import Classes, check_stochastic, find_classes, find_period

DENSE_LIMIT = 3000
"""Above this many states a sparse chain refuses to make a dense matrix (n² floats: 72 MB here)."""


class Chain:
    """A Markov chain, from a dense or a sparse transition matrix; quantities are computed when first asked for."""

    def __init__(self, P: Any):
        """Check that each row of P is a probability distribution, and keep a copy in float64."""
        if sp.issparse(P):
            self.P: Any = sp.csr_array(P, dtype=float)
        else:
            self.P = np.array(P, dtype=float)
        if self.P.ndim != 2 or self.P.shape[0] != self.P.shape[1] or self.P.shape[0] == 0:
            raise UserError(f"A transition matrix is square and not empty, but this one has shape {self.P.shape}.")
        check_stochastic(self.P)

    @classmethod
    def trusted(cls, P: Any) -> "Chain":
        """A chain from a matrix that is known to be stochastic, without a check or a copy."""
        chain = cls.__new__(cls)
        chain.P = P
        return chain

    @property
    def n(self) -> int:
        """The number of states."""
        return self.P.shape[0]

    @property
    def is_sparse(self) -> bool:
        """Whether the matrix is kept sparse."""
        return sp.issparse(self.P)

    def __repr__(self) -> str:
        return f"Chain({self.n} states, {'sparse' if self.is_sparse else 'dense'})"

    # Structure

    @functools.cached_property
    def classes(self) -> Classes:
        """Recurrent classes and transient states."""
        return find_classes(self.P)

    @property
    def is_unichain(self) -> bool:
        """One recurrent class, perhaps with transient states."""
        return self.classes.is_unichain

    @property
    def is_irreducible(self) -> bool:
        """Every state reaches every other."""
        return self.classes.is_irreducible

    @functools.cached_property
    def periods(self) -> tuple[int, ...]:
        """The period of each recurrent class, in the order of `classes.recurrent`."""
        return tuple(find_period(self.P, states) for states in self.classes.recurrent)

    @property
    def is_aperiodic(self) -> bool:
        """No recurrent class has a period above 1."""
        return max(self.periods) == 1

    @property
    def is_ergodic(self) -> bool:
        """Irreducible and aperiodic (Assumption 1)."""
        return self.is_irreducible and self.is_aperiodic

    def recurrent_chain(self) -> "Chain":
        """The chain on its only recurrent class, the transient states left out."""
        self._require_unichain("The recurrent chain")
        states = self.classes.recurrent[0]
        return Chain.trusted(self.P[states][:, states])

    # Stationary behaviour

    @functools.cached_property
    def stationary(self) -> np.ndarray:
        """d, with dᵀP = dᵀ: the share of time spent in each state, wherever the chain starts."""
        if self.is_sparse:
            return self.sparse.stationary
        return self.elimination.stationary

    @functools.cached_property
    def limiting(self) -> np.ndarray:
        """P*, the Cesàro limit of Pᵗ; row s is the share of time in each state for a start in s."""
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

        For a unichain it is (I − 1dᵀ)·G·(I − 1dᵀ), with G the inverse of I − P grounded at a recurrent state.
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

        M(s, t) = (G1)(s) − (G1)(t) + (G(t, t) − G(s, t))/d(t): the formula of §4.1 with Z replaced by the grounded
        inverse, for they differ by terms that cancel.
        """
        self._require_irreducible("Mean first passage times")
        visits = self.elimination.inverse()
        steps = visits.sum(axis=1)
        M = steps[:, None] - steps[None, :] + (np.diag(visits) - visits) / self.stationary
        np.fill_diagonal(M, 1 / self.stationary)
        return M

    # Kemeny's constant and mixing

    @property
    def kemeny(self) -> float:
        """κ = Tr(Z) = Σ d(s')·M(s, s'), the same for every s; it counts the return time (M(s, s) = 1/d(s))."""
        self._require_irreducible("Kemeny's constant")
        return self.trace

    @functools.cached_property
    def trace(self) -> float:
        """Tr(Z) of a unichain: κ if there are no transient states, and what takes its place in Lemma 3 if there are."""
        if self.is_sparse and self.n > DENSE_LIMIT:
            raise UserError(
                f"Kemeny's constant of {self.n} sparse states would need a dense matrix; "
                "use kemeny_estimate(), which returns a value and its standard error."
            )
        visits = self.elimination.inverse()
        return float(1 + np.trace(visits) - self.stationary @ visits.sum(axis=1))

    def kemeny_estimate(self, probes: int = 60, seed: int = 0) -> TraceEstimate:
        """κ from random probes, with its standard error; needs no dense matrix."""
        self._require_irreducible("Kemeny's constant")
        return self.sparse.kemeny(probes, np.random.default_rng(seed))

    @functools.cached_property
    def zeta(self) -> float:
        """‖Z‖∞, the largest absolute row sum: the constant of the unichain bound (Appendix D)."""
        return float(np.abs(self.fundamental).sum(axis=1).max())

    @functools.cached_property
    def eigenvalues(self) -> np.ndarray:
        """All eigenvalues, largest modulus first; complex in general."""
        values = np.linalg.eigvals(self.dense())
        return values[np.argsort(-np.abs(values), kind="stable")]

    @functools.cached_property
    def slem(self) -> float:
        """The second largest modulus of an eigenvalue: 1 if the chain is periodic or has several classes."""
        self._require_unichain("The second largest eigenvalue modulus")
        if self.n == 1:
            return 0.0
        if not self.is_aperiodic:
            return 1.0
        return float(np.abs(self.eigenvalues[1]))

    @property
    def kemeny_bound(self) -> float:
        """1 + (n − 1)/(1 − SLEM), which κ cannot exceed (Appendix C); infinite for a periodic chain."""
        self._require_irreducible("The bound on Kemeny's constant")
        return 1 + (self.n - 1) / (1 - self.slem) if self.slem < 1 else float("inf")

    def mixing_time(self, distance: float = 0.25) -> int:
        """The first t at which every row of Pᵗ is within `distance` of d in total variation.

        The distance never grows with t, so the powers P, P², P⁴, … bracket t and bisection finds it.
        """
        self._require_unichain("The mixing time")
        if not self.is_aperiodic:
            raise UserError(
                f"The chain has period {self.periods[0]}, so it never mixes; a lazy copy, Chain(0.5·I + 0.5·P), does."
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
        self._require_unichain("A gain that is the same for every start")
        reward = np.asarray(reward, dtype=float)
        if self.is_sparse:
            gain, relative = self.sparse.gain_and_bias(reward)
        else:
            gain = float(self.stationary @ reward)
            relative = self.elimination.solve(reward - gain)
        return gain, relative - self.stationary @ relative

    # Means

    @functools.cached_property
    def elimination(self) -> Elimination:
        """The factors of I − P, grounded at the first recurrent state."""
        self._require_unichain("The stationary distribution")
        return eliminate(self.dense(), int(self.classes.recurrent[0][0]))

    @functools.cached_property
    def sparse(self) -> SparseChain:
        """The solver for large sparse chains."""
        self._require_unichain("The stationary distribution")
        return SparseChain(sp.csr_array(self.P))

    def dense(self) -> np.ndarray:
        """P as a dense matrix, refused where it would fill the memory."""
        if not self.is_sparse:
            return self.P
        if self.n > DENSE_LIMIT:
            raise UserError(
                f"This quantity needs a dense {self.n} × {self.n} matrix (the limit is {DENSE_LIMIT} states); large "
                "sparse chains have stationary, gain_and_bias and kemeny_estimate."
            )
        return self.P.toarray()

    def _require_unichain(self, what: str) -> None:
        if not self.classes.is_unichain:
            raise UserError(
                f"{what} needs one recurrent class, but this chain has {self.classes}; "
                "use limiting, which has a row for each start, or take one class at a time."
            )

    def _require_irreducible(self, what: str) -> None:
        self._require_unichain(what)
        if not self.classes.is_irreducible:
            raise UserError(
                f"{what} needs an irreducible chain, but this one has {self.classes}; "
                "use recurrent_chain(), or zeta, which unichain bounds use instead."
            )
