"""Rules for stocks: base-stock, capped base-stock and dual-index; and the best of each, found exactly.

A rule takes one observation and returns one action; `rows` does the same for many observations at once. The parts of a
state are what is in stock first, then what is due, so their sum is the inventory position. The cost of a rule is
exact: it comes from the stationary distribution of its chain in the model.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.sparse.csgraph import breadth_first_order

from kemeny.errors import UserError
from kemeny.tabular.chain import Chain
from kemeny.tabular.mdp import MDP
from kemeny.tasks.inventory import DualSourcing, LostSales
from kemeny.tasks.process import Process

NOTICEABLE = 1e-9
"""A smaller difference of two costs is a rounding error: the walk over levels ends on a plateau."""

FORGOTTEN = 1e-13
"""The change per step of a distribution, in sum, at which it counts as stationary."""
MOST_STEPS = 5000
"""Steps in which that is expected."""


class Rule(Protocol):
    """Decides by a formula."""

    def __call__(self, observation: np.ndarray, *, mask: np.ndarray | None = None) -> Any:
        """The action for one observation."""
        ...

    def rows(self, observations: np.ndarray, masks: np.ndarray | None = None) -> np.ndarray:
        """The actions for many observations, one per row."""
        ...


@dataclasses.dataclass(frozen=True)
class BaseStock:
    """Order up to a level, counting what is due, but at most `cap` units; the task's largest order is no cap at all.

    With a smaller cap it is the capped base-stock rule (Johansen & Thorstenson 2008; Xin 2021), which is close to the
    best for lost sales.
    """

    level: int
    cap: int

    def __call__(self, observation: np.ndarray, *, mask: np.ndarray | None = None) -> int:
        """The order for one observation."""
        del mask
        return int(self.rows(np.asarray(observation)[None])[0])

    def rows(self, observations: np.ndarray, masks: np.ndarray | None = None) -> np.ndarray:
        """The orders for many observations, (rows,)."""
        del masks
        return np.clip(self.level - position(observations), 0, self.cap)


@dataclasses.dataclass(frozen=True)
class DualIndex:
    """Order express up to a level of the net stock, and regular up to a level of all there is and is due.

    The second counts the express order. This is the dual-index rule (Veeraraghavan & Scheller-Wolf 2008). With a `cap`
    on regular orders below the largest order it is the capped dual-index rule (Sun & Van Mieghem 2019); and with a
    regular level so high that every regular order is the cap, it is a tailored base-surge rule (Allon & Van Mieghem
    2010).
    """

    express: int
    regular: int
    cap: int
    largest_order: int

    def __call__(self, observation: np.ndarray, *, mask: np.ndarray | None = None) -> np.ndarray:
        """The regular and the express order for one observation, (2,)."""
        del mask
        return self.rows(np.asarray(observation)[None])[0]

    def rows(self, observations: np.ndarray, masks: np.ndarray | None = None) -> np.ndarray:
        """The regular and the express orders for many observations, (rows, 2)."""
        del masks
        net_stock = np.rint(observations[:, 0]).astype(np.int64)
        express = np.clip(self.express - net_stock, 0, self.largest_order)
        regular = np.clip(self.regular - position(observations) - express, 0, self.cap)
        return np.stack([regular, express], axis=1)


def position(observations: np.ndarray) -> np.ndarray:
    """The inventory position: what is in stock and what is due, (rows,)."""
    return np.rint(observations.sum(axis=1)).astype(np.int64)


class Best(NamedTuple):
    """The best of a family of rules."""

    rule: Any
    cost: float
    """Its average cost per period, exact."""


def average_cost(process: Process, rule: Rule, model: MDP | None = None) -> float:
    """Minus the average reward of a rule that begins at the start, from the stationary distribution of its chain.

    `model` is the model of the process, if it has been made already.
    """
    model = process.model() if model is None else model
    assert model.grid is not None
    states = np.indices(model.grid).reshape(len(model.grid), -1).T + np.array(process.lowest)
    chosen = rule.rows(states.astype(np.float32)).reshape(len(states), -1)
    actions = np.ravel_multi_index(tuple(chosen.T), process.choices)
    chain = model.chain(actions)
    reached = np.sort(breadth_first_order(chain.P, int(np.argmax(model.start)), return_predecessors=False))
    share = stationary(Chain.trusted(chain.P[reached][:, reached]))
    return -float(share @ model.rewards[reached, actions[reached]])


def stationary(chain: Chain) -> np.ndarray:
    """The stationary distribution: after some dozen steps a stock has forgotten its start, and only else it is solved.

    A chain with several recurrent classes has none, and is refused.
    """
    if not chain.is_unichain:
        raise UserError(f"The rule has no average cost, for where it ends up is left to chance: {chain.classes}.")
    share, step = np.full(chain.n, 1 / chain.n), chain.P.T.tocsr()
    for _ in range(MOST_STEPS):
        before, share = share, step @ share
        if np.abs(share - before).sum() < FORGOTTEN:
            return share / share.sum()
    return chain.stationary


def best_base_stock(process: LostSales, model: MDP | None = None) -> Best:
    """The best base-stock rule. Its cost is convex in the level (Janakiraman & Roundy 2004), so a walk finds it."""
    model = process.model() if model is None else model
    return _best_level(process, model, cap=process.largest_order, first=process.capacity)


def best_capped_base_stock(process: LostSales, model: MDP | None = None) -> Best:
    """The best capped base-stock rule: of each cap the best level, by a walk from the best level of the cap before."""
    model = process.model() if model is None else model
    best = found = best_base_stock(process, model)
    for cap in range(process.largest_order - 1, 0, -1):
        found = _best_level(process, model, cap, first=found.rule.level)
        best = min(best, found, key=lambda one: one.cost)
    return best


def _best_level(process: LostSales, model: MDP, cap: int, first: int) -> Best:
    def at(level: int) -> Best:
        rule = BaseStock(level, cap)
        return Best(rule, average_cost(process, rule, model))

    return walk(at, first, lowest=0, highest=process.capacity + cap * process.lead_time)


def best_dual_index(process: DualSourcing, model: MDP | None = None, *, capped: bool = False) -> Best:
    """The best dual-index rule or, if `capped`, the best capped one.

    For each distance of the two levels, up to the largest demand of ℓ + 1 periods, the express level is found by a walk
    from the best of the distance before: for a fixed distance it is the level of a newsvendor (Veeraraghavan &
    Scheller-Wolf 2008).
    """
    model = process.model() if model is None else model
    least, most = process.net_stock
    caps = range(process.largest_order, 0, -1) if capped else (process.largest_order,)
    best = None
    for cap in caps:
        first = most // 2
        for distance in range((process.lead_time + 1) * (process.demand.events - 1) + 1):

            def at(level: int, distance: int = distance, cap: int = cap) -> Best:
                rule = DualIndex(level, level + distance, cap, process.largest_order)
                return Best(rule, average_cost(process, rule, model))

            found = walk(at, first, lowest=least, highest=most)
            first = found.rule.express
            best = found if best is None else min(best, found, key=lambda one: one.cost)
    assert best is not None
    return best


def walk(at: Callable[[int], Best], first: int, lowest: int, highest: int) -> Best:
    """The best level, if the cost falls up to it and rises after it: up from the first while that helps, else down."""
    best = at(first)
    for step in (1, -1):
        level = first + step
        while lowest <= level <= highest and (found := at(level)).cost < best.cost - NOTICEABLE:
            best, level = found, level + step
        if level != first + step:
            break
    return best
