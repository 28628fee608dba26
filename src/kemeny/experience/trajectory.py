"""A trajectory step by step: as columns, as records, as a CSV file."""

import csv
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kemeny.errors import UserError
from kemeny.spaces import Spaces, leaves, values_of


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """The first trajectory of an evaluation: what the policy saw and did, and what came of it.

    If it goes on after a fall, the step after one with `terminated` or `truncated` is from a start state.
    """

    spaces: Spaces
    observations: np.ndarray
    """(time, size): before each step, as the policy sees them, with their masks behind them."""
    actions: np.ndarray
    """(time, …): as the environment got them."""
    reward: np.ndarray
    """(time,): as the environment paid it, without reset costs."""
    costs: np.ndarray
    """(time, cost)."""
    terminated: np.ndarray
    truncated: np.ndarray
    cost_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def observation_columns(self) -> dict[str, np.ndarray]:
        """Each component of the observations by its name."""
        columns, end = [], 0
        for name, leaf in leaves(self.spaces.observation):
            begin, end = end, end + leaf.size
            values = values_of(leaf, self.observations[:, begin:end])
            columns += _columns(f"observation_{name}" if name else "observation", values)
        return _distinct(columns)

    @property
    def action_columns(self) -> dict[str, np.ndarray]:
        """Each component of the actions by its name."""
        return dict(_columns("action", self.actions))

    @property
    def cost_columns(self) -> dict[str, np.ndarray]:
        """Each cost by its name."""
        return _distinct((f"cost_{name}", self.costs[:, i]) for i, name in enumerate(self.cost_names))

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Everything, in the order of the file: a table that pandas and polars read directly."""
        return {
            "step": np.arange(len(self)),
            **self.observation_columns,
            **self.action_columns,
            "reward": self.reward,
            **self.cost_columns,
            "terminated": self.terminated.astype(np.int8),
            "truncated": self.truncated.astype(np.int8),
        }

    def records(self) -> Iterator[dict[str, Any]]:
        """One dictionary per step."""
        columns = self.columns
        lists = [column.tolist() for column in columns.values()]
        return (dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True))

    def write(self, path: str | Path) -> None:
        """Write it as a CSV file with a header; a number reads back as the same number."""
        columns = self.columns
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with open(path, "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                # NumPy's own text of a number is the shortest that reads back as it; Python's would be that of float64
                writer.writerows(zip(*(map(str, column) for column in columns.values()), strict=True))
        except OSError as error:
            raise UserError(f"The trajectory cannot be written to {path}: {error.strerror}.") from error


def _distinct(columns: Iterable[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Columns by their names; where a name is taken (`a_0` by the first entry of `a`), the next is `a_0 (2)`."""
    named = {}
    for name, values in columns:
        free, number = name, 1
        while free in named:
            number += 1
            free = f"{name} ({number})"
        named[free] = values
    return named


def _columns(name: str, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Each entry of (time, …) values by its place: `name_0`, or `name_0_1` in a matrix, or `name` if there is one."""
    if values.ndim == 1:
        return [(name, values)]
    places = np.ndindex(values.shape[1:])
    return [(f"{name}_{'_'.join(map(str, place))}", values[(slice(None), *place)]) for place in places]
