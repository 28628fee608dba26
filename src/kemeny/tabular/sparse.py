"""Large sparse chains: stationary distribution, gain, bias and Kemeny's constant without a dense matrix.

There are two ways to solve with I − P. A Krylov method with the coarser chains of `multigrid` is tried first; it needs
a few dozen iterations, also for chains that mix slowly. If it does not become precise enough, I − P is factorised: the
factors of a chain whose graph is long and narrow are almost as sparse as the chain.
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
from kemeny.tabular.bicgstab import solve_chain
from kemeny.tabular.blocks import Blocks
from kemeny.tabular.multigrid import Hierarchy, Merging
from kemeny.tabular.rows import Rows
from kemeny.tabular.structure import find_classes

KRYLOV_TOLERANCE = 1e-13
"""The residual at which a Krylov solve stops, relative to its right-hand side."""

ROUNDING_RESIDUAL = 1e-11
"""A residual below this, relative to the right-hand side, counts as solved if another round does not reduce it."""

STALL_RATIO = 0.5
"""A solve stalls if a round of a few hundred products leaves more than this share of the residual: at that rate ten
digits would take thousands of products."""

KRYLOV_LIMIT = 3000
"""Most iterations of the Krylov method with coarser chains."""

ACCEPTED = 1e-11
"""The residual that is accepted from that method, relative to the larger of right-hand side and solution."""

PROBE_TOLERANCE = 1e-8
"""The residual of a probe of κ, relative to the probe: far below the spread of the probes."""

LARGEST_FILL = 10**9
"""The largest number of entries that a factorisation may have (8 GB), estimated from the bandwidth of its matrix."""

NARROW_FILL = 4 * 10**6
"""Up to this many entries a factorisation takes no longer than a Krylov solve."""

LONGEST_NARROW = 200_000
"""States up to which the bandwidth is looked at before anything else; it takes a tenth of a second."""

LARGEST_RESIDUAL = 1e-9
"""A solution with a larger residual than this, relative to its scale, is rejected."""

DIRECT_FIRST = 1500
"""Up to this many states a factorisation is used at once: even dense factors are small (n² floats, 18 MB)."""

DRIFT_STEPS = 60
"""Steps after which one sees where a chain drifts to."""


@dataclasses.dataclass(frozen=True)
class TraceEstimate:
    """An estimate of Kemeny's constant from random probes."""

    value: float
    standard_error: float
    probes: int

    def __str__(self) -> str:
        return f"{self.value:.6g} ± {self.standard_error:.2g} (one standard error, {self.probes} probes)"


class SparseChain:
    """Solves linear systems with I − P of a sparse unichain; P is in CSR form."""

    def __init__(self, P: sp.csr_array, grid: tuple[int, ...] | None = None, use_krylov: bool = True):
        self.P = P
        self.n = len(P.indptr) - 1
        self.use_krylov = use_krylov and self.n > DIRECT_FIRST and not is_narrow(P)
        self.blocks = Blocks(self.n, P.nnz)
        self.merging = Merging(grid)

    @functools.cached_property
    def inverse(self) -> Hierarchy | None:
        """An approximate inverse of I − P."""
        return self.merging.hierarchy(Rows.of(self.P))

    def krylov(
        self, right: np.ndarray, scale: float, transposed: bool = False, tolerance: float = KRYLOV_TOLERANCE
    ) -> np.ndarray | None:
        """x with x − P·x + mean(x) = right; None if the residual stays above what can be accepted."""
        rows = Rows.of(sp.csr_array(self.P.T) if transposed else self.P)
        inverse = self.merging.hierarchy(Rows.of(self.P), transposed) if transposed else self.inverse
        guess = np.full(self.n, right.mean())
        found = solve_chain(rows, right, guess, tolerance * scale, KRYLOV_LIMIT, self.blocks, inverse)
        largest = max(scale, float(np.abs(found.x).max()))
        return found.x if found.span <= max(tolerance, ACCEPTED) * largest else None

    @functools.cached_property
    def ground(self) -> int:
        """The ground state: a recurrent state, whose row and column the factorisation leaves out.

        It is a state to which the chain drifts from everywhere. Between two visits to a rare state all others would be
        visited so often that sums over these visits lose their digits.
        """
        classes = find_classes(self.P)
        if not classes.is_unichain:
            raise UserError(
                f"A gain that is the same for every start state needs one recurrent class, but there are {classes}."
            )
        share = np.zeros(self.n)
        share[classes.recurrent[0]] = 1 / len(classes.recurrent[0])
        for _ in range(DRIFT_STEPS):
            share = (share + share @ self.P) / 2  # half of the time it stays, so that a period does not matter
        return int(np.argmax(share))

    @functools.cached_property
    def others(self) -> np.ndarray:
        """Every state except the ground state."""
        return np.delete(np.arange(self.n), self.ground)

    @functools.cached_property
    def factor(self) -> spla.SuperLU:
        """The LU factors of I − P without the ground state: an M-matrix, which needs no pivoting."""
        inner = self.P[self.others][:, self.others]
        if self.n > 10 * DIRECT_FIRST:
            refuse_large_fill(inner)
        matrix = sp.csc_array(sp.eye_array(self.n - 1) - inner)
        return spla.splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})

    @functools.cached_property
    def stationary(self) -> np.ndarray:
        """d, the stationary distribution, by one solve."""
        if self.n == 1:
            return np.ones(1)
        uniform = np.full(self.n, 1 / self.n)
        if self.use_krylov:
            # dᵀ(I − P + 1uᵀ) = uᵀ for every u that sums to 1, since dᵀ1 = 1.
            found = self.krylov(uniform, 1.0, transposed=True)
            if found is not None and found.min() > -LARGEST_RESIDUAL:
                found = np.maximum(found, 0)
                return found / found.sum()
            self.use_krylov = False
        visits = np.ones(self.n)
        step = self.P[[self.ground]].toarray().ravel()[self.others]
        visits[self.others] = np.maximum(self.factor.solve(step, trans="T"), 0)
        return visits / visits.sum()

    def gain_and_bias(self, reward: np.ndarray) -> tuple[float, np.ndarray]:
        """ρ and a solution h of h = r − ρ + P·h, up to a constant."""
        if self.n == 1:
            return float(reward[0]), np.zeros(1)
        if self.use_krylov:
            # (I − P + 1uᵀ)x = r is h = r − ρ + P·h with the gauge u·x = ρ.
            found = self.krylov(reward, scale_of(reward))
            if found is not None:
                return float(found.mean()), found - found.mean()
            self.use_krylov = False
        return self._renewal(reward)

    def _renewal(self, reward: np.ndarray) -> tuple[float, np.ndarray]:
        """ρ is the reward of a cycle from the ground state back to itself, divided by the length of the cycle."""
        step = self.P[[self.ground]].toarray().ravel()[self.others]
        steps = self.factor.solve(np.ones(self.n - 1))
        earned = self.factor.solve(reward[self.others])
        gain = (reward[self.ground] + step @ earned) / (1 + step @ steps)
        bias = np.zeros(self.n)
        bias[self.others] = self.factor.solve(reward[self.others] - gain)
        residual = np.abs(reward - gain + self.P @ bias - bias).max()
        scale = max(np.abs(reward).max(), np.abs(bias).max())
        if not residual <= LARGEST_RESIDUAL * max(scale, 1e-300):
            raise UserError(
                f"The sparse factorisation is not accurate enough: the error in the Bellman equation is {residual:g}."
            )
        return float(gain), bias

    def deviate(self, right: np.ndarray) -> np.ndarray:
        """(Z − P*)·b for each column b of `right`."""
        d = self.stationary
        solved = self._solve_block(right - d @ right)
        return solved - d @ solved

    def _solve_block(self, right: np.ndarray) -> np.ndarray:
        if self.use_krylov:
            columns = [
                self.krylov(np.ascontiguousarray(column), scale_of(column), tolerance=PROBE_TOLERANCE)
                for column in right.T
            ]
            if all(column is not None for column in columns):
                return np.stack([column for column in columns if column is not None], axis=1)
            self.use_krylov = False
        result = np.zeros(right.shape)
        result[self.others] = self.factor.solve(np.ascontiguousarray(right[self.others]))
        return result

    def kemeny(self, probes: int, rng: np.random.Generator) -> TraceEstimate:
        """Estimate κ = 1 + Tr(Z − P*) by Hutch++ (Meyer, Musco, Musco, Woodruff 2021).

        A third of the probes find the directions in which Z − P* is large (the slow modes, which contribute most to
        κ); their part of the trace is computed exactly. The other probes estimate the rest of the trace, and their
        spread gives the standard error. The trace does not change when W = diag(w) rescales the states; w = √d makes
        the matrix of a reversible chain symmetric, for which the variance of the probes is smallest. d is replaced by
        a small positive number where it is smaller, so that 1/w stays finite.
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


def refuse_large_fill(matrix: Any) -> None:
    """Raise an error if a factorisation would fill the memory."""
    if (fill := largest_fill(matrix)) > LARGEST_FILL:
        raise UserError(
            f"The chain of {matrix.shape[0] + 1:,} states mixes too slowly for a Krylov method, and the factors of its "
            f"matrix may have {fill:.2g} entries; for the best policy use solve, which needs neither."
        )


def is_narrow(matrix: Any) -> bool:
    """Whether factors are small and quickly made; they also have the small probabilities to full relative precision."""
    return matrix.shape[0] <= LONGEST_NARROW and largest_fill(matrix) <= NARROW_FILL


def largest_fill(matrix: Any) -> int:
    """The most entries that factors of the matrix can have: they lie within its bandwidth."""
    order = csgraph.reverse_cuthill_mckee(matrix)
    place = np.argsort(order)
    rows = np.repeat(np.arange(len(place)), np.diff(matrix.indptr))
    return int(np.abs(place[rows] - place[matrix.indices]).max(initial=0)) * len(place)


def scale_of(values: np.ndarray) -> float:
    """The largest absolute value, or a tiny positive number if all values are 0."""
    return max(float(np.abs(values).max()), 1e-300)


def linear_operator(n: int, apply: Callable[[np.ndarray], np.ndarray]) -> Any:
    """A function in the form that SciPy's Krylov methods take."""
    make: Any = spla.LinearOperator
    return make((n, n), matvec=apply, dtype=float)


def krylov(
    apply: Callable[[np.ndarray], np.ndarray],
    right: np.ndarray,
    guess: np.ndarray | None,
    tolerance: float = KRYLOV_TOLERANCE,
) -> np.ndarray | None:
    """Solve apply(x) = right to a residual of tolerance · max|right|, or as well as rounding allows; None if it stalls.

    BiCGSTAB stores no past directions and was five times as fast as GMRES on queues of 10⁵ states; GMRES is tried when
    BiCGSTAB stalls. Each round solves for the residual that is left, so rounding errors do not add up.
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
        if shrunk < STALL_RATIO * size or shrunk <= tolerance * scale:
            x, residual, size = attempt, rest, shrunk
        elif size <= ROUNDING_RESIDUAL * scale:
            return x
        else:
            methods.pop(0)
            if not methods:
                return None
    return x
