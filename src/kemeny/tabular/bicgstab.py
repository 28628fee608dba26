"""BiCGSTAB for chains of millions of states, block by block on all cores (van der Vorst 1992).

It keeps ten vectors, whatever the number of iterations. It stops by the *span* of the residual, because that is what a
gain is known by: if r − ρ + P·h − h lies between low and high, the gain lies between ρ + low and ρ + high.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kemeny.tabular.blocks import Blocks

LOST = 1e-15
"""A cosine below this is 0 up to rounding: the method has lost its direction, and begins anew where it is."""

KEEP = 0.5
"""An iterate is kept if its residual is smaller than this share of the residual that was kept before. The residual of
this method goes up and down, so the last iterate need not be the best. A round must also achieve this much."""


class Solved(NamedTuple):
    """An approximate solution."""

    x: np.ndarray
    span: float
    """The largest minus the smallest entry of its residual."""

    iterations: int


def solve_chain(
    rows: Sequence[Any],
    right: np.ndarray,
    guess: np.ndarray,
    enough: float,
    limit: int,
    blocks: Blocks,
    inverse: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Solved:
    """Solve x − P·x + mean(x) = right, until the span of the residual is at most `enough`.

    This is the Bellman equation x = r − ρ + P·x with the gauge mean(x) = ρ; for Pᵀ and right = 1/n it is the equation
    of the stationary distribution. `rows` are the rows of P, one matrix per block. `inverse` is an approximate inverse
    of the left-hand side. After `limit` iterations, or when rounding errors rule, the best iterate is returned.
    """
    state = Recursion(rows, right, guess.copy(), blocks, inverse)
    best, best_span, used = guess, np.inf, 0
    while True:
        span, before = state.begin(), best_span
        if span < best_span:
            best, best_span = state.x.copy(), span
        if span <= enough or not span < KEEP * before or used >= limit:
            return Solved(best, best_span, used)
        kept_span = span
        while used < limit:
            used += 1
            span = state.iterate()
            if span < KEEP * kept_span:
                best, kept_span = state.x.copy(), span
            if span <= 0.9 * enough or state.is_lost:
                break
        if not span <= 2 * kept_span:
            state.x[:] = best


class Recursion:
    """The vectors of one solve; the names are those of the paper."""

    def __init__(self, rows: Any, right: np.ndarray, x: np.ndarray, blocks: Blocks, inverse: Any):
        self.rows, self.right, self.x, self.blocks, self.inverse = rows, right, x, blocks, inverse
        self.r, self.p, self.v, self.t = (np.empty(len(x)) for _ in range(4))

    def begin(self) -> float:
        """Take the residual of x as the first one; returns its span."""
        mean = self._mean(self.x)

        def work(k: int, part: slice) -> tuple[float, float, float]:
            r = self.r[part]
            np.subtract(self.right[part], self._apply(self.x, mean, k, part), out=r)
            return float(r.min()), float(r.max()), dot(r, r)

        lows, highs, squares = zip(*self.blocks.each(work), strict=True)
        self.shadow = self.r.copy()
        self.p.fill(0.0)
        self.v.fill(0.0)
        self.rho = self.shadow_square = sum(squares)
        self.previous = self.alpha = self.omega = 1.0
        self.is_lost = False
        return max(highs) - min(lows)

    def iterate(self) -> float:
        """One iteration; returns the span of the residual."""
        beta = (self.rho / self.previous) * (self.alpha / self.omega)

        def turn(k: int, part: slice) -> None:
            p = self.p[part]
            p -= self.omega * self.v[part]
            p *= beta
            p += self.r[part]

        def first_image(k: int, part: slice) -> tuple[float, float]:
            v = self.v[part]
            v[:] = self._apply(along, mean, k, part)
            return dot(self.shadow[part], v), dot(v, v)

        self.blocks.each(turn)
        along = self.p if self.inverse is None else self.inverse(self.p)
        mean = self._mean(along)
        cross, square = (sum(parts) for parts in zip(*self.blocks.each(first_image), strict=True))
        if not abs(cross) > LOST * np.sqrt(square * self.shadow_square):
            self.is_lost = True
            return np.inf
        alpha = self.alpha = self.rho / cross

        def half_step(k: int, part: slice) -> None:
            self.x[part] += alpha * along[part]
            self.r[part] -= alpha * self.v[part]

        def second_image(k: int, part: slice) -> tuple[float, float]:
            t, r = self.t[part], self.r[part]
            t[:] = self._apply(across, mean, k, part)
            return dot(t, r), dot(t, t)

        self.blocks.each(half_step)
        across = self.r if self.inverse is None else self.inverse(self.r)
        mean = self._mean(across)
        cross, square = (sum(parts) for parts in zip(*self.blocks.each(second_image), strict=True))
        omega = self.omega = cross / square if square > 0 else 0.0

        def step(k: int, part: slice) -> tuple[float, float, float, float]:
            r = self.r[part]
            self.x[part] += omega * across[part]
            r -= omega * self.t[part]
            return dot(self.shadow[part], r), dot(r, r), float(r.min()), float(r.max())

        crosses, squares, lows, highs = zip(*self.blocks.each(step), strict=True)
        self.previous, self.rho = self.rho, sum(crosses)
        self.is_lost = omega == 0 or not abs(self.rho) > LOST * np.sqrt(sum(squares) * self.shadow_square)
        return max(highs) - min(lows)

    def _apply(self, x: np.ndarray, mean: float, k: int, part: slice) -> np.ndarray:
        image = self.rows[k] @ x
        np.subtract(x[part], image, out=image)
        image += mean
        return image

    def _mean(self, x: np.ndarray) -> float:
        return sum(self.blocks.each(lambda k, part: float(x[part].sum()))) / len(x)


def dot(a: np.ndarray, b: np.ndarray) -> float:
    """a·b by NumPy itself: a BLAS library would start threads of its own beside those of the blocks."""
    return float(np.einsum("i,i->", a, b))
