"""Learning curves, seeds aggregated."""

import dataclasses
import io
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kemeny.criterion import Discounted
from kemeny.errors import UserError
from kemeny.experience.evaluation import Evaluation
from kemeny.learning.settings import Clipping
from kemeny.runs.algorithms import ALGORITHMS
from kemeny.runs.directory import Run
from kemeny.runs.settings import DEFAULT_GAMMA, from_flat

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RunLike = str | Path | Run
DOTS_PER_INCH = 130
SAME_CURVE = {
    "seed", "threads", "workers", "step_timeout", "restart_faulty", "max_skipped",
    "eval_every", "eval_trajectories", "eval_max_steps", "checkpoint_every", "keep_checkpoints",
}  # fmt: skip
"""Runs that differ in nothing but these are one curve; any other setting that differs is named in the legend."""
IN_THE_NAME = {"algorithm", "gamma", "cost", "limit"}
"""Settings that the legend always names."""
ONLY_WITH = {
    "natural": {"damping", "cg_iterations", "backtrack", "backtrack_tries"},
    "clip": {field.name for field in dataclasses.fields(Clipping)},
}
"""Settings that only one kind of policy step uses."""
LIMIT = "limit"
"""What the legend calls a limit's line."""
MOST_POINTS = 200
"""Of a curve with a point per iteration, which would be noise upon noise: longer ones are averaged piece by piece."""
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
    given = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    paths = [(one.path if isinstance(one, Run) else Path(one)).resolve() for one in given]
    opened = [Run(path) for path in dict.fromkeys(paths)]
    if not opened:
        raise UserError("Name at least one run directory.")
    figure = _figure(opened)
    if output is not None:
        _write(figure, Path(output))
    return figure


def _figure(runs: list[Run]) -> "Figure":
    quantities = _quantities(runs)
    if not quantities:
        raise UserError("None of these runs has finished an iteration yet: there is nothing to draw.")
    runs = [run for run in runs if any(quantity.of(run) for quantity in quantities)]
    environments = sorted({run.env for run in runs})
    columns = [_curves([run for run in runs if run.env == name]) for name in environments]
    kinds = list(dict.fromkeys(curve.kind for curves in columns for curve in curves))
    size = (1 + 5 * len(columns), 0.6 + 3.2 * len(quantities) + 0.2 * max(map(len, columns)))
    figure = _empty_figure(size)
    axes = figure.subplots(len(quantities), len(columns), squeeze=False)
    for column, environment, curves in zip(axes.T, environments, columns, strict=True):
        _draw_column(column, environment, curves, quantities, kinds)
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


class _Quantity(NamedTuple):
    """One row of the picture."""

    label: str
    of: Callable[[Run], dict[int, float]]
    """What a run has of it, by steps of training."""
    cost: str | None = None
    """The cost that it is, for its limit."""


def _quantities(runs: list[Run]) -> list[_Quantity]:
    """What can be drawn of any of the runs: the return at each horizon, ρ̂, each cost."""
    horizons = {horizon for run in runs for _, evaluation in _evaluations(run) for horizon in evaluation.returns}
    costs = dict.fromkeys(cost for run in runs for cost in run.config["settings"]["cost"])
    everything = [
        *(_Quantity(f"return, at most {h:,} steps", partial(_returns, h)) for h in sorted(horizons)),
        _Quantity("ρ̂, reward per step in training", _rates),
        *(
            _Quantity(f"{cost} per step, {manner}", partial(_costs, cost, field), cost)
            for cost in costs
            for field, manner in (("average_costs", "mean action"), ("exploring_costs", "with exploration"))
        ),
    ]
    return [quantity for quantity in everything if any(quantity.of(run) for run in runs)]


def _evaluations(run: Run) -> list[tuple[int, Evaluation]]:
    """Each evaluation, with the steps of training before it."""
    return [(record["steps"], Evaluation.from_record(record)) for record in run.evaluations]


def _returns(horizon: int, run: Run) -> dict[int, float]:
    """The mean over the trajectories of each evaluation."""
    found = ((steps, evaluation.returns.get(horizon)) for steps, evaluation in _evaluations(run))
    return {steps: float(returns.mean()) for steps, returns in found if returns is not None}


def _costs(cost: str, field: str, run: Run) -> dict[int, float]:
    """The mean over the trajectories of each evaluation; nothing if the run does not have this cost."""
    names = run.config["settings"]["cost"]
    place = names.index(cost) if cost in names else len(names)
    found = ((steps, getattr(evaluation, field)) for steps, evaluation in _evaluations(run))
    return {
        steps: float(costs[:, place].mean()) for steps, costs in found if costs is not None and place < costs.shape[1]
    }


def _rates(run: Run) -> dict[int, float]:
    """ρ̂ of each iteration; if there are many, the mean of each few in a row."""
    found = ((record["steps"], record.get("rate")) for record in run.metrics)
    rates = [(steps, rate) for steps, rate in found if isinstance(rate, int | float)]
    # The length that was asked for, so that the pieces are the same for all seeds, however far they have come.
    settings = run.config["settings"]
    together = math.ceil(settings["steps"] / settings["batch_size"] / MOST_POINTS)
    pieces = [rates[first : first + together] for first in range(0, len(rates), together)]
    return {piece[-1][0]: float(np.mean([rate for _, rate in piece])) for piece in pieces}


def _limit(run: Run, cost: str) -> float | None:
    """The limit of a cost per step; one on a discounted sum is divided by 1/(1−γ)."""
    settings = from_flat(run.config["settings"])
    limits = dict(zip(run.config["settings"]["cost"], settings.limit, strict=False))
    return limits[cost] / settings.criterion.slope if cost in limits else None


def _named(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with what is meant where one is not given, and without those that do nothing in this run."""
    row = ALGORITHMS[settings["algorithm"]]
    meant = {
        "gamma": DEFAULT_GAMMA if row.criterion is Discounted else None,
        "log_std": row.log_std,
        "cost_gae_lambda": settings["gae_lambda"],
    }
    unused = set() if settings["cost"] else {"cost_gae_lambda"}
    unused = unused.union(*(names for step, names in ONLY_WITH.items() if step != settings["step"]))
    filled = {name: meant.get(name) if value is None else value for name, value in settings.items()}
    return {name: value for name, value in filled.items() if name not in unused}


def _history(run: Run) -> dict[str, Any]:
    """What else than its settings tells a run from others: arguments of its environment, extensions, its beginning."""
    begun, extended = run.config.get("init_from"), run.config.get("extended") or ()
    arguments = run.config.get("env_kwargs") or {}
    return {
        "env_kwargs": ", ".join(f"{name} = {value}" for name, value in arguments.items()) or None,
        "extended": " and ".join(f"at {one['at']:,} from {one['before']:,}" for one in extended) or None,
        "init_from": None if begun is None else begun.get("path"),
    }


def _word(name: str, value: Any) -> str:
    """A setting, as the legend says it."""
    if value is True:
        return name.replace("_", " ")
    return f"{name.replace('_', ' ')} {f'{value:,}' if type(value) is int else value}"


class _Curve(NamedTuple):
    """Runs that differ in nothing but their seed."""

    name: str
    """What the legend says: whatever distinguishes it from the others of its environment."""
    kind: str
    """The same but for the length of the run: one kind has one colour, whatever the environment."""
    runs: list[Run]

    @property
    def label(self) -> str:
        """The entry in the legend."""
        return f"{self.name} ({len(self.runs)} seed{'s' if len(self.runs) > 1 else ''})"


def _curves(runs: list[Run]) -> list[_Curve]:
    """The curves of one environment, in the order in which their runs were given."""
    everything = [{**_named(run.settings), **_history(run)} for run in runs]
    names = sorted(set().union(*everything) - SAME_CURVE - IN_THE_NAME)
    # Runs that do not use a setting differ in what makes them not use it.
    distinguishing = [name for name in names if len({str(used[name]) for used in everything if name in used}) > 1]
    curves: dict[str, _Curve] = {}
    for run, settings in zip(runs, everything, strict=True):
        gamma = settings["gamma"]
        words = [settings["algorithm"].upper() + (f" γ = {gamma:g}" if gamma is not None else "")]
        words += [f"{cost} ≤ {limit:g}" for cost, limit in zip(settings["cost"], settings["limit"], strict=False)]
        shown = {name: settings.get(name) for name in distinguishing}
        shown = {name: _word(name, value) for name, value in shown.items() if value is not None and value is not False}
        name = ", ".join([*words, *shown.values()])
        kind = ", ".join([*words, *(word for setting, word in shown.items() if setting != "steps")])
        curves.setdefault(name, _Curve(name, kind, [])).runs.append(run)
    return list(curves.values())


def _draw_column(
    column: Sequence[Any], environment: str, curves: list[_Curve], quantities: list[_Quantity], kinds: list[str]
) -> None:
    """The panels of one environment, and under them their legend; there is no panel where there is nothing to draw."""
    from matplotlib.ticker import EngFormatter

    there = [any(quantity.of(run) for curve in curves for run in curve.runs) for quantity in quantities]
    lowest = max(row for row, is_there in enumerate(there) if is_there)
    entries: dict[str, Any] = {}
    for axis, quantity, is_there in zip(column, quantities, there, strict=True):
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


def _draw(axis: Any, curves: list[_Curve], quantity: _Quantity, kinds: list[str]) -> None:
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


def _draw_limits(axis: Any, curves: list[_Curve], cost: str, kinds: list[str]) -> None:
    """A dotted line per limit: of the colour of its curve if there are different limits, otherwise black."""
    limits = [(limit, _color(curve, kinds)) for curve in curves if (limit := _limit(curve.runs[0], cost)) is not None]
    is_one = len({limit for limit, _ in limits}) == 1
    for limit, color in limits[:1] if is_one else limits:
        axis.axhline(limit, color="black" if is_one else color, lw=1.2, ls=":")
    axis.plot([], [], color="black", lw=1.2, ls=":", label=LIMIT)


def _color(curve: _Curve, kinds: list[str]) -> str:
    return f"C{kinds.index(curve.kind) % 10}"


def _shared(tables: list[dict[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    """The steps for which every seed has a value, and the values, one row per seed."""
    steps = sorted(set.intersection(*map(set, tables)))
    return np.array(steps), np.array([[table[step] for step in steps] for table in tables])
