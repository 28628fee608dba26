"""The directory of a sweep.

    sweep.json    which runs there are, and what is decided about each; a sweep can be added to, and nothing else
    lock          held by the sweep that is at work here, or shared by the members of an array
    NAME/         a run
    NAME.log      what its processes printed

A run has the name that it got when it was first planned, also if what differs between the runs is another today.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kemeny.errors import RunError, UserError
from kemeny.experiments.grid import Planned, identity
from kemeny.experiments.plan import FORMAT, PLAN, read_plan
from kemeny.runs import disk as files
from kemeny.runs.directory import Run
from kemeny.runs.disk import Disk, reason
from kemeny.runs.lock import locked
from kemeny.runs.same import differing, refuse_another

PLAN_LOCK = f"{PLAN}.lock"


class SweepDirectory:
    """Where the runs of a sweep are."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def run(self, planned: Planned) -> Path:
        """The directory of a run."""
        return self.path / planned.name

    def log(self, planned: Planned) -> Path:
        """The file for what its processes print."""
        return self.path / f"{planned.name}.log"

    def named(self, runs: Sequence[Planned]) -> list[Planned]:
        """The runs, with the names that they have here; a `UserError` if this directory is another sweep's."""
        known = read_plan(self.path)
        names = {identity(one["arm"], one["decided"]): one["name"] for one in known}
        named = [dataclasses.replace(run, name=names.get(run.identity, run.name)) for run in runs]
        self._refuse_other(known, named)
        for run in named:
            if os.path.lexists(self.run(run)):
                refuse_another(Run(self.run(run)), run.decided)
        return named

    def make(self) -> None:
        """Make the directory, if there is none."""
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as error:
            raise UserError(f"The directory of the sweep, {self.path}, cannot be made: {error.strerror}.") from error

    def plan(self, runs: Sequence[Planned]) -> list[Planned]:
        """Make this the directory of these runs, or of these as well; `named` says what is refused."""
        try:
            guard = files.create(self.path / PLAN_LOCK, os.O_RDWR)
        except OSError as error:
            raise RunError(f"The directory of the sweep, {self.path}, cannot be written: {reason(error)}.") from error
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)  # members of an array begin together, and have it for a moment each
            named = self.named(runs)
            if {run.name for run in named} != {one["name"] for one in read_plan(self.path)}:
                self._write(named)
            return named
        except OSError as error:
            raise RunError(f"{self.path / PLAN} cannot be written: {reason(error)}.") from error
        finally:
            os.close(guard)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other sweeps, and members of an array, away."""
        with locked(self.path, "it is the directory of a sweep that is at work", "directory"):
            yield

    @contextlib.contextmanager
    def as_member(self) -> Iterator[None]:
        """Keep sweeps away, but no other member of an array."""
        with locked(self.path, "it is the directory of a sweep that is at work", "directory", shared=True):
            yield

    def _refuse_other(self, known: list[dict[str, Any]], runs: Sequence[Planned]) -> None:
        """Refuse runs that leave out some of those that are known here."""
        here = {run.identity for run in runs}
        left_out = [one for one in known if identity(one["arm"], one["decided"]) not in here]
        if not left_out:
            return
        first = left_out[0]
        same_name = [run.decided for run in runs if run.name == first["name"]]
        why = differing(first["decided"], same_name[0]) if same_name else "it is not in this one"
        raise UserError(
            f"{self.path} is the directory of another sweep, of which this one leaves out {len(left_out)} of "
            f"{len(known)} runs, such as {first['name']} ({why}). A sweep can be added to, but its runs stay as they "
            "are: choose another --out."
        )

    def _write(self, runs: Sequence[Planned]) -> None:
        every = [run.decided for run in runs]
        first = every[0]
        common = {name: first[name] for name in first if all(one[name] == first[name] for one in every)}
        plan = {
            "format": FORMAT,
            "common": common,
            "runs": [
                {
                    "name": run.name,
                    "arm": run.arm,
                    "differs": {name: value for name, value in one.items() if name not in common},
                }
                for run, one in zip(runs, every, strict=True)
            ],
        }
        aside = self.path / f".{PLAN}.writing"
        aside.unlink(missing_ok=True)  # of a process that was killed right here
        disk = Disk()
        disk.write(aside, (json.dumps(plan, indent=1) + "\n").encode())
        disk.rename(aside, self.path / PLAN)
