"""What is in a report, as plain JSON. `page.js` draws it, and does not calculate but for smoothing."""

import collections
import datetime
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kemeny.errors import UserError
from kemeny.experiments.curves import Curve, group_runs
from kemeny.experiments.intervals import LEVEL
from kemeny.experiments.quantities import Quantity, evaluations, limit_per_step, quantities
from kemeny.experiments.report import tables
from kemeny.experiments.report.lines import lines_of
from kemeny.experiments.report.strip import NO_FILM, Strip
from kemeny.runs.directory import Run
from kemeny.runs.glance import Glance, glance

COLOURS, DASHES = 7, 4
"""As many as the page has."""
LENGTH = "steps until a fall"
INTERVAL = f"{100 * LEVEL:.0f} % interval"
ABOUT_SUMMARY = f"A value is the interquartile mean of the newest values of the seeds, with its {INTERVAL} below it."
ABOUT_CURVES = (
    "Runs that differ only in their seed are one curve. The thick line is the interquartile mean of the seeds, the "
    f"band its {INTERVAL}, and each thin line one seed."
)


class Shown(NamedTuple):
    """The runs of a report."""

    runs: list[Run]
    """Those that have an evaluation."""
    notes: list[str]
    """What to say of the others."""


def choose(runs: Sequence[Run]) -> Shown:
    """The runs that have been evaluated, and a sentence about the others; a `UserError` if there are none."""
    names = names_of(runs)
    waiting = [names[run] for run in runs if not run.evaluations]
    if len(waiting) == len(runs):
        which = f"The run {waiting[0]} has no" if len(runs) == 1 else f"None of these {len(runs)} runs has an"
        raise UserError(
            f"{which} evaluation yet, so there is nothing to report. Evaluations come every --eval-every steps."
        )
    notes = [f"Not shown, because there is no evaluation yet: {', '.join(waiting)}."] if waiting else []
    return Shown([run for run in runs if run.evaluations], notes)


def names_of(runs: Sequence[Run]) -> dict[Run, str]:
    """What each run is called: its path from the folder that all are in."""
    paths = {run: Path(os.path.abspath(run.path)) for run in runs}
    home = os.path.commonpath([path.parent for path in paths.values()])
    return {run: os.path.relpath(path, home) for run, path in paths.items()}


def contents(shown: Shown, strips: Mapping[Run, Strip]) -> dict[str, Any]:
    """Everything that the page shows."""
    results = quantities(shown.runs)
    length = Quantity(LENGTH, _lengths)
    every = [*results, length]
    curves = sorted(group_runs(shown.runs), key=lambda curve: curve.env)  # and as given on each environment
    tasks = sorted({curve.env for curve in curves})
    glances = {run: glance(run.path) for run in shown.runs}
    drawn = [{number: found for number, one in enumerate(every) if (found := lines_of(curve, one))} for curve in curves]
    limits = [_limits(curve, every) for curve in curves]
    entries = _entries(curves)
    names = names_of(shown.runs)
    order = [run for curve in curves for run in curve.runs]
    return {
        "made": _made(glances.values()),
        "notes": shown.notes,
        "about_summary": f"{ABOUT_SUMMARY} {tables.few_seeds(curves)}",
        "about_curves": ABOUT_CURVES,
        "tasks": tasks,
        "quantities": [{"label": one.label, "from_zero": one is length} for one in every],
        "entries": list(entries.values()),
        "curves": [
            {
                "task": tasks.index(curve.env),
                "entry": list(entries).index(curve.name),
                "runs": [order.index(run) for run in curve.runs],
                "lines": {number: found.together for number, found in lines.items()},
                "limits": limit,
            }
            for curve, lines, limit in zip(curves, drawn, limits, strict=True)
        ],
        "runs": [
            {
                "name": names[run],
                "curve": number,
                "words": tables.run_in_words(run, glances[run]),
                "lines": {place: found.each[run] for place, found in drawn[number].items() if run in found.each},
                "about": tables.run_details(run),
                "stills": [{"step": step, "image": image} for step, image in strips.get(run, NO_FILM).stills],
                "no_film": strips.get(run, NO_FILM).problem,
            }
            for number, curve in enumerate(curves)
            for run in curve.runs
        ],
        "summary": tables.summary(curves, results, glances),
        "lengths": {"rows": tables.lengths(curves), "quantity": len(every) - 1},
        "limits": [
            {"task": task, "quantity": number}
            for task, env in enumerate(tasks)
            for number in range(len(every))
            if any(curve.env == env and number in limit for curve, limit in zip(curves, limits, strict=True))
        ],
        "settings": tables.settings(curves),
    }


def _lengths(run: Run) -> dict[int, float]:
    """The mean over the trajectories of each evaluation."""
    found = ((steps, evaluation.lengths) for steps, evaluation in evaluations(run))
    return {steps: float(np.mean(lengths)) for steps, lengths in found if lengths.size}


def _limits(curve: Curve, every: Sequence[Quantity]) -> dict[int, float]:
    """The limit of each quantity that is a cost, by its number."""
    found = {
        number: limit_per_step(curve.runs[0], one.cost) for number, one in enumerate(every) if one.cost is not None
    }
    return {number: limit for number, limit in found.items() if limit is not None}


def _entries(curves: Sequence[Curve]) -> dict[str, dict[str, Any]]:
    """The legend. A kind has one colour; curves that differ only in their length differ in their dashes."""
    kinds = list(dict.fromkeys(curve.kind for curve in curves))
    before: collections.Counter[str] = collections.Counter()
    entries: dict[str, dict[str, Any]] = {}
    for curve in curves:
        if curve.name in entries:
            continue
        kind = kinds.index(curve.kind)
        dash = (kind // COLOURS + before[curve.kind]) % DASHES
        entries[curve.name] = {"name": curve.name, "colour": kind % COLOURS, "dash": dash}
        before[curve.kind] += 1
    return entries


def _made(glances: Collection[Glance]) -> str:
    states = collections.Counter(one.state for one in glances)
    how_far = ", ".join(f"{count} {state}" for state, count in states.items())
    count = f"{len(glances)} run{'s' if len(glances) > 1 else ''}"
    return f"{datetime.datetime.now(datetime.UTC):%d %B %Y, %H:%M} UTC · {count}: {how_far}"
