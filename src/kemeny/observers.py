"""Who watches a run: progress bars, stopwatches, user callbacks, and the tests that kill it at chosen moments."""

from collections.abc import Iterable, Mapping
from typing import Any


class Observer:
    """Watches a run. Each method does nothing here; an observer defines those that it needs.

    The phases, nested as indented, with what `begin` says about them:

        run            path, steps in all, steps done before
          collect
            policy     waiting for the policy in NumPy
            act
            simulate
          update       its end says the state and the metrics, which JAX may still be computing
          critics      waiting for the critics of the update before
          log
          evaluate
          checkpoint
          save         in a thread of its own

    and wherever a file is touched: write (path, content), append (path, content), rename (old path, new path), remove
    (path). A phase that fails does not end.
    """

    def say(self, message: str) -> None:
        """A sentence for the user."""

    def begin(self, phase: str, *about: Any) -> None:
        """A phase begins."""

    def end(self, phase: str, *outcome: Any) -> None:
        """The phase that began last, in this thread, ends."""

    def iteration(self, record: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl was written."""

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """A line of evaluations.jsonl was written."""


class Observers(Observer):
    """Several observers as one; those that do not watch something cost nothing where it happens often."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)
        self._beginning = self._watching("begin")
        self._ending = self._watching("end")

    def say(self, message: str) -> None:
        """A sentence for the user."""
        for observer in self._observers:
            observer.say(message)

    def begin(self, phase: str, *about: Any) -> None:
        """A phase begins."""
        for begin in self._beginning:
            begin(phase, *about)

    def end(self, phase: str, *outcome: Any) -> None:
        """A phase ends."""
        for end in self._ending:
            end(phase, *outcome)

    def iteration(self, record: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl was written."""
        for observer in self._observers:
            observer.iteration(record)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """A line of evaluations.jsonl was written."""
        for observer in self._observers:
            observer.evaluation(record)

    def _watching(self, method: str) -> list[Any]:
        return [
            getattr(observer, method)
            for observer in self._observers
            if getattr(type(observer), method) is not getattr(Observer, method)
        ]


NOBODY = Observer()
"""Sees nothing."""
