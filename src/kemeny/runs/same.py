"""Whether a run on disk is the one that is asked for: its environment, its settings, what it began with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kemeny.errors import UserError
from kemeny.runs.directory import Run
from kemeny.runs.settings import Settings, cost_names, to_flat


def decided(
    env: str, env_kwargs: Mapping[str, Any], settings: Settings, init_from: str | Path | None
) -> dict[str, Any]:
    """All that the user decides about a run, by its name, as JSON has it."""
    flat = {**to_flat(settings), "cost": cost_names(settings)}
    lists = {name: list(value) for name, value in flat.items() if isinstance(value, tuple)}
    begins_with = None if init_from is None else str(init_from)
    return {"env": env, "env_kwargs": dict(env_kwargs), **flat, **lists, "init_from": begins_with}


def refuse_another(run: Run, asked: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that is not what `decided` says; nothing in it is changed.

    A run that was extended since is still the same.
    """
    config = run.config
    there = {
        "env": config["env"],
        "env_kwargs": config.get("env_kwargs", {}),
        **config["settings"],
        "init_from": (config.get("init_from") or {}).get("path"),
    }
    if asked["steps"] in {one.before for one in run.length.extended}:
        there["steps"] = asked["steps"]
    if other := differing(there, asked):
        raise UserError(
            f"{run.path} exists already, and is another run: {other}. Choose another --out, or go on with it as it is: "
            f"kemeny resume {run.path}"
        )


def differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What differs between two runs, in words; empty if nothing."""
    names = [name for name in here if there.get(name) != here[name]]
    return "; ".join(f"{name} is {there.get(name)} there and {here[name]} here" for name in names)
