"""How often do the intervals of a long run have the true value in them? On processes whose average is known.

    python benchmarks/steady_state.py [--evaluations 400] [--last 64000]

Two measurements. First, stopping by precision: after 1,000 steps, 2,000, 4,000, … it is looked whether the interval is
narrow enough, as `kemeny evaluate --precision` does. Then, intervals from so many whole cycles of an M/M/1 queue.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import tyro

from kemeny.experience.cycles import ratio
from kemeny.experience.estimate import Estimate
from kemeny.experience.evaluate import FIRST_LOOK
from kemeny.experience.long_run import average, mser

TOGETHER = 50
"""Evaluations that are simulated at once."""


@dataclasses.dataclass
class SteadyState:
    """How many, and how long."""

    evaluations: int = 400
    last: int = 64_000
    cycles: int = 1_000_000


def jobs(load: float, steps: int, queues: int, rng: np.random.Generator) -> np.ndarray:
    """In M/M/1 queues, uniformised, that begin empty: (time, queue)."""
    seen, now = np.empty((steps, queues)), np.zeros(queues)
    for t in range(steps):
        seen[t] = now
        now = np.maximum(now + np.where(rng.random(queues) < load / (1 + load), 1, -1), 0)
    return seen


def autoregressive(correlation: float, steps: int, series: int, rng: np.random.Generator) -> np.ndarray:
    """Around 10: (time, series)."""
    seen, now = np.empty((steps, series)), np.zeros(series)
    for t in range(steps):
        now = correlation * now + rng.standard_normal(series)
        seen[t] = 10 + now
    return seen


def looks(signal: np.ndarray) -> Iterator[tuple[int, Estimate]]:
    """Steps and interval at each look."""
    until = min(FIRST_LOOK, len(signal))
    while True:
        yield until, average(signal[mser(signal[:until].mean(1)) : until])
        if until == len(signal):
            return
        until = min(2 * until, len(signal))


def sequential(name: str, make: Callable[..., np.ndarray], truth: float, args: SteadyState) -> None:
    for trajectories in (1, 10):
        rng = np.random.default_rng(trajectories)
        found: list[list[tuple[int, Estimate]]] = []
        for _ in range(-(-args.evaluations // TOGETHER)):
            signal = make(args.last, TOGETHER * trajectories, rng)
            found += [list(looks(part)) for part in np.split(signal, TOGETHER, 1)]
        for precision in (0.1, 0.05, 0.03, 0.0):
            ends = [next((look for look in one if look[1].precision <= precision), one[-1]) for one in found]
            hits = np.mean([interval.low <= truth <= interval.high for _, interval in ends])
            steps = np.mean([until for until, _ in ends])
            print(f"| {name} | {trajectories} | {precision or 'none'} | {steps:,.0f} | {hits:.3f} |", flush=True)


def whole_cycles(load: float, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sum of the number of jobs over each cycle, and its length."""
    total, length = np.zeros(count), np.zeros(count)
    ids, now = np.arange(count), np.zeros(count)
    while ids.size:
        total[ids] += now
        length[ids] += 1
        now = np.maximum(now + np.where(rng.random(ids.size) < load / (1 + load), 1, -1), 0)
        ids, now = ids[now > 0], now[now > 0]
    return total, length


def regenerative(load: float, args: SteadyState) -> None:
    total, length = whole_cycles(load, args.cycles, np.random.default_rng(0))
    for cycles in (100, 1_000, 10_000):
        terms = (np.ones_like(length), length, length**2, total, total**2, total * length)
        sums = np.stack([term[: args.cycles // cycles * cycles].reshape(-1, cycles).sum(1) for term in terms], 1)
        found = [ratio(*row) for row in sums]
        hits = np.mean([interval.low <= load / (1 - load) <= interval.high for interval in found])
        print(f"| {load} | {cycles:,} | {hits:.3f} |", flush=True)


def main(args: SteadyState) -> None:
    print("| process | trajectories | precision | steps | true value in the interval |\n|---|---|---|---|---|")
    for load in (0.5, 0.8):
        sequential(f"M/M/1, load {load}", lambda *how, load=load: jobs(load, *how), load / (1 - load), args)
    sequential("AR(1), 0.99", lambda *how: autoregressive(0.99, *how), 10.0, args)
    print("\n| load | cycles | true value in the interval |\n|---|---|---|")
    for load in (0.5, 0.8, 0.9, 0.95):
        regenerative(load, args)


if __name__ == "__main__":
    main(tyro.cli(SteadyState, description=__doc__))
