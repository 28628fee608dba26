"""The points of the curves: of each seed and of all seeds together, against steps and minutes, few enough to draw."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kemeny.experiments.curves import Curve
from kemeny.experiments.intervals import iqm_band
from kemeny.experiments.quantities import MOST_POINTS, Quantity
from kemeny.runs.directory import Run

DIGITS = 5
"""Of a number: more cannot be seen."""

Table = dict[int, float]
"""Values by steps of training."""


class Lines(NamedTuple):
    """One quantity of one curve, as JSON."""

    together: dict[str, Any]
    """All seeds: steps, minutes, interquartile means and, if there are several seeds, the ends of their intervals."""
    each: dict[Run, dict[str, Any]]
    """Each seed: steps, minutes and values."""


def lines_of(curve: Curve, quantity: Quantity) -> Lines | None:
    """None if there is nothing of this quantity."""
    found = {run: table for run in curve.runs if (table := _finite(quantity.of(run)))}
    if not found:
        return None
    tables = dict(zip(found, _thinned(list(found.values())), strict=True))
    each = {run: _line(run, table) for run, table in tables.items()}
    if len(tables) == 1:
        return Lines(next(iter(each.values())), each)
    # Seeds that were evaluated at other steps are compared by straight lines between these.
    steps = sorted(set.intersection(*map(set, tables.values())) or set().union(*tables.values()))
    values = np.array([np.interp(steps, [*table], [*table.values()]) for table in tables.values()])
    middle, low, high = iqm_band(values)
    together = {
        "steps": steps,
        "minutes": _rounded(np.mean([_minutes(run, steps) for run in tables], axis=0)),
        "values": _rounded(middle),
        "low": _rounded(low),
        "high": _rounded(high),
    }
    return Lines(together, each)


def _finite(table: Table) -> Table:
    return {steps: value for steps, value in sorted(table.items()) if math.isfinite(value)}


def _line(run: Run, table: Mapping[int, float]) -> dict[str, Any]:
    steps = list(table)
    return {"steps": steps, "minutes": _rounded(_minutes(run, steps)), "values": _rounded(table.values())}


def _thinned(tables: Sequence[Table]) -> list[Table]:
    """Each table with so few points that it can be drawn: the mean of each few in a row, the same few for all seeds."""
    together = math.ceil(max(map(len, tables)) / MOST_POINTS)
    return [_averaged(table, together) for table in tables]


def _averaged(table: Table, together: int) -> Table:
    points = list(table.items())
    pieces = [points[first : first + together] for first in range(0, len(points), together)]
    return {piece[-1][0]: float(np.mean([value for _, value in piece])) for piece in pieces}


def _minutes(run: Run, steps: Sequence[int]) -> np.ndarray:
    """Minutes of training before each of these steps."""
    known = {0: 0.0, **{record["steps"]: record.get("seconds") for record in run.metrics}}
    sound = {done: s for done, s in sorted(known.items()) if isinstance(s, int | float) and math.isfinite(s)}
    return np.interp(steps, [*sound], [*sound.values()]) / 60


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]
