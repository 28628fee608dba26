"""Coarser and coarser chains: a cheap approximate inverse of I − P for chains that mix slowly.

Neighbouring states are merged into one, again and again, until a dense matrix can be inverted. A merged chain is again
a Markov chain: its probabilities are the means of those of its states (aggregation). Errors between neighbours are
removed by Jacobi steps on the fine chain, errors over long distances on the coarse ones, where they are short. One
W-cycle through all chains costs a few products with P, and it takes the number of iterations of a Krylov method from
hundreds or thousands to a few dozen on queues (Bertsekas & Castañon 1989; Notay 2012 on the same idea for flows).

Which states are neighbours? If the states are the points of a grid, boxes of two points per side are merged. Otherwise
states are paired that lead to each other with the largest probability.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from kemeny.tabular.blocks import Blocks
from kemeny.tabular.structure import rows_of

COARSEST = 600
"""States of the last chain, which is inverted as a dense matrix."""

DAMPING = 0.8
"""The length of a Jacobi step: below 1 so that it also removes errors that change sign from state to state."""

LEAST_MERGING = 0.8
"""A level that keeps more than this share of the states is not worth its work: the one before is the last."""

LARGEST_LAST = 4000
"""If pairing ends early, the last chain may have this many states; with more, there is no hierarchy."""


@dataclasses.dataclass(frozen=True, eq=False)
class Level:
    """One chain, the way down to the next coarser one, and the way up again."""

    rows: Sequence[Any]
    """The rows of the chain, one matrix per block."""

    blocks: Blocks
    jacobi: np.ndarray
    """The damping, divided by the diagonal of I − P."""

    down: Any
    """Means over the merged states, or of the transposed chain sums over them: coarse × fine."""

    label: np.ndarray
    """The merged state of each state."""

    share: np.ndarray | None
    """The share of each state in its merged state, for the transposed chain; None for 1."""

    def residual(self, right: np.ndarray, x: np.ndarray) -> np.ndarray:
        """right − (I − P)·x."""
        result = np.empty(len(x))

        def work(k: int, part: slice) -> None:
            image = self.rows[k] @ x
            image -= x[part]
            np.add(image, right[part], out=result[part])

        self.blocks.each(work)
        return result

    def smooth(self, right: np.ndarray, x: np.ndarray, coarse: np.ndarray) -> None:
        """Add the values of the merged states to x, then make one Jacobi step."""

        def lift(k: int, part: slice) -> None:
            value = coarse[self.label[part]]
            x[part] += value if self.share is None else value * self.share[part]

        def step(k: int, part: slice) -> None:
            rest[part] *= self.jacobi[part]
            x[part] += rest[part]

        self.blocks.each(lift)
        rest = self.residual(right, x)
        self.blocks.each(step)


class Hierarchy:
    """An approximate inverse of (I − P) + 1·uᵀ with u uniform."""

    def __init__(self, levels: Sequence[Level], last: np.ndarray):
        self.levels = levels
        self.last = last

    def __call__(self, right: np.ndarray) -> np.ndarray:
        """Apply it to a vector."""
        mean = float(right.mean())
        found = self._cycle(0, right - mean)
        found += mean
        return found

    def _cycle(self, k: int, right: np.ndarray) -> np.ndarray:
        if k == len(self.levels):
            return np.einsum("ij,j->i", self.last, right)
        level = self.levels[k]
        x = level.jacobi * right
        rest = level.down @ level.residual(right, x)
        coarse = self._cycle(k + 1, rest)
        if k + 1 < len(self.levels):
            coarse += self._cycle(k + 1, self.levels[k + 1].residual(rest, coarse))
        level.smooth(right, x, coarse)
        return x


class Merging:
    """Which states are merged on each level; found once, and used for the chains of many policies."""

    def __init__(self, grid: tuple[int, ...] | None = None):
        self.grid = grid
        self.labels: list[np.ndarray] = []

    def label(self, k: int, P: Any) -> np.ndarray:
        """For each state of level k, whose chain is P, the merged state that it belongs to."""
        if len(self.labels) <= k:
            if self.grid is not None:
                boxes = tuple((side + 1) // 2 for side in self.grid)
                halves = [np.arange(side) // 2 for side in self.grid]
                points = np.meshgrid(*halves, indexing="ij", sparse=True)
                self.labels.append(np.ravel_multi_index(np.broadcast_arrays(*points), boxes).ravel().astype(np.int32))
                self.grid = boxes
            else:
                first = pair(P)
                self.labels.append(pair(merge(P, first)[0])[first])
        return self.labels[k]

    def hierarchy(self, P: Any, transposed: bool = False) -> Hierarchy | None:
        """An approximate inverse for P, or for Pᵀ if `transposed`; None if the states cannot be merged well."""
        levels: list[Level] = []
        while P.shape[0] > COARSEST:
            label = self.label(len(levels), P)
            if label.max() + 1 > LEAST_MERGING * P.shape[0]:
                break
            blocks = Blocks(P.shape[0])
            matrix = sp.csr_array(P.T) if transposed else P
            rows = [rows_of(matrix, part) for part in blocks.slices]
            leaves = 1 - P.diagonal()
            jacobi = DAMPING / np.where(leaves > 0, leaves, 1.0)
            P, down = merge(P, label)
            share = None
            if transposed:
                share = 1 / np.diff(down.indptr)[label]
                down.data[:] = 1.0
            levels.append(Level(rows, blocks, jacobi, down, label, share))
        n = P.shape[0]
        if n > LARGEST_LAST:
            return None
        matrix = np.eye(n) - P.toarray() + 1 / n
        try:
            last = np.linalg.inv(matrix)
            return Hierarchy(levels, np.ascontiguousarray(last.T) if transposed else last)
        except np.linalg.LinAlgError:  # the chain has several recurrent classes
            return None


def merge(P: Any, label: np.ndarray) -> tuple[sp.csr_array, sp.csr_array]:
    """The merged chain, and the matrix of means over merged states."""
    n, coarse = len(label), int(label.max()) + 1
    size = np.bincount(label, minlength=coarse)
    order = np.argsort(label, kind="stable").astype(np.int32)
    pointers = np.concatenate([[0], np.cumsum(size)]).astype(np.int32)
    down = sp.csr_array((1 / size[label[order]], order, pointers), shape=(coarse, n))
    relabelled = sp.csr_array((P.data, label[P.indices], P.indptr), shape=(n, coarse))
    return sp.csr_array(down @ relabelled), down


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
