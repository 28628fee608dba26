"""Whether a run's limits on costs were kept."""

from collections.abc import Iterable, Mapping
from typing import Any

from kemeny.experience.evaluation import Verdict
from kemeny.runs.settings import from_flat

MEAN_ACTION, EXPLORING = "mean action", "with exploration"


def verdicts(config: Mapping[str, Any], averages: Iterable[float], manner: str) -> list[Verdict]:
    """One per limited cost, given the average of each cost per step.

    A limit on a discounted sum is compared with average/(1−γ).
    """
    settings = from_flat(config["settings"])
    slope = float(settings.criterion.slope)
    return [
        Verdict(name, float(limit), float(average), slope, manner)
        for name, limit, average in zip(settings.cost, settings.limit, averages, strict=False)
    ]
