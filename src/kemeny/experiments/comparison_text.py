"""A comparison as a person reads it: tables and sentences, on a terminal or in Markdown."""

import io
from collections.abc import Iterator
from typing import NamedTuple

import rich.box
import rich.console
import rich.table
import rich.text

from kemeny.experiments.comparison import Comparison, Pair, Table
from kemeny.experiments.intervals import Improvement, Interval

MOST_PAIRS = 10
"""In a table; where there are more, each setting is compared with the first one alone."""
WIDEST = 240
"""Characters of a line where the terminal's width is not known."""
LARGE = 100
"""From here on digits behind the point say nothing."""


class Words(NamedTuple):
    """A table of texts."""

    title: str
    heads: list[str]
    rows: list[list[str]]


def show(comparison: Comparison, console: rich.console.Console) -> None:
    """Print the tables and the sentences."""
    for words in _tables(comparison):
        console.print(rich.text.Text(words.title, "bold"))
        table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
        for place, head in enumerate(words.heads):
            table.add_column(rich.text.Text(head), justify="right" if place else "left", overflow="fold")
        for row in words.rows:
            table.add_row(*map(rich.text.Text, row))
        console.print(table)
    for sentence in _sentences(comparison):
        console.print(rich.text.Text(sentence))


def as_text(comparison: Comparison) -> str:
    """As the terminal shows it."""
    stream = io.StringIO()
    show(comparison, rich.console.Console(file=stream, width=WIDEST))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def as_markdown(comparison: Comparison) -> str:
    """Tables of Markdown, then the sentences as a list."""
    parts = []
    for words in _tables(comparison):
        lines = [words.heads, ["---"] * len(words.heads), *words.rows]
        table = "\n".join(f"| {' | '.join(cell.replace('|', '∣') for cell in line)} |" for line in lines)
        parts.append(f"**{words.title}**\n\n{table}")
    parts.append("\n".join(f"- {sentence}" for sentence in _sentences(comparison)))
    return "\n\n".join(parts) + "\n"


def _tables(comparison: Comparison) -> Iterator[Words]:
    for table in comparison.tables:
        yield _values(comparison, table)
    for table in comparison.tables:
        if table.pairs:
            yield _improvements(comparison, table)


def _values(comparison: Comparison, table: Table) -> Words:
    tasks = [task for task in comparison.tasks if any(task in row for row in table.rows.values())]
    heads = ["setting", *tasks, *(["all tasks, 0 to 1"] if table.overall else [])]
    rows = []
    for setting, row in table.rows.items():
        cells = [_cell(row.get(task)) for task in tasks]
        rows.append(
            [
                f"{_number(comparison, setting)}: {setting}",
                *cells,
                *([_cell(table.overall.get(setting))] if table.overall else []),
            ]
        )
    return Words(f"{table.label}, at the last evaluation: interquartile mean [interval] (seeds)", heads, rows)


def _improvements(comparison: Comparison, table: Table) -> Words:
    tasks = [task for task in comparison.tasks if any(task in pair.tasks for pair in table.pairs)]
    over_all = any(pair.overall is not None for pair in table.pairs)
    rows = [
        [
            f"{_number(comparison, pair.first)} over {_number(comparison, pair.second)}",
            *(_chances(pair.tasks.get(task)) for task in tasks),
        ]
        + ([_chances(pair.overall)] if over_all else [])
        for pair in _shown(comparison, table)
    ]
    heads = ["settings", *tasks, *(["all tasks"] if over_all else [])]
    return Words(
        f"{table.label}: probability of improvement [interval], and how often equals would differ as much", heads, rows
    )


def _shown(comparison: Comparison, table: Table) -> list[Pair]:
    if len(table.pairs) <= MOST_PAIRS:
        return list(table.pairs)
    return [pair for pair in table.pairs if pair.first == comparison.settings[0]]


def _sentences(comparison: Comparison) -> Iterator[str]:
    yield from comparison.notes
    if any(len(table.pairs) > MOST_PAIRS for table in comparison.tables):
        yield (
            "Only pairs with the first setting are shown: name the runs of another one first to see its pairs, or use "
            "--json, which has all."
        )
    if any(table.overall for table in comparison.tables):
        yield "All tasks, 0 to 1: on each task 0 is the worst run of this comparison, and 1 the best."


def _number(comparison: Comparison, setting: str) -> int:
    return 1 + comparison.settings.index(setting)


def _cell(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    numbers = [one for one in interval[:3] if one is not None]
    large = max(map(abs, numbers)) >= LARGE
    value, *ends = (f"{number:,.0f}" if large else f"{number:.2f}" for number in numbers)
    return f"{value}{_ends(ends)} ({interval.seeds})"


def _chances(found: Improvement | None) -> str:
    if found is None:
        return "–"
    value, *ends = (f"{number:.2f}" for number in found[:3] if number is not None)
    return f"{value}{_ends(ends)}, {found.chance:.2g}"


def _ends(ends: list[str]) -> str:
    return f" [{', '.join(ends)}]" if ends else ""
