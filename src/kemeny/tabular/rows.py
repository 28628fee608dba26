"""A chain as some of the rows of a sparse matrix, without a copy of them."""

from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp

from kemeny.tabular.kernels import signed, unsigned


class Rows(NamedTuple):
    """The chain whose state s has the row `rows[s]` of the matrix with these arrays."""

    pointers: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, P: Any) -> Self:
        """The chain of a sparse matrix."""
        return cls(unsigned(P.indptr), unsigned(P.indices), P.data, np.arange(P.shape[0], dtype=np.uint32))

    @classmethod
    def of_policy(cls, stacked: Any, policy: np.ndarray) -> Self:
        """The chain of a deterministic policy, whose rows are some of those of a model's stacked matrix."""
        kind = np.uint32 if stacked.shape[0] < np.iinfo(np.uint32).max else np.int64
        rows = policy.astype(kind)
        rows *= len(policy)
        rows += np.arange(len(policy), dtype=kind)
        return cls(unsigned(stacked.indptr), unsigned(stacked.indices), stacked.data, rows)

    @property
    def n(self) -> int:
        """The number of states."""
        return len(self.rows)

    @property
    def entries(self) -> int:
        """About how many entries its rows have."""
        return len(self.weights) * self.n // (len(self.pointers) - 1)

    def matrix(self) -> sp.csr_array:
        """The chain as a matrix of its own."""
        pointers, columns = signed(self.pointers), signed(self.columns)
        stacked = sp.csr_array((self.weights, columns, pointers), shape=(len(pointers) - 1, self.n))
        return stacked[signed(self.rows)]
