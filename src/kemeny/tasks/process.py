"""A task, described once: its states, what may happen in a step, how likely that is, and what follows from it.

The same description makes an environment, a vector environment that steps thousands of copies in one call, and, if the
states are finite or cut off, the exact model (`kemeny.tasks.model`). So the three cannot disagree.

All methods take rows, one per copy, and return rows: nothing here runs Python code per copy.
"""

import abc
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from kemeny.tabular.mdp import MDP

States = np.ndarray
"""(copies, parts), whole numbers."""
Actions = np.ndarray
"""(copies, choices), whole numbers: the option that each choice takes."""
Events = np.ndarray
"""(copies,): the number of the event that happens to each copy."""


class Outcome(NamedTuple):
    """What follows when an event happens."""

    states: States
    """The next states."""
    reward: np.ndarray
    """(copies,)."""
    costs: np.ndarray
    """(copies, costs)."""


class Process(abc.ABC):
    """A controlled Markov chain that never ends, on states that are rows of whole numbers."""

    name: str
    parts: tuple[str, ...]
    """What each number of a state is called."""
    start: tuple[int, ...]
    """The first state."""
    choices: tuple[int, ...]
    """How many options each choice of an action has. An action with one choice is a whole number."""
    events: int
    """How many different things may happen in a step; one of them may be that nothing happens."""
    at_once: int | None = None
    """Of how many events the probability can be positive in the same step; None if of all of them."""
    lowest: tuple[int, ...]
    """The smallest value of each part."""
    highest: tuple[int | None, ...]
    """The largest value of each part; None if there is none."""
    cost_names: ClassVar[tuple[str, ...]] = ()
    """What the costs are called in `info`."""

    @abc.abstractmethod
    def probabilities(self, states: States, actions: Actions) -> np.ndarray:
        """How likely each event is, (copies, events); or (events,), if that is the same for all. The sums are 1."""

    @abc.abstractmethod
    def outcome(self, states: States, actions: Actions, events: Events) -> Outcome:
        """What follows when these events happen; the arrays that are given are not changed."""

    def allowed(self, states: States) -> np.ndarray | None:
        """Which options each state allows: booleans, (copies, options of all choices one after the other).

        None if all options are always allowed. Of each choice at least one option must be allowed.
        """
        del states
        return None

    def draw(self, states: States, actions: Actions, rng: np.random.Generator) -> Events:
        """Which event happens to each copy."""
        limits = np.cumsum(self.probabilities(states, actions), axis=-1)
        if limits.ndim == 1:
            return np.minimum(np.searchsorted(limits, rng.random(len(states)), side="right"), self.events - 1)
        return (rng.random((len(states), 1)) >= limits[:, :-1]).sum(axis=1)  # the last event, if it is none before it

    def model(self, truncation: int | None = None, *, cost: str | None = None) -> "MDP":
        """The exact model (`kemeny.tasks.model.model_of`)."""
        from kemeny.tasks.model import model_of

        return model_of(self, truncation, cost=cost)

    @property
    def outputs(self) -> int:
        """Options of all choices."""
        return sum(self.choices)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"
