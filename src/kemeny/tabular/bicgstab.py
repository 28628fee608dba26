"""BiCGSTAB for chains of millions of states, block by block on all cores (van der Vorst 1992).

It keeps ten vectors, whatever the number of iterations. It stops by the *span* of the residual, because that is what a
gain is known by: if r − ρ + P·h − h lies between low and high, the gain lies between ρ + low and ρ + high.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kemeny.tabular import kernels
from kemeny.tabular.blocks import Blocks
from kemeny.tabular.rows import Rows

LOST = 1e-15
"""A cosine below this is 0 up to rounding: the method has lost its direction, and begins anew where it is."""

KEEP = 0.5
"""An iterate is kept if its residual is smaller than this share of the residual that was kept before. The residual of
this method goes up and down, so the last iterate need not be the best. A round must also achieve this much."""


Inverse = Callable[[np.ndarray], tuple[np.ndarray, float]]
"""An approximate solution for a right-hand side, and its mean; the next call may overwrite it."""


class Solved(NamedTuple):
    """An approximate solution."""

    x: np.ndarray
    span: float
    """The largest minus the smallest entry of its residual."""

    iterations: int


def solve_chain(
    rows: Rows,
    right: np.ndarray,
    guess: np.ndarray,
    enough: float,
    limit: int,
    blocks: Blocks,
    inverse: Inverse | None = None,
) -> Solved:
    """Solve x − P·x + mean(x) = right, until the span of the residual is at most `enough`.

    This is the Bellman equation x = r − ρ + P·x with the gauge mean(x) = ρ; for Pᵀ and right = 1/n it is the equation
    of the stationary distribution. `inverse` is an approximate inverse of the left-hand side. After `limit` iterations,
    or when rounding errors rule, the best iterate is returned. It takes the place of the guess, which is lost.
    """
    state = Recursion(rows, right, guess.copy(), blocks, inverse)
    best, best_span, used = guess, np.inf, 0
    while True:
        span, before = state.begin(), best_span
        if span < best_span:
            best[:], best_span = state.x, span
        if span <= enough or not span < KEEP * before or used >= limit:
            return Solved(best, best_span, used)
        kept_span = span
        while used < limit:
            used += 1
            span = state.iterate()
            if span < KEEP * kept_span:
                best[:], kept_span = state.x, span
            if span <= 0.9 * enough or state.is_lost:
                break
        if not span <= 2 * kept_span:
            state.x[:] = best


class Recursion:
    """The vectors of one solve; the names are those of the paper."""

    def __init__(self, rows: Rows, right: np.ndarray, x: np.ndarray, blocks: Blocks, inverse: Inverse | None):
        self.rows, self.right, self.x, self.blocks, self.inverse = rows, right, x, blocks, inverse
        self.r, self.p, self.v, self.t, self.shadow = (np.empty(len(x)) for _ in range(5))

    def begin(self) -> float:
        """Take the residual of x as the first one; returns its span."""
        mean = self._mean(self.x)

        def work(begin: int, end: int) -> tuple[float, float, float]:
            found = kernels.begin_solve(*self.rows, self.right, self.x, mean, begin, end, self.r)
            self.shadow[begin:end] = self.r[begin:end]
            self.p[begin:end] = self.v[begin:end] = 0.0
            return found

        lows, highs, squares = zip(*self.blocks.each(work), strict=True)
        self.rho = self.shadow_square = sum(squares)
        self.previous = self.alpha = self.omega = 1.0
        self.is_lost = False
        return max(highs) - min(lows)

    def iterate(self) -> float:
        """One iteration; returns the span of the residual."""
        beta = (self.rho / self.previous) * (self.alpha / self.omega)
        self.blocks.each(lambda begin, end: kernels.turn(self.p, self.v, self.r, beta, self.omega, begin, end))
        cross, square, along = self._image(self.p, self.shadow, self.v)
        if not abs(cross) > LOST * np.sqrt(square * self.shadow_square):
            self.is_lost = True
            return np.inf
        self.alpha = self.rho / cross
        self._advance(along, self.v, self.alpha)
        cross, square, across = self._image(self.r, self.r, self.t)
        self.omega = cross / square if square > 0 else 0.0
        self.previous = self.rho
        self.rho, square, span = self._advance(across, self.t, self.omega)
        self.is_lost = self.omega == 0 or not abs(self.rho) > LOST * np.sqrt(square * self.shadow_square)
        return span

    def _image(self, vector: np.ndarray, other: np.ndarray, out: np.ndarray) -> tuple[float, float, np.ndarray]:
        """The image of an approximate solution for `vector` into `out`, its products, and that solution."""
        x, mean = (vector, self._mean(vector)) if self.inverse is None else self.inverse(vector)
        parts = self.blocks.each(lambda begin, end: kernels.image(*self.rows, x, mean, other, begin, end, out))
        crosses, squares = zip(*parts, strict=True)
        return sum(crosses), sum(squares), x

    def _advance(self, along: np.ndarray, image: np.ndarray, length: float) -> tuple[float, float, float]:
        """A step of x; returns shadow·r, r·r and the span of r."""

        def work(begin: int, end: int) -> tuple[float, float, float, float]:
            return kernels.advance(self.x, self.r, along, image, self.shadow, length, begin, end)

        crosses, squares, lows, highs = zip(*self.blocks.each(work), strict=True)
        return sum(crosses), sum(squares), max(highs) - min(lows)

    def _mean(self, x: np.ndarray) -> float:
        return sum(self.blocks.each(lambda begin, end: float(x[begin:end].sum()))) / len(x)
