"""A run's state on disk: arrays in safetensors, the rest in JSON; nothing that is loaded can run code.

A checkpoint is a directory `checkpoints/step-000000100000/` with

    arrays.safetensors   every array, by name: policy/…, critics/…, optimizers/…, normalizer/…, action/low, …
    facts.json           counters needed to go on from the arrays
    SHA256SUMS           checksums of the two, as `sha256sum -c SHA256SUMS` reads them

written aside, flushed and renamed, so that it is there whole or not at all. `checkpoints/best-000000080000/` has the
same form and holds the policy of the best evaluation, without what only resuming needs.
"""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from kemeny.errors import Damaged, RunError, UserError
from kemeny.runs.disk import Disk

FORMAT = 2
"""Raised when an older Kemeny could not read what this one writes. Format 1 did not say which kind of network it has:
a perceptron of tanh units."""
ARRAYS, FACTS, SUMS = "arrays.safetensors", "facts.json", "SHA256SUMS"
LARGEST = {SUMS: 1024, FACTS: 1024**2, ARRAYS: 4 * 1024**3}
"""Bytes; a hostile file must not fill the memory."""
LARGEST_HEADER = 1024**2
"""Bytes of names and shapes in a safetensors file."""
DTYPES = ("bool", "int32", "int64", "uint32", "float32", "float64")
FOLDER = "checkpoints"
STEP, BEST, ASIDE = "step", "best", ".writing"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What was read, and where from."""

    path: Path
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin with `prefix/`, without it."""
        prefix += "/"
        return {name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)}


@dataclasses.dataclass(frozen=True)
class Saver:
    """Writes the checkpoints of one run."""

    run: Path
    keep: int = 3
    """Newest checkpoints kept."""
    disk: Disk = dataclasses.field(default_factory=Disk)

    def save(self, steps: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Path:
        """Write a checkpoint; then remove all but the newest `keep`, and any of a future that was given up."""
        target = self._save(STEP, steps, arrays, facts)
        found = _numbered(self.run / FOLDER, STEP)
        past = [number for number in found if number <= steps]
        for number in found.keys() - set(past[-self.keep :]):
            self.disk.remove(found[number])
        return target

    def save_best(self, steps: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Path:
        """Write the best checkpoint so far, in place of the one before."""
        target = self._save(BEST, steps, arrays, facts)
        for path in _numbered(self.run / FOLDER, BEST).values():
            if path != target:
                self.disk.remove(path)
        return target

    def _save(self, kind: str, steps: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Path:
        folder = self.run / FOLDER
        target = folder / f"{kind}-{steps:012d}"
        aside = folder / f"{ASIDE}-{target.name}"
        try:
            for left_behind in folder.glob(f"{ASIDE}-*"):
                self.disk.remove(left_behind)
            aside.mkdir(parents=True)
            content = {
                ARRAYS: safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()}),
                FACTS: json.dumps({"format": FORMAT, "steps": steps, **facts}, allow_nan=False).encode(),
            }
            content[SUMS] = _sums(content)
            for name, bytes_ in content.items():
                self.disk.write(aside / name, bytes_)
            if target.exists():
                self.disk.remove(target)
            self.disk.rename(aside, target)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise RunError(
                f"The checkpoint {target} could not be written: {_reason(error)}. Those before it are intact; when the "
                f"cause is mended, go on with: kemeny resume {self.run}"
            ) from error
        return target


def load(path: Path) -> Checkpoint:
    """Read and verify one checkpoint, in time and memory bounded by the sizes above."""
    try:
        content = {name: read(path / name, largest) for name, largest in LARGEST.items()}
        if content[SUMS] != _sums(content):
            raise ValueError(f"its files do not match {SUMS}")
        facts = json.loads(content[FACTS])
        _check_format(path, facts)
        return Checkpoint(path, _arrays(content[ARRAYS]), _checked(facts))
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"The checkpoint {path} is damaged: {_reason(error)}.") from error


def latest(run: Path, report: Callable[[str], None] = lambda message: None) -> Checkpoint:
    """The newest sound checkpoint of a run, or the checkpoint itself if `run` is one; damaged ones are reported."""
    if (run / FACTS).exists():
        return load(run)
    if not (run / "config.json").exists():
        raise UserError(f"{run} is not a run directory: it has no config.json.")
    while found := _numbered(run / FOLDER, STEP):
        for path in reversed(found.values()):
            try:
                return load(path)
            except Damaged as damage:
                report(f"{damage} Trying the one before it.")
        if found == _numbered(run / FOLDER, STEP):  # else the run has gone on meanwhile and removed what was listed
            raise Damaged(f"{run} has no sound checkpoint left: all {len(found)} are damaged.")
    raise UserError(f"{run} has no checkpoint yet.")


def best(run: Path) -> Checkpoint:
    """The checkpoint of a run's best evaluation."""
    found = _numbered(run / FOLDER, BEST)
    if not found:
        raise UserError(f"{run} has no best checkpoint: it has not been evaluated yet, or is not a run directory.")
    return load(found[max(found)])


def read(path: Path, largest: int) -> bytes:
    """The content of a file that is no larger than this; a `ValueError` says why not."""
    # Neither a pipe (to be waited for) nor a device (without end) may stand in a file's place.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"{path.name} is not a file")
        if about.st_size > largest:
            raise ValueError(f"{path.name} is larger than any that Kemeny writes")
        return file.read(about.st_size)


def any_in(run: Path) -> bool:
    """Whether a run has checkpoints, sound or not."""
    return bool(_numbered(run / FOLDER, STEP))


def _numbered(folder: Path, kind: str) -> dict[int, Path]:
    """Checkpoints of a kind by their steps, in that order; what was left half-written is not among them."""
    found = ((re.fullmatch(rf"{kind}-(\d{{12,18}})", path.name), path) for path in folder.glob(f"{kind}-*"))
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def _sums(content: Mapping[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(content[name]).hexdigest()}  {name}\n" for name in (ARRAYS, FACTS)).encode()


def _check_format(path: Path, facts: Any) -> None:
    if not isinstance(facts, dict) or not _is_count(facts.get("format")):
        raise ValueError(f"{FACTS} does not say which format it has")
    if facts["format"] > FORMAT:
        raise UserError(
            f"The checkpoint {path} was written by a newer Kemeny (format {facts['format']}, this one reads {FORMAT}); "
            "upgrade to use it."
        )


def _checked(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts, each of the kind it must be."""
    sizes = facts.get("log_sizes")
    for name, sound in (
        ("steps", _is_count(facts.get("steps"))),
        ("iteration", _is_count(facts.get("iteration"))),
        ("seconds", _is_number(facts.get("seconds")) and facts["seconds"] >= 0),
        ("log_sizes", isinstance(sizes, dict) and all(map(_is_count, sizes.values()))),
        ("best_score", _is_score(facts.get("best_score"))),
        ("network", "network" not in facts or _is_description(facts["network"])),
    ):
        if not sound:
            raise ValueError(f"{FACTS} has no usable {name}")
    return facts


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def _is_score(value: Any) -> bool:
    return value is None or (isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)))


def _is_description(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _arrays(blob: bytes) -> dict[str, np.ndarray]:
    if int.from_bytes(blob[:8], "little") > LARGEST_HEADER:
        raise ValueError(f"the header of {ARRAYS} is longer than any that Kemeny writes")
    try:
        arrays = safetensors.numpy.load(blob)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, MemoryError) as error:
        raise ValueError(f"{ARRAYS} cannot be read: {error}") from error
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise ValueError(f"{name} is of type {array.dtype}, which Kemeny does not write")
    return arrays


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.path.basename(error.filename)}: {error.strerror}"
    return str(error)
