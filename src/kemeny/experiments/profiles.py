"""Performance profiles: which share of the runs of a setting has at least which return at the end."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kemeny.errors import UserError
from kemeny.experiments.comparison import last_scores, normalised, settings_of
from kemeny.experiments.curves import group_runs
from kemeny.experiments.drawing import empty_figure, kinds_of, legend_below, legend_height, looks
from kemeny.experiments.intervals import share_band
from kemeny.experiments.quantities import quantities
from kemeny.runs.directory import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACES = 200
"""At which a profile is computed."""
ALL = "all tasks, normalised"


def profiles(runs: Sequence[Run]) -> "Figure":
    """One column per environment, and one for all of them; one row per horizon."""
    evaluated = [run for run in runs if run.evaluations]
    drawn = [quantity for quantity in quantities(evaluated) if quantity.row == "return"]
    if not drawn:
        raise UserError("None of these runs has been evaluated yet: there is nothing to draw.")
    curves = group_runs(evaluated)
    settings, tasks = settings_of(curves), sorted({curve.env for curve in curves})
    first = [next(iter(there.values())) for there in settings.values()]
    styles = dict(zip(settings, looks(first, kinds_of(curves)), strict=True))
    scores = [last_scores(quantity, settings) for quantity in drawn]
    panels = [
        {task: {name: [found[task]] for name, found in row.items() if task in found} for task in tasks}
        | ({ALL: together} if (together := normalised(row, tasks)) else {})
        for row in scores
    ]
    titles = list(dict.fromkeys(title for row in panels for title in row))
    figure = empty_figure(1 + 4.2 * len(titles), 0.5 + 2.7 * len(drawn) + legend_height([*settings]))
    axes = figure.subplots(len(drawn), len(titles), squeeze=False, sharey=True)
    for row, quantity, there in zip(axes, drawn, panels, strict=True):
        for axis, title in zip(row, titles, strict=True):
            _draw(axis, there.get(title, {}), styles)
            axis.set_xlabel(quantity.label if title != ALL else f"{quantity.label}: 0 is the worst, 1 the best run")
        row[0].set_ylabel("share of the runs")
    for column, title in zip(axes.T, titles, strict=True):
        column[0].set_title(title)
        legend_below(column, len(drawn) - 1, list(settings))
    return figure


def _draw(axis: Any, settings: Mapping[str, Sequence[Sequence[float]]], styles: Mapping[str, dict[str, Any]]) -> None:
    """One panel: of each setting the scores on one task, or on several."""
    every = [score for tasks in settings.values() for scores in tasks for score in scores]
    if not every:
        axis.axis("off")
        return
    beyond = 0.04 * (max(every) - min(every) or 1)  # so that the last step is seen
    places = np.linspace(min(every) - beyond, max(every) + beyond, PLACES)
    for name, tasks in settings.items():
        share, low, high = share_band(tasks, places)
        axis.step(places, share, label=name, **styles[name])
        axis.fill_between(places, low, high, step="pre", alpha=0.18, color=styles[name]["color"], lw=0)
    axis.set_ylim(-0.03, 1.03)
