"""What a person sees while a run is in progress: a bar on a terminal, plain lines where output is piped."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import rich.console
import rich.progress

from kemeny.experience.evaluation import Evaluation
from kemeny.observers import Observer

SECONDS_BETWEEN_LINES = 10.0


class Terminal(Observer):
    """Shows progress on standard error."""

    def __init__(self) -> None:
        self._console = rich.console.Console(stderr=True, highlight=False)
        self._display: _Display | None = None
        self._status = _Status(0)

    def say(self, message: str) -> None:
        """A sentence for the user."""
        self._console.print(message, markup=False, soft_wrap=True)

    def begin(self, phase: str, *about: Any) -> None:
        """Show a run of which some steps are done already."""
        if phase != "run":
            return
        path, total, done = about
        self._show(path, total, done)

    def end(self, phase: str, *outcome: Any) -> None:
        """Leave the display as it is."""
        del outcome
        if phase == "run" and self._display is not None:
            self._display.close()
            self._display = None

    def iteration(self, record: Mapping[str, Any]) -> None:
        """Show how far it is."""
        if self._display is not None:
            self._display.show(record["steps"], self._status.text(record))

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Show the return from now on."""
        self._status.evaluated(record)

    def _show(self, path: Path, total: int, done: int) -> None:
        self.say(f"Run directory: {path}")
        self._status = _Status(done)
        self._display = _Bar(self._console, total, done) if self._console.is_terminal else _Lines(total)


class _Status:
    """Speed since the start, ρ̂ and the last evaluation, as text."""

    def __init__(self, done: int) -> None:
        self._done, self._began, self._last_return = done, time.monotonic(), ""

    def text(self, record: Mapping[str, Any]) -> str:
        speed = (record["steps"] - self._done) / max(time.monotonic() - self._began, 1e-9)
        costs = "".join(f"  cost {cost:.3g}" for cost in record.get("cost", ()))
        return f"{speed:,.0f} steps/s  ρ̂ {record['rate']:.3g}{costs}{self._last_return}"

    def evaluated(self, record: Mapping[str, Any]) -> None:
        returns = Evaluation.from_record(record).returns
        self._last_return = f"  return {np.mean(returns[min(returns)]):,.0f}"


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


class _Lines:
    def __init__(self, total: int) -> None:
        self._total, self._printed = total, 0.0

    def show(self, steps: int, status: str) -> None:
        if steps >= self._total or time.monotonic() - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            print(f"{steps:,} of {self._total:,} steps  {status}", file=sys.stderr, flush=True)

    def close(self) -> None: ...
