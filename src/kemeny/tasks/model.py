"""A process as a finite model, for the exact solvers: every state and action asked what may happen, and how likely."""

import itertools
import math

import numpy as np
import scipy.sparse as sp

from kemeny.errors import UserError
from kemeny.tabular.mdp import MDP
from kemeny.tasks.process import Process

MOST_ENTRIES = 400_000_000
"""Transitions of the largest model that is written down: about 5 GB."""


def model_of(process: Process, truncation: int | None = None, *, cost: str | None = None) -> MDP:
    """The model of a process. Parts without a largest value are cut off at `truncation`.

    An event that would lead out of the cut has no effect: an arrival at a full queue is lost, and a job that finds the
    next queue full stays where it is. States are numbered as by `numpy.ravel_multi_index`, the last part fastest, and
    the states in which the cut has an effect are `MDP.edge`. An action with several choices is numbered likewise.
    `cost` is the name of the cost that the model has; by default it has the only one of the process.
    """
    grid = grid_of(process, truncation)
    entries = math.prod(grid) * math.prod(process.choices) * process.events
    if entries > MOST_ENTRIES:
        raise UserError(
            f"The model of {process.name} would have {math.prod(grid):,} states and {entries:,} transitions, more than "
            f"{MOST_ENTRIES:,}: cut it off earlier, or simulate it instead."
        )
    states = np.indices(grid).reshape(len(grid), -1).T + np.array(process.lowest)
    joint = list(itertools.product(*map(range, process.choices)))
    edge = np.zeros(len(states), bool)
    blocks, rewards, costs = [], [], []
    for options in joint:
        actions = np.broadcast_to(np.array(options), (len(states), len(options)))
        matrix, reward, spent = _transitions(process, grid, states, actions, edge)
        blocks.append(matrix)
        rewards.append(reward)
        costs.append(spent)
    start = np.zeros(len(states))
    start[np.ravel_multi_index(np.array(process.start) - process.lowest, grid)] = 1.0
    column = _cost_column(process, cost)
    return MDP(
        blocks,
        np.stack(rewards, axis=1),
        costs=None if column is None else np.stack([spent[:, column] for spent in costs], axis=1),
        start=start,
        name=process.name,
        allowed=jointly_allowed(process, states, joint),
        grid=grid,
        edge=edge if edge.any() else None,
    )


def grid_of(process: Process, truncation: int | None) -> tuple[int, ...]:
    """How many values each part has."""
    if truncation is None and None in process.highest:
        unbounded = ", ".join(part for part, high in zip(process.parts, process.highest, strict=True) if high is None)
        raise UserError(f"{process.name} has no largest {unbounded}: its model needs a truncation.")
    if truncation is not None and truncation < 2:
        raise UserError(f"The truncation is the largest value of a part and must be at least 2, not {truncation}.")
    tops = ((truncation or 0) if high is None else high for high in process.highest)
    return tuple(top - low + 1 for top, low in zip(tops, process.lowest, strict=True))


def _transitions(
    process: Process, grid: tuple[int, ...], states: np.ndarray, actions: np.ndarray, edge: np.ndarray
) -> tuple[sp.csr_array, np.ndarray, np.ndarray]:
    """Of one action: the transitions, the mean reward and the mean costs; `edge` is marked where the cut has effect."""
    count, lowest, sides = len(states), np.array(process.lowest), np.array(grid)
    likely = np.broadcast_to(process.probabilities(states, actions), (count, process.events))
    columns = np.empty((count, process.events), np.int32)
    reward, spent = np.zeros(count), np.zeros((count, len(process.cost_names)))
    for event in range(process.events):
        after, paid, costs = process.outcome(states, actions, np.full(count, event))
        places = after - lowest
        outside = ((places < 0) | (places >= sides)).any(axis=1)
        edge |= outside & (likely[:, event] > 0)
        columns[:, event] = np.where(outside, np.arange(count), number_of(places, grid))
        reward += likely[:, event] * paid
        spent += likely[:, event, None] * costs
    pointers = np.arange(count + 1) * process.events
    matrix = sp.csr_array((likely.flatten(), columns.ravel(), pointers), shape=(count, count))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix, reward, spent


def number_of(places: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
    """The number of the state at each place of the grid; what it is for a place outside means nothing."""
    strides = np.array([math.prod(grid[i + 1 :]) for i in range(len(grid))])
    return places @ strides


def jointly_allowed(process: Process, states: np.ndarray, joint: list[tuple[int, ...]]) -> np.ndarray | None:
    """States × joint actions, or None if all are allowed."""
    options = process.allowed(states)
    if options is None:
        return None
    first = np.concatenate([[0], np.cumsum(process.choices)[:-1]])
    return np.stack([options[:, first + np.array(one)].all(axis=1) for one in joint], axis=1)


def _cost_column(process: Process, cost: str | None) -> int | None:
    names = process.cost_names
    if cost is None:
        return 0 if len(names) == 1 else None
    if cost not in names:
        raise UserError(f"{process.name} has no cost named {cost!r}; its costs are: {', '.join(names) or 'none'}.")
    return names.index(cost)
