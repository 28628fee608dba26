"""What a policy earns, costs and breaks per step in the long run, each with an interval.

All trajectories go on after a fall by a restart, as in training, so that all have the same number of steps. The first
steps of each, the warm-up, are left out. Every estimate is then a mean over the remaining steps.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import chdtrc, chdtri, fdtrc, ndtri, stdtrit

from kemeny.errors import UserError
from kemeny.experience.ends import charge
from kemeny.experience.settings import RESET_COST

CONFIDENCE = 0.95
"""How often an interval has the true value in it."""
BATCHES = (20, 10, 5)
"""Batches that each trajectory is divided into: few, so that they are long and nearly independent."""
BLOCK = 5
"""Steps that MSER-5 averages before it looks for the end of the warm-up."""
CHANCE = 0.25
"""Batches count as correlated, and trajectories as different, if chance alone would make them so this often or less."""
MILLION = 1e6
"""Falls are told per so many steps."""


class Series(NamedTuple):
    """What happened at each step: (time, trajectory), and a third axis for costs."""

    reward: np.ndarray
    costs: np.ndarray
    terminated: np.ndarray
    """Whether the environment said that the task ended: a fall or a goal; the next step is from a start state."""
    truncated: np.ndarray
    """Whether the trajectory was cut, by the environment itself or by a fault; likewise."""


class Estimate(NamedTuple):
    """A long-run average, and an interval that has the true value in it 95 times in 100."""

    average: float
    low: float
    high: float
    spread: Literal["batches", "trajectories", "poisson", "none"]
    """What the interval's width comes from; `none` if there are too few steps for an interval, which is then NaN."""

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    @property
    def precision(self) -> float:
        """Half-width relative to the average; NaN or infinite if that says nothing."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.abs(np.divide(self.half_width, self.average)))

    def record(self) -> dict[str, Any]:
        """As JSON, where a bound that does not exist is null."""
        bounds = {name: None if np.isnan(bound) else bound for name, bound in (("low", self.low), ("high", self.high))}
        return {"average": self.average, **bounds, "spread": self.spread}


@dataclasses.dataclass(frozen=True)
class LongRun:
    """Averages per step after the warm-up."""

    reward: Estimate
    """As the environment pays it, without reset costs."""
    charged: Estimate
    """The reward less the reset cost of each fall: what training maximises."""
    falls_per_million: Estimate
    """Falls in a million steps."""
    costs: tuple[Estimate, ...]
    """In the order in which they were asked for."""
    steps: int
    """That the averages are over, of all trajectories together."""
    warm_up: int
    """Steps of each trajectory that were left out."""
    settled: bool
    """Whether the warm-up ended within the first half of the trajectories; if not, they are too short."""
    falls: int
    """After the warm-up, like all that follows."""
    goals: int
    """Ends whose reward was so high that they cost nothing (`kemeny.experience.ends`)."""
    cuts: int
    """Restarts because the environment itself cut a trajectory, or because it failed."""
    reset_cost: float
    """What each fall costs in `charged`."""

    def record(self) -> dict[str, Any]:
        """As JSON."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        estimates = {name: value.record() for name, value in plain.items() if isinstance(value, Estimate)}
        return {**plain, **estimates, "costs": [cost.record() for cost in self.costs] or None}


def long_run(series: Series, *, reset_cost: float | None = None, warm_up: int | None = None) -> LongRun:
    """The averages of these trajectories; `warm_up` is the number of steps to leave out, chosen if it is None.

    With `reset_cost` None a fall costs 100 and a goal nothing, as in training.
    """
    steps = len(series.reward)
    if warm_up is None:
        left_out = max(mser(signal.mean(1)) for signal in (series.reward, *np.moveaxis(series.costs, 2, 0)))
    elif 0 <= warm_up < steps:
        left_out = warm_up
    else:
        raise UserError(f"The warm-up is {warm_up} steps, but it must be at least 0 and less than the {steps} steps.")
    charged = series.reward.astype(np.float64)
    goals = charge(charged, series.terminated, reset_cost)
    falls = series.terminated & ~goals
    after = slice(left_out, None)
    return LongRun(
        reward=average(series.reward[after]),
        charged=average(charged[after]),
        falls_per_million=rate(falls[after].sum(0), steps - left_out, MILLION),
        costs=tuple(average(series.costs[after, :, i]) for i in range(series.costs.shape[2])),
        steps=series.reward[after].size,
        warm_up=left_out,
        settled=warm_up is not None or left_out < latest_warm_up(steps),
        falls=int(falls[after].sum()),
        goals=int(goals[after].sum()),
        cuts=int((series.truncated & ~series.terminated)[after].sum()),
        reset_cost=RESET_COST if reset_cost is None else reset_cost,
    )


def latest_warm_up(steps: int) -> int:
    """The longest warm-up that may be chosen: half of the trajectory, in whole blocks."""
    return steps // BLOCK // 2 * BLOCK


def mser(signal: np.ndarray) -> int:
    """Where the warm-up of a series ends, by MSER-5 (White 1997).

    With y the means of blocks of five steps, it is the start d that minimises  Σ_{i≥d} (yᵢ − ȳ_d)² / (n − d)²,  the
    squared standard error of the mean of what is left, in the first half of the series: a step that is far from the
    mean of those after it is left out if that pays for there being fewer.
    """
    n = len(signal) // BLOCK
    blocks = signal[: n * BLOCK].reshape(n, BLOCK).mean(1)
    if n < 2 or np.ptp(blocks) == 0:
        return 0
    blocks = blocks - blocks.mean()  # so that the squares below lose no digits to the mean
    left = np.arange(n, 0, -1)
    total, squares = (np.cumsum(terms[::-1])[::-1] for terms in (blocks, blocks**2))
    criterion = np.maximum(squares - total**2 / left, 0) / left**2
    return int(np.argmin(criterion[: n // 2 + 1])) * BLOCK


def average(signal: np.ndarray) -> Estimate:
    """The mean of (time, trajectory) steps, with a t interval from batch means.

    Each trajectory is divided into batches: 20, or 10 or 5 if neighbours among them are correlated. The means of all
    batches of all trajectories are taken as independent. If the trajectories differ more than their batches explain (an
    F test at `CHANCE`), because each has an average of its own or because what happens goes on longer than a batch, the
    means of the trajectories are taken instead, for trajectories are independent in any case.
    """
    mean = float(signal.mean())
    choices = [_batch_means(signal, min(batches, len(signal))) for batches in BATCHES]
    means = next((means for means in choices if not _correlated(means)), choices[-1])
    if means.shape[1] > 1 and (len(means) < 2 or _differ(means)):
        return _t_interval(mean, means.mean(0), "trajectories")
    if means.size < 2:
        return Estimate(mean, np.nan, np.nan, "none")
    return _t_interval(mean, means.reshape(-1), "batches")


def rate(events: np.ndarray, steps: int, per: float) -> Estimate:
    """Events, at most one in each step, per so many steps: given the number in each trajectory, each of so many steps.

    The interval is exact for a Poisson process (Garwood 1936), also if there was no event. If the trajectories differ
    more than those of a Poisson process (a χ² test at `CHANCE`), it is a t interval of their means.
    """
    trajectories, total = len(events), int(events.sum())
    exposure = steps * trajectories / per
    mean = total / exposure
    tail = (1 - CONFIDENCE) / 2
    if total and trajectories > 1:
        expected = total / trajectories
        if chdtrc(trajectories - 1, ((events - expected) ** 2).sum() / expected) < CHANCE:
            interval = _t_interval(mean, events * (per / steps), "trajectories")
            return interval._replace(low=max(interval.low, 0.0), high=min(interval.high, per))
    low = chdtri(2 * total, 1 - tail) / 2 / exposure if total else 0.0  # chdtri is the inverse of the upper tail
    high = chdtri(2 * total + 2, tail) / 2 / exposure
    return Estimate(mean, float(low), min(float(high), per), "poisson")


def _batch_means(signal: np.ndarray, batches: int) -> np.ndarray:
    """(batch, trajectory); the steps that are left over are at the start, where a short warm-up does harm."""
    steps, trajectories = signal.shape
    length = steps // batches
    return signal[steps - batches * length :].reshape(batches, length, trajectories).mean(1)


def _correlated(means: np.ndarray) -> bool:
    """Whether neighbours among (batch, trajectory) means are alike, more than by chance."""
    around = means - means.mean(0)
    squares = (around**2).sum()
    if squares == 0:
        return False
    correlation = (around[1:] * around[:-1]).sum() / squares
    # Of independent means it has the mean −1/batches and the variance 1/(batches · trajectories), nearly.
    return bool((correlation + 1 / len(means)) * np.sqrt(means.size) > ndtri(1 - CHANCE))


def _differ(means: np.ndarray) -> bool:
    """Whether the trajectories of (batch, trajectory) means differ more than their batches explain."""
    batches, trajectories = means.shape
    of_each = means.mean(0)
    between = batches * of_each.var(ddof=1)
    within = ((means - of_each) ** 2).sum() / (trajectories * (batches - 1))
    if within == 0:
        return bool(between > 0)
    return bool(fdtrc(trajectories - 1, trajectories * (batches - 1), between / within) < CHANCE)


def _t_interval(mean: float, independent: np.ndarray, spread: Literal["batches", "trajectories"]) -> Estimate:
    error = independent.std(ddof=1) / np.sqrt(independent.size)
    half = float(stdtrit(independent.size - 1, (1 + CONFIDENCE) / 2) * error)
    return Estimate(mean, mean - half, mean + half, spread)
