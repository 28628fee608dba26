"""Models with infinitely many states, such as queues without an end: solved cut off, with the cut moved further out."""

import dataclasses
from collections.abc import Callable

import numpy as np

from kemeny.errors import UserError
from kemeny.tabular.choice import solve
from kemeny.tabular.mdp import MDP
from kemeny.tabular.solution import Solution, Watch

GROWTH = 1.4
"""Each truncation is this many times the one before: three times as many states in three dimensions."""

SHARE = 0.1
"""The share of the precision to which each truncated model is solved."""

LARGEST = 4_000_000
"""States of the largest model that is tried, unless the caller says otherwise."""


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """What is known at one truncation."""

    truncation: int
    states: int
    low: float
    high: float
    """The best gain of the truncated model is between `low` and `high`: this is certain."""

    edge: float | None
    """The share of time that the best policy spends in states that the cut changed; None if the model names none."""

    def __str__(self) -> str:
        edge = "" if self.edge is None else f", {self.edge:.2g} of the time at the edge"
        return f"{self.truncation}: gain in [{self.low:.8g}, {self.high:.8g}], {self.states:,} states{edge}"


@dataclasses.dataclass(frozen=True, eq=False)
class Truncation:
    """The answers at all truncations, and the solution at the last."""

    answers: tuple[Answer, ...]
    model: MDP
    solution: Solution

    @property
    def gain(self) -> float:
        """The best gain at the last truncation."""
        return self.solution.gain

    @property
    def change(self) -> float:
        """How far the gain moved from the last truncation but one to the last, at most."""
        before, after = self.answers[-2:]
        return max(after.high - before.low, before.high - after.low)

    def __str__(self) -> str:
        return "\n".join(map(str, self.answers))


def truncate(
    family: Callable[[int], MDP],
    precision: float = 1e-3,
    first: int = 10,
    largest: int = LARGEST,
    watch: Watch | None = None,
) -> Truncation:
    """Raise the truncation until the best gain stands still to within `precision`, relative to the gain.

    `family(n)` is the model that is cut off at n. The bounds of each truncated model are certain. That the gain has
    stopped moving is an observation, not a proof: look at the time spent at the edge, too. Models of more than
    `largest` states are not tried.
    """
    if not 0 < precision < 1:
        raise UserError(f"The precision must be above 0 and below 1, not {precision:g}.")
    if first < 1:
        raise UserError(f"The first truncation must be at least 1, not {first}.")
    answers: list[Answer] = []
    truncation = first
    while True:
        model = family(truncation)
        if model.n_states > largest:
            raise UserError(still_moving(answers, truncation, model.n_states, largest))
        solution = solve(model, precision=SHARE * precision, watch=watch)
        answers.append(Answer(truncation, model.n_states, *solution.gain_bounds, edge_share(model, solution)))
        done = Truncation(tuple(answers), model, solution)
        if len(answers) > 1 and done.change <= precision * abs(solution.gain):
            return done
        truncation = max(truncation + 1, round(GROWTH * truncation))


def edge_share(model: MDP, solution: Solution) -> float | None:
    """The share of time that the policy spends in the states that the cut changed."""
    if model.edge is None:
        return None
    return float(model.chain(solution.policy).stationary[np.asarray(model.edge)].sum())


def still_moving(answers: list[Answer], truncation: int, states: int, largest: int) -> str:
    """The message for a gain that has not stopped moving at the largest model."""
    if not answers:
        return f"The first truncation, {truncation}, has {states:,} states already, and at most {largest:,} are tried."
    return (
        f"The gain still moves, and truncation {truncation} would have {states:,} states, more than {largest:,}. "
        f"At the last truncations: {'; '.join(map(str, answers[-2:]))}. If much of the time is spent at the edge, no "
        "policy may keep the queues finite; otherwise allow more states (largest=…) or ask for less precision."
    )
