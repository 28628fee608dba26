"""What is said when a run or an evaluation ends: above all, whether each limit was kept."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kemeny.runs.settings import from_flat

if TYPE_CHECKING:
    import numpy as np

    from kemeny.runs.directory import Run

MEAN_ACTION, EXPLORING = "mean action", "with exploration"


def say_finished(run: "Run") -> None:
    """The end of `train` and of `resume`."""
    for line in _limits_in_last_evaluation(run):
        print(line)
    print(f"Finished. Look at it with: kemeny evaluate {run.path}; kemeny plot {run.path} -o {run.path}/curve.png")


def _limits_in_last_evaluation(run: "Run") -> list[str]:
    if not run.config["settings"]["limit"] or not run.evaluations:
        return []
    from kemeny.experience.evaluation import Evaluation

    last = Evaluation.from_record(run.evaluations[-1])
    lines = limits_kept(run.config, last.average_costs, MEAN_ACTION)
    if last.exploring_costs is not None:
        lines = limits_kept(run.config, last.exploring_costs, EXPLORING) + lines
    return lines


def limits_kept(config: Mapping[str, Any], average_costs: "np.ndarray", manner: str) -> list[str]:
    """A sentence per limited cost, of which there is one average per trajectory.

    A limit on a discounted sum is compared with average/(1−γ).
    """
    settings = from_flat(config["settings"])
    slope = float(settings.criterion.slope)
    lines = []
    for name, limit, average in zip(settings.cost, settings.limit, average_costs.mean(0), strict=False):
        discounted = f", {slope * average:.4g} discounted" if slope != 1 else ""
        verdict = "kept" if slope * average <= limit else f"broken by {slope * average - limit:.3g}"
        lines.append(f"{name}: {average:.4g} per step{discounted}; the limit {limit:g} is {verdict} ({manner}).")
    return lines
