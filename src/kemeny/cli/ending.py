"""What is said when a run or an evaluation ends: above all, whether each limit was kept."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kemeny.runs.limits import EXPLORING, MEAN_ACTION, verdicts

if TYPE_CHECKING:
    import numpy as np

    from kemeny.runs.directory import Run


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
    """A sentence per limited cost, of which there is one average per trajectory."""
    return [str(verdict) for verdict in verdicts(config, average_costs.mean(0), manner)]
