"""What a run asks of its policy and perhaps no policy can give: noticed while it trains, and said once."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kemeny.envs.costs import FALL
from kemeny.learning.reset_cost import LARGEST
from kemeny.learning.steps.direction import Case
from kemeny.observers import Observer
from kemeny.runs.settings import Settings, cost_names

RECOVERIES_BEFORE_A_MESSAGE = 50
"""Iterations in a row that only reduced cost, or in which a rare cost fell no further, after which the user hears."""
WITHOUT_A_FALL = 20
"""Iterations from the beginning of a run: an untrained policy falls sooner if it can."""
SURELY = 2.0
"""Standard errors above a limit at which it is surely broken."""

Record = Mapping[str, Any]
Tell = Callable[[str], None]


def watch(settings: Settings, env: str, past: list[dict[str, Any]], tell: Tell) -> list[Observer]:
    """Those who notice it; `past` is what was logged before a stop, of which the user has heard."""
    watchers: list[_Watcher] = [LimitsOutOfReach(settings)] if settings.limit else []
    if settings.task.meant_fall_target is not None:
        watchers.append(TargetOutOfReach(settings.task.meant_fall_target))
    if settings.task.meant_fall_target is not None or FALL in settings.cost:
        watchers.append(NothingFalls(env))
    for watcher in watchers:
        for record in past:
            watcher.iteration(record)
        watcher.tell = tell
    return list(watchers)


class _Watcher(Observer):
    """Sees every record."""

    tell: Tell = staticmethod(lambda message: None)


class LimitsOutOfReach(_Watcher):
    """Notices when step after step can only reduce cost: perhaps no policy keeps the limits.

    A cost that is averaged over several batches says it in another way, for by chance it may be below its limit at any
    time: it is surely above its limit, and reaches no new lowest value.
    """

    def __init__(self, settings: Settings) -> None:
        self._names, self._limits = cost_names(settings), np.array(settings.limit)
        self._memory = np.array(settings.meant_cost_memory)
        self._in_a_row = self._iterations = 0
        self._lowest = np.full(len(self._limits), np.inf)

    def iteration(self, record: Record) -> None:
        """Count such iterations in a row, and say it once."""
        self._iterations += 1
        recovers = record["case"] == Case.RECOVERY
        cost, broken = np.array(record["cost"], float), np.zeros(len(self._limits), bool)
        if "running_cost" in record:
            running, error = (np.array(record[name], float) for name in ("running_cost", "running_cost_error"))
            rare = self._memory > 1
            broken = rare & (running - SURELY * error > self._limits)
            known = np.where(self._iterations >= self._memory, running, np.inf)  # the mean of few batches may be any
            cost = np.where(rare, known, cost)
        improves = bool((broken & (cost < self._lowest)).any())
        self._lowest = np.fmin(self._lowest, cost)
        self._in_a_row = self._in_a_row + 1 if (recovers or broken.any()) and not improves else 0
        if self._in_a_row == RECOVERIES_BEFORE_A_MESSAGE:
            self.tell(self._message(recovers))

    def _message(self, recovers: bool) -> str:
        """One sentence, and what to do."""
        reached = ", ".join(
            f"{name} {_told(name, low)} (limit {limit:g})"
            for name, low, limit in zip(self._names, self._lowest, self._limits, strict=True)
        )
        what = "no step could keep the limits, only reduce cost" if recovers else "a limit was broken, and no less so"
        return (
            f"For {self._in_a_row} iterations {what}; the lowest so far: "
            f"{reached}. Training goes on; if cost no longer falls, perhaps no policy can keep the limit: raise it."
        )


class TargetOutOfReach(_Watcher):
    """Notices when the reset cost is as high as it may become, and there are still too many falls."""

    def __init__(self, target: float) -> None:
        self._target, self._first, self._lowest, self._said = target, np.nan, np.inf, False

    def iteration(self, record: Record) -> None:
        """Say it once."""
        cost, rate = record["reset_cost"], record["fall_rate"]
        if np.isnan(self._first):
            self._first = cost
        self._lowest = min(self._lowest, rate)
        if cost < LARGEST * self._first * (1 - np.finfo(np.float32).eps) or rate <= self._target or self._said:
            return
        self._said = True
        self.tell(
            f"The reset cost has reached {cost:g}, its largest value, and there is still one fall in {1 / rate:,.0f} "
            f"steps, over the last batches (the fewest so far: {_told(FALL, self._lowest)}). Training goes on with "
            f"that cost; perhaps no policy falls as rarely as --fall-target {self._target:g} asks: raise it."
        )


class NothingFalls(_Watcher):
    """Notices that a run that is about falls has seen none."""

    def __init__(self, env: str) -> None:
        self._env, self._iterations, self._falls = env, 0, 0

    def iteration(self, record: Record) -> None:
        """Say it once, early in the run."""
        self._iterations += 1
        self._falls += record["falls"]
        if self._iterations == WITHOUT_A_FALL and not self._falls:
            self.tell(
                f"In the first {record['steps']:,} steps there was no fall: if {self._env} never says that a "
                "trajectory terminated, a limit on falls or --reset-cost auto has no effect on it."
            )


def _told(name: str, average: float) -> str:
    """A cost per step as a message says it."""
    if name != FALL or not 0 < average < np.inf:
        return f"{average:.4g}"
    return f"{average:.4g}, one in {1 / average:,.0f} steps"
