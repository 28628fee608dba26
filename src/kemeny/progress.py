"""What a person sees while a run is under way: a bar on a terminal, plain lines where output is piped."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import rich.console
import rich.progress

SECONDS_BETWEEN_LINES = 10.0


class Shown(Protocol):
    """What the loop reports to."""

    def iteration(self, steps: int, record: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl."""
        ...

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """A line of evaluations.jsonl."""
        ...


class Progress(Protocol):
    """A way of showing progress."""

    def say(self, message: str) -> None:
        """A sentence for the user."""
        ...

    def of(self, total: int, path: Path, done: int) -> contextlib.AbstractContextManager[Shown]:
        """Show a run of `total` steps, `done` of them behind it."""
        ...


@dataclasses.dataclass(frozen=True)
class _Silent:
    def say(self, message: str) -> None:
        del message

    @contextlib.contextmanager
    def of(self, total: int, path: Path, done: int) -> Iterator[Shown]:
        del total, path, done
        yield self

    def iteration(self, steps: int, record: Mapping[str, Any]) -> None: ...
    def evaluation(self, record: Mapping[str, Any]) -> None: ...


silent = _Silent()
"""Shows nothing: the default in Python."""


class Terminal:
    """Shows progress on standard error."""

    def __init__(self) -> None:
        self._console = rich.console.Console(stderr=True, highlight=False)

    def say(self, message: str) -> None:
        """A sentence for the user."""
        self._console.print(message, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def of(self, total: int, path: Path, done: int) -> Iterator[Shown]:
        """Show a run."""
        self.say(f"Run directory: {path}")
        if not self._console.is_terminal:
            yield _Lines(total, done)
            return
        columns = (
            rich.progress.BarColumn(),
            rich.progress.TaskProgressColumn(),
            rich.progress.TextColumn("{task.completed:,.0f} steps"),
            rich.progress.TextColumn("{task.fields[status]}", markup=False),
            rich.progress.TimeRemainingColumn(),
        )
        with rich.progress.Progress(*columns, console=self._console) as bar:
            yield _Bar(bar, bar.add_task("", total=total, completed=done, status=""), done)


class _Status:
    """Speed since the start, ρ̂ and the last evaluation, as text."""

    def __init__(self, done: int) -> None:
        self._done, self._began, self._last_return = done, time.monotonic(), ""

    def text(self, steps: int, record: Mapping[str, Any]) -> str:
        speed = (steps - self._done) / max(time.monotonic() - self._began, 1e-9)
        costs = "".join(f"  cost {cost:.3g}" for cost in record.get("cost", ()))
        return f"{speed:,.0f} steps/s  ρ̂ {record['rate']:.3g}{costs}{self._last_return}"

    def evaluated(self, record: Mapping[str, Any]) -> None:
        horizons = [name for name, value in record.items() if name.startswith("returns_") and value is not None]
        first = min(horizons, key=lambda name: int(name.removeprefix("returns_")))
        self._last_return = f"  return {np.mean(record[first]):,.0f}"


class _Bar:
    def __init__(self, bar: rich.progress.Progress, task: rich.progress.TaskID, done: int) -> None:
        self._bar, self._task, self._status = bar, task, _Status(done)

    def iteration(self, steps: int, record: Mapping[str, Any]) -> None:
        self._bar.update(self._task, completed=steps, status=self._status.text(steps, record))

    def evaluation(self, record: Mapping[str, Any]) -> None:
        self._status.evaluated(record)


class _Lines:
    def __init__(self, total: int, done: int) -> None:
        self._total, self._status, self._printed = total, _Status(done), 0.0

    def iteration(self, steps: int, record: Mapping[str, Any]) -> None:
        if steps >= self._total or time.monotonic() - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            print(
                f"{steps:,} of {self._total:,} steps  {self._status.text(steps, record)}",
                file=sys.stderr,
                flush=True,
            )

    def evaluation(self, record: Mapping[str, Any]) -> None:
        self._status.evaluated(record)
