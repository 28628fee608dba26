"""Anderson's acceleration of value iteration, block by block on all cores (Anderson 1965; Walker & Ni 2011).

From the last few iterates and their images it takes the combination whose residual is smallest. The residual is taken
up to a constant, because a constant in h changes nothing.
"""

import numpy as np

from kemeny.tabular.blocks import Blocks

GROWTH = 100.0
"""If the span of the residual is this many times the smallest one so far, the memory misleads: it is forgotten, and
the iteration goes back to the best iterate. The span goes up and down by factors of ten in normal work."""

SINGULAR = 1e-13
"""Residuals that differ by less than this, relative to their size, are the same up to rounding."""


class Anderson:
    """The memory of the last iterates."""

    def __init__(self, memory: int, blocks: Blocks):
        self.memory, self.blocks = memory, blocks
        self.best: tuple[float, np.ndarray] = (np.inf, np.empty(0))
        self._forget()

    def _forget(self) -> None:
        self.images: list[np.ndarray] = []
        """Differences between images of one iterate and the next."""

        self.residuals: list[np.ndarray] = []
        """The same of residuals."""

        self.products = np.empty((0, 0))
        """The scalar products of these."""

        self.last: tuple[np.ndarray, np.ndarray] | None = None

    def next(self, h: np.ndarray, image: np.ndarray, mean: float, span: float) -> np.ndarray:
        """The next iterate, given an iterate, its image, and mean and span of their difference."""
        if span < self.best[0]:
            self.best = span, image
        elif span > GROWTH * self.best[0]:
            self._forget()
            return self.best[1] - self.best[1][0]
        if len(self.images) == self.memory:
            self.images.pop(0)
            self.residuals.pop(0)
            self.products = self.products[1:, 1:]
        residual = np.empty(len(h))
        difference, change = (np.empty(len(h)), np.empty(len(h))) if self.last is not None else (None, None)

        def measure(begin: int, end: int) -> list[float]:
            part = slice(begin, end)
            np.subtract(image[part], h[part], out=residual[part])
            residual[part] -= mean
            if self.last is None or difference is None or change is None:
                return []
            np.subtract(image[part], self.last[0][part], out=difference[part])
            np.subtract(residual[part], self.last[1][part], out=change[part])
            older = [*(past[part] for past in self.residuals), change[part]]
            return [*(dot(past, change[part]) for past in older), *(dot(past, residual[part]) for past in older)]

        sums = np.array(self.blocks.each(measure)).sum(axis=0)
        following = image.copy()
        if difference is not None and change is not None:
            self.images.append(difference)
            self.residuals.append(change)
            size = len(self.images)
            products = np.empty((size, size))
            products[:-1, :-1] = self.products
            products[-1], products[:, -1] = sums[:size], sums[:size]
            self.products = products
            weights = combine(products, sums[size:])

            def add(begin: int, end: int) -> None:
                part = slice(begin, end)
                for weight, past in zip(weights, self.images, strict=True):
                    following[part] -= weight * past[part]

            self.blocks.each(add)
        self.last = image, residual
        following -= following[0]
        return following


def combine(products: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The weights of the smallest residual, by least squares with every direction scaled to 1."""
    scale = np.sqrt(np.maximum(np.diag(products), 1e-300))
    return np.linalg.lstsq(products / np.outer(scale, scale), right / scale, rcond=SINGULAR)[0] / scale


def dot(a: np.ndarray, b: np.ndarray) -> float:
    """a·b by NumPy itself: a BLAS library would start threads of its own beside those of the blocks."""
    return float(np.einsum("i,i->", a, b))
