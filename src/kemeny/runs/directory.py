"""A run is a directory.

    config.json          every setting, versions, git commit; written once
    metrics.jsonl        one line per iteration
    evaluations.jsonl    one line per evaluation
    events.out.tfevents… the same numbers for TensorBoard, one file per session
    checkpoints/         see `kemeny.runs.checkpoint`
    lock                 held by the process that trains

`docs/metrics.md` explains every field.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kemeny.errors import RunError, UserError
from kemeny.experience.acting import Policy
from kemeny.experience.evaluation import Evaluation
from kemeny.runs import checkpoint
from kemeny.runs.disk import Disk
from kemeny.runs.load import load_policy
from kemeny.runs.logs import EVALUATIONS, METRICS, plain
from kemeny.runs.settings import Settings, from_flat, to_flat, with_new_names

CONFIG, LOCK = "config.json", "lock"
LARGEST_CONFIG = 1024**2
"""Bytes."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run on disk, in progress or finished. What is read is kept until its file changes."""

    path: Path
    _read: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """By the name of the file: what it looked like, and what was read from it."""

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """An existing run."""
        path = Path(path)
        if not (path / CONFIG).is_file():
            reason = "it has no config.json" if path.exists() else "there is no such directory"
            raise UserError(f"{path} is not a run directory: {reason}.")
        return cls(path)

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], disk: Disk | None = None) -> "Run":
        """A new run; an existing path is never written into."""
        if path.exists():
            raise UserError(f"{path} exists already; choose another --out, or go on with: kemeny resume {path}")
        # Made aside and renamed, so that a run that is killed right here leaves no directory without configuration.
        aside = path.parent / f".{path.name}.{os.getpid()}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)  # in a container every process may have the same number
            aside.mkdir()
            (aside / checkpoint.FOLDER).mkdir()
            disk = Disk() if disk is None else disk
            disk.write(aside / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
            disk.rename(aside, path)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise UserError(f"The run directory {path} cannot be made: {error.strerror}.") from error
        return cls(path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training here; the system lifts the lock when this one ends, however it ends."""
        try:
            file = (self.path / LOCK).open("a+")
        except OSError as error:
            raise RunError(f"The run directory {self.path} cannot be written: {error.strerror}.") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read(100).strip() or "another one"
                raise UserError(f"{self.path} is in use by process {holder}: it is being trained.") from None
            with contextlib.suppress(OSError):  # who holds it is for the message alone
                file.truncate(0)
                file.write(f"{os.getpid()}\n")
                file.flush()
            yield

    @property
    def config(self) -> dict[str, Any]:
        """What config.json says."""
        return self._kept(CONFIG, self._read_config)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary per iteration."""
        return self._kept(METRICS, lambda: self._read_lines(METRICS))

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """One dictionary per evaluation; `Evaluation.from_record` makes arrays of it."""
        return self._kept(EVALUATIONS, self._read_evaluations)

    @property
    def policy(self) -> Policy:
        """The policy of the newest sound checkpoint."""
        return load_policy(self.path)

    def _kept(self, name: str, read: Callable[[], Any]) -> Any:
        """What `read` gives, unless the file is what it was when it was read before."""
        try:
            about = os.stat(self.path / name)
            looks = (about.st_ino, about.st_size, about.st_mtime_ns)
        except OSError:
            return read()
        if self._read.get(name, (None, None))[0] != looks:
            self._read[name] = (looks, read())
        return self._read[name][1]

    def _read_config(self) -> dict[str, Any]:
        path = self.path / CONFIG
        try:
            config = json.loads(checkpoint.read(path, LARGEST_CONFIG))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read: {error}.") from error
        sound = (
            isinstance(config, dict)
            and isinstance(config.get("settings"), dict)
            and isinstance(config.get("env"), str)
            and isinstance(config.get("env_is_id"), bool)
        )
        if not sound:
            raise UserError(f"{path} is not the configuration of a run.")
        config["settings"] = {**plain(to_flat(Settings())), **with_new_names(config["settings"])}
        try:
            from_flat(config["settings"])
        except UserError as error:
            raise UserError(f"{path} is not the configuration of a run: {error}") from error
        return config

    def _read_evaluations(self) -> list[dict[str, Any]]:
        records = self._read_lines(EVALUATIONS)
        for number, record in enumerate(records, 1):
            try:
                Evaluation.from_record(record)
            except ValueError as error:
                raise UserError(f"{self.path / EVALUATIONS} is damaged: line {number}: {error}.") from error
        return records

    def _read_lines(self, name: str) -> list[dict[str, Any]]:
        path = self.path / name
        try:
            lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
            records = [json.loads(line) for line in lines[:-1]]  # what follows the last newline is still being written
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged: {error}.") from error
        for number, record in enumerate(records, 1):
            sound = isinstance(record, dict) and type(record.get("steps")) is int and 0 <= record["steps"] < 2**63
            if not (sound and all(map(_is_plain, record.values()))):
                raise UserError(f"{path} is damaged: line {number} is not a record of numbers.")
        return records


def _is_plain(value: Any, deepest: int = 2) -> bool:
    """Whether this is null, a number, or a list of such (one entry or one list per trajectory)."""
    if isinstance(value, list):
        return deepest > 0 and all(_is_plain(entry, deepest - 1) for entry in value)
    return value is None or isinstance(value, int | float)
