"""Pictures of runs: learning curves, performance profiles, the speed over a trajectory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from kemeny.errors import UserError
from kemeny.experiments.curves import Curve, RunLike, group_runs, open_runs
from kemeny.experiments.drawing import (
    empty_figure,
    in_style,
    in_thousands,
    kinds_of,
    legend_below,
    legend_height,
    looks,
    write,
)
from kemeny.experiments.intervals import iqm_band
from kemeny.experiments.quantities import Quantity, limit_per_step, quantities
from kemeny.runs.directory import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["curves", "profile", "speed"]
Band = Literal["iqm", "deviation"]
Against = Literal["steps", "time"]
Row = Literal["return", "rate", "cost"]
UNITS = {"minutes": 60, "hours": 3600}
SHORT = 2 * UNITS["hours"]
"""Seconds up to which a picture counts minutes."""
LIMIT = "limit"
"""What the legend calls a limit's line."""


class Manner(NamedTuple):
    """How learning curves are drawn."""

    band: Band = "iqm"
    against: Against = "steps"
    rows: tuple[Row, ...] = ()
    """Which quantities; all if there are none."""
    longest: int | None = None
    """The longest horizon of returns; all if it is None."""
    unit: str = "hours"
    """Of the time."""

    def shows(self, quantity: Quantity) -> bool:
        """Whether a quantity has a row."""
        too_long = self.longest is not None and quantity.horizon is not None and quantity.horizon > self.longest
        return not too_long and (not self.rows or quantity.row in self.rows)


USUAL = Manner()


def plot(
    runs: RunLike | Sequence[RunLike],
    output: str | Path | None = None,
    *,
    kind: Kind = "curves",
    band: Band = "iqm",
    against: Against = "steps",
    rows: Sequence[Row] = (),
) -> "Figure":
    """Draw runs: their learning curves, their performance profiles, or the speed of one trajectory of each.

    `runs` are `kemeny.Run`s, run directories, or directories that hold runs, such as a sweep's. With `output`, the
    picture is written there as well; its ending chooses the format (png, pdf, svg). The figure that is returned is
    Matplotlib's, and a notebook shows it.

    Learning curves have one column per environment and one row per horizon, for ρ̂ and per cost; `rows` chooses among
    these. Runs that differ only in their seed are one curve: each seed thin, and in the middle their interquartile mean
    with its interval, or, with `band="deviation"`, their mean with one standard deviation. `against="time"` draws over
    the time of training. Curves that differ only in their length have one colour, as has each algorithm in all the
    columns. Limits are dotted.

    A profile says which share of the runs has at least which return at the end. A speed is that of one trajectory of
    each run, run anew.
    """
    opened, manner = open_runs(runs), Manner(band, against, tuple(rows))
    if kind != "curves" and manner != USUAL:
        raise UserError(f"band, against and rows are those of learning curves: leave them out with kind {kind}.")
    with in_style():
        figure = _drawn(kind, opened, manner)
    if output is not None:
        write(figure, Path(output))
    return figure


def _drawn(kind: Kind, runs: list[Run], manner: Manner) -> "Figure":
    match kind:
        case "curves":
            return learning_curves(runs, manner)
        case "profile":
            from kemeny.experiments.profiles import profiles

            return profiles(runs)
        case "speed":
            from kemeny.experiments.speeds import speeds_of_runs

            return speeds_of_runs(runs)
    raise UserError(f"There is no kind {kind}: it is one of curves, profile and speed.")


def learning_curves(runs: list[Run], manner: Manner) -> "Figure":
    """One column per environment, one row per quantity."""
    drawn = [quantity for quantity in quantities(runs) if manner.shows(quantity)]
    if not drawn:
        raise UserError("None of these runs has finished an iteration yet: there is nothing to draw.")
    curves = group_runs([run for run in runs if any(quantity.of(run) for quantity in drawn)])
    if max((run.metrics[-1].get("seconds") or 0 for run in runs if run.metrics), default=0) < SHORT:
        manner = manner._replace(unit="minutes")
    environments = sorted({curve.env for curve in curves})
    columns = [[curve for curve in curves if curve.env == name] for name in environments]
    legend = max(legend_height([curve.label for curve in column]) for column in columns)
    figure = empty_figure(1 + 4.2 * len(columns), 0.5 + 2.7 * len(drawn) + legend)
    axes = figure.subplots(len(drawn), len(columns), squeeze=False)
    for column, environment, there in zip(axes.T, environments, columns, strict=True):
        _draw_column(column, environment, there, drawn, kinds_of(curves), manner)
    return figure


def _draw_column(
    column: Sequence[Any],
    environment: str,
    curves: list[Curve],
    drawn: list[Quantity],
    kinds: list[str],
    manner: Manner,
) -> None:
    """The panels of one environment, and under them their legend; there is no panel where there is nothing to draw."""
    there = [any(quantity.of(run) for curve in curves for run in curve.runs) for quantity in drawn]
    lowest = max(row for row, is_there in enumerate(there) if is_there)
    for axis, quantity, is_there in zip(column, drawn, there, strict=True):
        if not is_there:
            axis.axis("off")
            continue
        _draw(axis, curves, quantity, kinds, manner)
        axis.set_ylabel(quantity.label)
        if manner.against == "steps":
            in_thousands(axis)
    column[there.index(True)].set_title(environment)
    column[lowest].set_xlabel(
        "agent–environment interactions" if manner.against == "steps" else f"{manner.unit} of training"
    )
    legend_below(column, lowest, [*(curve.label for curve in curves), LIMIT])


def _draw(axis: Any, curves: list[Curve], quantity: Quantity, kinds: list[str], manner: Manner = USUAL) -> None:
    """One panel: every curve of an environment that has this quantity."""
    for curve, look in zip(curves, looks(curves, kinds), strict=True):
        found = [(run, table) for run in curve.runs if (table := quantity.of(run))]
        tables = [_by_time(run, table, manner.unit) if manner.against == "time" else table for run, table in found]
        tables = [table for table in tables if table]
        if not tables:
            continue
        look |= {"marker": "o"} if max(map(len, tables)) < 2 else {}
        places, values = _shared(tables, manner.against)
        centre, low, high = _centre_and_band(values, manner.band)
        axis.plot(places, centre, label=curve.label, **look)
        if len(tables) > 1:
            axis.fill_between(places, low, high, alpha=0.18, color=look["color"], lw=0)
            for table in tables:
                axis.plot([*table], [*table.values()], lw=0.5, alpha=0.5, **look | {"markersize": 2})
    if quantity.cost is not None:
        _draw_limits(axis, curves, quantity.cost, kinds)


def _draw_limits(axis: Any, curves: list[Curve], cost: str, kinds: list[str]) -> None:
    """A dotted line per limit: of the colour of its curve if there are different limits, otherwise black."""
    limits = [
        (limit, look["color"])
        for curve, look in zip(curves, looks(curves, kinds), strict=True)
        if (limit := limit_per_step(curve.runs[0], cost)) is not None
    ]
    is_one = len({limit for limit, _ in limits}) == 1
    for limit, color in limits[:1] if is_one else limits:
        axis.axhline(limit, color="black" if is_one else color, lw=1.2, ls=":")
    axis.plot([], [], color="black", lw=1.2, ls=":", label=LIMIT)


def _centre_and_band(values: np.ndarray, band: Band) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of values with one row per seed: the line in the middle, and the lower and the upper edge of the band."""
    if band == "iqm":
        return iqm_band(values)
    mean, deviation = values.mean(0), values.std(0)
    return mean, mean - deviation, mean + deviation


def _by_time(run: Run, table: dict[int, float], unit: str) -> dict[float, float]:
    """By the time of training instead of steps; what is not in the metrics is left out."""
    seconds = {record["steps"]: record.get("seconds") for record in run.metrics}
    found = ((seconds.get(steps), value) for steps, value in table.items())
    return {second / UNITS[unit]: value for second, value in found if isinstance(second, int | float)}


def _shared(tables: Sequence[Mapping[Any, float]], against: Against = "steps") -> tuple[np.ndarray, np.ndarray]:
    """Where every seed has a value, and the values, one row per seed.

    No two seeds are evaluated at the same time on the clock, so between evaluations a straight line is drawn.
    """
    if against == "steps":
        places = sorted(set.intersection(*map(set, tables)))
        return np.array(places), np.array([[table[place] for place in places] for table in tables])
    begin, end = max(min(table) for table in tables), min(max(table) for table in tables)
    places = sorted(place for place in set().union(*tables) if begin <= place <= end)
    return np.array(places), np.array([np.interp(places, [*table], [*table.values()]) for table in tables])
