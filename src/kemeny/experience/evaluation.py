"""What an evaluation found, as numbers and as a record of evaluations.jsonl; and back."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from kemeny.experience.settings import RESET_COST, BestBy

if TYPE_CHECKING:
    from kemeny.experience.estimate import Estimate
    from kemeny.experience.long_run import LongRun
    from kemeny.experience.trajectory import Trajectory

HORIZONS = (1_000, 10_000)
"""Steps at which returns are reported (§6.1)."""

TOLERATED = 2.0
"""Standard errors of a mean cost that do not count as a broken limit."""


class Verdict(NamedTuple):
    """Whether a limit on a cost was kept."""

    cost: str
    limit: float
    per_step: float
    """The average cost per step."""
    slope: float
    """What turns it into the units of the limit: 1, or 1/(1−γ) for a limit on the discounted sum."""
    manner: str
    """How the policy acted."""

    @property
    def average(self) -> float:
        """The cost in the units of the limit."""
        return self.slope * self.per_step

    @property
    def kept(self) -> bool:
        """Whether it is within the limit."""
        return self.average <= self.limit

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {"cost": self.cost, "limit": self.limit, "average": self.average, "kept": self.kept}

    def __str__(self) -> str:
        discounted = f", {self.average:.4g} discounted" if self.slope != 1 else ""
        verdict = "kept" if self.kept else f"broken by {self.average - self.limit:.3g}"
        return (
            f"{self.cost}: {self.per_step:.4g} per step{discounted}; "
            f"the limit {self.limit:g} is {verdict} ({self.manner})."
        )


FALLS = ("falls", "falls_steps", "reached_end", "falls_per_million")
"""What evaluations.jsonl says of falls; for the policy as it explores, with `exploring_` before it."""


@dataclasses.dataclass(frozen=True)
class Falls:
    """How often trajectories fell, each until its first fall."""

    count: int
    """Trajectories that ended in a fall."""
    steps: int
    """Of all trajectories together."""
    reached_end: float
    """Share of the trajectories that went on to the longest horizon."""

    @classmethod
    def of(cls, count: int, lengths: np.ndarray, longest: int) -> "Falls":
        """From the steps of each trajectory, of which the longest has so many."""
        return cls(count, int(lengths.sum()), float((lengths >= longest).mean()))

    @property
    def per_million(self) -> "Estimate":
        """Falls in a million steps, with an interval; if there was none, it is a bound from above."""
        from kemeny.experience.long_run import MILLION, poisson

        return poisson(self.count, self.steps, MILLION)

    def record(self) -> dict[str, Any]:
        """As fields of evaluations.jsonl."""
        return dict(zip(FALLS, (self.count, self.steps, self.reached_end, list(self.per_million[:3])), strict=True))

    @classmethod
    def from_record(cls, record: Mapping[str, Any], prefix: str = "") -> "Falls | None":
        """From the fields of evaluations.jsonl, or a `ValueError`; None if they say nothing."""
        names = [f"{prefix}{name}" for name in FALLS[:3]]
        count, steps, share = (record.get(name) for name in names)
        if count is None:
            return None
        count, steps = _count(count, names[0]), _count(steps, names[1])
        if not 0 < steps < 2**62 or count > steps:
            raise ValueError(f"{names[1]} is less than the falls need")
        if not (isinstance(share, int | float) and 0 <= share <= 1):
            raise ValueError(f"{names[2]} is not a share")
        return cls(count, steps, float(share))


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """One entry per trajectory. `print` shows it as tables."""

    returns: dict[int, np.ndarray]
    """Undiscounted return up to a fall or to each horizon, without any reset cost."""
    lengths: np.ndarray
    average_costs: np.ndarray
    """(trajectory, cost): total cost / length."""
    faults: int = 0
    """Trajectories that were begun anew because their environment failed."""
    exploring_costs: np.ndarray | None = None
    """(trajectory, cost): the same for the policy as it explores in training; None if that was not evaluated."""
    falls: Falls | None = None
    """How often it fell; None if it was not recorded."""
    exploring_falls: Falls | None = None
    """The same for the policy as it explores in training; None if that was not evaluated."""
    long_run: "LongRun | None" = None
    """Averages per step with intervals, from the same trajectories as they go on after a fall."""
    trajectory: "Trajectory | None" = None
    """The first trajectory step by step, if it was asked for."""
    cost_names: tuple[str, ...] = ()
    limits: tuple[Verdict, ...] = ()
    """Whether each limit of the run was kept."""
    about: str = ""
    """What was evaluated, and how: the title of its table."""

    @property
    def reached_end(self) -> float:
        """Share of the trajectories that went on to the longest horizon without a fall."""
        return float((self.lengths >= max(self.returns)).mean())

    def __repr__(self) -> str:
        from kemeny.experience.summary import text

        return text(self)

    def full_record(self) -> dict[str, Any]:
        """Everything but the trajectory, as JSON: what `kemeny evaluate --json` prints."""
        return {
            **self.record(),
            "reached_end": self.reached_end,
            "long_run": None if self.long_run is None else self.long_run.record(),
            "limits": [verdict.record() for verdict in self.limits] or None,
        }

    def record(self) -> dict[str, Any]:
        """As a line of evaluations.jsonl; a horizon beyond the longest allowed trajectory is null."""
        returns = {
            f"returns_{horizon}": self.returns[horizon].tolist() if horizon in self.returns else None
            for horizon in sorted({*HORIZONS, *self.returns})
        }
        costs = self.average_costs.tolist() if self.average_costs.size else None
        exploring = None if self.exploring_costs is None else self.exploring_costs.tolist()
        told = dict.fromkeys(FALLS) if self.exploring_falls is None else self.exploring_falls.record()
        return {
            **returns,
            "lengths": self.lengths.tolist(),
            "average_costs": costs,
            "exploring_costs": exploring,
            **(dict.fromkeys(FALLS) if self.falls is None else self.falls.record()),
            **{f"exploring_{name}": value for name, value in told.items()},
            "faults": self.faults,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Evaluation":
        """From a line of evaluations.jsonl, or a `ValueError` that says what is wrong with it."""
        returns = {}
        for name, values in record.items():
            horizon = re.fullmatch(r"returns_([1-9]\d{0,17})", name)
            if name.startswith("returns_") and horizon is None:
                raise ValueError(f"{name} names no number of steps")
            if horizon is not None and values is not None:
                returns[int(horizon[1])] = _numbers(values, name, 1)
        if not returns:
            raise ValueError("it has no returns")
        lengths, costs, exploring = (record.get(name) for name in ("lengths", "average_costs", "exploring_costs"))
        trajectories = len(next(iter(returns.values())))
        return cls(
            returns,
            np.zeros(0, np.int64) if lengths is None else _lengths(lengths),
            np.zeros((trajectories, 0)) if costs is None else _numbers(costs, "average_costs", 2),
            _count(record.get("faults"), "faults"),
            None if exploring is None else _numbers(exploring, "exploring_costs", 2),
            falls=Falls.from_record(record),
            exploring_falls=Falls.from_record(record, "exploring_"),
        )

    def with_exploring(self, exploring: "Evaluation") -> "Evaluation":
        """Together with what was found of the policy as it explores."""
        costs = exploring.average_costs if exploring.average_costs.size else None
        return dataclasses.replace(self, exploring_costs=costs, exploring_falls=exploring.falls)

    def score(
        self,
        limits: Sequence[float] = (),
        slope: float = 1.0,
        by: BestBy = "return",
        reset_cost: float | None = None,
        kept_for: Literal["exploring", "deployed"] = "exploring",
    ) -> list[float]:
        """What makes a policy best, in order: least cost above the limits, then what it is chosen `by`.

        That is the return at the longest horizon; the average reward per step, less the reset cost of each fall; or the
        falls per step, and the return where they are equal. By `limits` it is the return as well, but no deviation of
        the cost above the limits is tolerated.

        `slope` turns cost per step into the units of the limits: 1, or 1/(1−γ) for a limit on the discounted sum.
        `kept_for` says for whom training keeps the limits.
        """
        returns = self.returns[max(self.returns)]
        kept = -self._excess(np.asarray(limits, float), slope, by == "limits", kept_for == "deployed")
        if by in ("return", "limits"):
            return [kept, float(returns.mean())]
        assert self.falls is not None
        if by == "falls":
            return [kept, -self.falls.count / self.falls.steps, float(returns.mean())]
        charge = RESET_COST if reset_cost is None else reset_cost
        return [kept, float(returns.sum() - charge * self.falls.count) / self.falls.steps]

    def _excess(self, limits: np.ndarray, slope: float, strict: bool, deployed: bool) -> float:
        """The cost above the limits, in their units.

        The cost is that of the policy for which training keeps the limits: as it is `deployed`, or as it explores, if
        that was evaluated. It is above a limit only as far as it exceeds it by more than `TOLERATED` standard errors:
        the mean of a few trajectories scatters. If it is `strict`, nothing is tolerated, and the policy as it is
        deployed counts in any case.
        """
        exploring = None if deployed else self.exploring_costs
        costs = slope * (self.average_costs if exploring is None else exploring)
        error = costs.std(0) / np.sqrt(max(len(costs) - 1, 1))
        excess = costs.mean(0) - limits - TOLERATED * error
        if strict:
            excess = np.maximum(costs.mean(0), slope * self.average_costs.mean(0)) - limits
        return float(np.maximum(excess, 0).sum())


def _numbers(values: Any, name: str, dimensions: int) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{name} is not a list of numbers") from error
    sound = array.dtype.kind in "iuf" and array.ndim == dimensions and array.size
    if not (sound and (np.abs(array.astype(float)) < 1e300).all()):
        raise ValueError(f"{name} is not a list of numbers")
    return array.astype(float)


def _lengths(values: Any) -> np.ndarray:
    array = _numbers(values, "lengths", 1)
    if not ((array >= 0) & (array < 2**62)).all():
        raise ValueError("lengths is not a list of counts")
    return array.astype(np.int64)


def _count(value: Any, name: str) -> int:
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is not a count")
    return value
