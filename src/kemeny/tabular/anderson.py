"""Anderson's acceleration of a fixed-point iteration (Anderson 1965; Walker & Ni 2011).

From the last few iterates and their images it takes the combination whose residual is smallest. For value iteration
the residual is taken up to a constant, because a constant in h changes nothing.
"""

import numpy as np

GROWTH = 100.0
"""If the span of the residual is this many times the smallest one so far, the memory misleads: it is forgotten, and
the iteration goes back to the best iterate. The span goes up and down by factors of ten in normal work."""

SINGULAR = 1e-13
"""Residuals that differ by less than this, relative to their size, are the same up to rounding."""


class Anderson:
    """The memory of the last iterates."""

    def __init__(self, memory: int):
        self.memory = memory
        self.images: list[np.ndarray] = []
        """Differences between images of one iterate and the next."""

        self.residuals: list[np.ndarray] = []
        """The same of residuals."""

        self.last: tuple[np.ndarray, np.ndarray] | None = None
        self.best: tuple[float, np.ndarray] = (np.inf, np.empty(0))

    def next(self, h: np.ndarray, image: np.ndarray, span: float) -> np.ndarray:
        """The next iterate, given an iterate, its image and the span of their difference."""
        image = image - image[0]
        if span < self.best[0]:
            self.best = span, image
        elif span > GROWTH * self.best[0]:
            self.images, self.residuals, self.last = [], [], None
            return self.best[1].copy()
        residual = image - h
        residual -= residual.mean()
        if self.last is not None:
            self.images = [*self.images, image - self.last[0]][-self.memory :]
            self.residuals = [*self.residuals, residual - self.last[1]][-self.memory :]
        self.last = image, residual
        following = image.copy()
        for weight, difference in zip(self._weights(residual), self.images, strict=True):
            following -= weight * difference
        following -= following[0]
        return following

    def _weights(self, residual: np.ndarray) -> np.ndarray:
        if not self.residuals:
            return np.empty(0)
        products = np.array([[np.einsum("i,i->", a, b) for b in self.residuals] for a in self.residuals])
        scale = np.sqrt(np.maximum(np.diag(products), 1e-300))
        right = np.array([np.einsum("i,i->", a, residual) for a in self.residuals])
        return np.linalg.lstsq(products / np.outer(scale, scale), right / scale, rcond=SINGULAR)[0] / scale
