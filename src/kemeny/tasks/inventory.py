"""Stocks that are filled up by orders: lost sales with a lead time, two suppliers, goods that expire.

A step is a period. Its order of events: what was ordered in time is there; you order; demand is met from stock; costs
are paid on what is left and on what was not met. An order with a lead time of ℓ periods can be sold ℓ periods later.
Rewards are minus the costs. All states are bounded, so the models need no truncation.
"""

import numpy as np

from kemeny.errors import UserError
from kemeny.ranges import Above, AtLeast
from kemeny.tasks.arguments import number, whole
from kemeny.tasks.demand import Demand, newsvendor_level, poisson_demand, uniform_demand
from kemeny.tasks.process import Actions, Events, Outcome, Process, States


def lost_sales(
    lead_time: int = 2,
    penalty: float = 4.0,
    holding: float = 1.0,
    demand: float = 5.0,
    largest_order: int = 15,
    capacity: int | None = None,
) -> "LostSales":
    """Demand that is not met is lost (Zipkin 2008, *Old and new methods for lost-sales inventory systems*).

    Demand is Poisson with mean `demand`. A unit that is left at the end of a period costs `holding`, a unit of demand
    that is lost costs `penalty`. The state is the stock, with what has just arrived, and the orders that are due.

    `capacity`: what would make the stock larger is sent back. By default it is the newsvendor level of the demand of
    ℓ + 1 periods, the best base-stock level if demand could wait: with lost sales the best policy orders less (Zipkin),
    so it never has as much. A larger capacity changes none of the digits shown in benchmarks/results/tasks_exact.md.
    """
    task = LostSales.name
    lead_time = whole(task, "the lead time", lead_time, AtLeast(1))
    penalty = number(task, "the penalty", penalty, Above(0))
    holding = number(task, "the holding cost", holding, Above(0))
    demand = number(task, "the mean demand", demand, Above(0))
    largest_order = whole(task, "the largest order", largest_order, AtLeast(1))
    if capacity is None:
        capacity = max(newsvendor_level(demand * (lead_time + 1), penalty / (penalty + holding)), 1)
    return LostSales(
        lead_time, penalty, holding, demand, largest_order, whole(task, "the capacity", capacity, AtLeast(1))
    )


class LostSales(Process):
    """A stock with a lead time whose unmet demand is lost; made by `lost_sales`."""

    name = "lost sales"

    def __init__(
        self, lead_time: int, penalty: float, holding: float, demand: float, largest_order: int, capacity: int
    ) -> None:
        self.lead_time, self.penalty, self.holding = lead_time, penalty, holding
        self.largest_order, self.capacity = largest_order, capacity
        self.demand = poisson_demand(demand, most=capacity)
        self.events = self.demand.events
        self.parts = ("in stock", *due_parts(lead_time))
        self.start = self.lowest = (0,) * lead_time
        self.highest = (capacity,) + (largest_order,) * (lead_time - 1)
        self.choices = (largest_order + 1,)

    def probabilities(self, states: States, actions: Actions) -> np.ndarray:
        """How likely each demand is, (events,)."""
        return self.demand.likely

    def outcome(self, states: States, actions: Actions, events: Events) -> Outcome:
        """Demand is met from stock, then the next order arrives."""
        stock, due = states[:, 0], np.concatenate([states[:, 1:], actions], axis=1)
        left = np.maximum(stock - events, 0)
        lost = self.demand.asked[events] - (stock - left)
        due[:, 0] = np.minimum(left + due[:, 0], self.capacity)
        return Outcome(due, -(self.holding * left + self.penalty * lost), no_costs(states))


def dual_sourcing(
    lead_time: int = 2,
    express_cost: float = 105.0,
    regular_cost: float = 100.0,
    holding: float = 5.0,
    backlog: float = 495.0,
    largest_demand: int = 4,
    largest_order: int | None = None,
) -> "DualSourcing":
    """A cheap supplier who is slow and an express supplier who is not (Veeraraghavan & Scheller-Wolf 2008).

    Demand is uniform on 0 … `largest_demand`, and waits if it is not met. An action is a regular order, due after the
    lead time, and an express order, which arrives before the demand of the same period. A unit costs `regular_cost` or
    `express_cost`; a unit that is left at the end of a period costs `holding`, a unit of demand that waits `backlog`.
    The state is the net stock (minus what waits), with what has just arrived, and the regular orders that are due.

    Orders are of at most `largest_order` units, by default twice the largest demand. The net stock is at most three
    times that demand: what does not fit is lost, though paid. It is at least minus the largest demand: customers beyond
    that go away after a period of waiting. Good policies never get there: wider bounds change none of the digits shown
    in benchmarks/results/tasks_exact.md.
    """
    task = DualSourcing.name
    lead_time = whole(task, "the lead time", lead_time, AtLeast(1))
    regular_cost = number(task, "the regular cost", regular_cost, AtLeast(0))
    express_cost = number(task, "the express cost", express_cost, AtLeast(0))
    holding = number(task, "the holding cost", holding, Above(0))
    backlog = number(task, "the backlog cost", backlog, Above(0))
    largest_demand = whole(task, "the largest demand", largest_demand, AtLeast(1))
    if express_cost < regular_cost:
        raise UserError(
            f"{task}: the express cost is {express_cost:g}, less than the regular cost, {regular_cost:g}: nobody would "
            "order from the slow supplier. Raise express_cost."
        )
    largest_order = 2 * largest_demand if largest_order is None else largest_order
    return DualSourcing(
        lead_time,
        (regular_cost, express_cost),
        (holding, backlog),
        uniform_demand(largest_demand),
        whole(task, "the largest order", largest_order, AtLeast(1)),
        (-largest_demand, 3 * largest_demand),
    )


class DualSourcing(Process):
    """A stock with a regular and an express supplier; made by `dual_sourcing`."""

    name = "dual sourcing"

    def __init__(
        self,
        lead_time: int,
        unit_costs: tuple[float, float],
        stock_costs: tuple[float, float],
        demand: Demand,
        largest_order: int,
        net_stock: tuple[int, int],
    ) -> None:
        """`unit_costs`: regular, express; `stock_costs`: holding, backlog; `net_stock`: the least and the most."""
        self.lead_time, self.demand, self.largest_order = lead_time, demand, largest_order
        self.unit_costs, (self.holding, self.backlog), self.net_stock = np.array(unit_costs), stock_costs, net_stock
        self.events = demand.events
        self.parts = ("net stock", *due_parts(lead_time))
        self.start = (0,) * lead_time
        self.lowest = (net_stock[0],) + (0,) * (lead_time - 1)
        self.highest = (net_stock[1],) + (largest_order,) * (lead_time - 1)
        self.choices = (largest_order + 1, largest_order + 1)

    def probabilities(self, states: States, actions: Actions) -> np.ndarray:
        """How likely each demand is, (events,)."""
        return self.demand.likely

    def outcome(self, states: States, actions: Actions, events: Events) -> Outcome:
        """The express order arrives, demand is met or waits, then the next regular order arrives."""
        due = np.concatenate([states[:, 1:], actions[:, :1]], axis=1)
        left = states[:, 0] + actions[:, 1] - events
        stock = self.holding * np.maximum(left, 0) + self.backlog * np.maximum(-left, 0)
        due[:, 0] = np.clip(left + due[:, 0], *self.net_stock)
        return Outcome(due, -(actions @ self.unit_costs + stock), no_costs(states))


def perishable(
    lifetime: int = 3,
    lead_time: int = 1,
    demand: float = 4.0,
    unit_cost: float = 3.0,
    holding: float = 1.0,
    penalty: float = 5.0,
    waste: float = 7.0,
    largest_order: int = 10,
) -> "PerishableStock":
    """Goods that expire (Nahmias 1975; lead time and prices as De Moor, Gijsbrechts & Boute 2022).

    A unit can be sold in `lifetime` periods, beginning with that in which it arrives. The oldest units are sold first
    (FIFO). Demand is Poisson, and lost if it is not met. An ordered unit costs `unit_cost`, a unit of lost demand
    `penalty`, a unit that expires `waste`, and a unit that is left and can still be sold `holding`. With a lead time of
    0 an order arrives before the demand of its period. The state is the number of units of each age, the oldest first,
    and the orders that are due. Each is at most the largest order, so all states are bounded.
    """
    task = PerishableStock.name
    lifetime = whole(task, "the lifetime", lifetime, AtLeast(1))
    return PerishableStock(
        lifetime,
        whole(task, "the lead time", lead_time, AtLeast(0 if lifetime > 1 else 1)),
        number(task, "the mean demand", demand, Above(0)),
        number(task, "the unit cost", unit_cost, AtLeast(0)),
        number(task, "the holding cost", holding, AtLeast(0)),
        number(task, "the penalty", penalty, AtLeast(0)),
        number(task, "the cost of waste", waste, AtLeast(0)),
        whole(task, "the largest order", largest_order, AtLeast(1)),
    )


class PerishableStock(Process):
    """A stock whose units expire; made by `perishable`."""

    name = "perishable stock"

    def __init__(
        self,
        lifetime: int,
        lead_time: int,
        demand: float,
        unit_cost: float,
        holding: float,
        penalty: float,
        waste: float,
        largest_order: int,
    ) -> None:
        self.lifetime, self.lead_time, self.largest_order = lifetime, lead_time, largest_order
        self.unit_cost, self.holding, self.penalty, self.waste = unit_cost, holding, penalty, waste
        self.demand = poisson_demand(demand, most=lifetime * largest_order)
        self.events = self.demand.events
        ages = tuple(f"in stock for {periods} more period{'s' * (periods > 1)}" for periods in range(1, lifetime + 1))
        self.parts = (ages + due_parts(lead_time)) if lead_time else ages[:-1]
        self.start = self.lowest = (0,) * len(self.parts)
        self.highest = (largest_order,) * len(self.parts)
        self.choices = (largest_order + 1,)

    def probabilities(self, states: States, actions: Actions) -> np.ndarray:
        """How likely each demand is, (events,)."""
        return self.demand.likely

    def outcome(self, states: States, actions: Actions, events: Events) -> Outcome:
        """The oldest units are sold first; what is left of them expires, and all others grow older by a period."""
        line = np.concatenate([states, actions], axis=1)
        stock = line[:, : self.lifetime]
        met = np.minimum(np.cumsum(stock, axis=1), events[:, None])
        left = stock - np.diff(met, axis=1, prepend=0)
        lost = self.demand.asked[events] - met[:, -1]
        cost = self.unit_cost * actions[:, 0] + self.penalty * lost + self.waste * left[:, 0]
        cost = cost + self.holding * left[:, 1:].sum(axis=1)
        return Outcome(np.concatenate([left, line[:, self.lifetime :]], axis=1)[:, 1:], -cost, no_costs(states))


def due_parts(lead_time: int) -> tuple[str, ...]:
    """What the orders that are due are called."""
    return tuple(f"due in {periods} period{'s' * (periods > 1)}" for periods in range(1, lead_time))


def no_costs(states: States) -> np.ndarray:
    """Of a process without costs."""
    return np.empty((len(states), 0))
