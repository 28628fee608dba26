"""Learning curves, seeds aggregated."""

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kemeny.errors import UserError
from kemeny.experiments.curves import Curve, RunLike, group_runs, open_runs
from kemeny.experiments.quantities import Quantity, limit_per_step, quantities
from kemeny.runs.directory import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 130
LIMIT = "limit"
"""What the legend calls a limit's line."""
STYLES = ("-", "--", "-.")
"""Of curves that differ only in their length, the first, the second and the third; dots are for limits."""


def plot(runs: RunLike | Sequence[RunLike], output: str | Path | None = None) -> "Figure":
    """Draw the learning curves of one run or of several: return, ρ̂ and average cost against steps.

    `runs` are run directories or `kemeny.Run`s. With `output`, the picture is written there as well; its ending chooses
    the format (png, pdf, svg). The figure that is returned is Matplotlib's, and a notebook shows it.

    There is one column per environment, one row per horizon, for ρ̂ and per cost. Runs that differ only in their seed
    are one curve: each seed, their mean, a band of one standard deviation. Curves that differ only in their length have
    one colour, as has each algorithm in all the columns. Limits are dotted.
    """
    figure = _figure(open_runs(runs))
    if output is not None:
        _write(figure, Path(output))
    return figure


def _figure(runs: list[Run]) -> "Figure":
    drawn = quantities(runs)
    if not drawn:
        raise UserError("None of these runs has finished an iteration yet: there is nothing to draw.")
    curves = group_runs([run for run in runs if any(quantity.of(run) for quantity in drawn)])
    environments = sorted({curve.env for curve in curves})
    columns = [[curve for curve in curves if curve.env == name] for name in environments]
    kinds = list(dict.fromkeys(curve.kind for curves in columns for curve in curves))
    size = (1 + 5 * len(columns), 0.6 + 3.2 * len(drawn) + 0.2 * max(map(len, columns)))
    figure = _empty_figure(size)
    axes = figure.subplots(len(drawn), len(columns), squeeze=False)
    for column, environment, curves in zip(axes.T, environments, columns, strict=True):
        _draw_column(column, environment, curves, drawn, kinds)
    return figure


def _empty_figure(size: tuple[float, float]) -> "Figure":
    """A figure that belongs to no window; Matplotlib's choice of windows is left as it is."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that a notebook shows, whether or not pyplot is in use there."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=DOTS_PER_INCH)
            return content.getvalue()

    return Picture(figsize=size, layout="constrained")


def _write(figure: "Figure", output: Path) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=DOTS_PER_INCH)
    except (OSError, ValueError) as error:
        raise UserError(f"The picture {output} cannot be written: {error}.") from error


def _draw_column(
    column: Sequence[Any], environment: str, curves: list[Curve], drawn: list[Quantity], kinds: list[str]
) -> None:
    """The panels of one environment, and under them their legend; there is no panel where there is nothing to draw."""
    from matplotlib.ticker import EngFormatter

    there = [any(quantity.of(run) for curve in curves for run in curve.runs) for quantity in drawn]
    lowest = max(row for row, is_there in enumerate(there) if is_there)
    entries: dict[str, Any] = {}
    for axis, quantity, is_there in zip(column, drawn, there, strict=True):
        if not is_there:
            axis.axis("off")
            continue
        _draw(axis, curves, quantity, kinds)
        axis.set_ylabel(quantity.label)
        axis.grid(alpha=0.25)
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    labels = sorted(entries, key=[*(curve.label for curve in curves), LIMIT].index)
    column[there.index(True)].set_title(environment)
    column[lowest].set_xlabel("agent–environment interactions")
    is_free = lowest + 1 < len(column)
    column[lowest + is_free].legend(
        [entries[label] for label in labels],
        labels,
        frameon=False,
        fontsize="small",
        loc="upper center",
        bbox_to_anchor=(0.5, 1.0 if is_free else -0.15),
    )


def _draw(axis: Any, curves: list[Curve], quantity: Quantity, kinds: list[str]) -> None:
    """One panel: every curve of an environment that has this quantity."""
    before: Counter[str] = Counter()
    for curve in curves:
        color, style = _color(curve, kinds), STYLES[before[curve.kind] % len(STYLES)]
        before[curve.kind] += 1
        tables = [table for run in curve.runs if (table := quantity.of(run))]
        if not tables:
            continue
        look = {"color": color, "linestyle": style, "marker": "o" if max(map(len, tables)) < 2 else None}
        steps, values = _shared(tables)
        mean, deviation = values.mean(0), values.std(0)
        axis.plot(steps, mean, label=curve.label, **look)
        if len(tables) > 1:
            axis.fill_between(steps, mean - deviation, mean + deviation, alpha=0.15, color=color, lw=0)
            for table in tables:
                axis.plot(table.keys(), table.values(), lw=0.6, alpha=0.6, **look)
    if quantity.cost is not None:
        _draw_limits(axis, curves, quantity.cost, kinds)


def _draw_limits(axis: Any, curves: list[Curve], cost: str, kinds: list[str]) -> None:
    """A dotted line per limit: of the colour of its curve if there are different limits, otherwise black."""
    limits = [
        (limit, _color(curve, kinds)) for curve in curves if (limit := limit_per_step(curve.runs[0], cost)) is not None
    ]
    is_one = len({limit for limit, _ in limits}) == 1
    for limit, color in limits[:1] if is_one else limits:
        axis.axhline(limit, color="black" if is_one else color, lw=1.2, ls=":")
    axis.plot([], [], color="black", lw=1.2, ls=":", label=LIMIT)


def _color(curve: Curve, kinds: list[str]) -> str:
    return f"C{kinds.index(curve.kind) % 10}"


def _shared(tables: list[dict[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    """The steps for which every seed has a value, and the values, one row per seed."""
    steps = sorted(set.intersection(*map(set, tables)))
    return np.array(steps), np.array([[table[step] for step in steps] for table in tables])
