"""Learning curves, seeds aggregated."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kemeny.errors import UserError
from kemeny.run import Run

SAME_CURVE = ("algorithm", "gamma", "episodic", "reset_cost", "cut", "cost", "limit")
"""Settings that are named in a legend where they differ; runs that differ in nothing but the seed are one curve."""


def learning_curves(paths: Sequence[Path], output: Path) -> None:
    """Draw return (and average cost) against steps: the mean over seeds, a band of one standard deviation.

    A column an environment, a row a horizon (and a row a cost). Runs that differ only in their seed are one curve.
    """
    runs = [Run.open(path) for path in paths]
    evaluated = [run for run in runs if run.evaluations]
    if not evaluated:
        raise UserError("None of these runs has been evaluated yet: there is nothing to draw.")
    environments = sorted({run.config["env"] for run in evaluated})
    quantities = _quantities(evaluated)
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(
        len(quantities),
        len(environments),
        squeeze=False,
        figsize=(1 + 5 * len(environments), 0.6 + 3.2 * len(quantities)),
    )
    try:
        for column, environment in enumerate(environments):
            here = [run for run in evaluated if run.config["env"] == environment]
            curves = _curves(here)
            for row, quantity in enumerate(quantities):
                axis = axes[row][column]
                _draw(axis, curves, quantity)
                axis.set(title=environment if row == 0 else None, ylabel=_label(quantity) if column == 0 else None)
                axis.grid(alpha=0.25)
            axes[-1][column].set_xlabel("agent–environment interactions")
            axes[0][column].legend(frameon=False, fontsize="small")
        figure.tight_layout()
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


def _quantities(runs: list[Run]) -> list[str]:
    """What there is to draw: each horizon's return, then the costs."""
    names = [name for run in runs for record in run.evaluations for name, value in record.items() if value is not None]
    returns = sorted({n for n in names if n.startswith("returns_")}, key=lambda n: int(n.removeprefix("returns_")))
    return returns + (["average_costs"] if "average_costs" in names else [])


def _label(quantity: str) -> str:
    if quantity == "average_costs":
        return "cost per step"
    return f"return, at most {int(quantity.removeprefix('returns_')):,} steps"


def _curves(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs by legend text: what distinguishes them, seeds left out."""
    settings = [{name: run.config["settings"].get(name) for name in SAME_CURVE} for run in runs]
    distinguishing = [
        name for name in SAME_CURVE if len({str(s[name]) for s in settings}) > 1 and name not in ("algorithm", "gamma")
    ]
    curves: dict[str, list[Run]] = defaultdict(list)
    for run, s in zip(runs, settings, strict=True):
        gamma = {"trpo": 0.99, "cpo": 0.99}.get(s["algorithm"]) if s["gamma"] is None else s["gamma"]
        words = [s["algorithm"].upper() + (f" γ = {gamma:g}" if gamma is not None else "")]
        words += [f"{name.replace('_', ' ')} {s[name]}" for name in distinguishing]
        curves[", ".join(words)].append(run)
    return curves


def _draw(axis: Any, curves: dict[str, list[Run]], quantity: str) -> None:
    limits = set()
    for name, runs in curves.items():
        steps, values = _series(runs, quantity)
        if not steps.size:
            continue
        mean = values.mean(0)
        label = f"{name} ({len(runs)} seed{'s' if len(runs) > 1 else ''})"
        (line,) = axis.plot(steps, mean, label=label, marker="o" if len(steps) < 2 else None)
        if len(runs) > 1:
            deviation = values.std(0)
            axis.fill_between(steps, mean - deviation, mean + deviation, alpha=0.2, color=line.get_color(), lw=0)
        limits.update(limit for run in runs for limit in run.config["settings"].get("limit") or ())
    if quantity == "average_costs":
        for limit in limits:
            axis.axhline(limit, color="black", lw=0.8, ls="--")


def _series(runs: list[Run], quantity: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps at which every run was evaluated, and the mean over trajectories, a row a run."""
    tables = [
        {
            record["steps"]: float(np.mean(record[quantity]))
            for record in run.evaluations
            if record.get(quantity) is not None
        }
        for run in runs
    ]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    return np.array(shared), np.array([[table[step] for step in shared] for table in tables])
