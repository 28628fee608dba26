"""Rules for networks of queues from the literature: whom each server serves.

    kemeny.evaluate(tasks.MaxWeight(network), env=…)
    rule(observation)               # one action
    rule.rows(observations)         # many, one per row

A rule gives each option of each server a number, its index. Each server takes the option with the largest index among
those that the mask allows, the first of them if several are equal. So no server idles while there is work for it.
"""

import abc
import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np

from kemeny.errors import UserError
from kemeny.spaces import first_of_each
from kemeny.tasks.network import Network
from kemeny.tasks.process import Actions, States


@dataclasses.dataclass(frozen=True)
class NetworkRule(abc.ABC):
    """Each server takes the allowed option with the largest index."""

    network: Network

    @final
    def __post_init__(self) -> None:
        if not isinstance(self.network, Network):
            raise UserError(f"{type(self).__name__} is a rule for networks of queues, and {self.network!r} is none.")
        self.check()

    def check(self) -> None:
        """Refuse other fields that mean nothing."""
        return

    @abc.abstractmethod
    def index(self, states: States) -> np.ndarray:
        """A number for each option, (copies, options of all choices one after the other); or (options,) for all."""

    @final
    def rows(self, observations: np.ndarray, masks: np.ndarray | None = None) -> Actions:
        """One action per row: (copies,) if one server has a choice, otherwise (copies, choices)."""
        states, choices = np.asarray(observations), self.network.choices
        allowed = self.network.allowed(states) if masks is None else np.asarray(masks) == 1
        index = np.where(allowed, self.index(states), -np.inf)
        actions = [options.argmax(axis=1) for options in np.split(index, first_of_each(choices)[1:], axis=1)]
        return actions[0] if len(choices) == 1 else np.stack(actions, axis=1)

    @final
    def __call__(self, observation: np.ndarray, mask: np.ndarray | None = None) -> Actions:
        """One action."""
        return self.rows(np.asarray(observation)[None], None if mask is None else np.asarray(mask)[None])[0]

    @cached_property
    def option_classes(self) -> np.ndarray:
        """The class that each option serves."""
        return np.array([self.network.activities[k].job_class for k in self.network.option_activities])

    @cached_property
    def option_rates(self) -> np.ndarray:
        """The rate at which each option serves."""
        return np.array([self.network.activities[k].rate for k in self.network.option_activities])


@final
@dataclasses.dataclass(frozen=True)
class Priority(NetworkRule):
    """A fixed order: each server serves the first class of the order that it can."""

    order: Sequence[int]
    """All classes, counted from 0, the most important first."""

    def check(self) -> None:
        """Every class has one place."""
        classes = self.network.classes
        if sorted(self.order) != list(range(classes)):
            raise UserError(
                f"The order {list(self.order)} of {self.network.name} must have each of its classes 0 to {classes - 1} "
                "once (they are counted from 0)."
            )

    def index(self, states: States) -> np.ndarray:
        """The larger, the earlier the class is in the order."""
        del states
        return -np.argsort(self.order)[self.option_classes]


@final
@dataclasses.dataclass(frozen=True)
class LBFS(NetworkRule):
    """Last buffer first served: classes with the fewest services left before they leave come first.

    If jobs take their ways at random, it is the mean number of services. Of classes that are equally near to the exit,
    that with the higher number comes first. (Stable for every re-entrant line with a load below 1: Kumar & Kumar 1994.)
    """

    def index(self, states: States) -> np.ndarray:
        """That of the order by the distance from the exit."""
        return self._priority.index(states)

    @cached_property
    def _priority(self) -> Priority:
        return Priority(self.network, tuple(sorted(range(self.network.classes), key=lambda j: (self.left[j], -j))))

    @cached_property
    def left(self) -> np.ndarray:
        """Mean number of services until a job of each class leaves, the next one included: (I − P)⁻¹ 1."""
        routing = np.array(self.network.routing, float)
        return np.linalg.solve(np.eye(len(routing)) - routing, np.ones(len(routing))).round(9)  # so that ties are ties


@final
@dataclasses.dataclass(frozen=True)
class CMu(NetworkRule):
    """The cμ rule: the largest holding cost times service rate, c·μ.

    It is optimal for one server whose jobs leave after service (Cox & Smith 1961). Where jobs go on to another class it
    looks only at the class that they leave, as if they left the network: it is greedy, and can be far from optimal or
    even unstable. It is also unstable on the N-model, where the second server neglects its own class.
    """

    def index(self, states: States) -> np.ndarray:
        """c·μ of each option."""
        del states
        return np.array(self.network.holding)[self.option_classes] * self.option_rates


@final
@dataclasses.dataclass(frozen=True)
class MaxWeight(NetworkRule):
    """MaxWeight with routing, also called back-pressure (Tassiulas & Ephremides 1992), weighted by holding costs.

    An option that serves class j at rate μ has the index  μ · (cⱼ·xⱼ − Σₖ Pⱼₖ·cₖ·xₖ):  how fast it takes weighted jobs
    from a long queue to short ones. It keeps every network stable that can be. A server whose indices are all negative
    would idle in the original; here it serves, as the mask demands.
    """

    def index(self, states: States) -> np.ndarray:
        """The pressure of each option."""
        weighted = states * np.array(self.network.holding)
        pressure = weighted - weighted @ np.array(self.network.routing, float).T
        return pressure[:, self.option_classes] * self.option_rates


@final
@dataclasses.dataclass(frozen=True)
class Threshold(NetworkRule):
    """Serve a class only if it has many jobs: for the N-model, server 2 helps class 1 when x₁ > level.

    Every server with a choice prefers the class if it has more than `level` jobs, and otherwise comes to it last. Among
    its other options it takes the first. (Bell & Williams 2001 on the N-model. There 11 is the best level, and the mean
    cost is 47.24.)
    """

    level: int = 11
    job_class: int = 0
    """The class, counted from 0."""

    def check(self) -> None:
        """Some server can choose the class."""
        if self.job_class not in self.option_classes:
            raise UserError(
                f"A threshold for class {self.job_class} (counted from 0) decides nothing in {self.network.name}: no "
                "server with a choice serves it."
            )

    def index(self, states: States) -> np.ndarray:
        """1 or −1 for the class, 0 for others."""
        many = np.where(states[:, self.job_class] > self.level, 1, -1)
        return np.where(self.option_classes == self.job_class, many[:, None], 0)
