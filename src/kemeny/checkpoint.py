"""A run's state on disk: arrays in safetensors, the rest in JSON; nothing that is loaded can run code.

A checkpoint is a directory `checkpoints/step-000000100000/` with

    arrays.safetensors   every array, by name: policy/…, critics/…, optimizers/…, normalizer/…, action/low, …
    facts.json           counters and settings needed to use the arrays, and the SHA-256 of the other file

written aside, flushed and renamed, so that it is there whole or not at all.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from kemeny.errors import RunError, UserError

FORMAT = 1
"""Raised when an older Kemeny could not read what this one writes."""
ARRAYS, FACTS = "arrays.safetensors", "facts.json"
LARGEST_FACTS = 16 * 1024**2
"""Bytes; facts are small, and a hostile file must not fill the memory."""
FOLDER = "checkpoints"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What was read, and where from."""

    path: Path
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


class Damaged(RunError):
    """A checkpoint that cannot be used; the message names it and says why."""


def save(run: Path, steps: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any], keep: int) -> Path:
    """Write a checkpoint of a run and drop all but the newest `keep`."""
    folder = run / FOLDER
    target = folder / f"step-{steps:012d}"
    aside = folder / f".writing-{target.name}"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        blob = safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
        _write(aside / ARRAYS, blob)
        written = {"format": FORMAT, "steps": steps, "sha256": hashlib.sha256(blob).hexdigest(), **facts}
        _write(aside / FACTS, json.dumps(written, allow_nan=False).encode())
        shutil.rmtree(target, ignore_errors=True)
        aside.rename(target)
        _flush_directory(folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise RunError(f"The checkpoint {target} could not be written: {error.strerror}.") from error
    for old in _complete(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def load(path: Path) -> Checkpoint:
    """Read and verify one checkpoint."""
    try:
        if (path / FACTS).stat().st_size > LARGEST_FACTS:
            raise Damaged(f"The checkpoint {path} is damaged: {FACTS} is larger than any that Kemeny writes.")
        facts = json.loads((path / FACTS).read_bytes())
        blob = (path / ARRAYS).read_bytes()
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"The checkpoint {path} is damaged: {error}.") from error
    if not isinstance(facts, dict) or not isinstance(facts.get("format"), int):
        raise Damaged(f"The checkpoint {path} is damaged: {FACTS} does not say which format it has.")
    if facts["format"] > FORMAT:
        raise Damaged(
            f"The checkpoint {path} was written by a newer Kemeny (format {facts['format']}, this one reads {FORMAT}); "
            "upgrade to use it."
        )
    if hashlib.sha256(blob).hexdigest() != facts.get("sha256"):
        raise Damaged(f"The checkpoint {path} is damaged: {ARRAYS} does not match its checksum.")
    try:
        return Checkpoint(path, safetensors.numpy.load(blob), facts)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"The checkpoint {path} is damaged: {error}.") from error


def latest(run: Path, report=lambda message: None) -> Checkpoint:
    """The newest sound checkpoint of a run, or the checkpoint itself if `run` is one; damaged ones are reported."""
    if (run / FACTS).exists():
        return load(run)
    if not (run / "config.json").exists():
        raise UserError(f"{run} is not a run directory: it has no config.json.")
    for path in reversed(_complete(run / FOLDER)):
        try:
            return load(path)
        except Damaged as damage:
            report(f"{damage} Using the one before it.")
    raise UserError(f"{run} has no usable checkpoint yet.")


def _complete(folder: Path) -> list[Path]:
    """Checkpoints in order of steps; what was left half-written is not among them."""
    return sorted(path for path in folder.glob("step-*") if (path / FACTS).exists())


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_directory(path: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot flush a directory; the rename is atomic anyway
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
