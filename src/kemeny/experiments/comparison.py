"""Runs side by side: settings × tasks, each cell an interquartile mean with its interval; which setting is better."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kemeny.errors import UserError
from kemeny.experiments.curves import Curve, RunLike, group_runs, open_runs
from kemeny.experiments.intervals import (
    COVERAGE,
    ENOUGH,
    LEVEL,
    Improvement,
    Interval,
    improvement,
    iqm_interval,
    least_chance,
)
from kemeny.experiments.quantities import Quantity, quantities
from kemeny.runs.directory import Run

MOST_NAMES = 5
"""Of runs that a sentence names; the others are counted."""


class Pair(NamedTuple):
    """Two settings: how often a run of the first is better than a run of the second."""

    first: str
    second: str
    tasks: dict[str, Improvement]
    overall: Improvement | None
    """Over the tasks that both have, if there are several."""


class Table(NamedTuple):
    """One quantity of the last evaluations."""

    label: str
    rows: dict[str, dict[str, Interval]]
    """By setting and task."""
    overall: dict[str, Interval]
    """Of settings that have every task, if there are several of both: normalised, so that tasks count alike."""
    pairs: tuple[Pair, ...]
    """Every two settings; none of costs, of which less is not simply better."""
    horizon: int | None = None
    """Of the return that it is."""


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """What `kemeny.compare` found. `print` shows it as tables."""

    tasks: tuple[str, ...]
    settings: tuple[str, ...]
    """Their names; in tables and notes a setting has its place among these, from 1 on, as its number."""
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    """What a reader must know: too few seeds, runs that are not finished or left out, other lengths."""

    def __repr__(self) -> str:
        from kemeny.experiments.comparison_text import as_text

        return as_text(self)

    def markdown(self) -> str:
        """As Markdown."""
        from kemeny.experiments.comparison_text import as_markdown

        return as_markdown(self)

    def only(self, longest: int | None = None, values: bool = False) -> "Comparison":
        """Returns up to a horizon alone; with `values`, without pairs and notes."""
        tables = tuple(one for one in self.tables if longest is None or one.horizon is None or one.horizon <= longest)
        if not values:
            return dataclasses.replace(self, tables=tables)
        return dataclasses.replace(self, tables=tuple(one._replace(pairs=()) for one in tables), notes=())

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "tasks": list(self.tasks),
            "settings": list(self.settings),
            "level": LEVEL,
            "tables": [_table_record(table) for table in self.tables],
            "notes": list(self.notes),
        }


def compare(runs: RunLike | Sequence[RunLike]) -> Comparison:
    """Compare the last evaluations of runs: which settings are better, on which task, and how sure that is.

        print(kemeny.compare("runs/discounts"))
        kemeny.compare([run_a, run_b]).record()

    `runs` are `kemeny.Run`s, run directories, or directories that hold runs, such as a sweep's. Runs that differ only
    in their seed are one setting, and a setting is named by what differs. Each cell is the interquartile mean over its
    seeds with a bootstrap interval. docs/comparing.md explains the rest.
    """
    opened = open_runs(runs)
    evaluated = [run for run in opened if run.evaluations]
    if not evaluated:
        raise UserError("None of these runs has been evaluated yet: there is nothing to compare.")
    curves = group_runs(evaluated)
    settings = settings_of(curves)
    tasks = tuple(dict.fromkeys(curve.env for curve in curves))
    shown = [
        quantity for quantity in quantities(evaluated) if quantity.horizon is not None or quantity.cost is not None
    ]
    tables = tuple(_table(quantity, settings, tasks) for quantity in shown)
    notes = (*_left_out(opened), *_unfinished(evaluated), *_lengths(settings, tasks), *_seeds(settings, tasks))
    return Comparison(tasks, tuple(settings), tables, notes)


Settings = Mapping[str, Mapping[str, Curve]]
"""By the name of a setting and the task: its runs."""


def settings_of(curves: Sequence[Curve]) -> dict[str, dict[str, Curve]]:
    """A setting is a kind of run; its length is named only where a task has runs of several."""
    several = {kind for (_, kind), count in Counter((curve.env, curve.kind) for curve in curves).items() if count > 1}
    settings: dict[str, dict[str, Curve]] = {}
    for curve in curves:
        settings.setdefault(curve.name if curve.kind in several else curve.kind, {})[curve.env] = curve
    return settings


def _table(quantity: Quantity, settings: Settings, tasks: Sequence[str]) -> Table:
    scores = last_scores(quantity, settings)
    rows = {setting: {task: iqm_interval([there[task]]) for task in there} for setting, there in scores.items()}
    if quantity.row == "cost":
        return Table(quantity.label, rows, {}, ())
    pairs = [_pair(first, second, scores) for first, second in itertools.combinations(scores, 2)]
    overall = {setting: iqm_interval(there) for setting, there in normalised(scores, tasks).items()}
    return Table(quantity.label, rows, overall, tuple(pair for pair in pairs if pair.tasks), quantity.horizon)


Scores = Mapping[str, Mapping[str, Sequence[float]]]
"""By setting and task: one per seed."""


def last_scores(quantity: Quantity, settings: Settings) -> dict[str, dict[str, list[float]]]:
    """Of each seed: the value at its last evaluation, if there is one."""
    scores = {}
    for setting, there in settings.items():
        found = {task: [quantity.last(run) for run in curve.runs] for task, curve in there.items()}
        found = {task: [score for score in every if score is not None] for task, every in found.items()}
        scores[setting] = {task: every for task, every in found.items() if every}
    return {setting: there for setting, there in scores.items() if there}


def normalised(scores: Scores, tasks: Sequence[str]) -> dict[str, list[list[float]]]:
    """The scores on each task of settings that have every task, if there are several of both.

    On each task 0 is the worst run of this comparison, and 1 the best.
    """
    whole = {setting: there for setting, there in scores.items() if set(there) == set(tasks)}
    if len(tasks) < 2 or len(whole) < 2:
        return {}
    ends = {}
    for task in tasks:
        every = [score for there in scores.values() for score in there.get(task, ())]
        if min(every) == max(every):  # nothing that could be put between 0 and 1
            return {}
        ends[task] = (min(every), max(every))
    return {
        setting: [[(score - low) / (high - low) for score in there[task]] for task, (low, high) in ends.items()]
        for setting, there in whole.items()
    }


def _pair(first: str, second: str, scores: Scores) -> Pair:
    both = {task: (scores[first][task], scores[second][task]) for task in scores[first] if task in scores[second]}
    tasks = {task: improvement([pair]) for task, pair in both.items()}
    return Pair(first, second, tasks, improvement(list(both.values())) if len(both) > 1 else None)


def _left_out(runs: Sequence[Run]) -> list[str]:
    without = [run.path.name for run in runs if not run.evaluations]
    return [f"Left out, because they have no evaluation yet: {_listed(without)}."] if without else []


def _unfinished(runs: Sequence[Run]) -> list[str]:
    """By the last evaluation, which a finished run has at its end."""
    at = {run: (run.evaluations[-1]["steps"], run.settings["steps"]) for run in runs}
    behind = [f"{run.path.name} ({done:,} of {total:,} steps)" for run, (done, total) in at.items() if done < total]
    if not behind:
        return []
    return [f"{len(behind)} of {len(runs)} runs are not finished; their last evaluation counts: {_listed(behind)}."]


def _lengths(settings: Settings, tasks: Sequence[str]) -> list[str]:
    """Settings whose runs on a task are not equally long."""
    notes = []
    for task in tasks:
        numbered = enumerate(settings.values(), 1)
        lengths = {number: there[task].runs[0].settings["steps"] for number, there in numbered if task in there}
        if len(set(lengths.values())) > 1:
            said = _listed([f"setting {number} {steps:,}" for number, steps in lengths.items()])
            notes.append(f"On {task} the runs are not equally long, in steps: {said}.")
    return notes


def _seeds(settings: Settings, tasks: Sequence[str]) -> list[str]:
    """Where there are too few seeds to say anything, or some that count twice."""
    few = _where(settings, tasks, lambda curve: len(curve.runs) < ENOUGH)
    notes = []
    if few:
        notes.append(
            f"Too few seeds to say anything about a task alone: {_listed(few)}. It takes {ENOUGH} of each setting. "
            f"With 3, even if every run of one beats every run of the other, chance does as much in "
            f"{least_chance([(3, 3)]):.0%} of comparisons of equals (with {ENOUGH}, in "
            f"{least_chance([(ENOUGH, ENOUGH)]):.1%}), and the intervals have the true value in them "
            f"{100 * COVERAGE[3]:.0f} times in 100 (with {ENOUGH}, {100 * COVERAGE[ENOUGH]:.0f}; with 10, "
            f"{100 * COVERAGE[10]:.0f}) instead of {100 * LEVEL:.0f}."
        )
    twice = _where(settings, tasks, lambda curve: len({run.settings["seed"] for run in curve.runs}) < len(curve.runs))
    if twice:
        notes.append(f"Several runs have the same seed, and count as if they had not: {_listed(twice)}.")
    return notes


def _where(settings: Settings, tasks: Sequence[str], holds: Callable[[Curve], bool]) -> list[str]:
    """On which tasks something holds for which settings, by their numbers."""
    found = []
    for task in tasks:
        numbers = [str(n) for n, there in enumerate(settings.values(), 1) if task in there and holds(there[task])]
        if numbers:
            found.append(f"{task} (setting{'s' if len(numbers) > 1 else ''} {', '.join(numbers)})")
    return found


def _listed(words: Sequence[str]) -> str:
    more = len(words) - MOST_NAMES
    return ", ".join(words[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _table_record(table: Table) -> dict[str, Any]:
    return {
        "label": table.label,
        "cells": [
            {"setting": setting, "task": task, **interval._asdict()}
            for setting, there in table.rows.items()
            for task, interval in there.items()
        ],
        "normalised": [{"setting": setting, **interval._asdict()} for setting, interval in table.overall.items()],
        "improvement": [
            {"first": pair.first, "second": pair.second, "task": task, **found._asdict()}
            for pair in table.pairs
            for task, found in [*pair.tasks.items(), *([(None, pair.overall)] if pair.overall is not None else [])]
        ],
    }
