"""The tables of a report: results, lengths of trajectories, settings that differ, what is known of each run."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kemeny.experience.evaluation import Evaluation
from kemeny.experiments.curves import Curve, meant_settings
from kemeny.experiments.intervals import COVERAGE, ENOUGH, LEVEL, iqm_interval
from kemeny.experiments.quantities import Quantity, limit_per_step
from kemeny.runs.directory import Run
from kemeny.runs.glance import Glance, State

ORIGIN = ("created", "git_commit", "platform", "processor", "cores")
"""Where a run is from, as config.json says it."""

MOST_DOTS = 300
"""Trajectories of a curve that are drawn one by one."""
KEPT, BROKEN = "kept", "broken"
"""What is said of a limit; the page colours it."""

Glances = Mapping[Run, Glance]


def summary(curves: Sequence[Curve], quantities: Sequence[Quantity], glances: Glances) -> list[dict[str, Any]]:
    """One table per environment, with one row per curve: seeds, steps, the last value of each quantity, speed."""
    tables = []
    for env in dict.fromkeys(curve.env for curve in curves):
        rows = {number: curve for number, curve in enumerate(curves) if curve.env == env}
        runs = [run for curve in rows.values() for run in curve.runs]
        shown = [quantity for quantity in quantities if any(quantity.of(run) for run in runs)]
        columns = ["seeds", "steps", *(quantity.label for quantity in shown), "minutes", "steps per second"]
        cells = {number: _row(curve, shown, glances) for number, curve in rows.items()}
        tables.append({"title": env, "columns": columns, "rows": _numbered(cells)})
    return tables


def _numbered(cells: Mapping[int, list[Any]]) -> list[dict[str, Any]]:
    """Rows with the number of their curve."""
    return [{"curve": number, "cells": row} for number, row in cells.items()]


def _row(curve: Curve, shown: Sequence[Quantity], glances: Glances) -> list[Any]:
    minutes = np.mean([glances[run].seconds for run in curve.runs]) / 60
    speeds = [glances[run].steps / glances[run].seconds for run in curve.runs if glances[run].seconds]
    return [
        _seeds(curve, glances),
        _steps(curve, glances),
        *(_last(curve, quantity) for quantity in shown),
        f"{minutes:,.1f}",
        f"{np.mean(speeds):,.0f}" if speeds else "",
    ]


def _seeds(curve: Curve, glances: Glances) -> dict[str, str]:
    states = collections.Counter(glances[run].state for run in curve.runs)
    others = [f"{count} {state}" for state, count in states.items() if state is not State.FINISHED]
    return {"text": str(len(curve.runs)), "small": ", ".join(others)}


def _steps(curve: Curve, glances: Glances) -> dict[str, str]:
    done, total = ([getattr(glances[run], name) for run in curve.runs] for name in ("steps", "total"))
    reached = f"{min(done):,}" if min(done) == max(done) else f"{min(done):,} – {max(done):,}"
    return {"text": reached, "small": f"of {max(total):,}" if min(done) < max(total) else ""}


def _last(curve: Curve, quantity: Quantity) -> dict[str, str]:
    """The interquartile mean of the seeds' newest values with its interval, and whether it keeps its limit."""
    last = [list(table.values())[-1] for run in curve.runs if (table := quantity.of(run))]
    if not last:
        return {"text": ""}
    found = iqm_interval([last])
    interval = "" if found.low is None or found.high is None else f"{amount(found.low)} – {amount(found.high)}"
    limit = None if quantity.cost is None else limit_per_step(curve.runs[0], quantity.cost)
    if limit is None:
        return {"text": amount(found.value), "small": interval}
    verdict = KEPT if found.value <= limit else BROKEN
    return {"text": amount(found.value), "small": f"limit {limit:g} {verdict}", "kind": verdict}


def few_seeds(curves: Sequence[Curve]) -> str:
    """A sentence if there are curves with too few seeds for their intervals."""
    few = sorted({len(curve.runs) for curve in curves if 1 < len(curve.runs) < ENOUGH})
    if not few:
        return ""
    covered = " and ".join(f"{100 * COVERAGE[count]:.0f} times in 100 with {count} seeds" for count in few)
    return f"Intervals of few seeds are too narrow: the true value is in them {covered}, instead of {100 * LEVEL:.0f}."


def lengths(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """One row per curve: every trajectory of the last evaluation of each seed."""
    rows = []
    for number, curve in enumerate(curves):
        last = [Evaluation.from_record(run.evaluations[-1]) for run in curve.runs]
        found = [int(length) for evaluation in last for length in evaluation.lengths]
        if not found:  # an older Kemeny did not write them
            continue
        most = max(run.settings["eval_max_steps"] for run in curve.runs)
        reached = sum(length >= most for length in found)
        rows.append(
            {
                "curve": number,
                "mean": f"{np.mean(found):,.0f}",
                "reached": f"{reached} of {len(found)}",
                "lengths": _few(found),
                "most": max(most, *found),
                "words": f"{len(found)} trajectories of {min(found):,} to {max(found):,} steps",
            }
        )
    return rows


def _few(lengths: list[int]) -> list[int]:
    """As they are, or so many quantiles of them that each dot can be seen."""
    if len(lengths) <= MOST_DOTS:
        return lengths
    return np.quantile(lengths, np.linspace(0, 1, MOST_DOTS), method="nearest").tolist()


def settings(curves: Sequence[Curve]) -> dict[str, Any]:
    """What differs between the runs, curve by curve, and what all share."""
    runs = [run for curve in curves for run in curve.runs]
    every = {run: {name: _word(value) for name, value in meant_settings(run).items()} for run in runs}
    names = list(dict.fromkeys(name for used in every.values() for name in used))
    # Runs that do not use a setting differ in what makes them not use it.
    values = {name: list(dict.fromkeys(used[name] for used in every.values() if name in used)) for name in names}
    differ = [name for name in names if len(values[name]) > 1]
    cells = {
        number: [", ".join(dict.fromkeys(every[run].get(name, "") for run in curve.runs)) for name in differ]
        for number, curve in enumerate(curves)
    }
    common = {name: values[name][0] for name in names if name not in differ}
    return {"columns": differ, "rows": _numbered(cells), "common": common}


def run_in_words(run: Run, glance: Glance) -> str:
    """How far a run has come."""
    horizon, returns = max(Evaluation.from_record(run.evaluations[-1]).returns.items())
    words = [
        f"seed {run.settings['seed']}",
        f"{glance.steps:,} of {glance.total:,} steps, {glance.state}",
        f"{glance.seconds / 60:,.1f} minutes",
        f"last return {amount(float(returns.mean()))} (at most {horizon:,} steps)",
    ]
    return " · ".join(words)


def run_details(run: Run) -> dict[str, str]:
    """Every setting of a run, and where it is from."""
    versions = run.config.get("versions")
    origin = {**{name: run.config.get(name) for name in ORIGIN}, **(versions if isinstance(versions, dict) else {})}
    plain = {name: value for name, value in origin.items() if isinstance(value, str | int | float)}
    return {name: _word(value) for name, value in {**meant_settings(run), **plain}.items()}


def amount(value: float) -> str:
    """A number with about four digits."""
    size = abs(value)
    digits = 0 if size >= 1_000 else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:,.{digits}f}".replace("-", "−")


def _word(value: Any) -> str:
    """A setting as one would say it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_word, value)) or "–"
    return f"{value:,}" if type(value) is int and abs(value) >= 10_000 else str(value)
