"""Which runs belong together: those that differ in nothing but their seed, under a name that says what else differs."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kemeny.criterion import Discounted
from kemeny.errors import UserError
from kemeny.experiments.plan import PLAN, read_plan
from kemeny.learning.settings import Clipping, Passes, Projection
from kemeny.runs.algorithms import ALGORITHMS
from kemeny.runs.checkpoint import CONFIG
from kemeny.runs.directory import Run
from kemeny.runs.settings import CRITIC_LAMBDA, DEFAULT_GAMMA

RunLike = str | Path | Run
SAME_CURVE = {
    "seed", "threads", "workers", "step_timeout", "restart_faulty", "max_skipped",
    "eval_every", "eval_trajectories", "eval_max_steps", "checkpoint_every", "keep_checkpoints",
}  # fmt: skip
"""Runs that differ in nothing but these are one curve; any other setting that differs is named."""
IN_THE_NAME = {"algorithm", "gamma", "cost", "limit"}
"""Settings that are always named."""
BACKTRACKING = {"backtrack", "backtrack_tries"}
USED_BY = {
    "natural": {"damping", "cg_iterations", *BACKTRACKING},
    "kfac": {"damping", "factor_decay", *BACKTRACKING},
    "clip": {field.name for group in (Passes, Clipping) for field in dataclasses.fields(group)},
    "project": {field.name for group in (Passes, Projection) for field in dataclasses.fields(group)} | BACKTRACKING,
}
"""Settings that only some kinds of policy step use."""
ONLY_WITH_LIMITS = {"cost_gae_lambda", "cost_memory", "multiplier_step_size"}


def open_runs(given: RunLike | Sequence[RunLike]) -> list[Run]:
    """The runs that are meant: each is a run, its directory, or a directory that holds several, such as a sweep's.

    A run that is named twice is there once. A sweep's runs are in its order, without those that have not begun.
    """
    named = [given] if isinstance(given, str | Path | Run) else list(given)
    paths = [path.resolve() for one in named for path in _paths(one)]
    if not paths:
        raise UserError("Name at least one run directory.")
    return [Run(path) for path in dict.fromkeys(paths)]


def _paths(given: RunLike) -> list[Path]:
    """The directory of one run, or those of the runs in a directory."""
    if isinstance(given, Run):
        return [given.path]
    path = Path(given)
    if os.path.exists(path / CONFIG) or not path.is_dir():
        return [path]
    if os.path.lexists(path / PLAN):
        planned = [path / one["name"] for one in read_plan(path)]
        begun = [one for one in planned if os.path.exists(one / CONFIG)]
        if not begun:
            raise UserError(f"None of the {len(planned)} runs of the sweep {path} has begun yet.")
        return begun
    return sorted(one for one in path.iterdir() if os.path.exists(one / CONFIG)) or [path]


class Curve(NamedTuple):
    """Runs on one environment that differ in nothing but their seed."""

    env: str
    name: str
    """Whatever distinguishes it from the others."""
    kind: str
    """The same but for the length of the run: one kind has one colour or row, whatever the environment."""
    runs: list[Run]

    @property
    def label(self) -> str:
        """The entry in a legend."""
        return f"{self.name} ({len(self.runs)} seed{'s' if len(self.runs) > 1 else ''})"


def group_runs(runs: Sequence[Run]) -> list[Curve]:
    """The curves, in the order in which their runs were given.

    A setting is named if it differs between runs on one environment. Then it is named on all of them, so that a kind
    has one name everywhere.
    """
    everything = [meant_settings(run) for run in runs]
    distinguishing = _distinguishing([run.env for run in runs], everything)
    curves: dict[tuple[str, str], Curve] = {}
    for run, settings in zip(runs, everything, strict=True):
        gamma = settings["gamma"]
        words = [settings["algorithm"].upper() + (f" γ = {gamma:g}" if gamma is not None else "")]
        words += [f"{cost} ≤ {limit:g}" for cost, limit in zip(settings["cost"], settings["limit"], strict=False)]
        shown = {name: settings.get(name) for name in distinguishing}
        shown = {name: _word(name, value) for name, value in shown.items() if value is not None and value is not False}
        name = ", ".join([*words, *shown.values()])
        kind = ", ".join([*words, *(word for setting, word in shown.items() if setting != "steps")])
        curves.setdefault((run.env, name), Curve(run.env, name, kind, [])).runs.append(run)
    return list(curves.values())


def _distinguishing(envs: Sequence[str], everything: Sequence[dict[str, Any]]) -> list[str]:
    """The settings by which runs on one environment differ, on any of the environments."""
    differ = set()
    for env in set(envs):
        there = [used for used, other in zip(everything, envs, strict=True) if other == env]
        names = set().union(*there) - SAME_CURVE - IN_THE_NAME
        # Runs that do not use a setting differ in what makes them not use it.
        differ |= {name for name in names if len({str(used[name]) for used in there if name in used}) > 1}
    return sorted(differ)


def meant_settings(run: Run) -> dict[str, Any]:
    """All that distinguishes a run from others on its environment, as it is meant: settings and history."""
    return {**_named(run.settings), **_history(run)}


def _named(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with what is meant where one is not given, and without those that do nothing in this run."""
    row = ALGORITHMS[settings["algorithm"]]
    meant = {
        "gamma": DEFAULT_GAMMA if row.criterion is Discounted else None,
        "log_std": row.log_std,
        "cost_gae_lambda": settings["gae_lambda"],
    }
    unused = set().union(*USED_BY.values()) - USED_BY[settings["step"]]
    unused |= set() if settings["cost"] else ONLY_WITH_LIMITS
    critic_lambda = CRITIC_LAMBDA if settings["gae_lambda"] == "auto" else settings["gae_lambda"]
    unused |= set() if settings["reuse"] > 1 else {"reuse_region"}
    filled = {name: meant.get(name) if value is None else value for name, value in settings.items()}
    if filled["critic_gae_lambda"] == critic_lambda:  # as if it were not given: it goes with the advantages' λ
        filled["critic_gae_lambda"] = None
    return {name: value for name, value in filled.items() if name not in unused}


def _history(run: Run) -> dict[str, Any]:
    """What else than its settings tells a run from others: arguments of its environment, extensions, its beginning."""
    begun, extended = run.config.get("init_from"), run.config.get("extended") or ()
    arguments = run.config.get("env_kwargs") or {}
    return {
        "env_kwargs": ", ".join(f"{name} = {value}" for name, value in arguments.items()) or None,
        "extended": " and ".join(f"at {one['at']:,} from {one['before']:,}" for one in extended) or None,
        "init_from": None if begun is None else begun.get("path"),
    }


def _word(name: str, value: Any) -> str:
    """A setting, as a legend says it."""
    if value is True:
        return name.replace("_", " ")
    return f"{name.replace('_', ' ')} {f'{value:,}' if type(value) is int else value}"
