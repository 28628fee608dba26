"""Runs on a cluster of Ray's: each an actor that has one CPU and trains in a process of its own on its node.

The directory of the sweep is on storage that all nodes share, so a run whose node is lost goes on elsewhere. A token in
the directory, which every node must see, proves that.
"""

import contextlib
import fcntl
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kemeny.cluster import name_of_node, nodes
from kemeny.errors import RunError, UserError
from kemeny.experiments.grid import Planned
from kemeny.experiments.local import LocalProcess, LocalProcesses, last_line, usable_cores
from kemeny.experiments.sweep_directory import SweepDirectory
from kemeny.runs import checkpoint
from kemeny.runs.disk import reason
from kemeny.runs.interrupts import CALL_AGAIN

TOKEN = ".token"
SECONDS_FOR_AN_ANSWER = 60.0
SECONDS_BETWEEN_COUNTS = 1.0
MOST_LOSSES = 10
"""How often in a row a run may be lost before it has a new checkpoint: then it is not its nodes that fail."""
EXIT_MISTAKE = 2


class RayActors:
    """Actors of a cluster, one per CPU, or as many as `most` says."""

    def __init__(self, ray: Any, directory: SweepDirectory, runs: int, most: int | None = None) -> None:
        self._ray, self._runs, self._most = ray, runs, most
        self._directory = SweepDirectory(os.path.abspath(directory.path))
        self._token = ""
        self._losses: dict[str, tuple[str, int]] = {}
        self._counted = -SECONDS_BETWEEN_COUNTS
        self._slots = 1

    @property
    def slots(self) -> int:
        """As many as the cluster has CPUs now: nodes may come and go."""
        if time.monotonic() - self._counted >= SECONDS_BETWEEN_COUNTS:
            self._counted = time.monotonic()
            room = self._most or int(self._ray.cluster_resources().get("CPU", 0))
            self._slots = max(1, min(self._runs, room))
        return self._slots

    @contextlib.contextmanager
    def shared_storage(self) -> Iterator[None]:
        """Have a token in the directory, which every node must see; a `UserError` names one that does not."""
        path = self._directory.path / TOKEN
        self._token = uuid.uuid4().hex
        try:
            path.write_text(self._token)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {reason(error)}.") from error
        try:
            refuse_unshared(_ask_nodes(self._ray, self._directory.path, self._token), self._directory.path)
            yield
        finally:
            path.unlink(missing_ok=True)

    def start(self, run: Planned, slot: int) -> "RayJob":
        """An actor that trains; it waits where no CPU is free."""
        options = {"num_cpus": 1, "max_concurrency": 2, "max_restarts": 0}
        actor = self._ray.remote(_Trainer).options(**options).remote(os.getcwd())
        ready = actor.is_ready.remote()
        end = actor.train.remote(str(self._directory.path), self._token, run, slot)
        return RayJob(self, run, actor, ready, end)

    def log(self, run: Planned) -> Path:
        """What it prints."""
        return self._directory.log(run)

    def lost(self, run: Planned) -> bool:
        """Note that a run's node or actor is gone; whether that happens too often."""
        newest = str(checkpoint.newest(self._directory.run(run)))
        before, count = self._losses.get(run.name, (newest, 0))
        self._losses[run.name] = newest, 1 if newest != before else count + 1
        return self._losses[run.name][1] > MOST_LOSSES


class RayJob:
    """One of them."""

    def __init__(self, place: RayActors, run: Planned, actor: Any, ready: Any, end: Any) -> None:
        self._place, self._run, self._ready, self._end = place, run, ready, end
        self._actor: Any = actor
        self._code: int | None = None
        self._words = ""

    def poll(self) -> int | None:
        """Its exit code, once it has ended; if it was lost, it asks to be called again."""
        if self._code is None and self._is_done(self._end):
            self._code, self._words = self._outcome()
            self._kill()
        return self._code

    def stop(self, at_once: bool) -> None:
        """As for a process of this machine; a run that still waits for a CPU does not begin."""
        if self._code is not None:
            return
        if self._is_done(self._ready):
            self._actor.stop.remote(at_once)
        else:
            self._code = CALL_AGAIN
            self._kill()

    def last_words(self) -> str:
        """Why it could not be trained, or the last line of its log."""
        return self._words or last_line(self._place.log(self._run))

    def _outcome(self) -> tuple[int, str]:
        ray = self._place._ray
        try:
            return ray.get(self._end)
        except ray.exceptions.RayTaskError as error:
            return EXIT_MISTAKE, f"its node could not train it: {' '.join(str(error.cause).split())}"
        except ray.exceptions.RayError as error:
            if self._place.lost(self._run):
                return EXIT_MISTAKE, f"it was lost {MOST_LOSSES + 1} times in a row: {' '.join(str(error).split())}"
            return CALL_AGAIN, ""

    def _is_done(self, reference: Any) -> bool:
        return bool(self._place._ray.wait([reference], timeout=0)[0])

    def _kill(self) -> None:
        """Give its CPU back."""
        self._place._ray.kill(self._actor)


class _Trainer:
    """What happens on a node: a process as on any machine, which writes its log itself."""

    def __init__(self, working_directory: str) -> None:
        if os.path.isdir(working_directory):  # environments that are files are named from there
            os.chdir(working_directory)
        self._process: LocalProcess | None = None
        self._stopped: bool | None = None

    def is_ready(self) -> None:
        """Whether there was a CPU for it."""

    def train(self, directory: str, token: str, run: Planned, slot: int) -> tuple[int, str]:
        """Train to the end: the exit code, and what the log does not say."""
        if problem := _unseen(directory, token):
            here = os.uname().nodename
            return EXIT_MISTAKE, f"the node {here} {problem}"
        with _claimed_core(slot) as core:
            process = LocalProcesses(SweepDirectory(directory), 1, [core]).start(run, 0)
            self._process = process
            if self._stopped is not None:  # while the process was started
                process.stop(self._stopped)
            return process.wait(), ""

    def stop(self, at_once: bool) -> None:
        """Pass it on to the process."""
        self._stopped = at_once
        if self._process is not None:
            self._process.stop(at_once)


@contextlib.contextmanager
def _claimed_core(slot: int) -> Iterator[int]:
    """A core of this node that no other run has, as long as there is one; else they share."""
    cores = usable_cores()
    folder = Path(tempfile.gettempdir()) / f"kemeny-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for core in cores:
            lock = stack.enter_context(open(folder / str(core), "w"))
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # lifted when the actor ends, however it ends
                yield core
                return
        yield cores[slot % len(cores)]


def _ask_nodes(ray: Any, path: Path, token: str) -> dict[str, str]:
    """By the name of each node what keeps it from training at this path; empty if nothing does."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = {}
    for node in nodes(ray):
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(_unseen).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        asked[task.remote(str(path), token)] = name_of_node(node)
    done, silent = ray.wait(list(asked), num_returns=len(asked), timeout=SECONDS_FOR_AN_ANSWER)
    answers = {asked[reference]: f"has not answered within {SECONDS_FOR_AN_ANSWER:g} seconds" for reference in silent}
    for reference in done:
        try:
            answers[asked[reference]] = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            answers[asked[reference]] = f"cannot run Kemeny, which must be installed there: {error.cause}"
        except ray.exceptions.RayError:  # it has left meanwhile
            continue
    return answers


def refuse_unshared(answers: Mapping[str, str], path: Path) -> None:
    """Refuse a cluster of which some node does not see the directory of the sweep."""
    for node, problem in answers.items():
        if problem:
            raise UserError(
                f"The node {node} {problem}. All nodes must share the directory of the sweep, {path}: choose an --out "
                "on storage that they share."
            )


def _unseen(directory: str, token: str) -> str:
    """What is wrong with a directory from where this is called; empty if the token is there, and more can be written.

    A part of Kemeny's module, so that a node without Kemeny fails.
    """
    try:
        with open(os.path.join(directory, TOKEN)) as file:
            seen = file.read(len(token) + 1)
    except OSError as error:
        return f"does not see {directory} ({error.strerror})"
    if seen != token:
        return f"sees another {directory}"
    return "" if os.access(directory, os.W_OK) else f"cannot write {directory}"
