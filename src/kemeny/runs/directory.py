"""A run is a directory.

    config.json          every setting, versions, git commit; written again only when the run is extended
    metrics.jsonl        one line per iteration
    evaluations.jsonl    one line per evaluation
    events.out.tfevents… the same numbers for TensorBoard, one file per session
    checkpoints/         see `kemeny.runs.checkpoint`
    lock                 held by the process that trains

`docs/metrics.md` explains every field.
"""

import contextlib
import functools
import hashlib
import html
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kemeny.errors import Damaged, RunError, UserError
from kemeny.experience.acting import Policy
from kemeny.experience.evaluation import Evaluation
from kemeny.runs import checkpoint
from kemeny.runs import disk as files
from kemeny.runs.checkpoint import CONFIG
from kemeny.runs.disk import Disk, reason
from kemeny.runs.length import Length, is_record
from kemeny.runs.load import load_policy
from kemeny.runs.lock import locked
from kemeny.runs.logs import EVALUATIONS, LOGS, METRICS
from kemeny.runs.settings import as_it_was, cost_names, from_flat, to_flat

LARGEST_CONFIG, LARGEST_LOG, LONGEST_LINE = 1024**2, 4 * 1024**3, 16 * 1024**2
"""Bytes. A run that logs 600 an iteration needs 35 billion steps of the default batch to fill a log."""
DECIDES_THE_NUMBERS = ("env", "env_is_id", "settings", "cores")
"""What of config.json must not change between two parts of a run."""


class Run:
    """A run on disk, in progress or finished: `Run("runs/x")`. What is read is kept until its file changes.

    `metrics` and `evaluations` are lists of records, from which pandas and polars make tables:
    `pandas.DataFrame(run.metrics)`. `docs/metrics.md` explains each field.
    """

    def __init__(self, path: str | Path) -> None:
        """An existing run."""
        self.path = Path(path)
        checkpoint.refuse_no_run(self.path)
        self._read: dict[str, tuple[Any, Any]] = {}  # by the name of a file: what it looked like, and what it said

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """An existing run: the same as `Run(path)`."""
        return cls(path)

    @classmethod
    def create(
        cls,
        path: Path,
        config: Mapping[str, Any],
        disk: Disk | None = None,
        begins_with: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
    ) -> "Run":
        """A new run; an existing path is never written into.

        `begins_with` are the arrays and the facts of a state that is not that of chance.
        """
        refuse_existing(path)
        # Made aside and renamed, so that a run that is killed right here leaves no directory without configuration.
        # On shared storage another machine may have a process of the same number.
        aside = path.parent / f".{path.name}.{socket.gethostname()}.{os.getpid()}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)  # in a container every process may have the same number
            aside.mkdir()
            checkpoint.prepare(aside)
            disk = Disk() if disk is None else disk
            if begins_with is not None:
                checkpoint.save_init(aside, *begins_with, disk)
            disk.write(aside / CONFIG, _config_file(config))
            disk.rename(aside, path)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            refuse_existing(path)  # made by another process meanwhile
            raise UserError(f"The run directory {path} cannot be made: {error.strerror}.") from error
        except BaseException:  # a signal
            shutil.rmtree(aside, ignore_errors=True)
            raise
        return cls(path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training here; the system lifts the lock when this one ends, however it ends.

        If the directory is moved or removed meanwhile, a `RunError` says where it is.
        """
        with locked(self.path, "it is being trained"):
            _ = self._deciding  # of the file as it is now, whatever becomes of it
            with self._watched():
                yield

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Notice when the directory is no longer where it was, before a checkpoint is written or at the end."""
        try:
            directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)  # while it is open, no other gets its number
        except OSError as error:
            raise RunError(f"The run directory {self.path} cannot be read: {error.strerror}.") from error
        try:
            yield
            about = os.fstat(directory)
            same = files.identity(self.path) == (about.st_dev, about.st_ino)
            if not (same and os.path.exists(self.path / CONFIG)):
                raise checkpoint.Moved(f"{self.path} was moved or removed while the run was in progress.")
        except checkpoint.Moved as error:
            raise checkpoint.Moved(f"{error} {_whereabouts(self.path, directory)}") from None
        finally:
            os.close(directory)

    def to_resume(self, report: Callable[[str], None]) -> checkpoint.Checkpoint | None:
        """The checkpoint to go on from; None if the run never had one. Damaged ones are reported.

        A `RunError` says why it cannot go on: checkpoints that are lost or out of sight, or other settings.
        """
        folder = self.path / checkpoint.FOLDER
        checkpoint.refuse_link(self.path)
        if checkpoint.any_in(self.path):
            saved = checkpoint.latest(self.path, report)
            config_sum = self.config_sum(saved.facts["steps"])
            if saved.facts.get("config_sum", config_sum) != config_sum:
                raise Damaged(
                    f"{self.path / CONFIG} has other settings than when {saved.path} was written: it was changed or is "
                    "damaged. Put it back as it was; for other settings, train a new run."
                )
            return saved
        logs = [path for path in (self.path / name for name in LOGS) if os.path.exists(path) and os.path.getsize(path)]
        if logs and not checkpoint.none_yet(self.path):
            raise RunError(
                f"{self.path} has logs, but no checkpoint can be seen: {folder} was emptied or removed, or its disk is "
                "not mounted. Nothing was changed. Bring the checkpoints back; or, to lose what was logged and begin "
                f"again, remove {' and '.join(map(str, logs))}."
            )
        if not os.path.lexists(folder):
            try:
                checkpoint.prepare(self.path)
            except OSError as error:
                raise RunError(f"The run directory {self.path} cannot be written: {reason(error)}.") from error
        return None

    def extend(self, done: int, steps: int, disk: Disk) -> None:
        """From here on, after `done` steps, the run has `steps` steps in all: config.json says so, or is as it was."""
        config = self._parsed_config()
        length = self.length.extend(done, steps)
        config["settings"]["steps"], config["extended"] = length.steps, length.record()
        aside = self.path / f"{checkpoint.ASIDE}-{CONFIG}"
        try:
            aside.unlink(missing_ok=True)  # of a process that was killed right here
            disk.write(aside, _config_file(config))
            disk.rename(aside, self.path / CONFIG)
        except OSError as error:
            raise RunError(f"{self.path / CONFIG} could not be written: {reason(error)}.") from error
        self.__dict__.pop("_deciding", None)
        _ = self._deciding

    def config_sum(self, steps: int) -> str:
        """A checksum of what in config.json decides the numbers of the first `steps` steps."""
        decides, length = self._deciding
        if length.extended:
            past = length.until(steps)
            decides = {**decides, "settings": {**decides["settings"], "steps": past.steps}}
            decides |= {"extended": past.record()} if past.extended else {}
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    @property
    def length(self) -> Length:
        """How long it is, and how long it was to be before."""
        return Length.of(self.config)

    @functools.cached_property
    def _deciding(self) -> tuple[dict[str, Any], Length]:
        """What in config.json decides the numbers of a run, as it was when first asked for."""
        config = self._parsed_config()
        decides = {name: config.get(name) for name in DECIDES_THE_NUMBERS}
        if config.get("env_kwargs"):  # an older Kemeny had none
            decides["env_kwargs"] = config["env_kwargs"]
        decides |= {"init_from": config["init_from"]} if config.get("init_from") is not None else {}
        return decides, self.length

    def begins_with(self) -> checkpoint.Checkpoint | None:
        """The state before the first batch, where it was taken over from another run."""
        return None if self.config.get("init_from") is None else checkpoint.initial(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        """Where it is and how far it has come."""
        return f"Run({str(self.path)!r}: {', '.join(_in_words(self))})"

    def _repr_html_(self) -> str:
        """The same, line by line, for notebooks."""
        rows = "".join(f"<tr><td>{html.escape(word)}</td></tr>" for word in _in_words(self))
        return f"<table><tr><th>{html.escape(str(self.path))}</th></tr>{rows}</table>"

    @property
    def env(self) -> str:
        """The name of its environment."""
        return self.config["env"]

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its flat name."""
        return self.config["settings"]

    @property
    def steps(self) -> int:
        """Steps that are logged so far; `settings["steps"]` is how many there will be in all."""
        return self.metrics[-1]["steps"] if self.metrics else 0

    @property
    def finished(self) -> bool:
        """Whether it has come to its end: all its steps are done, or nothing was left to gain."""
        if not checkpoint.any_in(self.path):
            return False
        facts = checkpoint.latest(self.path).facts
        return bool(facts.get("finished")) or facts["steps"] >= self.settings["steps"]

    @property
    def config(self) -> dict[str, Any]:
        """What config.json says."""
        return self._kept(CONFIG, self._read_config)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary per iteration."""
        return self._kept(METRICS, self._read_metrics)

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

    def _parsed_config(self) -> dict[str, Any]:
        """As it is in the file."""
        path = self.path / CONFIG
        try:
            config = json.loads(files.read(path, LARGEST_CONFIG))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read: {reason(error)}.") from error
        sound = (
            isinstance(config, dict)
            and isinstance(config.get("settings"), dict)
            and isinstance(config.get("env"), str)
            and isinstance(config.get("env_is_id"), bool)
            and isinstance(config.get("env_kwargs", {}), dict)
            and is_record(config.get("extended", []))
            and isinstance(config.get("init_from"), dict | None)
        )
        if not sound:
            raise UserError(f"{path} is not the configuration of a run.")
        return config

    def _read_config(self) -> dict[str, Any]:
        config = self._parsed_config()
        try:
            settings = from_flat(as_it_was(config["settings"]))
        except UserError as error:
            raise UserError(f"{self.path / CONFIG} is not the configuration of a run: {error}") from error
        flat = {**to_flat(settings), "cost": cost_names(settings)}
        lists = {name: list(value) for name, value in flat.items() if isinstance(value, tuple)}
        return {**config, "settings": {**flat, **lists}}

    def _read_metrics(self) -> list[dict[str, Any]]:
        records = self._read_lines(METRICS)
        limits = len(self.config["settings"]["limit"])
        for number, record in enumerate(records, 1):
            if not _is_whole(record, limits):
                raise UserError(f"{self.path / METRICS} is damaged: line {number} does not say what an update did.")
        return records

    def _read_evaluations(self) -> list[dict[str, Any]]:
        records = self._read_lines(EVALUATIONS)
        for number, record in enumerate(records, 1):
            try:
                Evaluation.from_record(record)
            except ValueError as error:
                raise UserError(f"{self.path / EVALUATIONS} is damaged: line {number}: {error}.") from error
        return records

    def _read_lines(self, name: str) -> list[dict[str, Any]]:
        path, records = self.path / name, []
        try:
            with files.opened(path, LARGEST_LOG) as (file, _):
                while (line := file.readline(LONGEST_LINE)).endswith(b"\n"):
                    records.append(json.loads(line))
            if len(line) == LONGEST_LINE:  # what follows the last newline is still being written, if it is no longer
                raise ValueError(f"line {len(records) + 1} is longer than any that Kemeny writes")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged: {error}.") from error
        for number, record in enumerate(records, 1):
            sound = isinstance(record, dict) and type(record.get("steps")) is int and 0 <= record["steps"] < 2**63
            if not (sound and all(map(_is_plain, record.values()))):
                raise UserError(f"{path} is damaged: line {number} is not a record of numbers.")
        return records


def _in_words(run: Run) -> list[str]:
    """What a person wants to know of a run first; never an error."""
    try:
        settings, words = run.settings, [run.env, run.settings["algorithm"], f"seed {run.settings['seed']}"]
        words += [f"{cost} ≤ {limit:g}" for cost, limit in zip(settings["cost"], settings["limit"], strict=False)]
        words.append(f"{run.steps:,} of {settings['steps']:,} steps{', finished' if run.finished else ''}")
        if run.evaluations:
            horizon, values = max(Evaluation.from_record(run.evaluations[-1]).returns.items())
            words.append(f"last return {values.mean():,.1f} (at most {horizon:,} steps)")
    except (UserError, RunError, OSError) as error:
        return [f"cannot be read: {error}"]
    return words


class Exists(UserError):
    """There is something already where a run was to be made."""


def refuse_existing(path: Path) -> None:
    """Refuse to make a run where there is something."""
    if os.path.lexists(path):
        raise Exists(f"{path} exists already; choose another --out, or go on with: kemeny resume {path}")


def run_of(path: str | Path) -> Run:
    """The run of a run directory, or of one of its checkpoints."""
    path = Path(path)
    if not os.path.exists(path / checkpoint.FACTS):
        return Run.open(path)
    return Run.open(Path(os.path.abspath(path)).parent.parent)  # the path may begin inside the run


def _config_file(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=2) + "\n").encode()


def _is_plain(value: Any, deepest: int = 2) -> bool:
    """Whether this is null, a number, or a list of such (one entry or one list per trajectory)."""
    if isinstance(value, list):
        return deepest > 0 and all(_is_plain(entry, deepest - 1) for entry in value)
    return value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _is_whole(record: Mapping[str, Any], limits: int) -> bool:
    """Whether a line of metrics has what a resumed run goes on from: the outcome and, with limits, costs and case."""
    cost = record.get("cost")
    limited = isinstance(cost, list) and len(cost) == limits and _is_plain(cost, 1) and type(record.get("case")) is int
    return type(record.get("outcome")) is int and (limited or not limits)


def _whereabouts(path: Path, directory: int) -> str:
    """Where a run's directory is that is no longer at its path, and what to do."""
    about = os.fstat(directory)
    try:
        now = Path(os.readlink(f"/proc/self/fd/{directory}"))
    except OSError:  # not on Linux
        return "Training has stopped. Its logs and earlier checkpoints are where it was moved to, if it still exists."
    if files.identity(now) != (about.st_dev, about.st_ino):
        return "Training has stopped, and what it wrote is gone, unless it was copied elsewhere before."
    if not os.path.exists(now / CONFIG):
        return f"Training has stopped. {now} is what is left of it; to resume it, put back its {CONFIG}."
    return f"Training has stopped. It is at {now} now, with its checkpoints so far: go on with kemeny resume {now}"
