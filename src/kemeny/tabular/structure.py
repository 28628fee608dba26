"""The structure of a chain: its classes, their periods, and whether a matrix is stochastic."""

import dataclasses
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from kemeny.errors import Renormalised, UserError

ROW_SUM_TOLERANCE = 1e-9
"""How far the sum of a row may be from 1. The rounding error of a row with a million entries is a thousand times
smaller, and a probability that was left out by mistake is usually far larger."""

NEGATIVE_TOLERANCE = 1e-12
"""How far an entry may be below 0, such as the −2·10⁻¹⁶ of 1 − 0.9 − 0.1 − …: beyond the rounding of a sum of thousands
of probabilities, and far below a probability that anybody means."""

SUM_ROUNDING = 1e-14
"""A row whose sum is nearer to 1 than this is left as it is: dividing it by its sum would only round it again."""

SAID_FROM = 1e-12
"""A row that is divided by its sum is reported if the sum is further from 1 than this: beyond the rounding of a sum of
thousands of probabilities, so digits are missing in what was given."""


@dataclasses.dataclass(frozen=True, eq=False)
class Classes:
    """The states, divided into recurrent classes and transient states."""

    recurrent: tuple[np.ndarray, ...]
    """One array of states per recurrent class."""

    transient: np.ndarray
    """The states that the chain leaves for ever."""

    @property
    def is_unichain(self) -> bool:
        """Whether there is one recurrent class; then the gain does not depend on the start state."""
        return len(self.recurrent) == 1

    @property
    def is_irreducible(self) -> bool:
        """Whether all states are in one recurrent class."""
        return self.is_unichain and len(self.transient) == 0

    def __str__(self) -> str:
        text = " and ".join(show_states(states) for states in self.recurrent[:3])
        more = f" and {len(self.recurrent) - 3} more" if len(self.recurrent) > 3 else ""
        tail = f"; transient states {show_states(self.transient)}" if len(self.transient) else ""
        noun = "class" if len(self.recurrent) == 1 else "classes"
        return f"{len(self.recurrent)} recurrent {noun} ({text}{more}){tail}"


def show_states(states: np.ndarray) -> str:
    """At most six states, written as a set: {0, 1, 5, …}."""
    shown = ", ".join(str(int(s)) for s in states[:6])
    return "{" + shown + (", …" if len(states) > 6 else "") + "}"


def stochastic(
    matrix: Any,
    what: str = "transition matrix",
    label: Any = str,
    tolerance: float = ROW_SUM_TOLERANCE,
    empty: np.ndarray | None = None,
) -> Any:
    """The matrix with rows that are probability distributions, or an error that names the first row that is not one.

    Rounding is mended, in a copy: an entry that is negative by at most `NEGATIVE_TOLERANCE` becomes 0, and a row whose
    sum is off by at most `tolerance` is divided by it; a `Renormalised` warning says so, if it is off by more than
    `SAID_FROM`. `label` turns the index of a row into text: the rows of a stacked matrix are named by their state and
    action. Rows where `empty` is true are no distributions; they must hold nothing.
    """
    data = matrix.data if sp.issparse(matrix) else matrix
    if not np.all(np.isfinite(data)):
        row, column = first_entry(matrix, ~np.isfinite(data))
        raise UserError(f"Row {label(row)} of the {what} has a value that is not finite (column {column}).")
    if data.size and data.min() < -NEGATIVE_TOLERANCE:
        row, column = first_entry(matrix, data < -NEGATIVE_TOLERANCE)
        value = matrix[row, column]
        raise UserError(f"Row {label(row)} of the {what} has a negative probability, {value:g} (column {column}).")
    sums = row_sums(matrix)
    distance = np.abs(sums - 1)
    if empty is not None:
        distance[empty] = 0
    wrong = distance > tolerance
    if wrong.any():
        row = int(np.argmax(wrong))
        others = f" ({int(wrong.sum())} rows are wrong)" if wrong.sum() > 1 else ""
        raise UserError(f"Row {label(row)} of the {what} sums to {sums[row]:.12g}, not to 1{others}.")
    say_renormalised(distance, what, label)
    return without_rounding(matrix, sums, distance)


def say_renormalised(distance: np.ndarray, what: str, label: Any) -> None:
    """Warn if rows are divided by their sums because of more than the rounding of sums; name the worst."""
    said = int((distance > SAID_FROM).sum())
    if said:
        worst = int(np.argmax(distance))
        rows = "1 row was divided by its sum" if said == 1 else f"{said:,} rows were divided by their sums"
        warnings.warn(
            f"In the {what} {rows}, which should be 1; the largest difference, {distance[worst]:.1e}, is in row "
            f"{label(worst)}.",
            Renormalised,
            stacklevel=4,
        )


def without_rounding(matrix: Any, sums: np.ndarray, distance: np.ndarray) -> Any:
    """A copy of the matrix without negative entries and with rows that sum to 1; the matrix itself if it is one."""
    off = distance > SUM_ROUNDING
    if sp.issparse(matrix) and matrix.nnz and matrix.data.min() < 0:
        matrix = sp.csr_array((np.maximum(matrix.data, 0), matrix.indices, matrix.indptr), shape=matrix.shape)
        off |= row_sums(matrix) != sums
    elif not sp.issparse(matrix) and matrix.min() < 0:
        matrix = np.maximum(matrix, 0)
        off |= row_sums(matrix) != sums
    if not off.any():
        return matrix
    divisors = np.where(off, row_sums(matrix), 1.0)
    return sp.csr_array(sp.diags_array(1 / divisors) @ matrix) if sp.issparse(matrix) else matrix / divisors[:, None]


def row_sums(matrix: Any) -> np.ndarray:
    """The sum of each row."""
    return np.asarray(matrix.sum(axis=1)).ravel()


def first_entry(matrix: Any, mask: np.ndarray) -> tuple[int, int]:
    """The row and the column of the first entry where the mask is true."""
    if not sp.issparse(matrix):
        row, column = np.argwhere(mask)[0]
        return int(row), int(column)
    position = int(np.argmax(mask))
    return int(np.searchsorted(matrix.indptr, position, side="right") - 1), int(matrix.indices[position])


def find_classes(matrix: Any) -> Classes:
    """Find the classes: a recurrent class is a strongly connected component that no edge leaves."""
    graph = as_graph(matrix)
    count, labels = csgraph.connected_components(graph, directed=True, connection="strong")
    source = np.repeat(np.arange(len(graph.indptr) - 1), np.diff(graph.indptr))
    closed = np.ones(count, dtype=bool)
    closed[labels[source][labels[source] != labels[graph.indices]]] = False
    order = np.argsort(labels, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(labels, minlength=count))[:-1])
    recurrent = sorted((parts[c] for c in np.flatnonzero(closed)), key=lambda states: int(states[0]))
    return Classes(tuple(recurrent), np.flatnonzero(~closed[labels]))


def find_period(matrix: Any, states: np.ndarray) -> int:
    """The greatest common divisor of the lengths of all cycles within a recurrent class.

    If ℓ(s) is the distance of s from one state of the class, it is the gcd of ℓ(u) + 1 − ℓ(v) over all edges u → v.
    """
    graph = as_graph(matrix)[states][:, states].tocsr()
    order, previous = csgraph.breadth_first_order(graph, 0, directed=True, return_predecessors=True)
    level = np.zeros(len(states), dtype=np.int64)
    for state in order[1:]:
        level[state] = level[previous[state]] + 1
    source = np.repeat(np.arange(len(states)), np.diff(graph.indptr))
    return int(np.gcd.reduce(np.abs(level[source] + 1 - level[graph.indices])))


def as_graph(matrix: Any) -> sp.csr_array:
    """The transitions with positive probability; zeros that a sparse matrix stores are removed."""
    graph = sp.csr_array(matrix, copy=True)
    graph.eliminate_zeros()
    return graph
