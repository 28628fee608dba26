"""What a person sees of a sweep: a table that is kept up to date on a terminal, plain lines elsewhere."""

import contextlib
import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import rich.console
import rich.live
import rich.markup
import rich.table

from kemeny.runs.glance import Glance
from kemeny.runs.progress import Output, in_notebook, short, time_left

SECONDS_BETWEEN_LINES = 30.0
SPARE_LINES = 8
"""Of a terminal's height, for the heading and what stands above."""
WAITING, TRAINING, FINISHED, STOPPED, FAILED, ELSEWHERE = (
    "waiting",
    "training",
    "finished",
    "stopped",
    "failed",
    "in use by another process",
)
ORDER = (TRAINING, ELSEWHERE, FAILED, STOPPED, WAITING, FINISHED)
"""In which runs are shown: where there is no room for all, those that nothing happens to are left out."""


@dataclasses.dataclass
class Row:
    """A run as it is shown."""

    name: str
    total: int
    """Steps that it will have."""
    state: str = WAITING
    seen: Glance | None = None
    first: Glance | None = None
    """What was seen of it when it was started, or first trained a batch, this time."""

    def see(self, seen: Glance) -> None:
        """Take a look into account."""
        self.seen = seen
        if self.first is None or not self.first.steps or seen.steps < self.first.steps:  # it went back to a checkpoint
            self.first = seen

    @property
    def steps(self) -> int:
        """Done so far."""
        return 0 if self.seen is None else self.seen.steps

    @property
    def speed(self) -> float | None:
        """Steps per second since it was started this time."""
        if self.seen is None or self.first is None or self.seen.seconds <= self.first.seconds:
            return None
        return (self.seen.steps - self.first.steps) / (self.seen.seconds - self.first.seconds)

    @property
    def seconds_left(self) -> float | None:
        """At this speed."""
        return max(0, self.total - self.steps) / self.speed if self.speed else None

    def cells(self) -> list[str]:
        """Name, state, steps, speed, ρ̂, last return, time left."""
        rate, last = (None, None) if self.seen is None else (self.seen.rate, self.seen.last_return)
        training = self.state == TRAINING
        return [
            self.name,
            self.state,
            f"{self.steps:,} of {self.total:,}" if self.steps else "",
            f"{self.speed:,.0f}" if training and self.speed else "",
            "" if rate is None else short(rate),
            "" if last is None else f"{last:,.0f}",
            time_left(self.seconds_left) if training and self.seconds_left is not None else "",
        ]


def summary(rows: Sequence[Row]) -> str:
    """How many runs are in each state, and when all will be done if nothing changes."""
    counts = Counter(row.state for row in rows)
    words = [f"{counts[state]} {state}" for state in (FINISHED, TRAINING, ELSEWHERE, FAILED, STOPPED, WAITING)]
    text = f"{len(rows)} runs: " + ", ".join(word for word in words if not word.startswith("0 "))
    speed = sum(row.speed or 0 for row in rows if row.state == TRAINING)
    left = sum(max(0, row.total - row.steps) for row in rows if row.state in (TRAINING, WAITING))
    return f"{text}; about {time_left(left / speed)} left" if speed and left else text


class Board(Protocol):
    """Shows the runs of a sweep."""

    def show(self, rows: Sequence[Row]) -> None:
        """As they are now."""
        ...

    def say(self, message: str) -> None:
        """A sentence for the user."""
        ...

    def close(self, rows: Sequence[Row]) -> None:
        """As they are in the end."""
        ...


class Silent:
    """Shows nothing."""

    def show(self, rows: Sequence[Row]) -> None:
        """Nothing."""

    def say(self, message: str) -> None:
        """Nothing."""

    def close(self, rows: Sequence[Row]) -> None:
        """Nothing."""


def board(progress: bool | None = True) -> Board:
    """A table on a terminal, lines elsewhere; nobody if `progress` is False, or None outside a notebook."""
    if progress is False or (progress is None and not in_notebook()):
        return Silent()
    output: Any = Output(sys.stderr)
    console = rich.console.Console(file=output, highlight=False, force_jupyter=False)
    return Table(console) if console.is_terminal else Lines(output)


class Table:
    """A table that is written over."""

    HEADS = ("run", "state", "steps", "steps/s", "ρ̂", "return", "left")

    def __init__(self, console: rich.console.Console) -> None:
        self._console = console
        self._live: rich.live.Live | None = None

    def show(self, rows: Sequence[Row]) -> None:
        """As they are now."""
        with contextlib.suppress(Exception):  # what only shows must never stop a sweep
            if self._live is None:
                self._live = rich.live.Live(console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(self._table(rows, self._console.height - SPARE_LINES), refresh=True)

    def say(self, message: str) -> None:
        """A sentence for the user, above the table."""
        with contextlib.suppress(Exception):
            self._console.print(message, markup=False, soft_wrap=True)

    def close(self, rows: Sequence[Row]) -> None:
        """As they are in the end; the table stays."""
        self.show(rows)
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(Exception):
                live.stop()

    def _table(self, rows: Sequence[Row], most: int) -> rich.table.Table:
        table = rich.table.Table(caption=summary(rows), caption_justify="left")
        for place, head in enumerate(self.HEADS):
            table.add_column(head, justify="left" if place < 2 else "right", overflow="fold")
        shown = {row.name for row in sorted(rows, key=lambda row: ORDER.index(row.state))[: max(most, 4)]}
        for row in rows:
            if row.name in shown:
                table.add_row(*map(rich.markup.escape, row.cells()))
        return table


class Lines:
    """A line when the state of a run changes, and now and then one for each that is trained."""

    def __init__(self, output: Any) -> None:
        self._output = output
        self._states: dict[str, str] = {}
        self._printed = time.monotonic()

    def show(self, rows: Sequence[Row]) -> None:
        """What has changed."""
        due = time.monotonic() - self._printed > SECONDS_BETWEEN_LINES
        for row in rows:
            changed = self._states.get(row.name, WAITING) != row.state
            if changed or (due and row.state == TRAINING):
                self.say(self._line(row))
            self._states[row.name] = row.state
        if due:
            self._printed = time.monotonic()
            self.say(summary(rows))

    def say(self, message: str) -> None:
        """A line."""
        print(message, file=self._output, flush=True)

    def close(self, rows: Sequence[Row]) -> None:
        """As they are in the end."""
        self.show(rows)
        self.say(summary(rows))

    def _line(self, row: Row) -> str:
        name, state, steps, speed, rate, last, left = row.cells()
        words = [steps and f"{steps} steps", speed and f"{speed} steps/s", rate and f"ρ̂ {rate}"]
        words += [last and f"return {last}", left and f"{left} left"]
        return "  ".join([f"{name}: {state}", *filter(None, words)])
