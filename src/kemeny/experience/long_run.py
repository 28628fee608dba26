"""What a policy earns, costs and breaks per step in the long run, each with an interval.

All trajectories go on after a fall by a restart, as in training, so that all have the same number of steps. The first
steps of each, the warm-up, are left out. Every estimate is then a mean over the remaining steps.

If there are very many steps, only the means of blocks of them are known (`Series.length`). Then the warm-up and the
batches are whole numbers of blocks.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import chdtrc, chdtri, fdtrc, ndtri, stdtrit

from kemeny.errors import UserError
from kemeny.experience.cycles import Regenerative
from kemeny.experience.estimate import CONFIDENCE, Estimate
from kemeny.experience.settings import RESET_COST

BATCHES = (20, 10, 5)
"""Batches that each trajectory is divided into: few, so that they are long and nearly independent."""
BLOCK = 5
"""Steps that MSER-5 averages before it looks for the end of the warm-up."""
CHANCE = 0.25
"""Batches count as correlated, and trajectories as different, if chance alone would make them so this often or less."""
MILLION = 1e6
"""Falls are told per so many steps."""


class Ends(NamedTuple):
    """The steps after which a trajectory was restarted, one entry each."""

    time: np.ndarray
    trajectory: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    """Whether the environment said that the task ended: a fall or a goal. If not, the trajectory was cut, by the
    environment itself or by a fault."""

    @classmethod
    def none(cls) -> "Ends":
        """If there was no restart."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, bool))

    def before(self, time: int) -> "Ends":
        """Those before this step."""
        return Ends(*(column[self.time < time] for column in self))


class Series(NamedTuple):
    """What happened in each block of steps: (block, trajectory), and a third axis for costs."""

    reward: np.ndarray
    """Means of the blocks."""
    costs: np.ndarray
    ends: Ends
    bound: float
    """A reward above it is that of a goal, if it comes with an end."""
    length: int = 1
    """Steps of a block: 1, or a multiple of `BLOCK`."""


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
    block: int
    """Steps of which only the mean was kept; 1 if each step was."""
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
    regenerative: Regenerative | None = None
    """The same averages from whole cycles; None if the environment names no regeneration state."""

    def record(self) -> dict[str, Any]:
        """As JSON."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        estimates = {
            name: value.record() for name, value in plain.items() if isinstance(value, Estimate | Regenerative)
        }
        return {**plain, **estimates, "costs": [cost.record() for cost in self.costs] or None}


def long_run(
    series: Series,
    *,
    reset_cost: float | None = None,
    warm_up: int | None = None,
    fall_costs: tuple[int, ...] = (),
) -> LongRun:
    """The averages of these trajectories; `warm_up` is the number of steps to leave out, chosen if it is None.

    With `reset_cost` None a fall costs 100 and a goal nothing, as in training. `fall_costs` are the numbers of the
    costs that count ends: goals are taken out of them.
    """
    blocks, trajectories = series.reward.shape
    ends, after = series.ends, slice(_blocks_left_out(series, warm_up), None)
    left_out = after.start * series.length
    goals = ends.terminated & (ends.reward > (series.bound if reset_cost is None else np.inf))
    falls = ends.terminated & ~goals
    if fall_costs and goals.any():
        series = _without_goals(series, goals, fall_costs)
    late = ends.time >= left_out
    steps = (blocks - after.start) * series.length
    reward = average(series.reward[after])
    cost = RESET_COST if reset_cost is None else reset_cost
    return LongRun(
        reward=reward,
        charged=average(_charged(series, falls, cost)[after]) if falls.any() else reward,
        falls_per_million=rate(np.bincount(ends.trajectory[falls & late], minlength=trajectories), steps, MILLION),
        costs=tuple(average(series.costs[after, :, i]) for i in range(series.costs.shape[2])),
        steps=steps * trajectories,
        warm_up=left_out,
        block=series.length,
        settled=warm_up is not None or after.start < _latest_warm_up(blocks, series.length),
        falls=int(np.count_nonzero(falls & late)),
        goals=int(np.count_nonzero(goals & late)),
        cuts=int(np.count_nonzero(~ends.terminated & late)),
        reset_cost=cost,
    )


def _without_goals(series: Series, goals: np.ndarray, fall_costs: tuple[int, ...]) -> Series:
    """The same, with ends that were goals taken out of these costs."""
    costs = series.costs.copy()
    time, trajectory = series.ends.time[goals] // series.length, series.ends.trajectory[goals]
    for number in fall_costs:
        np.subtract.at(costs[:, :, number], (time, trajectory), 1 / series.length)
    return series._replace(costs=costs)


def _charged(series: Series, falls: np.ndarray, cost: float) -> np.ndarray:
    """The rewards less the cost of each fall."""
    charged = series.reward.astype(np.float64)
    where = series.ends.time[falls] // series.length, series.ends.trajectory[falls]
    np.subtract.at(charged, where, cost / series.length)
    return charged


def _blocks_left_out(series: Series, warm_up: int | None) -> int:
    blocks = len(series.reward)
    if warm_up is None:
        signals = (series.reward, *np.moveaxis(series.costs, 2, 0))
        return max(mser(signal.mean(1), _at_once(series.length)) for signal in signals)
    if not 0 <= warm_up < blocks * series.length:
        steps = blocks * series.length
        raise UserError(f"The warm-up is {warm_up} steps, but it must be at least 0 and less than the {steps} steps.")
    return min(-(-warm_up // series.length), blocks - 1)


def _at_once(length: int) -> int:
    """Blocks of this length that MSER-5 averages: five single steps, or one block of five steps or more."""
    return max(BLOCK // length, 1)


def _latest_warm_up(blocks: int, length: int) -> int:
    """The longest warm-up that may be chosen, in blocks: half of the trajectory."""
    return blocks // _at_once(length) // 2 * _at_once(length)


def mser(signal: np.ndarray, at_once: int = BLOCK) -> int:
    """Where the warm-up of a series ends, by MSER-5 (White 1997).

    With y the means of blocks of five entries (or `at_once`), it is the start d that minimises
    Σ_{i≥d} (yᵢ − ȳ_d)² / (n − d)²,  the squared standard error of the mean of what is left, in the first half of the
    series: a step that is far from the mean of those after it is left out if that pays for there being fewer.
    """
    n = len(signal) // at_once
    blocks = signal[: n * at_once].reshape(n, at_once).mean(1)
    if n < 2 or np.ptp(blocks) == 0:
        return 0
    blocks = blocks - blocks.mean()  # so that the squares below lose no digits to the mean
    left = np.arange(n, 0, -1)
    total, squares = (np.cumsum(terms[::-1])[::-1] for terms in (blocks, blocks**2))
    criterion = np.maximum(squares - total**2 / left, 0) / left**2
    return int(np.argmin(criterion[: n // 2 + 1])) * at_once


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
    if total and trajectories > 1:
        expected = total / trajectories
        if chdtrc(trajectories - 1, ((events - expected) ** 2).sum() / expected) < CHANCE:
            mean = total / (steps * trajectories / per)
            interval = _t_interval(mean, events * (per / steps), "trajectories")
            return interval._replace(low=max(interval.low, 0.0), high=min(interval.high, per))
    return poisson(total, steps * trajectories, per)


def poisson(total: int, steps: int, per: float) -> Estimate:
    """Events, at most one in each step, per so many steps: Garwood's exact interval (1936) for a Poisson process."""
    exposure, tail = steps / per, (1 - CONFIDENCE) / 2
    low = chdtri(2 * total, 1 - tail) / 2 / exposure if total else 0.0  # chdtri is the inverse of the upper tail
    high = chdtri(2 * total + 2, tail) / 2 / exposure
    return Estimate(total / exposure, float(low), min(float(high), per), "poisson")


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
