"""Which runs a sweep consists of: every combination of the values that are given, each with every seed and a name.

An arm is one such grid. A sweep has one arm without a name, or several with names, as in a file (`grid_file.py`).
"""

import dataclasses
import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

from kemeny.envs.names import Environment, as_environment
from kemeny.errors import UserError
from kemeny.experiments.plan import LONGEST_NAME
from kemeny.runs.described import every_setting
from kemeny.runs.presets import preset as preset_settings
from kemeny.runs.same import decided
from kemeny.runs.settings import Settings, from_flat, to_flat

ENV, KWARGS, PRESET, INIT_FROM, SEEDS = "env", "env_kwargs", "preset", "init_from", "seeds"
AROUND = (ENV, KWARGS, PRESET, INIT_FROM, SEEDS)
"""What a grid is made of beside settings."""
KINDS = {one.name: one.kind for one in every_setting()}
LISTS = frozenset(name for name, kind in KINDS.items() if get_origin(kind) is tuple)
"""Settings that are lists themselves, such as `hidden`: several values of one are a list of lists."""
MOST_RUNS = 10_000


@dataclasses.dataclass(frozen=True)
class Planned:
    """One run of a sweep, which may or may not have begun."""

    name: str
    """Of its directory."""
    arm: str
    env: Environment
    settings: Settings
    preset: str = "default"
    init_from: str | None = None

    @property
    def decided(self) -> dict[str, Any]:
        """All that is decided about it, by names, as JSON has it."""
        return decided(self.env.name, self.env.kwargs, self.settings, self.init_from)

    @property
    def identity(self) -> str:
        """What makes it this run and no other, whatever it is called."""
        return identity(self.arm, self.decided)

    def command(self, out: Path) -> list[str]:
        """The words after `kemeny` that begin this run, or go on with it."""
        words = ["train", self.env.name]
        words += [f"--env-kwargs={json.dumps(dict(self.env.kwargs))}"] if self.env.kwargs else []
        words += [f"--preset={self.preset}"] if self.preset != "default" else []
        words += [f"--init-from={self.init_from}"] if self.init_from is not None else []
        default = to_flat(preset_settings(self.preset))
        for name, value in to_flat(self.settings).items():
            if value != default[name]:
                words += _flags(name, value)
        return [*words, f"--out={out}", "--resume-if-exists"]


def identity(arm: str, decided: Mapping[str, Any]) -> str:
    """The same text for the same run."""
    return json.dumps([arm, decided], sort_keys=True)


def _flags(name: str, value: Any) -> list[str]:
    """A setting as `kemeny train` takes it."""
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return [flag]
    if name in ("cost", "limit"):  # which are repeated
        return [f"{flag}={one}" for one in value]
    return [flag, *map(str, value)] if isinstance(value, tuple) else [f"{flag}={value}"]


@dataclasses.dataclass(frozen=True)
class Arm:
    """One grid: for each name the values that it takes; what is not given is the preset's."""

    name: str
    given: Mapping[str, Sequence[Any]]
    group: str = ""
    """By which several arms are chosen together."""

    def runs(self) -> Iterator[Planned]:
        """Every combination with every seed, seeds fastest; a `UserError` names what no run can be made of."""
        given = {ENV: [], KWARGS: [{}], PRESET: ["default"], INIT_FROM: [None], SEEDS: [0], **self.given}
        if not given[ENV]:
            raise UserError(f"{self._title} has no environment: name one or more.")
        values = {name: self._typed(name, alternatives) for name, alternatives in given.items()}
        order = [*(name for name in values if name != SEEDS), SEEDS]
        several = [name for name in order if len(values[name]) > 1 and name != SEEDS]
        for combination in itertools.product(*(values[name] for name in order)):
            yield self._planned(dict(zip(order, combination, strict=True)), several)

    @property
    def count(self) -> int:
        """How many runs it has."""
        number = 1
        for alternatives in self.given.values():
            number *= len(alternatives)
        return number

    @property
    def _title(self) -> str:
        return f"The arm {self.name}" if self.name else "The sweep"

    def _typed(self, name: str, alternatives: Sequence[Any]) -> list[Any]:
        """The values as their setting has them; none of them twice."""
        try:
            typed = [_typed(name, one) for one in alternatives]
        except UserError as error:
            raise UserError(f"In the arm {self.name}: {error}" if self.name else str(error)) from error
        for place, one in enumerate(typed):
            if one in typed[:place]:
                hint = "; to write one value that is a list, join it with commas, as in 64,64" if name in LISTS else ""
                raise UserError(f"{self._title} has {name} = {_text(one)} twice{hint}.")
        return typed

    def _planned(self, chosen: dict[str, Any], several: Sequence[str]) -> Planned:
        env: Environment = chosen[ENV]
        env = Environment(env.source, chosen[KWARGS]) if chosen[KWARGS] else env
        flat = {name: value for name, value in chosen.items() if name not in AROUND}
        settings = from_flat({**flat, "seed": chosen[SEEDS]}, preset_settings(chosen[PRESET]))
        name = self._name(env, settings, chosen, several)
        try:
            settings.check()
        except UserError as error:
            raise UserError(f"The run {name} cannot be made: {error}") from error
        return Planned(name, self.name, env, settings, chosen[PRESET], chosen[INIT_FROM])

    def _name(self, env: Environment, settings: Settings, chosen: dict[str, Any], several: Sequence[str]) -> str:
        """The arm, or environment and algorithm; what differs between its runs; the seed."""
        parts = [self.name] if self.name else [env.short_name, settings.algorithm]
        for name in several:
            if name == ENV:
                parts += [env.short_name] if self.name else []
            elif name == "algorithm":
                parts += [settings.algorithm] if self.name else []
            elif name == KWARGS:
                parts += [f"{key}={_text(value)}" for key, value in chosen[KWARGS].items()] or ["plain"]
            else:
                parts.append(f"{name}={_text(chosen[name])}")
        seed = f"{settings.seed}" if self.name else f"seed{settings.seed}"
        return _as_name("-".join(parts), f"-{seed}")


@dataclasses.dataclass(frozen=True)
class Grid:
    """Several arms."""

    arms: Sequence[Arm]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Grid":
        """One arm without a name; a list is several values, anything else is one."""
        return cls([Arm("", {name: alternatives(name, value) for name, value in given.items()})])

    def replaced(self, given: Mapping[str, Sequence[Any]]) -> "Grid":
        """With other values in every arm."""
        return Grid([dataclasses.replace(arm, given={**arm.given, **given}) for arm in self.arms])

    def only(self, names: Iterable[str]) -> "Grid":
        """The arms with these names, or in the groups with these names; all if there are none."""
        names = list(names)
        known = list(dict.fromkeys([*(arm.name for arm in self.arms), *(arm.group for arm in self.arms)]))
        for name in names:
            if name not in known or not name:
                there = f"there are {', '.join(filter(None, known))}" if any(known) else "the sweep has none"
                raise UserError(f"There is no arm or group named {name}; {there}.")
        return Grid([arm for arm in self.arms if not names or {arm.name, arm.group} & set(names)])

    def runs(self) -> list[Planned]:
        """Every run, in order; a `UserError` names the first that cannot be made."""
        count = sum(arm.count for arm in self.arms)
        if count > MOST_RUNS:
            raise UserError(f"The sweep has {count:,} runs; it must have at most {MOST_RUNS:,}.")
        runs = [run for arm in self.arms for run in arm.runs()]
        by_name: dict[str, Planned] = {}
        for run in runs:
            other = by_name.setdefault(run.name, run)
            if other is not run:
                raise UserError(f"Two runs of the sweep would be named {run.name}: give its arms other names.")
        return runs


def alternatives(name: str, value: Any) -> list[Any]:
    """The values that a setting takes: a list is several, unless the setting is a list and this is one of it."""
    if not isinstance(value, list) and not (name == SEEDS and isinstance(value, tuple | range)):
        return [value]
    values = list(value)
    if name in LISTS and not (values and all(isinstance(one, list | tuple) for one in values)):
        return [tuple(values)]
    if not values:
        raise UserError(f"{name} has no values: give one or more.")
    return values


def _typed(name: str, value: Any) -> Any:
    """A value as the runs have it, or a `UserError`."""
    if name == ENV:
        return _environment(value)
    if name == KWARGS:
        return dict(as_environment("", value).kwargs)
    if name == PRESET:
        preset_settings(str(value))
        return value
    if name == INIT_FROM:
        return None if value is None else str(value)
    if name == "seed":
        raise UserError("A sweep has seeds: write --seeds 0 1 2 (in a file or in Python seeds) instead of seed.")
    setting = "seed" if name == SEEDS else name
    if name == "cost" and any(map(callable, value if isinstance(value, list | tuple) else [value])):
        raise UserError("A cost of a sweep is a name: a function cannot be handed to the processes that train.")
    sound = from_flat({setting: value})
    _check_alone(setting, sound)
    return to_flat(sound)[setting]


def _check_alone(name: str, settings: Settings) -> None:
    """Refuse a value that is out of its range, whatever else is chosen."""
    try:
        settings.check()
    except UserError as error:
        if str(error).startswith(f"--{name.replace('_', '-')} is "):  # else it may fit what else is chosen
            raise


def _environment(value: Any) -> Environment:
    env = as_environment(value)
    if not env.found_by_name():
        raise UserError(
            f"{env.name} cannot be found by that name in another process, and a sweep trains in processes of its own: "
            "put the function into a module."
        )
    return env if isinstance(env.source, str) else Environment(env.name, env.kwargs)


def _text(value: Any) -> str:
    """A value as a name shows it."""
    if isinstance(value, Environment):
        return value.name
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list | tuple):
        return "x".join(map(_text, value)) or "none"
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def _as_name(name: str, ending: str) -> str:
    """A text that can be the name of a directory, of bounded length."""
    plain = re.sub(r"[^\w.+=-]+", "-", name).lstrip(".-")
    if len(plain) > LONGEST_NAME:
        plain = f"{plain[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{plain}{ending}"


def as_line(words: Sequence[str]) -> str:
    """A command as it is typed."""
    return shlex.join(["kemeny", *words])
