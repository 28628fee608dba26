"""Where the runs of a sweep are executed: what a sweep asks of a place, and of a run there."""

from typing import Protocol

from kemeny.experiments.grid import Planned


class Job(Protocol):
    """A run that was started somewhere. It writes its directory; a sweep reads there how far it is."""

    def poll(self) -> int | None:
        """None while it is at work, then the exit code that `kemeny train` ends with; below 0: killed by a signal."""
        ...

    def stop(self, at_once: bool) -> None:
        """Ask it to write a checkpoint and to end; or to end at once, with the checkpoint that it has."""
        ...

    def last_words(self) -> str:
        """The last line that it printed."""
        ...


class Backend(Protocol):
    """A place with room for several runs at a time."""

    @property
    def slots(self) -> int:
        """How many."""
        ...

    def start(self, run: Planned, slot: int) -> Job:
        """Begin a run, or go on with it, in a slot that is free."""
        ...
