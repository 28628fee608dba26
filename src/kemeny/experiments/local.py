"""Runs on this machine: each a process of its own, on a core of its own."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kemeny.errors import RunError
from kemeny.experiments.grid import Planned, as_line
from kemeny.experiments.sweep_directory import SweepDirectory
from kemeny.runs.disk import create, reason

PROGRAM = [sys.executable, "-P", "-c", "from kemeny.cli import main; main()"]
"""`kemeny`, whichever of several is installed where this one runs from. -P: files in the working directory hide none
of Python's modules."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
LONGEST_LINE = 2**12


def usable_cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


class LocalProcesses:
    """Processes of this machine, one per core; if there are more than cores, some share one."""

    def __init__(self, directory: SweepDirectory, slots: int, cores: Sequence[int] | None = None) -> None:
        self.directory, self.slots = directory, slots
        self.cores = list(usable_cores() if cores is None else cores)

    def start(self, run: Planned, slot: int) -> "LocalProcess":
        """A process that trains, with its output in the run's log."""
        words, log = run.command(self.directory.run(run)), self.directory.log(run)
        try:
            output = create(log, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise RunError(f"{log} cannot be written: {reason(error)}.") from error
        try:
            os.write(output, f"$ {as_line(words)}\n".encode())
            with _pinned(self.cores[slot % len(self.cores)]):
                process = subprocess.Popen(
                    [*PROGRAM, *words],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    env=_surroundings(),
                    start_new_session=True,  # Ctrl-C is for the sweep, which passes it on
                )  # fmt: skip
        finally:
            os.close(output)
        return LocalProcess(process, log)


class LocalProcess:
    """One of them."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.poll()

    def stop(self, at_once: bool) -> None:
        """By the signals that a person or a scheduler sends."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)

    def wait(self) -> int:
        """Its exit code, as soon as it has ended."""
        return self._process.wait()

    def last_words(self) -> str:
        """The last line of its log."""
        return last_line(self._log)


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


@contextlib.contextmanager
def _pinned(core: int) -> Iterator[None]:
    """Let processes that are started now use one core alone: they have what this thread has when they begin."""
    if not hasattr(os, "sched_setaffinity"):  # not on Linux
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _surroundings() -> dict[str, str]:
    """One thread for each of the libraries, unless the user says otherwise; XLA and EnvPool follow the cores."""
    pinned = {} if hasattr(os, "sched_setaffinity") else {"NPROC": "1"}
    return {**ONE_THREAD, **pinned, **os.environ}
