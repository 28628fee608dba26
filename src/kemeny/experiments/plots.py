"""Learning curves, seeds aggregated."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kemeny.criterion import Discounted
from kemeny.errors import UserError
from kemeny.experience.evaluation import Evaluation
from kemeny.learning.settings import Clipping
from kemeny.runs.algorithms import ALGORITHMS
from kemeny.runs.directory import Run
from kemeny.runs.settings import DEFAULT_GAMMA

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


def learning_curves(paths: Sequence[Path], output: Path) -> None:
    """Draw return (and average cost) against steps: each seed, their mean, a band of one standard deviation.

    One column per environment, one row per horizon and per cost. Runs that differ only in their seed are one curve;
    curves that differ only in their length have one colour, as has each algorithm in all the columns.
    """
    runs = [Run.open(path) for path in dict.fromkeys(Path(path).resolve() for path in paths)]
    evaluated = [run for run in runs if run.evaluations]
    if not evaluated:
        raise UserError("None of these runs has been evaluated yet: there is nothing to draw.")
    environments = sorted({run.config["env"] for run in evaluated})
    quantities = _quantities(evaluated)
    columns = [_curves([run for run in evaluated if run.config["env"] == name]) for name in environments]
    kinds = list(dict.fromkeys(curve.kind for curves in columns for curve in curves))
    pyplot = _pyplot()
    from matplotlib.ticker import EngFormatter

    height = 0.6 + 3.2 * len(quantities) + 0.2 * max(map(len, columns))
    figure, axes = pyplot.subplots(
        len(quantities),
        len(environments),
        squeeze=False,
        figsize=(1 + 5 * len(environments), height),
        layout="constrained",
    )
    try:
        for column, (environment, curves) in enumerate(zip(environments, columns, strict=True)):
            for row, quantity in enumerate(quantities):
                axis = axes[row][column]
                _draw(axis, curves, quantity, kinds)
                axis.set(title=environment if row == 0 else None, ylabel=quantity.label if column == 0 else None)
                axis.grid(alpha=0.25)
                axis.xaxis.set_major_formatter(EngFormatter(sep=""))
            lowest = axes[-1][column]
            lowest.set_xlabel("agent–environment interactions")
            handles = axes[0][column].get_legend_handles_labels()
            lowest.legend(*handles, frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15))
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=130)
    except (OSError, ValueError) as error:
        raise UserError(f"The picture {output} cannot be written: {error}.") from error
    finally:
        pyplot.close(figure)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    return pyplot


class _Quantity(NamedTuple):
    """One row of the picture."""

    label: str
    horizon: int | None = None
    """Of a return,"""
    cost: int | None = None
    """or which of the costs."""

    def of(self, evaluation: Evaluation) -> float | None:
        """The mean over the trajectories, if the evaluation has it."""
        if self.horizon is not None:
            returns = evaluation.returns.get(self.horizon)
            return None if returns is None else float(returns.mean())
        averages = evaluation.average_costs.mean(0)
        return float(averages[self.cost]) if self.cost is not None and self.cost < len(averages) else None


def _quantities(runs: list[Run]) -> list[_Quantity]:
    """What can be drawn: the return at each horizon, then each cost."""
    horizons = {horizon for run in runs for _, evaluation in _evaluations(run) for horizon in evaluation.returns}
    returns = [_Quantity(f"return, at most {horizon:,} steps", horizon=horizon) for horizon in sorted(horizons)]
    costs = max((run.config["settings"]["cost"] for run in runs), key=len)
    return returns + [_Quantity(f"{cost} per step", cost=i) for i, cost in enumerate(costs)]


def _evaluations(run: Run) -> list[tuple[int, Evaluation]]:
    """Each evaluation, with the steps of training before it."""
    return [(record["steps"], Evaluation.from_record(record)) for record in run.evaluations]


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
    return {**meant, **{name: value for name, value in settings.items() if name not in unused and value is not None}}


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


def _curves(runs: list[Run]) -> list[_Curve]:
    """The curves of one environment, in the order in which their runs were given."""
    everything = [_named(run.config["settings"]) for run in runs]
    names = sorted(set().union(*everything) - SAME_CURVE - IN_THE_NAME)
    distinguishing = [name for name in names if len({str(settings.get(name)) for settings in everything}) > 1]
    curves: dict[str, _Curve] = {}
    for run, settings in zip(runs, everything, strict=True):
        gamma = settings["gamma"]
        words = [settings["algorithm"].upper() + (f" γ = {gamma:g}" if gamma is not None else "")]
        words += [f"{cost} ≤ {limit:g}" for cost, limit in zip(settings["cost"], settings["limit"], strict=True)]
        shown = {name: settings.get(name) for name in distinguishing}
        shown = {name: _word(name, value) for name, value in shown.items() if value is not None and value is not False}
        name = ", ".join([*words, *shown.values()])
        kind = ", ".join([*words, *(word for setting, word in shown.items() if setting != "steps")])
        curves.setdefault(name, _Curve(name, kind, [])).runs.append(run)
    return list(curves.values())


def _draw(axis: Any, curves: list[_Curve], quantity: _Quantity, kinds: list[str]) -> None:
    drawn: set[str] = set()
    for name, kind, runs in curves:
        steps, values = _series(runs, quantity)
        if not steps.size:
            continue
        mean = values.mean(0)
        label = f"{name} ({len(runs)} seed{'s' if len(runs) > 1 else ''})"
        marker = "o" if len(steps) < 2 else None
        color, style = f"C{kinds.index(kind) % 10}", "--" if kind in drawn else "-"
        drawn.add(kind)
        axis.plot(steps, mean, style, label=label, color=color, marker=marker)
        if len(runs) > 1:
            deviation = values.std(0)
            axis.fill_between(steps, mean - deviation, mean + deviation, alpha=0.15, color=color, lw=0)
            axis.plot(steps, values.T, style, color=color, lw=0.6, alpha=0.6, marker=marker)
        if quantity.cost is not None:
            axis.axhline(runs[0].config["settings"]["limit"][quantity.cost], color="black", lw=0.8, ls="--")


def _series(runs: list[Run], quantity: _Quantity) -> tuple[np.ndarray, np.ndarray]:
    """Steps at which every run was evaluated, and the mean over trajectories, one row per run."""
    tables = [
        {steps: value for steps, evaluation in _evaluations(run) if (value := quantity.of(evaluation)) is not None}
        for run in runs
    ]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    return np.array(shared), np.array([[table[step] for step in shared] for table in tables])
