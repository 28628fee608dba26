"""A run is a directory.

    config.json          every setting, versions, git commit; written once
    metrics.jsonl        a line an iteration
    evaluations.jsonl    a line an evaluation
    events.out.tfevents… the same numbers for TensorBoard
    checkpoints/         see `kemeny.checkpoint`

`docs/metrics.md` explains every field.
"""

import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kemeny import checkpoint
from kemeny.acting import Policy, load_policy
from kemeny.errors import RunError, UserError

CONFIG, METRICS, EVALUATIONS = "config.json", "metrics.jsonl", "evaluations.jsonl"
LOGS: tuple[str, ...] = (METRICS, EVALUATIONS)
RECORDED_VERSIONS = ("kemeny", "jax", "jaxlib", "equinox", "optax", "numpy", "envpool", "gymnasium", "mujoco")


@dataclasses.dataclass(frozen=True)
class Run:
    """A run on disk, under way or finished."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """An existing run."""
        path = Path(path)
        if not (path / CONFIG).is_file():
            reason = "it has no config.json" if path.exists() else "there is no such directory"
            raise UserError(f"{path} is not a run directory: {reason}.")
        return cls(path)

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> "Run":
        """A new run; an existing path is never written into."""
        if path.exists():
            raise UserError(f"{path} exists already; choose another --out, or go on with: kemeny resume {path}")
        try:
            path.mkdir(parents=True)
            (path / checkpoint.FOLDER).mkdir()
            (path / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        except OSError as error:
            raise UserError(f"The run directory {path} cannot be made: {error.strerror}.") from error
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        """What config.json says."""
        try:
            config = json.loads((self.path / CONFIG).read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{self.path / CONFIG} cannot be read: {error}.") from error
        if not isinstance(config, dict) or not isinstance(config.get("settings"), dict):
            raise UserError(f"{self.path / CONFIG} is not the configuration of a run.")
        return config

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A dictionary an iteration."""
        return self._lines(METRICS)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """A dictionary an evaluation."""
        return self._lines(EVALUATIONS)

    @property
    def policy(self) -> Policy:
        """The policy of the newest sound checkpoint."""
        return load_policy(self.path)

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.path / name
        if not path.exists():
            return []
        lines = path.read_bytes().split(b"\n")
        try:
            return [json.loads(line) for line in lines[:-1]]  # what follows the last newline is still being written
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}.") from error


class Logs:
    """The growing files of a run that is under way."""

    def __init__(self, run: Run, sizes: Mapping[str, int] | None = None) -> None:
        """`sizes` (on resume) is how long each file was at the checkpoint; what was written later is cut off."""
        self._files = {}
        try:
            for name in LOGS:
                file = (run.path / name).open("ab")
                if sizes is not None:
                    file.truncate(sizes[name])
                    file.seek(0, os.SEEK_END)
                self._files[name] = file
        except OSError as error:
            raise RunError(f"The logs of {run.path} cannot be written: {error.strerror}.") from error
        self._board = _TensorBoard(run.path)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file so far."""
        return {name: file.tell() for name, file in self._files.items()}

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Log an iteration."""
        self._write(METRICS, record)
        self._board.add(record, "training")

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Log an evaluation."""
        self._write(EVALUATIONS, record)
        means = {name: float(np.mean(value)) for name, value in record.items() if isinstance(value, list) and value}
        self._board.add({"steps": record["steps"], **means}, "evaluation")

    def close(self) -> None:
        """Flush and close."""
        for file in self._files.values():
            file.close()
        self._board.close()

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        file = self._files[name]
        try:
            file.write(json.dumps(plain(record), allow_nan=False).encode() + b"\n")
            file.flush()
        except OSError as error:
            raise RunError(f"{name} could not be written: {error.strerror}.") from error


class _TensorBoard:
    """Scalars as TensorBoard events."""

    def __init__(self, path: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(path))

    def add(self, record: Mapping[str, Any], group: str) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        # protobuf makes these names at run time, where no type checker sees them
        make_event, summary = getattr(event_pb2, "Event"), getattr(summary_pb2, "Summary")  # noqa: B009

        values = [
            summary.Value(tag=f"{group}/{name}", simple_value=float(value))
            for name, value in record.items()
            if isinstance(value, int | float) and name != "steps"
        ]
        event = make_event(wall_time=time.time(), step=int(record["steps"]), summary=summary(value=values))
        self._writer.add_event(event)

    def close(self) -> None:
        self._writer.close()


def plain(value: Any) -> Any:
    """Arrays and NumPy numbers as plain JSON; what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def surroundings() -> dict[str, Any]:
    """Versions and machine, for config.json."""
    versions = {"python": platform.python_version()}
    for name in RECORDED_VERSIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "git_commit": _git_commit(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _git_commit() -> str | None:
    """The commit of Kemeny's own checkout, if it runs from one."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=here, capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
