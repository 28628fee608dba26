"""Machines that wear out: when to replace one, and which of several a crew should look after."""

from collections.abc import Sequence

import numpy as np

from kemeny.errors import UserError
from kemeny.ranges import AtLeast, Between
from kemeny.tasks.arguments import number, whole
from kemeny.tasks.process import Actions, Events, Outcome, Process, States

MOST_MACHINES = 10
"""In a step any set of machines may wear, so the events are 2 to the power of the number of machines."""


def machine_replacement(n: int = 8, wear: float = 0.4, price: float = 5.0) -> "MachineReplacement":
    """Keep a machine that wears out or replace it: the best policy is a control limit (Derman 1963; Puterman §4.7.5).

    A machine in state s earns n − 1 − s. Action 0 keeps it: it wears to state s + 1 with probability `wear`, and stays
    in the last state. Action 1 replaces it: this costs `price`, and a new machine earns n − 1 and may wear at once. The
    model is `zoo.machine_replacement`.
    """
    task = MachineReplacement.name
    return MachineReplacement(
        whole(task, "n, the number of states,", n, AtLeast(2)),
        number(task, "the wear", wear, Between(0, 1)),
        number(task, "the price", price, AtLeast(0)),
    )


class MachineReplacement(Process):
    """A machine that is kept or replaced; made by `machine_replacement`."""

    name = "machine replacement"
    parts = ("wear",)
    start = lowest = (0,)
    choices = (2,)
    events = 2

    def __init__(self, n: int, wear: float, price: float) -> None:
        self.n, self.wear, self.price = n, wear, price
        self.highest = (n - 1,)

    def probabilities(self, states: States, actions: Actions) -> np.ndarray:
        """That the machine does not wear, and that it does, (2,)."""
        return np.array([1 - self.wear, self.wear])

    def outcome(self, states: States, actions: Actions, events: Events) -> Outcome:
        """The machine earns by the state in which it works, then it wears or not."""
        works = np.where(actions == 1, 0, states)
        reward = self.n - 1 - works[:, 0] - self.price * actions[:, 0]
        return Outcome(np.minimum(works + events[:, None], self.n - 1), reward, np.empty((len(states), 0)))


def maintenance(
    wear: Sequence[float] = (0.15, 0.2, 0.25),
    levels: int = 5,
    repair: float = 0.3,
    replacement: float = 1.0,
    repaired: int = 2,
) -> "Maintenance":
    """Several machines and a crew that looks after one of them per step (after Glazebrook, Mitchell & Ansell 2005).

    Machine i wears by one level in a step with probability wear[i]; in the last of its levels it is broken. A new
    machine earns 1 per step, a worn one less in proportion to its wear, a broken one nothing. The crew does nothing
    (action 0), or repairs machine i (action 1 + 2i), which takes up to `repaired` levels of wear off it and costs
    `repair`, or replaces it by a new one (action 2 + 2i), which costs `replacement`. In the step in which the crew is
    at it, a machine neither earns nor wears.
    """
    task = Maintenance.name
    if not 1 <= len(wear) <= MOST_MACHINES:
        raise UserError(f"{task}: there are {len(wear)} numbers in wear, one per machine; 1 to {MOST_MACHINES} work.")
    return Maintenance(
        [number(task, f"the wear of machine {i + 1}", one, Between(0, 1)) for i, one in enumerate(wear)],
        whole(task, "the number of levels", levels, AtLeast(2)),
        number(task, "the price of a repair", repair, AtLeast(0)),
        number(task, "the price of a replacement", replacement, AtLeast(0)),
        whole(task, "the number of levels that a repair takes off", repaired, AtLeast(1)),
    )


class Maintenance(Process):
    """Machines and a crew; made by `maintenance`."""

    name = "maintenance"

    def __init__(self, wear: Sequence[float], levels: int, repair: float, replacement: float, repaired: int) -> None:
        self.wear, self.levels, self.repaired = np.array(wear), levels, repaired
        self.machines = len(wear)
        self.parts = tuple(f"wear of machine {i + 1}" for i in range(self.machines))
        self.start = self.lowest = (0,) * self.machines
        self.highest = (levels - 1,) * self.machines
        self.choices = (1 + 2 * self.machines,)
        self.events = 2**self.machines
        self._prices = np.array([0.0] + [repair, replacement] * self.machines)
        """(actions,)."""
        self._wears = (np.arange(self.events)[:, None] >> np.arange(self.machines)) & 1
        """(events, machines): which machines wear in each event, unless the crew is at them."""
        self._likely = np.where(self._wears, self.wear, 1 - self.wear).prod(axis=1)

    def probabilities(self, states: States, actions: Actions) -> np.ndarray:
        """How likely each set of machines is to wear, (events,)."""
        return self._likely

    def outcome(self, states: States, actions: Actions, events: Events) -> Outcome:
        """The crew does its work, and all other machines earn and wear."""
        repaired = actions == 1 + 2 * np.arange(self.machines)
        replaced = actions == 2 + 2 * np.arange(self.machines)
        worn = np.minimum(states + self._wears[events], self.levels - 1)
        after = np.where(replaced, 0, np.where(repaired, np.maximum(states - self.repaired, 0), worn))
        earned = (~(repaired | replaced) * (1 - states / (self.levels - 1))).sum(axis=1)
        return Outcome(after, earned - self._prices[actions[:, 0]], np.empty((len(states), 0)))
