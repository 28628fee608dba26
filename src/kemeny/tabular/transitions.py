"""The transitions of a model: from an array, sparse matrices or rows of pairs to one stacked matrix.

The stacked matrix has A·S rows, action after action: row a·S + s holds P(·|s, a). One product covers all states and
actions. A row of a forbidden pair is empty, or zero in a dense matrix.
"""

import dataclasses
from typing import Any

import numpy as np
import scipy.sparse as sp

from kemeny.errors import UserError

LARGEST_TABLE = 10**9
"""The most entries of a table of states × actions (8 GB as floats): one misnumbered action must not fill the memory."""


@dataclasses.dataclass(frozen=True, eq=False)
class Stacked:
    """Transitions that are stacked already: they are not copied again."""

    matrix: Any


def stack_transitions(P: Any) -> Any:
    """The transitions as one (A·S) × S matrix, dense or in CSR form."""
    if isinstance(P, Stacked):
        return P.matrix
    if isinstance(P, list | tuple) and P and all(sp.issparse(matrix) for matrix in P):
        for a, matrix in enumerate(P):
            if matrix.ndim != 2 or matrix.shape != (P[0].shape[0], P[0].shape[0]):
                raise UserError(f"The transition matrix of action {a} has shape {matrix.shape}, but all must be S × S.")
        stacked = sp.csr_array(sp.vstack(P, format="csr"), dtype=float)
        stacked.sum_duplicates()
        return stacked
    if sp.issparse(P):
        raise UserError("Sparse transitions must be a list with one S × S matrix per action.")
    dense = np.array(P, dtype=float)
    if dense.ndim != 3 or dense.shape[0] != dense.shape[2] or dense.size == 0:
        raise UserError(f"Transitions must be an array S × A × S, but this one has shape {dense.shape}.")
    return np.ascontiguousarray(dense.transpose(1, 0, 2)).reshape(-1, dense.shape[0])


def read_allowed(given: Any, states: int, actions: int) -> np.ndarray | None:
    """Which pairs are allowed, as an S × A boolean array; None if all are."""
    if given is None:
        return None
    mask = np.array(given)
    if mask.shape != (states, actions):
        raise UserError(f"The mask of allowed actions has shape {mask.shape}, but it needs {(states, actions)}.")
    if mask.dtype != bool:
        if not np.isin(mask, (0, 1)).all():
            raise UserError("The mask of allowed actions must hold True and False, or 1 and 0.")
        mask = mask.astype(bool)
    stuck = ~mask.any(axis=1)
    if stuck.any():
        others = f" ({int(stuck.sum())} states have none)" if stuck.sum() > 1 else ""
        raise UserError(f"State {int(np.argmax(stuck))} has no allowed action; every state needs at least one{others}.")
    return None if mask.all() else mask


def without_forbidden(matrix: Any, allowed: np.ndarray | None) -> Any:
    """The stacked matrix without the rows of forbidden pairs: whatever they hold, they become empty or zero."""
    if allowed is None:
        return matrix
    keep = allowed.T.ravel()
    if not sp.issparse(matrix):
        return np.where(keep[:, None], matrix, 0.0)
    lengths = np.diff(matrix.indptr)
    if not lengths[~keep].any():
        return matrix
    entries = np.repeat(keep, lengths)
    pointers = np.concatenate([[0], np.cumsum(np.where(keep, lengths, 0))]).astype(matrix.indptr.dtype)
    return sp.csr_array((matrix.data[entries], matrix.indices[entries], pointers), shape=matrix.shape)


def stack_pairs(
    states: Any, actions: Any, P: Any, signals: dict[str, Any]
) -> tuple[Any, np.ndarray, dict[str, np.ndarray]]:
    """The stacked matrix, the mask and the signals, S × A, of a model that lists its allowed pairs."""
    P = sp.csr_array(P, dtype=float) if sp.issparse(P) else np.asarray(P, dtype=float)
    if P.ndim != 2 or 0 in P.shape:
        raise UserError(f"The transitions of pairs must be L × S, one row per pair, but they have shape {P.shape}.")
    length, n = P.shape
    states, actions = (read_indices(given, length, what) for given, what in ((states, "states"), (actions, "actions")))
    if states.max() >= n:
        raise UserError(
            f"The pairs name state {states.max()}, but the transitions have {n} columns: states 0 to {n - 1}."
        )
    width = int(actions.max()) + 1
    if n * width > LARGEST_TABLE:
        raise UserError(
            f"{length:,} pairs of {n:,} states with action numbers up to {width - 1:,} need a table of {n * width:,} "
            f"entries (the limit is {LARGEST_TABLE:,}); number the actions of each state from 0."
        )
    rows = actions * n + states
    order = np.argsort(rows, kind="stable")
    twice = np.flatnonzero(np.diff(rows[order]) == 0)
    if len(twice):
        pair = order[twice[0]]
        raise UserError(f"The pair of state {states[pair]} and action {actions[pair]} is listed twice.")
    allowed = np.zeros((n, width), dtype=bool)
    allowed[states, actions] = True
    tables = {
        what: pair_table(given, states, actions, what, allowed) for what, given in signals.items() if given is not None
    }
    if not sp.issparse(P):
        stacked = np.zeros((n * width, n))
        stacked[rows] = P
        return stacked, allowed, tables
    if not (np.diff(rows) > 0).all():
        P = P[order]
    lengths = np.zeros(n * width + 1, dtype=P.indptr.dtype)
    lengths[rows[order] + 1] = np.diff(P.indptr)
    stacked = sp.csr_array((P.data, P.indices, np.cumsum(lengths, dtype=P.indptr.dtype)), shape=(n * width, n))
    stacked.sum_duplicates()
    return stacked, allowed, tables


def read_indices(given: Any, length: int, what: str) -> np.ndarray:
    """The states or the actions of a list of pairs."""
    indices = np.asarray(given)
    if indices.shape != (length,):
        raise UserError(
            f"The {what} of the pairs have shape {indices.shape}, but there are {length} rows of transitions."
        )
    if not np.issubdtype(indices.dtype, np.integer) or indices.min() < 0:
        raise UserError(f"The {what} of the pairs must be whole numbers from 0.")
    return indices.astype(np.int64)


def pair_table(given: Any, states: np.ndarray, actions: np.ndarray, what: str, allowed: np.ndarray) -> np.ndarray:
    """A signal with one entry per pair as an S × A array."""
    signal = np.asarray(given, dtype=float)
    if signal.shape != states.shape:
        raise UserError(f"The {what} have shape {signal.shape}, but they need one entry per pair: {states.shape}.")
    table = np.zeros(allowed.shape)
    table[states, actions] = signal
    return table
