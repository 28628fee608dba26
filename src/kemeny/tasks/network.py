"""A network of queues: jobs of several classes, servers that choose which class to serve, and a cost for waiting.

All service is exponential and preemptive. The chain is uniformised: in a step there is one event, an arrival or the end
of a service, or nothing happens. A step lasts, on average, one unit of time divided by `Network.clock`. The reward is
minus the cost per unit of *time*, so the average reward is minus the mean cost.

A server never idles while there is work that it can do: other options are masked. If there is none, only its first
option is allowed, and it does nothing.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from kemeny.errors import UserError
from kemeny.tasks.process import Actions, Events, Outcome, Process, States

FULL = 1 - 1e-9
"""The load from which on a network counts as overloaded."""
ROUNDING = 1e-12
"""A routing probability below this is a rounding error of a sum that is 1."""


class Activity(NamedTuple):
    """What a server can do: serve a class at a rate."""

    server: int
    job_class: int
    rate: float
    at_least: int = 1
    """How many jobs of the class there must be: 2 if another server has the first."""


class Network(Process):
    """Jobs of several classes. Servers and classes are counted from 0; messages and names count from 1."""

    def __init__(
        self,
        arrivals: Sequence[float],
        activities: Sequence[Activity | Sequence[float]],
        routing: Sequence[Sequence[float]],
        holding: Sequence[float],
        name: str = "network",
    ) -> None:
        """Check the description and put it into arrays.

        `arrivals`: the rate at which jobs of each class arrive from outside. `activities`: who serves which class, and
        at which rate. `routing`: in each row how likely a job that was served goes on to each class; with what is left
        to 1 it leaves. `holding`: the cost of a job of each class per unit of time.
        """
        self.name, self.arrivals, self.routing, self.holding = name, tuple(arrivals), routing, tuple(holding)
        self.activities = tuple(_activity(one, name) for one in activities)
        check(self)
        self.classes = len(self.arrivals)
        self.parts = tuple(f"jobs of class {j + 1}" for j in range(self.classes))
        self.start = self.lowest = (0,) * self.classes
        self.highest = (None,) * self.classes
        self._cost = np.array(self.holding, float)
        self._class = np.array([one.job_class for one in self.activities])
        self._needs = np.array([one.at_least for one in self.activities])
        self._lay_out_choices()
        self._lay_out_events()

    def _lay_out_choices(self) -> None:
        """Of each activity: which choice decides about it, and by which option. A lone activity needs no decision."""
        servers = sorted({activity.server for activity in self.activities})
        of_server = [[k for k, one in enumerate(self.activities) if one.server == s] for s in servers]
        deciding = [mine for mine in of_server if len(mine) > 1]
        if not deciding:
            raise UserError(f"{self.name}: no server has a choice, so there is nothing to decide.")
        self.choices = tuple(map(len, deciding))
        self.option_activities = [k for mine in deciding for k in mine]
        """The activity of each option, of all choices one after the other."""
        self._choice = np.full(len(self.activities), len(deciding))  # the number after the last is that of no choice
        self._option = np.zeros(len(self.activities), np.int64)
        for number, mine in enumerate(deciding):
            self._choice[mine] = number
            self._option[mine] = np.arange(len(mine))
        fastest = (max(self.activities[k].rate for k in mine) for mine in of_server)
        self.clock = sum(self.arrivals) + sum(fastest)
        """Steps per unit of time."""

    def _lay_out_events(self) -> None:
        """Arrivals; the end of each activity, one event per place to which the job goes; and that nothing happens."""
        one_job, routing = np.eye(self.classes, dtype=np.int64), np.array(self.routing, float)
        nothing = 0 * one_job[0]
        arrivals = [(one_job[j], rate) for j, rate in enumerate(self.arrivals) if rate > 0]
        ends = []
        for k, one in enumerate(self.activities):
            shares = routing[one.job_class]
            places = [*zip(one_job, shares, strict=True), (nothing, 1 - shares.sum())]
            ends += [
                (k, gained - one_job[one.job_class], one.rate * share) for gained, share in places if share > ROUNDING
            ]
        self.events = len(arrivals) + len(ends) + 1
        self.at_once = len(arrivals) + self._ends_at_once(Counter(k for k, _, _ in ends)) + 1
        self._changes = np.array([change for change, _ in arrivals] + [change for _, change, _ in ends] + [nothing])
        self._likely = np.array([rate for _, rate in arrivals] + [rate for _, _, rate in ends]) / self.clock
        self._ends = slice(len(arrivals), self.events - 1)
        self._activity_of_end = np.array([k for k, _, _ in ends])

    def _ends_at_once(self, ends: Counter[int]) -> int:
        """How many ends of service are possible in one step; `ends` are those of each activity."""
        most: dict[int, int] = {}
        for k, one in enumerate(self.activities):  # a server has one activity at a time
            most[one.server] = max(most.get(one.server, 0), ends[k])
        return sum(most.values())

    def active(self, states: States, actions: Actions) -> np.ndarray:
        """Which activities go on, (copies, activities)."""
        chosen = np.concatenate([actions, np.zeros((len(actions), 1), actions.dtype)], axis=1)
        return (states[:, self._class] >= self._needs) & (chosen[:, self._choice] == self._option)

    def probabilities(self, states: States, actions: Actions) -> np.ndarray:
        """(copies, events)."""
        likely = np.empty((len(states), self.events))
        likely[:, :-1] = self._likely
        likely[:, self._ends] *= self.active(states, actions)[:, self._activity_of_end]
        np.subtract(1.0, likely[:, :-1].sum(axis=1), out=likely[:, -1])
        return likely

    def outcome(self, states: States, actions: Actions, events: Events) -> Outcome:
        """A job arrives, goes on or leaves."""
        del actions
        return Outcome(states + self._changes[events], -(states @ self._cost), np.empty((len(states), 0)))

    def allowed(self, states: States) -> np.ndarray:
        """Options with work to do; the first of a server that has none."""
        allowed = states[:, self._class[self.option_activities]] >= self._needs[self.option_activities]
        first = 0
        for options in self.choices:
            idle = ~allowed[:, first]
            for option in range(first + 1, first + options):  # faster than `any` over rows of a few options
                idle &= ~allowed[:, option]
            allowed[:, first] |= idle
            first += options
        return allowed

    @property
    def load(self) -> np.ndarray:
        """The share of its time that each server must be busy, if the work is shared as evenly as possible."""
        return least_load(self)


def _activity(given: Activity | Sequence[float], name: str) -> Activity:
    try:
        server, job_class, rate, *rest = given
        return Activity(int(server), int(job_class), float(rate), *map(int, rest))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{name}: an activity is [server, class, rate] or [server, class, rate, least jobs], not {given!r}."
        ) from error


def check(network: Network) -> None:
    """Refuse a description that is not a network, or that no policy can stabilise."""
    name, classes = network.name, len(network.arrivals)
    for what, given in (("holding costs", network.holding), ("rows of routing", network.routing)):
        if len(given) != classes:
            raise UserError(f"{name} has {classes} arrival rates, one per class, but {len(given)} {what}.")
    for j, rate in enumerate(network.arrivals):
        if not 0 <= rate < np.inf:
            raise UserError(f"{name}: the arrival rate of class {j + 1} is {rate}; it must be at least 0.")
    if sum(network.arrivals) <= 0:
        raise UserError(f"{name}: no job ever arrives, since all arrival rates are 0.")
    for one in network.activities:
        if not 0 <= one.job_class < classes:
            raise UserError(f"{name}: server {one.server + 1} serves class {one.job_class + 1} of {classes}.")
        if not 0 < one.rate < np.inf:
            raise UserError(
                f"{name}: server {one.server + 1} serves class {one.job_class + 1} at rate {one.rate}; it must be a "
                "positive number."
            )
    unserved = [j for j in range(classes) if all(one.job_class != j for one in network.activities)]
    if unserved:
        raise UserError(f"{name}: the service rate of class {unserved[0] + 1} is missing: no server serves it.")
    for j, cost in enumerate(network.holding):
        if not 0 <= cost < np.inf:
            raise UserError(f"{name}: the holding cost of class {j + 1} is {cost}; it must be at least 0.")
    _check_routing(network)
    busiest = int(np.argmax(network.load))
    if network.load[busiest] >= FULL:
        raise UserError(
            f"{name}: no policy can keep the queues finite, for the load of server {busiest + 1} is "
            f"{network.load[busiest]:.4g}, and it must be below 1. Lower the arrival rates or raise its service rates."
        )


def _check_routing(network: Network) -> None:
    name, routing = network.name, np.array([list(row) for row in network.routing], float)
    classes = len(network.arrivals)
    if routing.shape != (classes, classes):
        raise UserError(f"{name}: the routing matrix has shape {routing.shape}, but it needs {(classes, classes)}.")
    for j, row in enumerate(routing):
        if not (np.isfinite(row).all() and (row >= 0).all() and row.sum() <= 1 + 1e-9):
            raise UserError(
                f"{name}: the routing probabilities of class {j + 1} are {row.tolist()}; they must be at least 0 and "
                "sum to at most 1."
            )
    leaves = np.linalg.matrix_power(routing, 1 << 20).sum(axis=1)
    stays = np.flatnonzero(leaves > 0.5)
    if stays.size:
        raise UserError(
            f"{name}: jobs of class {stays[0] + 1} never leave, for the routing probabilities along their way sum to 1."
        )


def least_load(network: Network) -> np.ndarray:
    """Serve all that arrives with the largest load as small as possible: the static planning problem."""
    classes = len(network.arrivals)
    throughput = np.linalg.solve(
        np.eye(classes) - np.array(network.routing, float).T, np.array(network.arrivals, float)
    )
    servers = 1 + max(one.server for one in network.activities)
    count = len(network.activities)
    serve = np.zeros((classes, count + 1))
    busy = np.zeros((servers, count + 1))
    busy[:, -1] = -1.0
    for k, one in enumerate(network.activities):
        serve[one.job_class, k] = one.rate
        busy[one.server, k] = 1.0
    found = linprog(np.eye(count + 1)[-1], A_ub=busy, b_ub=np.zeros(servers), A_eq=serve, b_eq=throughput)
    assert found.success, found.message
    return busy[:, :-1] @ found.x[:-1]
