"""The growing files of a run: metrics.jsonl, evaluations.jsonl, TensorBoard's events."""

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kemeny.errors import RunError
from kemeny.runs.disk import Disk, Log

METRICS, EVALUATIONS = "metrics.jsonl", "evaluations.jsonl"
LOGS: tuple[str, ...] = (METRICS, EVALUATIONS)


class Logs:
    """The growing files of a run in progress."""

    def __init__(self, run: Path, sizes: Mapping[str, int], steps: int, disk: Disk) -> None:
        """`sizes` is how long each file was after `steps` steps; what was written later is cut off."""
        self._files: dict[str, Log] = {}
        try:
            for name in LOGS:
                self._files[name] = disk.open_log(run / name, sizes.get(name, 0))
            self._board = _TensorBoard(run, steps, disk)
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
        means = {
            name: np.mean(value, axis=0).tolist() for name, value in record.items() if isinstance(value, list) and value
        }
        for name in means:
            if name.endswith("falls_per_million"):  # with its interval
                means[name] = record[name][0]
        self._board.add({"steps": record["steps"], **means}, "evaluation")

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        if hasattr(self, "_board"):
            self._board.close()

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        self._files[name].write(json.dumps(plain(record), allow_nan=False).encode() + b"\n")


class _TensorBoard:
    """Scalars as TensorBoard events; a session begins by declaring void what an earlier one said of later steps."""

    def __init__(self, run: Path, steps: int, disk: Disk) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._Event: Any = vars(event_pb2)["Event"]
        self._Summary: Any = vars(summary_pb2)["Summary"]
        session = vars(event_pb2)["SessionLog"]
        # TensorBoard's own writer is a thread that fails out of sight.
        self._file = disk.open_log(run / _next_events(run), 0)
        self._writer = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        self._add(step=steps + 1, session_log=session(status=session.START))

    def add(self, record: Mapping[str, Any], group: str) -> None:
        values = [
            self._Summary.Value(tag=f"{group}/{name}", simple_value=float(value))
            for name, value in _scalars(record)
            if isinstance(value, int | float) and name != "steps"
        ]
        self._add(step=int(record["steps"]), summary=self._Summary(value=values))

    def close(self) -> None:
        self._file.close()

    def _add(self, **event: Any) -> None:
        self._writer.write(self._Event(wall_time=time.time(), **event).SerializeToString())


def _scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each number by its name; those of a list of several are numbered."""
    for name, value in record.items():
        if isinstance(value, list) and len(value) > 1:
            yield from ((f"{name}/{i}", entry) for i, entry in enumerate(value))
        else:
            yield name, value[0] if isinstance(value, list) and value else value


def _next_events(run: Path) -> str:
    """The name of a session's events: TensorBoard reads files in the order of their names, so this is the last.

    Sessions are counted. Older versions of Kemeny wrote the time in seconds there, which may have gone back since.
    """
    try:
        names = os.listdir(run)
    except OSError as error:
        raise RunError(f"The run directory {run} cannot be read: {error.strerror}.") from error
    matches = (re.match(r"events\.out\.tfevents\.(\d{1,15})(?!\d)", name) for name in names)
    return f"events.out.tfevents.{1 + max((int(match[1]) for match in matches if match), default=0):010d}"


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
