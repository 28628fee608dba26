"""A run is a directory.

    config.json          every setting, versions, git commit; written once
    metrics.jsonl        a line an iteration
    evaluations.jsonl    a line an evaluation
    events.out.tfevents… the same numbers for TensorBoard, a file a session
    checkpoints/         see `kemeny.checkpoint`
    lock                 held by the process that trains

`docs/metrics.md` explains every field.
"""

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kemeny import checkpoint
from kemeny.acting import Policy, load_policy
from kemeny.envs.pool import available_cores
from kemeny.errors import RunError, UserError
from kemeny.settings import from_flat

CONFIG, METRICS, EVALUATIONS, LOCK = "config.json", "metrics.jsonl", "evaluations.jsonl", "lock"
LOGS: tuple[str, ...] = (METRICS, EVALUATIONS)
LARGEST_CONFIG = 1024**2
"""Bytes."""
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
        # Made aside and renamed, so that a run that is killed right here leaves no directory without configuration.
        aside = path.parent / f".{path.name}.{os.getpid()}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)  # in a container every process may have the same number
            aside.mkdir()
            (aside / checkpoint.FOLDER).mkdir()
            (aside / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
            aside.rename(path)
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
        try:
            from_flat(config["settings"])
        except UserError as error:
            raise UserError(f"{path} is not the configuration of a run: {error}") from error
        return config

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A dictionary an iteration."""
        return self._lines(METRICS)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """A dictionary an evaluation."""
        records = self._lines(EVALUATIONS)
        for record in records:
            returns = {name: value for name, value in record.items() if name.startswith("returns_")}
            numbered = all(re.fullmatch(r"returns_[1-9]\d{0,17}", name) for name in returns)
            given = [value for value in returns.values() if value is not None]
            if not (given and numbered and all(map(_are_numbers, given))):
                raise UserError(f"{self.path / EVALUATIONS} is damaged: a line is not the record of an evaluation.")
        return records

    @property
    def policy(self) -> Policy:
        """The policy of the newest sound checkpoint."""
        return load_policy(self.path)

    def _lines(self, name: str) -> list[dict[str, Any]]:
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
    """Whether this is null, a number, or a list of such (an entry a trajectory, or a list a trajectory)."""
    if isinstance(value, list):
        return deepest > 0 and all(_is_plain(entry, deepest - 1) for entry in value)
    return value is None or isinstance(value, int | float)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(x) in (int, float) and abs(x) < 1e300 for x in value)


class Logs:
    """The growing files of a run that is under way."""

    def __init__(self, run: Run, sizes: Mapping[str, int], steps: int) -> None:
        """`sizes` is how long each file was after `steps` steps; what was written later is cut off."""
        self._files: dict[str, _Growing] = {}
        try:
            for name in LOGS:
                self._files[name] = _Growing(run.path / name, sizes.get(name, 0))
            self._board = _TensorBoard(run.path, steps)
        except BaseException:
            self.close()
            raise

    def flush(self) -> dict[str, int]:
        """Have all that was written on the disk, and say how many bytes of each file that is."""
        return {name: file.flush() for name, file in self._files.items()}

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
        """Close the files."""
        for file in self._files.values():
            file.close()
        if hasattr(self, "_board"):
            self._board.close()

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        self._files[name].write(json.dumps(plain(record), allow_nan=False).encode() + b"\n")


class _Growing:
    """A file that is appended to without a buffer, so that a write that fails is known at once."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        with self._named():
            self._file = path.open("ab", buffering=0)
            there = self._file.tell()
            if there < size:
                self._file.close()
                raise RunError(
                    f"{path} has lost lines since the checkpoint was written ({there} bytes of {size} are left), "
                    "so the run cannot be resumed exactly; put the file back."
                )
            self._file.truncate(size)
            self._file.seek(0, os.SEEK_END)

    def write(self, content: bytes) -> None:
        with self._named():
            left = memoryview(content)
            while left:
                left = left[self._file.write(left) :]

    def flush(self) -> int:
        with self._named():
            os.fsync(self._file.fileno())
            return self._file.tell()

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self._path} could not be written: {error.strerror}. The last checkpoint is intact; when the cause "
                f"is mended, go on with: kemeny resume {self._path.parent}"
            ) from error


class _TensorBoard:
    """Scalars as TensorBoard events; a session begins by declaring void what was said of later steps."""

    def __init__(self, path: Path, steps: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._Event: Any = vars(event_pb2)["Event"]
        self._Summary: Any = vars(summary_pb2)["Summary"]
        session = vars(event_pb2)["SessionLog"]
        # TensorBoard reads files in the order of their names. Its own writer is a thread that fails out of sight.
        self._file = _Growing(path / f"events.out.tfevents.{time.time():.6f}", 0)
        self._writer = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        self._add(step=steps + 1, session_log=session(status=session.START))

    def add(self, record: Mapping[str, Any], group: str) -> None:
        values = [
            self._Summary.Value(tag=f"{group}/{name}", simple_value=float(value))
            for name, value in record.items()
            if isinstance(value, int | float) and name != "steps"
        ]
        self._add(step=int(record["steps"]), summary=self._Summary(value=values))

    def close(self) -> None:
        self._file.close()

    def _add(self, **event: Any) -> None:
        self._writer.write(self._Event(wall_time=time.time(), **event).SerializeToString())


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
        "processor": _processor(),
        "cores": xla_cores(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def differences(config: Mapping[str, Any]) -> list[str]:
    """What is not as it was when the run began and can change the last digits, a sentence each."""
    now, sentences = surroundings(), []
    before = config.get("versions")
    versions = {name: before.get(name) for name in now["versions"]} if isinstance(before, dict) else {}
    changed = [f"{name} {versions[name]} → {now['versions'][name]}" for name in versions]
    changed = [text for name, text in zip(versions, changed, strict=True) if versions[name] != now["versions"][name]]
    if changed:
        sentences.append(f"Versions have changed since the run began: {', '.join(changed)}.")
    processor = config.get("processor")
    if processor != now["processor"]:
        sentences.append(f"The processor is another than when the run began: {processor} → {now['processor']}.")
    return sentences


def xla_cores() -> int:
    """Threads that XLA divides its work among: its last digits depend on their number, and on no flag of its own."""
    asked = os.environ.get("NPROC", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else available_cores()


def _processor() -> str:
    with contextlib.suppress(OSError, IndexError):
        return Path("/proc/cpuinfo").read_text().split("model name")[1].split("\n")[0].strip("\t :")
    return platform.processor()


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
