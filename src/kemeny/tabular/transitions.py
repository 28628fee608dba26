"""The transitions of a model: from an array, sparse matrices or rows of pairs to one stacked matrix.

The stacked matrix has A·S rows, action after action: row a·S + s holds P(·|s, a). One product covers all states and
actions. A row of a forbidden pair is empty, or zero in a dense matrix.
"""

import dataclasses
from typing import Any

import numpy as np
import scipy.sparse as sp

from kemeny.errors import UserError


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
