"""A run's state on disk: arrays in safetensors, the rest in JSON; nothing that is loaded can run code.

A checkpoint is a directory `checkpoints/step-000000100000/` with

    arrays.safetensors   every array, by name: policy/…, critics/…, optimizers/…, normalizer/…, action/low, …
    facts.json           counters needed to go on from the arrays
    SHA256SUMS           checksums of the two, as `sha256sum -c SHA256SUMS` reads them

written aside, flushed and renamed, so that it is there whole or not at all. `checkpoints/best-000000080000/` has the
same form and holds the policy of the best evaluation, without what only resuming needs. Until the first checkpoint is
complete there is a folder `checkpoints/none-yet/`: where there is neither, checkpoints have been lost.
`checkpoints/init-000000000000/` is what a run begins with that takes over the policy of another (`--init-from`).
"""

import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import safetensors
import safetensors.numpy

from kemeny.errors import Damaged, RunError, UserError
from kemeny.experience.settings import Deploy
from kemeny.runs import disk as files
from kemeny.runs.disk import Disk, reason

FORMAT = 2
"""Raised when an older Kemeny could not read what this one writes. Format 1 did not say which kind of network it has:
a perceptron of tanh units."""
ARRAYS, FACTS, SUMS = "arrays.safetensors", "facts.json", "SHA256SUMS"
LARGEST = {SUMS: 1024, FACTS: 1024**2, ARRAYS: 4 * 1024**3}
"""Bytes; a hostile file must not fill the memory."""
LARGEST_HEADER = 1024**2
"""Bytes of names and shapes in a safetensors file."""
DTYPES = ("bool", "int32", "int64", "uint32", "float32", "float64")
CONFIG, FOLDER = "config.json", "checkpoints"
STEP, BEST, INIT, ASIDE, NONE_YET = "step", "best", "init", ".writing", "none-yet"
MUST_BE_FINITE = ("policy/", "normalizer/")
"""What a policy acts by: one entry that is not finite spoils its actions for good."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What was read, and where from."""

    path: Path
    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]
    arrays_sum: str = ""
    """Checksum of the file of arrays."""

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin with `prefix/`, without it."""
        prefix += "/"
        return {name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)}


class Moved(RunError):
    """The directory of a run in progress is no longer where it was."""


class Saver:
    """Writes the checkpoints of one run, into the directory that has its name now and into no later one."""

    def __init__(self, run: Path, keep: int = 3, disk: Disk | None = None) -> None:
        """`keep` is how many of the newest checkpoints stay."""
        self.run, self.keep = run, keep
        self.disk = Disk() if disk is None else disk
        self._home = files.identity(run)

    def save(self, steps: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Path:
        """Write a checkpoint; then remove all but the newest `keep`, and any of a future that was given up."""
        target = self._save(STEP, steps, arrays, facts)
        if none_yet(self.run):
            self.disk.remove(self.run / FOLDER / NONE_YET)
        found = _numbered(self.run, STEP)
        past = [number for number in found if number <= steps]
        for number in found.keys() - set(past[-self.keep :]):
            self.disk.remove(found[number])
        return target

    def save_best(self, steps: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Path:
        """Write the best checkpoint so far, in place of the one before."""
        target = self._save(BEST, steps, arrays, facts)
        for path in _numbered(self.run, BEST).values():
            if path != target:
                self.disk.remove(path)
        return target

    def _save(self, kind: str, steps: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Path:
        folder = self.run / FOLDER
        target = folder / f"{kind}-{steps:012d}"
        aside, replaced = folder / f"{ASIDE}-{target.name}", folder / f"{ASIDE}-over-{target.name}"
        self._check_home()
        _check_finite(target, arrays)
        try:
            for left_behind in folder.glob(f"{ASIDE}-*"):
                self.disk.remove(left_behind)
            aside.mkdir()
            for name, content in _content(steps, arrays, facts).items():
                self.disk.write(aside / name, content)
            if target.exists():  # renamed first, so that no reader finds half of it
                self.disk.rename(target, replaced)
            self.disk.rename(aside, target)
            if replaced.exists():
                self.disk.remove(replaced)
        except OSError as error:
            self._check_home()  # it may have been moved meanwhile
            shutil.rmtree(aside, ignore_errors=True)
            raise RunError(
                f"The checkpoint {target} could not be written: {reason(error)}. Those before it are intact; when the "
                f"cause is mended, go on with: kemeny resume {self.run}"
            ) from error
        return target

    def _check_home(self) -> None:
        """Refuse to write into what is left of a run directory, or into what has come in its place."""
        if self._home is None or files.identity(self.run) != self._home or not os.path.exists(self.run / CONFIG):
            raise Moved(f"{self.run} was moved or removed while the run was in progress.")
        refuse_link(self.run)


def prepare(run: Path) -> None:
    """Make the folder of checkpoints, for a run that begins."""
    (run / FOLDER).mkdir()
    (run / FOLDER / NONE_YET).mkdir()


def save_init(run: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any], disk: Disk) -> None:
    """What a run begins with, in a run directory that is still being made."""
    target = run / FOLDER / f"{INIT}-{0:012d}"
    target.mkdir()
    for name, content in _content(0, arrays, facts).items():
        disk.write(target / name, content)


def initial(run: Path) -> Checkpoint:
    """What a run begins with that takes over the policy of another."""
    return load(run / FOLDER / f"{INIT}-{0:012d}")


def none_yet(run: Path) -> bool:
    """Whether the run began and never completed a checkpoint."""
    return os.path.isdir(run / FOLDER / NONE_YET)


def refuse_link(run: Path) -> None:
    """Refuse a folder of checkpoints that is elsewhere: in a run that a stranger made, a link may lead anywhere."""
    folder = run / FOLDER
    if os.path.islink(folder):
        raise RunError(
            f"{folder} is a link (to {os.readlink(folder)}), and Kemeny writes through no link. Nothing was changed. "
            f"Put the folder itself there, or mount it there; then go on with: kemeny resume {run}"
        )


def load(path: Path) -> Checkpoint:
    """Read and verify one checkpoint, in time and memory bounded by the sizes above."""
    try:
        content = {name: files.read(path / name, LARGEST[name]) for name in (SUMS, FACTS)}
        content[ARRAYS] = _read_arrays(path / ARRAYS)
        if content[SUMS] != _sums(content):
            raise ValueError(f"its files do not match {SUMS}")
        facts = json.loads(content[FACTS])
        _check_format(path, facts)
        arrays_sum = content[SUMS].split()[0].decode()
        return Checkpoint(path, _arrays(content[ARRAYS]), _checked(facts), arrays_sum)
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"The checkpoint {path} is damaged: {reason(error)}.") from error


def latest(run: Path, report: Callable[[str], None] = lambda message: None) -> Checkpoint:
    """The newest sound checkpoint of a run, or the checkpoint itself if `run` is one; damaged ones are reported."""
    if os.path.exists(run / FACTS):
        return load(run)
    refuse_no_run(run)
    while found := _numbered(run, STEP):
        for path in reversed(found.values()):
            try:
                return load(path)
            except Damaged as damage:
                report(f"{damage} Trying the one before it.")
        if found == _numbered(run, STEP):  # else the run has gone on meanwhile and removed what was listed
            raise Damaged(f"{run} has no sound checkpoint left: all {len(found)} are damaged.")
    raise UserError(f"{run} has no checkpoint yet.")


def best(run: Path) -> Checkpoint:
    """The checkpoint of a run's best evaluation."""
    refuse_no_run(run)
    while found := _numbered(run, BEST):
        path = found[max(found)]
        seen = files.identity(path)
        try:
            return load(path)
        except Damaged:
            if (found, seen) == (_numbered(run, BEST), files.identity(path)):  # else another has come in its place
                raise
    raise UserError(f"{run} has no best checkpoint: it has not been evaluated yet.")


def refuse_no_run(path: Path) -> None:
    """Refuse a path that is not a run directory, or that cannot be read."""
    for needed, otherwise in ((path, "there is no such directory"), (path / CONFIG, f"it has no {CONFIG}")):
        try:
            os.stat(needed)
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{path} is not a run directory: {otherwise}.") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {reason(error)}.") from error


def any_in(run: Path) -> bool:
    """Whether a run has checkpoints, sound or not."""
    return bool(_numbered(run, STEP))


def newest(run: Path) -> Path | None:
    """Where the newest checkpoint of a run is, sound or not; None if there is none."""
    found = _numbered(run, STEP)
    return found[max(found)] if found else None


def _numbered(run: Path, kind: str) -> dict[int, Path]:
    """Checkpoints of a kind by their steps, in that order; what was left half-written is not among them."""
    folder = run / FOLDER
    try:
        names = os.listdir(folder)
    except OSError as error:
        if not os.path.lexists(folder):
            return {}
        raise RunError(f"The checkpoints of {run} cannot be read: {reason(error)}.") from error
    found = ((re.fullmatch(rf"{kind}-(\d{{12,18}})", name), folder / name) for name in names)
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def _content(steps: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a checkpoint."""
    content = {
        ARRAYS: safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()}),
        FACTS: json.dumps({"format": FORMAT, "steps": steps, **facts}, allow_nan=False).encode(),
    }
    return {**content, SUMS: _sums(content)}


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
        ("deploy", facts.get("deploy", "mean") in get_args(Deploy)),
        ("config_sum", isinstance(facts.get("config_sum", ""), str)),
        ("finished", isinstance(facts.get("finished", False), bool)),
    ):
        if not sound:
            raise ValueError(f"{FACTS} has no usable {name}")
    return facts


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def _is_score(value: Any) -> bool:
    return value is None or (isinstance(value, list) and len(value) in (2, 3) and all(map(_is_number, value)))


def _is_description(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _check_finite(target: Path, arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        if name.startswith(MUST_BE_FINITE) and not np.isfinite(array).all():
            raise RunError(
                f"The checkpoint {target} was not written, because {name} has entries that are not finite: its policy "
                "could not act. Those before it are intact."
            )


def _read_arrays(path: Path) -> bytes:
    """The content of a safetensors file; only its header, if that does not fit the size of the file."""
    with files.opened(path, LARGEST[ARRAYS]) as (file, size):
        length = int.from_bytes(file.read(8), "little")
        if length > LARGEST_HEADER:
            raise ValueError(f"the header of {ARRAYS} is longer than any that Kemeny writes")
        if 8 + length + _promised(file.read(length)) != size:
            raise ValueError(f"{ARRAYS} is not of the size that its header says")
        file.seek(0)
        return file.read(size)


def _promised(header: bytes) -> int:
    """How many bytes of numbers must follow this header."""
    entries = json.loads(header)
    if not isinstance(entries, dict):
        raise ValueError(f"{ARRAYS} has no header")
    size = 0
    for name, entry in entries.items():
        span = entry.get("data_offsets") if isinstance(entry, dict) else None
        if not (isinstance(span, list) and len(span) == 2 and all(map(_is_count, span))):
            raise ValueError(f"the header of {ARRAYS} does not say where {name[:50]!r} is")
        size += span[1] - span[0]
    return size


def _arrays(blob: bytes) -> dict[str, np.ndarray]:
    try:
        arrays = safetensors.numpy.load(blob)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, MemoryError) as error:
        raise ValueError(f"{ARRAYS} cannot be read: {error}") from error
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise ValueError(f"{name} is of type {array.dtype}, which Kemeny does not write")
    return arrays
