"""Runs side by side: those that are missing or stopped are started where there is room, and watched until they end."""

import signal
import time
from collections import deque
from collections.abc import Sequence

from kemeny.errors import RunError
from kemeny.experiments.backend import Backend, Job
from kemeny.experiments.board import ELSEWHERE, FAILED, FINISHED, STOPPED, TRAINING, WAITING, Board, Row
from kemeny.experiments.grid import Planned
from kemeny.experiments.sweep_directory import SweepDirectory
from kemeny.runs.glance import State, glance
from kemeny.runs.interrupts import CALL_AGAIN, Interrupted, Stop

SECONDS_BETWEEN_POLLS, SECONDS_BETWEEN_LOOKS = 0.1, 1.0
SECONDS_TO_STOP_AT_ONCE = 10.0


def train_all(runs: Sequence[Planned], directory: SweepDirectory, backend: Backend, board: Board) -> None:
    """Bring all runs to their end. A run that fails touches no other; a `RunError` tells of it when all are done.

    Ctrl-C or a scheduler's signal stops all with a checkpoint, and raises `Interrupted`.
    """
    work = _Work(runs, directory, backend, board)
    with Stop() as stop:
        try:
            while work.goes_on(stop.asked):
                if stop.asked:
                    work.stop()
                else:
                    work.fill()
                work.look()
                time.sleep(SECONDS_BETWEEN_POLLS)
        finally:  # nothing is left to stop, unless this is a second Ctrl-C or a mistake of ours
            work.end_at_once()
            board.close(work.rows)
    failed = f"{len(work.failures)} of {len(runs)} runs failed; the same command tries them again:" + "".join(
        f"\n  {name}: {words}" for name, words in work.failures.items()
    )
    if stop.interrupted_by is not None and not work.all_finished:
        finished = sum(row.state == FINISHED for row in work.rows)
        stopped = f"Stopped after a checkpoint of each run in progress; {finished} of {len(runs)} runs are finished."
        message = f"{stopped} Go on with the same command." + (f"\n{failed}" if work.failures else "")
        raise Interrupted(message, stop.interrupted_by)
    if work.failures:
        raise RunError(failed)


class _Work:
    """What is left to do, and who does it."""

    def __init__(self, runs: Sequence[Planned], directory: SweepDirectory, backend: Backend, board: Board) -> None:
        self.runs, self.directory, self.backend, self.board = runs, directory, backend, board
        self.rows = [Row(run.name, run.settings.steps) for run in runs]
        self.failures: dict[str, str] = {}
        self._jobs: dict[int, tuple[int, Job]] = {}  # by slot: which run
        self._waiting = deque(range(len(runs)))
        self._stopped = False
        self._looked = 0.0
        for place in range(len(runs)):
            self._see(place)
        for place in [place for place in self._waiting if self.rows[place].state == FINISHED]:
            self._waiting.remove(place)

    @property
    def all_finished(self) -> bool:
        """Whether nothing is left to do."""
        return all(row.state == FINISHED for row in self.rows)

    def goes_on(self, stopping: bool) -> bool:
        """Whether there is something to wait for."""
        return bool(self._jobs) or (bool(self._waiting) and not stopping)

    def fill(self) -> None:
        """Start what waits, where there is room."""
        for slot in range(self.backend.slots):
            place = None if slot in self._jobs else self._next()
            if place is not None:
                self._start(place, slot)

    def _start(self, place: int, slot: int) -> None:
        row = self.rows[place]
        try:
            self._jobs[slot] = place, self.backend.start(self.runs[place], slot)
            row.state, row.first = TRAINING, None
        except (RunError, OSError) as error:  # its log cannot be written, or there is no room for a process
            row.state, self.failures[row.name] = FAILED, f"it could not be started: {error}"

    def _next(self) -> int | None:
        """The first run that waits and that no other process is at."""
        for _ in range(len(self._waiting)):
            place = self._waiting.popleft()
            match self._see(place):
                case State.FINISHED:  # by another process
                    continue
                case State.TRAINING:
                    self.rows[place].state = ELSEWHERE
                    self._waiting.append(place)
                case _:
                    return place
        return None

    def look(self) -> None:
        """Notice who has ended, and how far the others are."""
        ended = False
        for slot, (place, job) in list(self._jobs.items()):
            code = job.poll()
            if code is not None:
                del self._jobs[slot]
                self._ended(place, job, code)
                ended = True
        if ended or time.monotonic() - self._looked > SECONDS_BETWEEN_LOOKS:
            self._looked = time.monotonic()
            for place, _ in self._jobs.values():
                self.rows[place].see(glance(self.directory.run(self.runs[place])))
            self.board.show(self.rows)

    def _ended(self, place: int, job: Job, code: int) -> None:
        row = self.rows[place]
        row.see(glance(self.directory.run(self.runs[place])))
        if code == 0:
            row.state = FINISHED
        elif self._stopped:
            row.state = STOPPED
        elif code == CALL_AGAIN:  # another process is there, or somebody stopped this one
            row.state = WAITING
            self._waiting.append(place)
        else:
            row.state = FAILED
            killed = f"killed by {signal.Signals(-code).name}; its last words: " if code < 0 else ""
            self.failures[row.name] = f"{killed}{job.last_words()} ({self.directory.log(self.runs[place])})"

    def stop(self) -> None:
        """Ask all to stop, once."""
        if not self._stopped:
            self._stopped = True
            self.board.say("Stopping: each run finishes its iteration and writes a checkpoint.")
            for _, job in self._jobs.values():
                job.stop(at_once=False)

    def end_at_once(self) -> None:
        """Wait for nobody: the checkpoints that there are suffice to go on."""
        for _, job in self._jobs.values():
            job.stop(at_once=True)
        deadline = time.monotonic() + SECONDS_TO_STOP_AT_ONCE
        while any(job.poll() is None for _, job in self._jobs.values()) and time.monotonic() < deadline:
            time.sleep(SECONDS_BETWEEN_POLLS)
        for place, _ in self._jobs.values():
            self.rows[place].state = STOPPED

    def _see(self, place: int) -> State:
        seen = glance(self.directory.run(self.runs[place]))
        self.rows[place].see(seen)
        self.rows[place].state = FINISHED if seen.state == State.FINISHED else WAITING
        return seen.state
