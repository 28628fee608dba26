"""Coarser and coarser chains: a cheap approximate inverse of I − P for chains that mix slowly.

Neighbouring states are merged into one, again and again, until a dense matrix can be inverted. A merged chain is again
a Markov chain: its probabilities are the means of those of its states (aggregation). Errors between neighbours are
removed by Gauss–Seidel steps on the fine chain, errors over long distances on the coarse ones, where they are short.
One W-cycle through all chains costs a few products with P, and it takes the number of iterations of a Krylov method
from hundreds or thousands to a few dozen on queues (Bertsekas & Castañon 1989; Notay 2012 on the same idea for flows).

Which states are neighbours? If the states are the points of a grid, boxes of two points per side are merged. Otherwise
states are paired that lead to each other with the largest probability.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp

from kemeny.tabular import kernels
from kemeny.tabular.blocks import Blocks
from kemeny.tabular.kernels import unsigned
from kemeny.tabular.rows import Rows

COARSEST = 600
"""States of the last chain, which is inverted as a dense matrix."""

LEAST_MERGING = 0.8
"""A level that keeps more than this share of the states is not worth its work: the one before is the last."""

LARGEST_LAST = 4000
"""If pairing ends early, the last chain may have this many states; with more, there is no hierarchy."""


class Parts(NamedTuple):
    """States that are merged: the merged state of each state, and the states of each merged state."""

    label: np.ndarray
    order: np.ndarray
    starts: np.ndarray
    """The states order[starts[c]] … order[starts[c + 1] − 1] are merged into state c."""

    @classmethod
    def of(cls, label: np.ndarray) -> Self:
        """By the merged state of each state."""
        starts = np.concatenate([[0], np.cumsum(np.bincount(label))])
        order = np.argsort(label, kind="stable").astype(np.uint32)
        return cls(unsigned(label), order, starts.astype(np.uint32))

    @property
    def n(self) -> int:
        """The number of merged states."""
        return len(self.starts) - 1


class Level:
    """One chain, the way down to the next coarser one, and the way up again.

    It approximates x in (I − P)·x = right, both of which are its own: whoever uses it fills `right` and reads `x`.
    """

    def __init__(self, chain: Rows, parts: Parts, transposed: bool):
        self.chain, self.parts, self.is_mean = chain, parts, not transposed
        self.forward = not transposed
        """Queues are numbered from empty to full, and empty out: the value of a state follows from those before it."""

        self.blocks, self.coarse_blocks = Blocks(chain.n, chain.entries), Blocks(parts.n, chain.entries)
        self.right, self.x, self.spare = (np.empty(chain.n) for _ in range(3))

    def begin(self, below: np.ndarray) -> None:
        """Make a step from x = 0, and write what is left of the right-hand side, merged, to `below`."""

        def restrict(begin: int, end: int) -> None:
            kernels.restrict(
                *self.chain, self.right, self.x, self.parts.order, self.parts.starts, self.is_mean, begin, end, below
            )

        self._smooth(from_zero=True)
        self.coarse_blocks.each(restrict)

    def finish(self, coarse: np.ndarray) -> None:
        """Add the values of the merged states to x, then make a step."""

        def lift(begin: int, end: int) -> None:
            kernels.lift(coarse, self.parts.label, self.parts.starts, self.is_mean, begin, end, self.x)

        self.blocks.each(lift)
        self._smooth(from_zero=False)

    def _smooth(self, from_zero: bool) -> None:
        """A Gauss–Seidel step of x."""

        def work(begin: int, end: int) -> None:
            kernels.smooth(*self.chain, self.right, self.x, from_zero, self.forward, begin, end, self.spare)

        self.blocks.each(work)
        self.x, self.spare = self.spare, self.x

    def take_rest(self) -> None:
        """Let the rest of the right-hand side, which x leaves, be the right-hand side."""

        def work(begin: int, end: int) -> None:
            kernels.residual(*self.chain, self.right, self.x, begin, end, self.spare)

        self.blocks.each(work)
        self.right, self.spare = self.spare, self.right


class Last:
    """The coarsest chain, with the inverse of its (I − P) + 1·uᵀ."""

    def __init__(self, inverse: np.ndarray):
        self.inverse = inverse
        self.right = np.empty(len(inverse))
        self.x = self.right.copy()

    def solve(self) -> None:
        """x for the right-hand side."""
        np.einsum("ij,j->i", self.inverse, self.right, out=self.x)


class Hierarchy:
    """An approximate inverse of (I − P) + 1·uᵀ with u uniform.

    It works in double precision. In single precision it fails on chains that mix slowly, because (I − P)·x is the
    difference of numbers that are thousands of times larger.
    """

    def __init__(self, levels: Sequence[Level], last: np.ndarray):
        self.levels, self.last = levels, Last(last)
        self.blocks = levels[0].blocks if levels else Blocks(len(last), 0)

    def __call__(self, right: np.ndarray) -> tuple[np.ndarray, float]:
        """Apply it to a vector; returns the result, which the next call overwrites, and its mean."""
        n, top = len(right), self._level(0)
        mean = sum(self.blocks.each(lambda begin, end: float(right[begin:end].sum()))) / n

        def take(begin: int, end: int) -> None:
            np.subtract(right[begin:end], mean, out=top.right[begin:end])

        def give(begin: int, end: int) -> float:
            top.x[begin:end] += mean
            return float(top.x[begin:end].sum())

        self.blocks.each(take)
        self._cycle(0)
        total = sum(self.blocks.each(give))
        return top.x, total / n

    def _level(self, k: int) -> Level | Last:
        return self.levels[k] if k < len(self.levels) else self.last

    def _cycle(self, k: int) -> None:
        """Find x of a level, which costs a few products with its chain."""
        level, below = self._level(k), self._level(k + 1)
        if isinstance(level, Last):
            level.solve()
            return
        level.begin(below.right)
        self._cycle(k + 1)
        if isinstance(below, Level):
            first = below.x.copy()
            below.take_rest()
            self._cycle(k + 1)
            below.x += first
        level.finish(below.x)


class Merging:
    """Which states are merged on each level; found once, and used for the chains of many policies."""

    def __init__(self, grid: tuple[int, ...] | None = None):
        self.grid = grid
        self.levels: list[Parts] = []

    def parts(self, k: int, chain: Rows) -> Parts:
        """The merged states of level k, whose chain is given."""
        if len(self.levels) <= k:
            if self.grid is not None:
                label, self.grid = boxes(self.grid)
            else:
                first = pair(chain.matrix())
                label = pair(merge(chain, Parts.of(first)).matrix())[first]
            self.levels.append(Parts.of(label))
        return self.levels[k]

    def hierarchy(self, chain: Rows, transposed: bool = False) -> Hierarchy | None:
        """An approximate inverse for a chain, or for its transpose; None if the states cannot be merged well."""
        levels: list[Level] = []
        while chain.n > COARSEST:
            parts = self.parts(len(levels), chain)
            if parts.n > LEAST_MERGING * chain.n:
                break
            rows = Rows.of(sp.csr_array(chain.matrix().T)) if transposed else chain
            levels.append(Level(rows, parts, transposed))
            chain = merge(chain, parts)
        if chain.n > LARGEST_LAST:
            return None
        matrix = np.eye(chain.n) - chain.matrix().toarray() + 1 / chain.n
        try:
            last = np.linalg.inv(matrix)
            return Hierarchy(levels, np.ascontiguousarray(last.T) if transposed else last)
        except np.linalg.LinAlgError:  # the chain has several recurrent classes
            return None


def boxes(grid: tuple[int, ...]) -> tuple[np.ndarray, tuple[int, ...]]:
    """The box of each point of a grid, boxes having two points per side, and the shape of the grid of the boxes."""
    coarse = tuple(count_boxes(side) for side in grid)
    points = np.meshgrid(*(np.arange(side) // 2 for side in grid), indexing="ij", sparse=True)
    return np.ravel_multi_index(np.broadcast_arrays(*points), coarse).ravel().astype(np.int32), coarse


def count_boxes(side: int) -> int:
    """The number of boxes along a side of so many points; the last box may have one point only."""
    return (side + 1) // 2


def merge(chain: Rows, parts: Parts) -> Rows:
    """The merged chain."""
    blocks, (weights, rows) = Blocks(parts.n, chain.entries), (chain.weights, chain.rows)
    structure = chain.pointers, chain.columns
    lengths = np.empty(parts.n + 1, dtype=np.int64)
    blocks.each(lambda begin, end: kernels.merged_lengths(*structure, rows, *parts, begin, end, lengths[1:]))
    lengths[0] = 0
    pointers = np.cumsum(lengths)
    kind = np.uint32 if pointers[-1] < np.iinfo(np.int32).max else np.int64
    new = Rows(
        pointers.astype(kind),
        np.empty(pointers[-1], dtype=np.uint32),
        np.empty(pointers[-1]),
        np.arange(parts.n, dtype=np.uint32),
    )
    blocks.each(lambda begin, end: kernels.merged_rows(*structure, weights, rows, *parts, begin, end, *new[:3]))
    return new


def pair(P: Any, rounds: int = 4) -> np.ndarray:
    """Labels that pair each state with the one that it exchanges most with, if that one prefers it too, in rounds.

    A random factor of up to 10 % per state decides between neighbours that are equally near.
    """
    n = P.shape[0]
    graph = sp.csr_array(P + P.T)
    source = np.repeat(np.arange(n, dtype=np.int32), np.diff(graph.indptr))
    luck = 1 + 0.05 * np.random.default_rng(0).random(n)
    weight = graph.data * luck[source] * luck[graph.indices]
    weight[source == graph.indices] = 0.0
    mate = np.arange(n)
    filled = np.flatnonzero(np.diff(graph.indptr))
    for _ in range(rounds):
        largest = np.zeros(n)
        largest[filled] = np.maximum.reduceat(weight, graph.indptr[filled])
        hit = (weight == largest[source]) & (weight > 0)
        favourite = np.full(n, -1)
        favourite[source[hit]] = graph.indices[hit]
        states = np.flatnonzero(favourite >= 0)
        mutual = states[favourite[favourite[states]] == states]
        mate[mutual] = favourite[mutual]
        taken = mate != np.arange(n)
        weight[taken[source] | taken[graph.indices]] = 0.0
    return np.unique(np.minimum(mate, np.arange(n)), return_inverse=True)[1].astype(np.int32)
