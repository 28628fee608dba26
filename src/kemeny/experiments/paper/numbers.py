"""The numbers of a figure beside those that the paper prints, as Markdown."""

from collections.abc import Mapping, Sequence

import numpy as np

from kemeny.experience.evaluation import Evaluation
from kemeny.experiments.paper.figures import BEST, PaperFigure, only_tasks
from kemeny.experiments.quantities import quantities
from kemeny.runs.directory import Run

Runs = Mapping[str, Sequence[Run]]
"""The runs that have been evaluated, by their arm."""
HORIZONS = (1_000, 10_000)
PAPER_LENGTHS = (108.0, 4806.0, 883.1, 452.5, 1329.902)
"""Table 1."""
PAPER_GAIN = {("humanoid", 1_000): "+50.1 %", ("humanoid", 10_000): "+913 %", ("cheetah", 1_000): "as good"}
"""ATRPO over the best TRPO (§6.2)."""


def beside_the_paper(figure: PaperFigure, runs: Runs) -> str:
    """A table for figures about which the paper prints numbers, or says in words what a number can show."""
    match figure.name:
        case "figure-1" | "appendix-i-standard":
            return _gains(figure, runs)
        case "table-1":
            return _lengths(runs)
        case "appendix-f":
            return _costs(runs)
    return ""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *rows])


def last_return(run: Run, horizon: int) -> float:
    """The mean over the trajectories of the last evaluation; NaN if it was not so long."""
    returns = Evaluation.from_record(run.evaluations[-1]).returns.get(horizon)
    return float("nan") if returns is None else float(returns.mean())


def _mean(runs: Sequence[Run], horizon: int) -> float:
    return float(np.mean([last_return(run, horizon) for run in runs]))


def _gains(figure: PaperFigure, runs: Runs) -> str:
    """ATRPO against the best TRPO, by the means over the seeds, as the paper has it."""
    printed = figure.name == "figure-1"  # which is the one that the paper's numbers are about
    heads = ["task", "steps", "ATRPO", "best TRPO", "its γ", "ATRPO over TRPO"]
    heads += ["the paper's best γ", "the paper's ATRPO over TRPO"] if printed else []
    rows = []
    for task, arms in only_tasks(list(runs)).items():
        discounted = [arm for arm in arms if "-trpo" in arm]
        if f"{task}-atrpo" not in arms or not discounted:
            continue
        for horizon in HORIZONS:
            ours = _mean(runs[f"{task}-atrpo"], horizon)
            best = max(discounted, key=lambda arm: _mean(runs[arm], horizon))
            theirs = _mean(runs[best], horizon)
            gain = f"{ours / theirs - 1:+.0%}" if min(ours, theirs) > 0 else "–"
            row = [runs[best][0].env, f"{horizon:,}", f"{ours:,.0f}", f"{theirs:,.0f}", _gamma(runs[best][0]), gain]
            row += [f"0.{BEST[task].removeprefix('trpo')}", PAPER_GAIN.get((task, horizon), "–")] if printed else []
            rows.append(row)
    return table(heads, rows) if rows else ""


def _gamma(run: Run) -> str:
    return f"{run.settings['gamma']:g}"


def _lengths(runs: Runs) -> str:
    """Of all trajectories of the last evaluations of all seeds."""
    rows = [["the paper, TRPO γ = 0.95", "10", *(f"{value:,.1f}" for value in PAPER_LENGTHS), "–"]]
    for arm, there in runs.items():
        lengths = np.concatenate([Evaluation.from_record(run.evaluations[-1]).lengths for run in there])
        values = (lengths.min(), lengths.max(), lengths.mean(), np.median(lengths), lengths.std(ddof=1))
        longest = max(run.settings["eval_max_steps"] for run in there)
        ended = f"{(lengths >= longest).sum()} of {len(lengths)}"
        name = "ATRPO" if "-atrpo" in arm else f"TRPO γ = {_gamma(there[0])}"
        seeds = f"{len(lengths)} ({len(there)} seed{'s' if len(there) > 1 else ''})"
        rows.append([name, seeds, *(f"{value:,.1f}" for value in values), ended])
    return table(["", "trajectories", "min", "max", "average", "median", "std", "to the end"], rows)


def _costs(runs: Runs) -> str:
    """Speeds at the last evaluation, of the mean action and with exploration, where they were measured."""
    rows = []
    for arm, there in runs.items():
        if not arm.endswith("-acpo"):
            continue
        found = {
            quantity.label.split(", ")[-1]: quantity for quantity in quantities(there) if quantity.cost is not None
        }
        speeds = [
            " / ".join(f"{found[manner].last(run):.2f}" for run in there) if manner in found else "–"
            for manner in ("mean action", "with exploration")
        ]
        returns = " / ".join(f"{last_return(run, 1_000):,.0f}" for run in there)
        rows.append([there[0].env, *speeds, f"{there[0].settings['limit'][0]:g}", returns])
    heads = ["task", "speed, mean action", "speed, with exploration", "limit", "return, at most 1,000 steps"]
    return table(heads, rows) if rows else ""
