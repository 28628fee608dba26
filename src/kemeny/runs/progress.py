"""What a person sees while a run is in progress: a bar on a terminal or in a notebook, plain lines elsewhere.

What only shows must never stop a run: where nobody reads it any more, or its disk is full, the run goes on unseen.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
import rich.console
import rich.progress

from kemeny.experience.evaluation import Evaluation
from kemeny.observers import Observer

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_BARS = 0.2
"""In a notebook, where each is a message to the browser."""


def shown(progress: bool | None) -> list[Observer]:
    """Who shows a run that is started from Python: somebody if `progress` is true, or None and this is a notebook."""
    return [Terminal()] if progress or (progress is None and in_notebook()) else []


def in_notebook() -> bool:
    """Whether this is Python behind a notebook: IPython, with a kernel instead of a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class Terminal(Observer):
    """Shows progress: on standard error; in a notebook below the cell, on standard output."""

    def __init__(self) -> None:
        self._in_notebook = in_notebook()
        self._output: Any = Output(sys.stdout if self._in_notebook else sys.stderr)
        self._console = rich.console.Console(file=self._output, highlight=False, force_jupyter=False)
        self._display: _Display | None = None
        self._status = _Status(0)
        self._newest: Mapping[str, Any] | None = None

    def say(self, message: str) -> None:
        """A sentence for the user."""
        with self._harmless():
            self._console.print(message, markup=False, soft_wrap=True)

    def begin(self, phase: str, *about: Any) -> None:
        """Show a run of which some steps are done already."""
        if phase != "run":
            return
        path, total, done = about
        with self._harmless():
            self._show(path, total, done)

    def end(self, phase: str, *outcome: Any) -> None:
        """Leave the display as it is."""
        del outcome
        if phase == "run":
            with self._harmless():
                self._close()

    def iteration(self, record: Mapping[str, Any]) -> None:
        """Show how far it is."""
        self._newest = record
        self._update()

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Show the return from now on."""
        with self._harmless():
            self._status.evaluated(record)
        self._update()

    def _update(self) -> None:
        with self._harmless():
            if self._display is not None and self._newest is not None:
                self._display.show(self._newest["steps"], self._status.text(self._newest))

    def _show(self, path: Path, total: int, done: int) -> None:
        self.say(f"Run directory: {path}")
        self._status = _Status(done)
        if self._in_notebook:
            self._display = _NotebookBar(self._output, total, done)
        elif self._console.is_terminal:
            self._display = _Bar(self._console, total, done)
        else:
            self._display = _Lines(self._output, total)

    def _close(self) -> None:
        display, self._display = self._display, None
        if display is not None:
            display.close()

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """Whatever goes wrong ends the display and not the run."""
        try:
            yield
        except Exception:
            with contextlib.suppress(Exception):
                self._close()


class Output:
    """A stream of which the first write that fails is the last, so that whoever writes to it never fails."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:
        """What its texts are encoded as."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether a person reads it."""
        return self._stream is not None and self._stream.isatty()

    def write(self, text: str) -> int:
        """Write what can be written."""
        if self._stream is not None:
            with self._lost():
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Have it written now."""
        if self._stream is not None:
            with self._lost():
                self._stream.flush()

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # nobody reads it, its disk is full, or it is closed
            stream, self._stream = self._stream, None
            if stream is not None and stream is sys.__stderr__:
                _drop(stream)


def _drop(stream: TextIO) -> None:
    """Let all that is still written there, also by others and by Python at its end, go nowhere instead of failing."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class _Status:
    """Speed since the start, ρ̂ and the last evaluation, as text."""

    def __init__(self, done: int) -> None:
        self._done, self._began, self._last_return = done, time.monotonic(), ""

    def text(self, record: Mapping[str, Any]) -> str:
        speed = (record["steps"] - self._done) / max(time.monotonic() - self._began, 1e-9)
        costs = "".join(f"  cost {short(cost)}" for cost in record.get("cost", ()))
        return f"{speed:,.0f} steps/s  ρ̂ {short(record['rate'])}{costs}{self._last_return}"

    def evaluated(self, record: Mapping[str, Any]) -> None:
        with contextlib.suppress(ValueError):  # a return that is not finite is null in the record
            returns = Evaluation.from_record(record).returns
            self._last_return = f"  return {np.mean(returns[min(returns)]):,.0f}"


def short(value: float | None) -> str:
    """A number in few digits."""
    return "not finite" if value is None else f"{value:.3g}"


def time_left(seconds: float) -> str:
    """Hours, minutes and seconds."""
    return f"{int(seconds // 3600)}:{int(seconds // 60 % 60):02d}:{int(seconds % 60):02d}"


class _Display(Protocol):
    def show(self, steps: int, status: str) -> None: ...
    def close(self) -> None: ...


class _Bar:
    def __init__(self, console: rich.console.Console, total: int, done: int) -> None:
        self._bar = rich.progress.Progress(
            rich.progress.BarColumn(),
            rich.progress.TaskProgressColumn(),
            rich.progress.TextColumn("{task.completed:,.0f} steps"),
            rich.progress.TextColumn("{task.fields[status]}", markup=False),
            rich.progress.TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("", total=total, completed=done, status="")
        self._bar.start()

    def show(self, steps: int, status: str) -> None:
        self._bar.update(self._task, completed=steps, status=status)

    def close(self) -> None:
        self._bar.stop()


class _NotebookBar:
    """One line of text that is written over and over: what every notebook can show, without widgets."""

    CELLS = 30

    def __init__(self, output: Output, total: int, done: int) -> None:
        self._output, self._total, self._done = output, total, done
        self._began, self._printed, self._width = time.monotonic(), -SECONDS_BETWEEN_BARS, 0
        self._unprinted: str | None = None
        self.show(done, "")

    def show(self, steps: int, status: str) -> None:
        share = min(1.0, steps / self._total)
        full = round(self.CELLS * share)
        self._unprinted = (
            f"{'█' * full}{'░' * (self.CELLS - full)} {share:4.0%}  {steps:,} of {self._total:,} steps  {status}"
            f"{self._time_left(steps)}"
        )
        if time.monotonic() - self._printed > SECONDS_BETWEEN_BARS:
            self._printed = time.monotonic()
            self._print()

    def close(self) -> None:
        """What is newest is shown at last, and stays."""
        self._print()
        print(file=self._output, flush=True)

    def _time_left(self, steps: int) -> str:
        if steps <= self._done:
            return ""
        seconds = (self._total - steps) * (time.monotonic() - self._began) / (steps - self._done)
        return f"  {time_left(seconds)} left"

    def _print(self) -> None:
        if self._unprinted is not None:
            # Spaces cover what is left of a longer line.
            print(f"\r{self._unprinted:<{self._width}}", end="", file=self._output, flush=True)
            self._width, self._unprinted = len(self._unprinted), None


class _Lines:
    def __init__(self, output: Output, total: int) -> None:
        self._output, self._total, self._printed = output, total, 0.0
        self._unprinted: str | None = None

    def show(self, steps: int, status: str) -> None:
        self._unprinted = f"{steps:,} of {self._total:,} steps  {status}"
        if time.monotonic() - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            self._print()

    def close(self) -> None:
        """What is newest is shown at last."""
        self._print()

    def _print(self) -> None:
        if self._unprinted is not None:
            print(self._unprinted, file=self._output, flush=True)
            self._unprinted = None
