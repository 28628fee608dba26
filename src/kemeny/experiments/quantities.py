"""What a run has to show, by its steps of training: returns at each horizon, ρ̂, costs and their limits."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from kemeny.experience.evaluation import Evaluation
from kemeny.runs.directory import Run
from kemeny.runs.settings import from_flat

MOST_POINTS = 200
"""Of a curve with a point per iteration, which would be noise upon noise: longer ones are averaged piece by piece."""


class Quantity(NamedTuple):
    """One row of a picture, or one table."""

    label: str
    of: Callable[[Run], dict[int, float]]
    """What a run has of it, by steps of training."""
    cost: str | None = None
    """The cost that it is, for its limit."""
    horizon: int | None = None
    """The longest trajectory of the return that it is."""

    @property
    def row(self) -> Literal["return", "rate", "cost"]:
        """Which sort of quantity it is."""
        return "return" if self.horizon is not None else "rate" if self.cost is None else "cost"

    def last(self, run: Run) -> float | None:
        """At the last evaluation of a run, if there is one that has it."""
        return self.of(run).get(run.evaluations[-1]["steps"]) if run.evaluations else None


def quantities(runs: Sequence[Run]) -> list[Quantity]:
    """What can be shown of any of the runs: the return at each horizon, ρ̂, each cost."""
    horizons = {horizon for run in runs for _, evaluation in evaluations(run) for horizon in evaluation.returns}
    costs = dict.fromkeys(cost for run in runs for cost in run.config["settings"]["cost"])
    everything = [
        *(Quantity(f"return, at most {h:,} steps", partial(_returns, h), horizon=h) for h in sorted(horizons)),
        Quantity("ρ̂, reward per step in training", _rates),
        *(
            Quantity(f"{cost} per step, {manner}", partial(_costs, cost, field), cost)
            for cost in costs
            for field, manner in (("average_costs", "mean action"), ("exploring_costs", "with exploration"))
        ),
    ]
    return [quantity for quantity in everything if any(quantity.of(run) for run in runs)]


def evaluations(run: Run) -> list[tuple[int, Evaluation]]:
    """Each evaluation, with the steps of training before it."""
    return [(record["steps"], Evaluation.from_record(record)) for record in run.evaluations]


def limit_per_step(run: Run, cost: str) -> float | None:
    """The limit of a cost per step; one on a discounted sum is divided by 1/(1−γ)."""
    settings = from_flat(run.config["settings"])
    limits = dict(zip(run.config["settings"]["cost"], settings.limit, strict=False))
    return limits[cost] / settings.criterion.slope if cost in limits else None


def _returns(horizon: int, run: Run) -> dict[int, float]:
    """The mean over the trajectories of each evaluation."""
    found = ((steps, evaluation.returns.get(horizon)) for steps, evaluation in evaluations(run))
    return {steps: float(returns.mean()) for steps, returns in found if returns is not None}


def _costs(cost: str, field: str, run: Run) -> dict[int, float]:
    """The mean over the trajectories of each evaluation; nothing if the run does not have this cost.

    Of a run whose policy is deployed to explore, evaluations have that alone.
    """
    if field == "average_costs" and run.config["settings"]["deploy"] == "explore":
        return {}
    names = run.config["settings"]["cost"]
    place = names.index(cost) if cost in names else len(names)
    found = ((steps, getattr(evaluation, field)) for steps, evaluation in evaluations(run))
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
