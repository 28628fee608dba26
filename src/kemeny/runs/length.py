"""How long a run is: its steps in all, and what they were before it was extended."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

MOST_STEPS = 2**53


class Extension(NamedTuple):
    """A change of the steps in all."""

    at: int
    """Steps that the run had done by then."""
    before: int
    """What was its steps in all until then."""


@dataclasses.dataclass(frozen=True)
class Length:
    """The steps in all, over which the critics' step size is annealed; until an extension, over those of that time."""

    steps: int
    batch_size: int
    extended: tuple[Extension, ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Length":
        """What config.json says."""
        settings = config["settings"]
        extended = tuple(Extension(one["at"], one["before"]) for one in config.get("extended", ()))
        return cls(settings["steps"], settings["batch_size"], extended)

    def in_all(self, done: int) -> int:
        """The steps in all, as they are when the batch that begins after `done` steps is learned from."""
        return next((one.before for one in self.extended if done < one.at), self.steps)

    def iterations(self, iteration: int) -> int:
        """The same, in batches."""
        return self._batches(self.in_all(iteration * self.batch_size))

    def is_end(self, iteration: int) -> bool:
        """Whether the run ends here, or once ended here and was extended."""
        ends = {
            self._batches(one.before) for one in self.extended if self._batches(one.before) == self._batches(one.at)
        }
        return iteration in ends | {self._batches(self.steps)}

    def until(self, done: int) -> "Length":
        """As it was when the first `done` steps were done: what came later has not changed them."""
        before = next((one.before for one in self.extended if done <= one.at), self.steps)
        return dataclasses.replace(self, steps=before, extended=tuple(one for one in self.extended if one.at < done))

    def extend(self, done: int, steps: int) -> "Length":
        """With another number of steps in all from here on."""
        past = self.until(done)
        return dataclasses.replace(past, steps=steps, extended=(*past.extended, Extension(done, past.steps)))

    def record(self) -> list[dict[str, int]]:
        """The extensions, as config.json has them."""
        return [one._asdict() for one in self.extended]

    def _batches(self, steps: int) -> int:
        return -(-steps // self.batch_size)


def is_record(extended: Any) -> bool:
    """Whether this, in a file, is what `Length.record` gives."""
    if not (isinstance(extended, list) and all(isinstance(one, dict) for one in extended)):
        return False
    if not all(one.keys() == set(Extension._fields) and all(map(_is_count, one.values())) for one in extended):
        return False
    places = [one["at"] for one in extended]
    return places == sorted(set(places)) and all(one["before"] > 0 for one in extended)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_STEPS
