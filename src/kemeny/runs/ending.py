"""Whether each limit on a cost was kept, in sentences: the end of a run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kemeny.experience.evaluation import Evaluation
from kemeny.runs.directory import Run
from kemeny.runs.limits import EXPLORING, MEAN_ACTION, verdicts


def limits_in_last_evaluation(run: Run) -> list[str]:
    """As the policy explores, and by its mean action, unless it is deployed to explore."""
    if not run.config["settings"]["limit"] or not run.evaluations:
        return []
    last = Evaluation.from_record(run.evaluations[-1])
    if run.config["settings"]["deploy"] == "explore":
        return limits_kept(run.config, last.average_costs, EXPLORING)
    lines = limits_kept(run.config, last.average_costs, MEAN_ACTION)
    if last.exploring_costs is not None:
        lines = limits_kept(run.config, last.exploring_costs, EXPLORING) + lines
    return lines


def limits_kept(config: Mapping[str, Any], average_costs: np.ndarray, manner: str) -> list[str]:
    """A sentence per limited cost, of which there is one average per trajectory."""
    return [str(verdict) for verdict in verdicts(config, average_costs.mean(0), manner)]
