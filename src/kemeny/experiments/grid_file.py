"""A sweep as a TOML file.

    out = "runs/discounts"           # where the runs are made [runs/NAME OF THE FILE]
    env = "HalfCheetah-v3"           # what all arms share: env, env_kwargs, preset, init_from, seeds, any setting
    seeds = [0, 1, 2]
    steps = 1_000_000

    [bases.paper]                    # what several arms share, under a name
    preset = "paper"

    [arms.average]                   # each arm is a grid of its own: a list is several values
    gae_lambda = [0.8, 0.95]

    [arms.discounted]
    base = "paper"
    group = "trpo"                   # by which several arms are chosen together
    algorithm = "trpo"
    gamma = [0.95, 0.99]

Without arms, the file is one grid.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kemeny.errors import UserError
from kemeny.experiments.grid import AROUND, KINDS, Arm, Grid, alternatives
from kemeny.experiments.plan import NAME
from kemeny.runs.disk import read, reason
from kemeny.runs.settings import from_flat

LARGEST = 16 * 1024**2
OUT, ARMS, BASES, BASE, GROUP = "out", "arms", "bases", "base", "group"


@dataclasses.dataclass(frozen=True)
class GridFile:
    """What a file says."""

    grid: Grid
    out: Path
    arms: Mapping[str, Mapping[str, Any]]
    """Each arm as it is written, without what it shares with others."""


def read_grid(path: Path) -> GridFile:
    """A sweep from its file; a `UserError` says what is wrong with it."""
    try:
        content = tomllib.loads(read(path, LARGEST).decode())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no TOML file: {error}.") from error
    try:
        return _understood(path, content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _understood(path: Path, content: dict[str, Any]) -> GridFile:
    out = content.pop(OUT, f"runs/{path.stem}")
    if not isinstance(out, str):
        raise UserError(f"out is {out!r}; it must be a text, the directory of the sweep.")
    arms, bases = _tables(content, ARMS), _tables(content, BASES)
    if not arms:
        return GridFile(Grid([_arm("", content, {}, bases)]), Path(out), {})
    return GridFile(Grid([_arm(name, arm, content, bases) for name, arm in arms.items()]), Path(out), arms)


def _tables(content: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """The tables under a key, which is taken out of the content."""
    tables = content.pop(key, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UserError(f"{key} must be tables, each with a name: [{key}.NAME].")
    for name in tables:
        if not NAME.fullmatch(name):
            raise UserError(f"An arm or base may be named by letters, digits and . + = - _, and not {name!r}.")
    return tables


def _arm(name: str, own: dict[str, Any], shared: dict[str, Any], bases: dict[str, dict[str, Any]]) -> Arm:
    """An arm with what it shares: its own values go before those of its base, and these before those of all arms."""
    base, group = ({**shared, **own}.get(key) for key in (BASE, GROUP))
    if base is not None and base not in bases:
        there = f"there are {', '.join(bases)}" if bases else "there are none"
        raise UserError(f"There is no base named {base}; {there}.")
    if not isinstance(group, str | None):
        raise UserError(f"group is {group!r}; it must be a text.")
    values = {**shared, **(bases[base] if base is not None else {}), **own}
    values = {key: value for key, value in values.items() if key not in (BASE, GROUP)}
    for key, value in values.items():
        if key not in (*AROUND, *KINDS):
            from_flat({key: value})  # which says that there is none, and what may have been meant
    return Arm(name, {key: alternatives(key, value) for key, value in values.items()}, group or "")
