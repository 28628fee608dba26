"""A scheduler in small: members of a job array are killed at random moments and called again until they are done.

Each call is a process that is forked from one that has imported everything and started nothing, which is quick.
`benchmarks/requeue.py` does the same with the command itself.
"""

import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from kemeny.errors import InUse
from kemeny.experiments.grid import Grid
from kemeny.experiments.sweep import Sweep
from kemeny.observers import Observer
from kemeny.runs.interrupts import CALL_AGAIN, Interrupted, StoppedAtOnce, leaving_at_once
from tests.faults import TINY, compare

GRID = Grid.of({"env": "InvertedPendulum-v5", "algorithm": ["atrpo", "trpo"], **TINY})
MOMENTS = 150
"""Of a whole run, about: phases that begin."""


class Signals(Observer):
    """Sends its process a signal when its n-th phase begins."""

    def __init__(self, number: int, moment: int) -> None:
        self.number, self.left = number, moment

    def begin(self, phase: str, *about: Any) -> None:
        """One phase more."""
        self.left -= phase not in ("act", "simulate", "policy")
        if self.left == 0:
            os.kill(os.getpid(), self.number)


def call(folder: Path, index: int, watch: list[Observer]) -> int:
    """A new process for a member of the array; its number."""
    child = os.fork()
    if child != 0:
        return child
    code = 3
    try:
        with leaving_at_once():
            Sweep(GRID, folder).train_member(index, watch)
        code = 0
    except (Interrupted, InUse, StoppedAtOnce):
        code = CALL_AGAIN
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(code)


def end(child: int) -> int:
    """Wait for it: its exit code, below 0 if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path, requeues: int, seed: int) -> None:
    """As many requeues in all, each round with a directory of its own; every third call is two at once."""
    rng, total, calls, codes = random.Random(seed), 0, 0, []
    whole, killed = folder / "whole", folder / "killed"
    members = Sweep(GRID, whole).runs
    assert [end(call(whole, index, [])) for index in range(len(members))] == [0] * len(members)
    while total < requeues:
        shutil.rmtree(killed, ignore_errors=True)
        waiting = list(range(len(members)))
        while waiting:
            index, calls = waiting.pop(0), calls + 1
            kills = total < requeues
            watch = [Signals(rng.choice([signal.SIGKILL, signal.SIGTERM]), rng.randint(1, MOMENTS))] if kills else []
            children = [call(killed, index, watch) for _ in range(1 if calls % 3 else 2)]
            codes += (ends := [end(child) for child in children])
            assert set(ends) <= {0, CALL_AGAIN, -signal.SIGKILL}, ends
            if 0 not in ends:
                total += 1
                waiting.append(index)
        for run in members:
            compare(whole / run.name, killed / run.name)
    print(f"{total} requeues in {calls} calls; exit codes {sorted((code, codes.count(code)) for code in set(codes))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
