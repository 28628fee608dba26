"""Customers who ask to be let in: the access-control queue, and a queue whose waiting is a cost to limit."""

from collections.abc import Sequence

import numpy as np
from scipy.special import binom

from kemeny.errors import UserError
from kemeny.ranges import AtLeast, Between
from kemeny.tasks.arguments import number, whole
from kemeny.tasks.process import Actions, Events, Outcome, Process, States


def access_control(
    servers: int = 10, free: float = 0.06, payments: Sequence[float] = (1.0, 2.0, 4.0, 8.0)
) -> "AccessControl":
    """The access-control queue of Sutton & Barto (2nd edition, Example 10.2).

    State: number of free servers, and priority of the customer at the head of the queue. Action 1 accepts the customer,
    who pays according to priority (`payments`) and takes a server; action 0 rejects. Without a free server both reject.
    Each busy server, including the one just taken, becomes free with probability `free` before the next customer
    arrives. All priorities are equally likely. The model is `zoo.access_control`.
    """
    task = AccessControl.name
    if not len(payments):
        raise UserError(f"{task}: payments is empty; it needs one payment per priority.")
    return AccessControl(
        whole(task, "the number of servers", servers, AtLeast(1)),
        number(task, "the probability that a server becomes free", free, Between(0, 1)),
        [number(task, f"the payment of priority {i}", paid, AtLeast(0)) for i, paid in enumerate(payments)],
    )


class AccessControl(Process):
    """Servers for customers who pay differently; made by `access_control`."""

    name = "access control"
    parts = ("free servers", "priority")
    lowest = (0, 0)
    choices = (2,)

    def __init__(self, servers: int, free: float, payments: Sequence[float]) -> None:
        self.servers, self.free, self.payments = servers, free, np.array(payments)
        kinds = len(payments)
        self.start, self.highest = (servers, 0), (servers, kinds - 1)
        self.events = (servers + 1) * kinds
        busy, released = np.indices((servers + 1, servers + 1))
        likely = binom(busy, released) * free**released * (1 - free) ** np.maximum(busy - released, 0)
        self._likely = np.repeat(np.where(released <= busy, likely, 0.0), kinds, axis=1) / kinds
        """(busy servers, events): an event is how many servers become free, and who comes next."""

    def _taken(self, states: States, actions: Actions) -> np.ndarray:
        return np.where(states[:, 0] > 0, actions[:, 0], 0)

    def probabilities(self, states: States, actions: Actions) -> np.ndarray:
        """(copies, events)."""
        return self._likely[self.servers - states[:, 0] + self._taken(states, actions)]

    def outcome(self, states: States, actions: Actions, events: Events) -> Outcome:
        """An accepted customer pays and takes a server; servers become free; the next customer comes."""
        taken = self._taken(states, actions)
        released, kind = np.divmod(events, len(self.payments))
        following = np.stack([states[:, 0] - taken + released, kind], axis=1)
        return Outcome(following, taken * self.payments[states[:, 1]], np.empty((len(states), 0)))


def admission(
    capacity: int = 10, arrival: float = 0.5, service: float = 0.4, fee: float = 5.0, waiting: float = 1.0
) -> "Admission":
    """Admit customers or reject them (Naor 1969, in discrete time): admission pays a reward, waiting is a *cost*.

    State: number of customers in the queue, and whether another one asks to enter. Action 1 admits, action 0 rejects.
    The reward is `fee` per admission. The cost, named `waiting`, is `waiting` per step and customer in the queue after
    admission: with the default, 1, its average is the mean length of the queue. A full queue maximises the fees, so a
    limit on the average cost binds. At the end of a step one customer leaves with probability `service`, and with
    probability `arrival` another one asks to enter. The model is `zoo.queue_admission`.
    """
    task = Admission.name
    return Admission(
        whole(task, "the capacity", capacity, AtLeast(1)),
        number(task, "the probability of an arrival", arrival, Between(0, 1)),
        number(task, "the probability of a service", service, Between(0, 1)),
        number(task, "the fee", fee, AtLeast(0)),
        number(task, "the cost of waiting", waiting, AtLeast(0)),
    )


class Admission(Process):
    """A queue that one is let into or not; made by `admission`."""

    name = "admission"
    parts = ("customers", "one asks to enter")
    start = lowest = (0, 0)
    choices = (2,)
    events = 4
    cost_names = ("waiting",)

    def __init__(self, capacity: int, arrival: float, service: float, fee: float, waiting: float) -> None:
        self.capacity, self.fee, self.waiting = capacity, fee, waiting
        self.highest = (capacity, 1)
        self._likely = np.outer([1 - service, service], [1 - arrival, arrival]).ravel()

    def probabilities(self, states: States, actions: Actions) -> np.ndarray:
        """That nobody or one is served, and that nobody or one asks to enter, (4,)."""
        return self._likely

    def outcome(self, states: States, actions: Actions, events: Events) -> Outcome:
        """A customer is admitted or not; one may leave, and another one may ask to enter."""
        present, asking = states.T
        admitted = (actions[:, 0] == 1) & (asking == 1) & (present < self.capacity)
        length = present + admitted
        served, asks = np.divmod(events, 2)
        following = np.stack([np.maximum(length - served, 0), asks], axis=1)
        return Outcome(following, self.fee * admitted, self.waiting * length[:, None])
