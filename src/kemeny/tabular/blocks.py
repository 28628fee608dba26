"""Long vectors, block by block, on all cores.

The vectors of one block stay in the processor's cache while several operations run on them, so that the memory is read
once and not once per operation. SciPy's products and NumPy's operations let other threads run meanwhile. Blocks do not
depend on the number of cores, and what they return comes in their order: results are the same on any number of cores.
"""

import concurrent.futures
import functools
import os
from collections.abc import Callable
from typing import TypeVar

from kemeny.machine import available_cores

BLOCK = 65_536
"""States per block: half a megabyte per vector, so that a few of them fit into a core's cache."""

Result = TypeVar("Result")


class Blocks:
    """The states 0 … n − 1, cut into blocks."""

    def __init__(self, n: int, size: int = BLOCK):
        self.slices = tuple(slice(first, min(first + size, n)) for first in range(0, n, size))

    def __len__(self) -> int:
        return len(self.slices)

    def each(self, work: Callable[[int, slice], Result]) -> list[Result]:
        """work(k, slice of block k) for every block, on all cores; what they return, in the order of the blocks."""
        if len(self.slices) == 1 or available_cores() == 1:
            return [work(k, part) for k, part in enumerate(self.slices)]
        return list(threads(os.getpid()).map(work, range(len(self.slices)), self.slices))


@functools.lru_cache(maxsize=1)
def threads(process: int) -> concurrent.futures.ThreadPoolExecutor:
    """One thread per core, for this process: the threads of a process do not live on in one that it forks."""
    return concurrent.futures.ThreadPoolExecutor(available_cores(), f"kemeny-{process}")
