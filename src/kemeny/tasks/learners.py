"""Q-learning for the average reward on a table: differential Q-learning, RVI Q-learning and R-learning.

    learned = learners.learn(process, learners.differential(), truncation=20)
    learned.rate                            # the estimated average reward
    kemeny.evaluate(learned, env=…)         # its greedy policy is a rule

All three make the same update

    δ = r − r̄ + max Q(s′, ·) − Q(s, a),    Q(s, a) ← Q(s, a) + α·δ

and differ only in the reference rate r̄, their estimate of the average reward: a method is this update with a
`Reference`. Many copies of the process learn together. Where several have the same state and action, their δ are
averaged. What is returned is the mean of the tables, and of r̄, over the second half of the updates (Polyak & Juditsky
1992): a single table is so noisy that actions of nearly the same value are confused.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kemeny.errors import UserError
from kemeny.tasks.model import grid_of, jointly_allowed, number_of
from kemeny.tasks.process import Actions, Process, States

MOST_PAIRS = 20_000_000
"""Entries of the largest table: beyond it, no table is learned in a lifetime."""
EVERY = 10
"""Updates between two tables that are averaged: neighbours differ little."""


class Update(NamedTuple):
    """What an update of the table has done."""

    time: int
    """Updates so far, this one included."""
    table: np.ndarray
    """Q, (states, joint actions), after the update; −∞ where an action is forbidden."""
    first: int
    """The number of the first state."""
    change: float
    """α·δ, the mean over the entries that were changed."""
    errors: np.ndarray
    """δ of each copy that took a greedy action."""


Reference = Callable[[float, Update], float]
"""The next reference rate, from the present one and the update that was made with it."""


def differential(eta: float = 1.0) -> Reference:
    """Differential Q-learning (Wan, Naik & Sutton 2021):  r̄ ← r̄ + η·α·δ,  after any action.

    Of several entries, the mean change is taken.
    """
    return lambda rate, update: rate + eta * update.change


def relative() -> Reference:
    """RVI Q-learning (Abounadi, Bertsekas & Borkar 2001):  r̄ = f(Q),  where f(Q) = max Q(s₀, ·) of the first state."""
    return lambda rate, update: float(update.table[update.first].max())


def r_learning(beta: float = 1.0) -> Reference:
    """R-learning (Schwartz 1993):  r̄ ← r̄ + β·δ  after greedy actions only; β falls as the square root of time.

    Of several copies, the mean δ is taken. The action that looks best is often one whose value is overestimated. Then δ
    is too low, and so is r̄ while the table is noisy; the policy suffers less from that than r̄.
    """

    def reference(rate: float, update: Update) -> float:
        if not update.errors.size:
            return rate
        return rate + min(beta / math.sqrt(update.time), 1.0) * float(update.errors.mean())

    return reference


@dataclasses.dataclass(frozen=True, eq=False)
class Learned:
    """What was learned. It is a rule: the greedy action of the table. States outside of it are clipped to its grid."""

    process: Process
    table: np.ndarray
    """Q, (states, joint actions), states and actions numbered as in `process.model`; −∞ where one is forbidden."""
    rate: float
    """The estimated average reward."""
    grid: tuple[int, ...]
    """How many values each part of a state has."""

    @property
    def policy(self) -> np.ndarray:
        """The greedy joint action of each state: what `process.model(truncation).evaluate` takes."""
        return self.table.argmax(axis=1)

    def rows(self, observations: np.ndarray) -> Actions:
        """One action per row: (copies,) if there is one choice, otherwise (copies, choices)."""
        places = np.rint(np.asarray(observations)).astype(np.int64) - self.process.lowest
        numbers = number_of(np.clip(places, 0, np.array(self.grid) - 1), self.grid)
        joint = self.table[numbers].argmax(axis=1)
        choices = self.process.choices
        return joint if len(choices) == 1 else np.stack(np.unravel_index(joint, choices), axis=1)

    def __call__(self, observation: np.ndarray) -> Actions:
        """One action."""
        return self.rows(np.asarray(observation)[None])[0]


def learn(
    process: Process,
    reference: Reference,
    truncation: int | None = None,
    *,
    copies: int = 200,
    steps: int = 10_000,
    explore: float = 0.2,
    restart: float = 0.03,
    constant: float = 100.0,
    power: float = 1.0,
    seed: int = 0,
) -> Learned:
    """Learn a table on the truncated process, the chain of `process.model(truncation)`, by simulating it.

    Args:
        reference: What the reference rate is: `differential()`, `relative()` or `r_learning()`.
        truncation: Of parts without a largest value; an event that would lead beyond it has no effect.
        copies: How many learn together, from random states.
        steps: Steps of each copy, and so updates of the table.
        explore: ε, the probability of a random allowed action instead of the greedy one.
        restart: The probability that a copy goes on from a random state of the table instead: states that are rarely
            visited are learned too.
        constant: The step size is α = (1 + n / constant)^(−power) at the n-th update of an entry.
        power: See `constant`; above ½ and at most 1.
    """
    _refuse_out_of_range(copies, steps, explore, restart, power)
    rng, table = np.random.default_rng(seed), _Table(process, truncation)
    states = table.random_states(copies, rng)
    rate, visits, average = 0.0, np.zeros(table.values.size, np.int64), _Average(table.values.shape)
    for time in range(1, steps + 1):
        numbers = table.numbers(states)
        greedy = table.values[numbers].argmax(axis=1)
        chosen = np.where(rng.random(copies) < explore, table.random_actions(numbers, rng), greedy)
        after, reward = table.step(states, chosen, rng)
        best = table.values[table.numbers(after)].max(axis=1)
        errors = reward - rate + best - table.values[numbers, chosen]
        pairs, which, count = np.unique(
            numbers * table.values.shape[1] + chosen, return_inverse=True, return_counts=True
        )
        visits[pairs] += 1
        change = (1 + visits[pairs] / constant) ** -power * np.bincount(which, errors) / count
        table.values.reshape(-1)[pairs] += change
        rate = reference(rate, Update(time, table.values, table.first, change.mean(), errors[chosen == greedy]))
        states = np.where(rng.random((copies, 1)) < restart, table.random_states(copies, rng), after)
        if (2 * time > steps and time % EVERY == 0) or time == steps:
            average.add(table.values, rate)
    return Learned(process, average.table, average.rate, table.grid)


class _Average:
    """The mean of tables and rates."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count, self.table, self.rate = 0, np.zeros(shape), 0.0

    def add(self, table: np.ndarray, rate: float) -> None:
        self.count += 1
        known = np.isfinite(table)
        self.table[known] += (table[known] - self.table[known]) / self.count
        self.table[~known] = -np.inf
        self.rate += (rate - self.rate) / self.count


class _Table:
    """The table of a truncated process, and the process on the states that the table has."""

    def __init__(self, process: Process, truncation: int | None) -> None:
        self.process, self.grid = process, grid_of(process, truncation)
        self.lowest, self.sides = np.array(process.lowest), np.array(self.grid)
        self.joint = list(itertools.product(*map(range, process.choices)))
        count = math.prod(self.grid)
        if count * len(self.joint) > MOST_PAIRS:
            raise UserError(
                f"A table for {process.name} would have {count:,} states and {count * len(self.joint):,} entries, more "
                f"than {MOST_PAIRS:,}: cut it off earlier, or train a network instead."
            )
        states = np.indices(self.grid).reshape(len(self.grid), -1).T + self.lowest
        allowed = jointly_allowed(process, states, self.joint)
        self.allowed = np.ones((count, len(self.joint)), bool) if allowed is None else allowed
        self.values = np.where(self.allowed, 0.0, -np.inf)
        self.first = int(self.numbers(np.array([process.start]))[0])
        self._options = np.array(self.joint)

    def numbers(self, states: States) -> np.ndarray:
        """The row of each state."""
        return number_of(states - self.lowest, self.grid)

    def random_states(self, copies: int, rng: np.random.Generator) -> States:
        """Any states of the table."""
        return rng.integers(self.sides, size=(copies, len(self.sides))) + self.lowest

    def random_actions(self, numbers: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Of each state one of the allowed joint actions, all equally likely."""
        return np.where(self.allowed[numbers], rng.random((len(numbers), len(self.joint))), -1.0).argmax(axis=1)

    def step(self, states: States, chosen: np.ndarray, rng: np.random.Generator) -> tuple[States, np.ndarray]:
        """The next states and the rewards. As in the exact model, events that lead out of the table have no effect."""
        actions = self._options[chosen]
        after, reward, _ = self.process.outcome(states, actions, self.process.draw(states, actions, rng))
        places = after - self.lowest
        outside = ((places < 0) | (places >= self.sides)).any(axis=1, keepdims=True)
        return np.where(outside, states, after), reward


def _refuse_out_of_range(copies: int, steps: int, explore: float, restart: float, power: float) -> None:
    if copies < 1 or steps < 1:
        raise UserError(f"There are {copies} copies and {steps} steps; there must be at least 1 of each.")
    if not 0 < explore <= 1:
        raise UserError(f"explore is {explore}; it is a probability above 0, or most actions are never tried.")
    if not 0 <= restart <= 1:
        raise UserError(f"restart is {restart}; it is a probability.")
    if not 0.5 < power <= 1:
        raise UserError(f"power is {power}; for the steps to become small, but not too soon, 0.5 < power ≤ 1.")
