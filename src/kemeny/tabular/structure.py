"""Which states a chain can reach: its classes, their periods, and what is wrong with a matrix that is no chain."""

import dataclasses
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from kemeny.errors import UserError

ROW_SUM_TOLERANCE = 1e-9
"""How far a row may be from 1: a thousand times the rounding of a row of a million entries, and far below a
probability that somebody forgot."""


@dataclasses.dataclass(frozen=True, eq=False)
class Classes:
    """The states sorted into recurrent classes (each with its period) and transient states."""

    recurrent: tuple[np.ndarray, ...]
    """One array of states for each recurrent class."""

    transient: np.ndarray
    """The states that are left for ever."""

    @property
    def is_unichain(self) -> bool:
        """One recurrent class: the gain does not depend on the start."""
        return len(self.recurrent) == 1

    @property
    def is_irreducible(self) -> bool:
        """One class and nothing else."""
        return self.is_unichain and len(self.transient) == 0

    def __str__(self) -> str:
        text = " and ".join(show_states(states) for states in self.recurrent[:3])
        more = f" and {len(self.recurrent) - 3} more" if len(self.recurrent) > 3 else ""
        tail = f"; transient states {show_states(self.transient)}" if len(self.transient) else ""
        noun = "class" if len(self.recurrent) == 1 else "classes"
        return f"{len(self.recurrent)} recurrent {noun} ({text}{more}){tail}"


def show_states(states: np.ndarray) -> str:
    """At most six states, as a set: {0, 1, 5, …}."""
    shown = ", ".join(str(int(s)) for s in states[:6])
    return "{" + shown + (", …" if len(states) > 6 else "") + "}"


def check_stochastic(matrix: Any, what: str = "transition matrix", label: Any = str) -> None:
    """Raise a sentence that names the first row which is not a probability distribution.

    `label` turns the index of a row into words, so that a stacked matrix can speak of states and actions.
    """
    data = matrix.data if sp.issparse(matrix) else matrix
    if not np.all(np.isfinite(data)):
        row, column = first_entry(matrix, ~np.isfinite(data))
        raise UserError(f"Row {label(row)} of the {what} holds a value that is not finite (column {column}).")
    if data.size and data.min() < 0:
        row, column = first_entry(matrix, data < 0)
        value = matrix[row, column]
        raise UserError(f"Row {label(row)} of the {what} holds a negative probability, {value:g} (column {column}).")
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    wrong = np.abs(sums - 1) > ROW_SUM_TOLERANCE
    if wrong.any():
        row = int(np.argmax(wrong))
        others = f" ({int(wrong.sum()) - 1} more rows are wrong too)" if wrong.sum() > 1 else ""
        raise UserError(f"Row {label(row)} of the {what} sums to {sums[row]:.12g}, not to 1{others}.")


def first_entry(matrix: Any, mask: np.ndarray) -> tuple[int, int]:
    """Row and column of the first entry that the mask marks."""
    if not sp.issparse(matrix):
        row, column = np.argwhere(mask)[0]
        return int(row), int(column)
    position = int(np.argmax(mask))
    return int(np.searchsorted(matrix.indptr, position, side="right") - 1), int(matrix.indices[position])


def find_classes(matrix: Any) -> Classes:
    """Recurrent classes are the strongly connected components that no edge leaves."""
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

    With ℓ(s) the distance from one state of the class, it is the gcd of ℓ(u) + 1 − ℓ(v) over the edges u → v.
    """
    graph = as_graph(matrix)[states][:, states].tocsr()
    order, previous = csgraph.breadth_first_order(graph, 0, directed=True, return_predecessors=True)
    level = np.zeros(len(states), dtype=np.int64)
    for state in order[1:]:
        level[state] = level[previous[state]] + 1
    source = np.repeat(np.arange(len(states)), np.diff(graph.indptr))
    return int(np.gcd.reduce(np.abs(level[source] + 1 - level[graph.indices])))


def as_graph(matrix: Any) -> sp.csr_array:
    """The edges of positive probability, without the zeros that a sparse matrix may store."""
    graph = sp.csr_array(matrix, copy=True)
    graph.eliminate_zeros()
    return graph
