"""A look at a run from outside: how far it is, cheap enough to look every second while it is trained."""

import enum
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kemeny.errors import RunError, UserError
from kemeny.experience.evaluation import Evaluation
from kemeny.runs import checkpoint
from kemeny.runs import disk as files
from kemeny.runs.directory import LARGEST_LOG, Run
from kemeny.runs.lock import is_locked
from kemeny.runs.logs import EVALUATIONS, METRICS

TAIL = 2**16
"""Bytes at the end of a log that are looked at: a hundred lines of the usual kind."""


class State(enum.StrEnum):
    """What a run directory is now."""

    MISSING = "not begun"
    TRAINING = "training"
    STOPPED = "stopped"
    FINISHED = "finished"
    UNREADABLE = "cannot be read"


class Glance(NamedTuple):
    """What can be seen of a run."""

    state: State
    steps: int = 0
    """Logged so far."""
    total: int = 0
    seconds: float = 0.0
    """Of training, until the newest line."""
    rate: float | None = None
    """ρ̂."""
    last_return: float | None = None
    """Mean return of the last evaluation, at its shortest horizon."""
    problem: str = ""
    """Why it cannot be read."""


def glance(path: Path) -> Glance:
    """Look at a run directory, which need not exist; never an error."""
    if not os.path.lexists(path):
        return Glance(State.MISSING)
    try:
        total = Run(path).settings["steps"]
        metrics = _newest(path / METRICS)
        about = {
            "steps": int(metrics.get("steps") or 0),
            "total": total,
            "seconds": float(metrics.get("seconds") or 0),
            "rate": metrics.get("rate"),
            "last_return": _last_return(_newest(path / EVALUATIONS)),
        }
        if is_locked(path):
            return Glance(State.TRAINING, **about)
        return Glance(State.FINISHED if _is_finished(path, total) else State.STOPPED, **about)
    except (UserError, RunError, OSError, ValueError, TypeError, RecursionError) as error:
        return Glance(State.UNREADABLE, problem=str(error))


def _newest(log: Path) -> dict[str, Any]:
    """The last whole line of a log; empty if there is none."""
    try:
        with files.opened(log, LARGEST_LOG) as (file, size):
            file.seek(max(0, size - TAIL))
            lines = file.read(TAIL).split(b"\n")[:-1]
    except FileNotFoundError:
        return {}
    record = json.loads(lines[-1]) if lines else {}
    return record if isinstance(record, dict) else {}


def _last_return(record: dict[str, Any]) -> float | None:
    try:
        returns = Evaluation.from_record(record).returns
    except ValueError:  # there is none yet, or it is not finite, which is null in the record
        return None
    return float(np.mean(returns[min(returns)]))


def _is_finished(path: Path, total: int) -> bool:
    """By the newest checkpoint's facts alone; whether they are sound is seen by whoever goes on from them."""
    newest = checkpoint.newest(path)
    if newest is None:
        return False
    facts = json.loads(files.read(newest / checkpoint.FACTS, checkpoint.LARGEST[checkpoint.FACTS]))
    return facts.get("finished") is True or facts["steps"] >= total
