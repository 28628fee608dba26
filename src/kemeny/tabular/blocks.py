"""Long vectors, block by block, on all cores.

The compiled loops of `kernels` let other threads run, so that one thread per core works on one block after another.
Blocks do not depend on the number of cores, and what they return comes in their order: results are the same on any
number of cores.
"""

import concurrent.futures
import functools
import os
from collections.abc import Callable
from typing import TypeVar

from kemeny.machine import available_cores

BLOCK = 65_536
"""States per block at most: half a megabyte per vector, so that a few of them fit into a core's cache."""

FEWEST = 4
"""Blocks of a vector whose work is shared, so that two or four cores have equal parts."""

SHARED = 500_000
"""Entries of a matrix from which on threads share the work, a millisecond; a thread takes a tenth of that to wake."""

Result = TypeVar("Result")


class Blocks:
    """The states 0 … n − 1, cut into blocks; one block if their matrix has too few entries to share the work."""

    def __init__(self, n: int, entries: int, size: int | None = None):
        if size is None:
            size = min(BLOCK, -(-n // FEWEST)) if entries >= SHARED else n
        self.bounds = tuple((first, min(first + size, n)) for first in range(0, n, size))

    def __len__(self) -> int:
        return len(self.bounds)

    def each(self, work: Callable[[int, int], Result]) -> list[Result]:
        """work(begin, end) for every block, on all cores; what they return, in the order of the blocks."""
        teams = min(available_cores(), len(self.bounds))
        if teams == 1:
            return [work(*bounds) for bounds in self.bounds]

        def share(team: int) -> list[Result]:
            return [work(*bounds) for bounds in self.bounds[team::teams]]

        others = [threads(os.getpid()).submit(share, team) for team in range(1, teams)]
        parts = [share(0), *(other.result() for other in others)]
        return [parts[k % teams][k // teams] for k in range(len(self.bounds))]


@functools.lru_cache(maxsize=1)
def threads(process: int) -> concurrent.futures.ThreadPoolExecutor:
    """Threads for this process: those of a process do not live on in one that it forks."""
    return concurrent.futures.ThreadPoolExecutor(available_cores(), f"kemeny-{process}")
