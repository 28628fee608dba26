"""Large sparse chains: stationary distribution, gain, bias and Kemeny's constant without a dense matrix.

Two ways to solve with I − P. A chain that mixes fast (a random graph) is easy for a Krylov method and hopeless for a
factorisation, whose fill would be dense; a chain with a thin graph (a queue) mixes slowly but factors with little
fill. The Krylov method is tried first, and the factorisation where it stalls.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from scipy.sparse import csgraph

from kemeny.errors import UserError
from kemeny.tabular.structure import find_classes

KRYLOV_TOLERANCE = 1e-13
"""Residual at which a Krylov solve stops, relative to its right-hand side."""

ROUNDING = 1e-11
"""Residual, relative to the right-hand side, that counts as solved if further rounds do not shrink it."""

HEADWAY = 0.5
"""A round of some hundred products that does not halve the residual is a stall: ten digits would take thousands."""

LARGEST_FILL = 10**9
"""Entries that a factorisation may have at most (8 GB), by the bandwidth of its reordered matrix."""

ACCEPTED = 1e-9
"""Largest residual, relative to the right-hand side, of a solve that is handed out at all."""

DIRECT_FIRST = 1500
"""Up to this many states a factorisation is affordable whatever its fill (n² floats: 18 MB)."""


@dataclasses.dataclass(frozen=True)
class TraceEstimate:
    """Kemeny's constant from random probes."""

    value: float
    standard_error: float
    probes: int

    def __str__(self) -> str:
        return f"{self.value:.6g} ± {self.standard_error:.2g} (one standard error, {self.probes} probes)"


class SparseChain:
    """Solves with I − P of a sparse unichain, P in CSR form."""

    def __init__(self, P: sp.csr_array, use_krylov: bool = True):
        self.P = P
        self.n = len(P.indptr) - 1
        self.use_krylov = use_krylov and self.n > DIRECT_FIRST

    @functools.cached_property
    def ground(self) -> int:
        """A recurrent state, whose row and column a factorisation leaves out."""
        classes = find_classes(self.P)
        if not classes.is_unichain:
            raise UserError(f"A gain that is the same for every start needs one recurrent class; here are {classes}.")
        return int(classes.recurrent[0][0])

    @functools.cached_property
    def others(self) -> np.ndarray:
        """Every state but the ground."""
        return np.delete(np.arange(self.n), self.ground)

    @functools.cached_property
    def factor(self) -> spla.SuperLU:
        """LU of I − P without the row and column of the ground state: an M-matrix, whose pivots need no search."""
        inner = self.P[self.others][:, self.others]
        if self.n > 10 * DIRECT_FIRST:
            refuse_large_fill(inner)
        matrix = sp.csc_array(sp.eye_array(self.n - 1) - inner)
        return spla.splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})

    @functools.cached_property
    def transposed(self) -> sp.csr_array:
        """Pᵀ."""
        return sp.csr_array(self.P.T)

    @functools.cached_property
    def stationary(self) -> np.ndarray:
        """d, by one solve."""
        if self.n == 1:
            return np.ones(1)
        uniform = np.full(self.n, 1 / self.n)
        if self.use_krylov:
            # dᵀ(I − P + 1uᵀ) = uᵀ for every u that sums to 1, since dᵀ1 = 1.
            found = krylov(lambda x: x - self.transposed @ x + uniform * x.sum(), uniform, uniform)
            if found is not None and found.min() > -ACCEPTED:
                found = np.maximum(found, 0)
                return found / found.sum()
            self.use_krylov = False
        visits = np.ones(self.n)
        step = self.P[[self.ground]].toarray().ravel()[self.others]
        visits[self.others] = np.maximum(self.factor.solve(step, trans="T"), 0)
        return visits / visits.sum()

    def gain_and_bias(
        self, reward: np.ndarray, guess: np.ndarray | None = None, tolerance: float = KRYLOV_TOLERANCE
    ) -> tuple[float, np.ndarray]:
        """ρ and a solution h of h = r − ρ + P·h, up to a constant; `guess` is a near h, to start from."""
        if self.n == 1:
            return float(reward[0]), np.zeros(1)
        if self.use_krylov:
            # (I − P + 1uᵀ)x = r is h = r − ρ + P·h with the gauge u·x = ρ.
            found = krylov(lambda x: x - self.P @ x + x.mean(), reward, guess, tolerance)
            if found is not None:
                return float(found.mean()), found - found.mean()
            self.use_krylov = False
        return self._renewal(reward)

    def _renewal(self, reward: np.ndarray) -> tuple[float, np.ndarray]:
        """ρ is the reward of a cycle from the ground state back to it, over the length of the cycle."""
        step = self.P[[self.ground]].toarray().ravel()[self.others]
        steps = self.factor.solve(np.ones(self.n - 1))
        earned = self.factor.solve(reward[self.others])
        gain = (reward[self.ground] + step @ earned) / (1 + step @ steps)
        bias = np.zeros(self.n)
        bias[self.others] = self.factor.solve(reward[self.others] - gain)
        residual = np.abs(reward - gain + self.P @ bias - bias).max()
        scale = max(np.abs(reward).max(), np.abs(bias).max())
        if not residual <= ACCEPTED * max(scale, 1e-300):
            raise UserError(f"The sparse factorisation failed: the Bellman residual is {residual:g}.")
        return float(gain), bias

    def deviate(self, right: np.ndarray, transposed: bool = False) -> np.ndarray:
        """(Z − P*)·b for a block of columns, or its transpose."""
        right = np.asarray(right, dtype=float)
        d = self.stationary
        if transposed:
            right = right - np.outer(d, right.sum(axis=0))
        else:
            right = right - d @ right
        solved = self._solve_block(right, transposed)
        if transposed:
            return solved - np.outer(d, solved.sum(axis=0))
        return solved - d @ solved

    def _solve_block(self, right: np.ndarray, transposed: bool) -> np.ndarray:
        if self.use_krylov:
            P = self.transposed if transposed else self.P
            columns = [krylov(lambda x: x - P @ x + x.mean(), column, None) for column in right.T]
            if all(column is not None for column in columns):
                return np.stack([column for column in columns if column is not None], axis=1)
            self.use_krylov = False
        result = np.zeros(right.shape)
        result[self.others] = self.factor.solve(
            np.ascontiguousarray(right[self.others]), trans="T" if transposed else "N"
        )
        return result

    def kemeny(self, probes: int, rng: np.random.Generator) -> TraceEstimate:
        """κ = 1 + Tr(Z − P*) by Hutch++ (Meyer, Musco, Musco, Woodruff 2021).

        A third of the probes finds the directions in which Z − P* is large (the slow modes, which dominate κ) and
        takes their trace exactly; the rest estimates the trace of what is left, and its spread is the standard
        error. The trace does not change when W = diag(w) rescales the states; w = √d makes a reversible chain
        symmetric, for which the probes have their smallest variance. States are floored so that 1/w stays finite.
        """
        if probes < 6:
            raise UserError(f"Kemeny's constant needs at least 6 probes, not {probes}.")
        weight = np.sqrt(np.maximum(self.stationary, 1e-8 / self.n))[:, None]

        def apply(block: np.ndarray) -> np.ndarray:
            return weight * self.deviate(block / weight)

        sketch = min(max(probes // 3, 1), self.n)
        basis, _ = np.linalg.qr(apply(rng.choice([-1.0, 1.0], size=(self.n, sketch))))
        known = np.einsum("ij,ij->", basis, apply(basis))
        signs = rng.choice([-1.0, 1.0], size=(self.n, probes - sketch))
        signs = signs - basis @ (basis.T @ signs)
        samples = np.einsum("ij,ij->j", signs, apply(signs))
        error = samples.std(ddof=1) / np.sqrt(len(samples))
        return TraceEstimate(float(1 + known + samples.mean()), float(error), probes)


def refuse_large_fill(matrix: sp.csr_array) -> None:
    """Say so before a factorisation fills the memory: its factors lie within the bandwidth of a good ordering."""
    order = csgraph.reverse_cuthill_mckee(matrix)
    place = np.argsort(order)
    rows = np.repeat(np.arange(len(place)), np.diff(matrix.indptr))
    bandwidth = int(np.abs(place[rows] - place[matrix.indices]).max(initial=0))
    if bandwidth * len(place) > LARGEST_FILL:
        raise UserError(
            f"The chain of {len(place) + 1:,} states mixes too slowly for a Krylov method and is too entangled for a "
            "factorisation; for the best policy use modified_policy_iteration, which needs neither."
        )


def linear_operator(n: int, apply: Callable[[np.ndarray], np.ndarray]) -> Any:
    """A function as SciPy's Krylov methods want it."""
    make: Any = spla.LinearOperator
    return make((n, n), matvec=apply, dtype=float)


def krylov(
    apply: Callable[[np.ndarray], np.ndarray],
    right: np.ndarray,
    guess: np.ndarray | None,
    tolerance: float = KRYLOV_TOLERANCE,
) -> np.ndarray | None:
    """Solve apply(x) = right to a residual of tolerance · max|right|, or as well as rounding allows; None if it stalls.

    BiCGSTAB needs no memory of past directions and was five times as fast as GMRES on queues of 10⁵ states; GMRES takes
    over where it makes no headway. Each round solves for what is left, which keeps rounding out of the result.
    """
    scale = float(np.abs(right).max())
    if scale == 0:
        return np.zeros(len(right))
    operator = linear_operator(len(right), apply)
    x = np.zeros(len(right)) if guess is None else guess.copy()
    residual = right - apply(x)
    size = float(np.abs(residual).max())
    methods = [
        lambda rest, enough: spla.bicgstab(operator, rest, rtol=enough, atol=0.0, maxiter=200)[0],
        lambda rest, enough: spla.gmres(operator, rest, rtol=enough, atol=0.0, restart=30, maxiter=4)[0],
    ]
    while size > tolerance * scale:
        attempt = x + methods[0](residual, max(1e-6, 0.3 * tolerance * scale / size))
        rest = right - apply(attempt)
        shrunk = float(np.abs(rest).max())
        if shrunk < HEADWAY * size or shrunk <= tolerance * scale:
            x, residual, size = attempt, rest, shrunk
        elif size <= ROUNDING * scale:
            return x
        else:
            methods.pop(0)
            if not methods:
                return None
    return x
