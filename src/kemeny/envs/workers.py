"""Gymnasium environments in processes of their own, and what is said when one dies or hangs.

A worker is a fresh Python that holds a block of environments and talks over one pipe. It is started as a
program and not by `multiprocessing`, whose children import the user's main module again: a script without an
`if __name__ == "__main__"` guard would start itself anew in each. Functions travel by cloudpickle, by value
when they live in the main module. A worker whose parent is gone reads the end of the pipe and leaves.
"""

import contextlib
import multiprocessing
import signal
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from kemeny.envs.costs import Cost
from kemeny.envs.gymnasium import Block, RestartSeeds, blank, make_env
from kemeny.envs.pool import Clock, EnvLike, Step
from kemeny.errors import RunError, UserError

SECONDS_TO_LEAVE = 5.0  # for an environment's own close(); then the worker is killed

# The parent alone answers Ctrl-C and SIGTERM (it finishes the iteration), so workers ignore both from their
# first instruction on.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
import sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
sys.path[:] = pipe.recv()
from kemeny.envs.workers import serve
serve(pipe)
"""


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker, as its text."""


class WorkerPool:
    """Gymnasium environments in worker processes: the numbers are those of `GymnasiumPool`, bit for bit."""

    def __init__(
        self,
        env: EnvLike,
        num_envs: int,
        *,
        seed: int,
        first: int,
        costs: Sequence[Cost],
        time_limit: int | None,
        workers: int,
        step_timeout: float | None,
        tolerant: bool = False,
    ) -> None:
        if isinstance(env, str):
            make_env(env)[0].close()  # a mistake is found here at once, and in a worker after a second
        self.num_envs = num_envs
        self._num_costs = len(costs)
        self._timeout = step_timeout
        self._tolerant = tolerant
        self._faults: list[str] = []
        self._clock = Clock(num_envs, time_limit)
        self._seeds = RestartSeeds(seed, first, num_envs)
        blocks = np.array_split(np.arange(num_envs), min(workers, num_envs))
        self._starts = np.array([block[0] for block in blocks])
        self._workers: list[_Worker] = []
        try:
            for number, block in enumerate(blocks):
                self._workers.append(_Worker(number, [first + int(j) for j in block]))
            self._order = cloudpickle.dumps((env, tuple(costs), tolerant))
            for worker in self._workers:
                worker.say(self._order)
            answers = [worker.hear(None)[0] for worker in self._workers]
        except BaseException:
            self.close()
            raise
        self.spec, self._observations, self._actions = answers[0]
        self._parts: list[tuple[_Worker, np.ndarray]] = []

    def reset(self, ids: np.ndarray) -> np.ndarray:
        """Restart these environments; their start observations, a row an id."""
        ids = self._clock.restart(ids)
        seeds = np.array(self._seeds.take(ids), dtype=np.int64)
        parts = self._divide(ids)
        rows = np.empty((len(ids), self.spec.observation_size), dtype=np.float32)
        for worker, where in parts:
            worker.say(("reset", (ids[where] - self._starts[worker.number]).tolist(), seeds[where].tolist()))
        for (_, where), answer in zip(parts, self._answers(parts), strict=True):
            rows[where] = np.nan if answer is None else answer
        return rows

    def send(self, action: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Begin a step of all (or only these) environments; returns at once."""
        ids = self._clock.begin(ids)
        batch = self._actions.batch(action)
        self._parts = self._divide(ids)
        for worker, where in self._parts:
            worker.say(("step", (ids[where] - self._starts[worker.number]).tolist(), batch[where]))

    def recv(self) -> Step:
        """Wait for the step begun; rows in the order of the ids sent."""
        n = len(self._clock.stepping())
        try:
            answers = self._answers(self._parts)
        except BaseException:
            self._clock.abandon()
            raise
        columns = []
        for name, shape, dtype in (
            ("observation", (n, self.spec.observation_size), np.float32),
            ("reward", (n,), np.float64),
            ("terminated", (n,), np.bool_),
            ("truncated", (n,), np.bool_),
            ("costs", (n, self._num_costs), np.float64),
        ):
            column = np.empty(shape, dtype)
            for (_, where), answer in zip(self._parts, answers, strict=True):
                if answer is not None:
                    column[where] = getattr(answer, name)
            columns.append(column)
        step = Step(*columns)
        for (_, where), answer in zip(self._parts, answers, strict=True):
            if answer is None:
                blank(step, where)
        return step._replace(truncated=self._clock.end(step.terminated, step.truncated))

    def fast_forward(self, restarts: np.ndarray) -> None:
        """Go on counting restarts from here."""
        self._seeds.fast_forward(restarts)

    def take_faults(self) -> list[str]:
        """What failed since the last call."""
        faults, self._faults = self._faults, []
        return faults

    def close(self) -> None:
        """Ask the workers to close their environments and leave; kill those that do not."""
        for worker in self._workers:
            worker.dismiss()
        for worker in self._workers:
            worker.leave()
        self._workers = []

    def processes(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def _divide(self, ids: np.ndarray) -> list[tuple["_Worker", np.ndarray]]:
        """Who holds these environments, and in which rows of the batch they stand."""
        owner = np.searchsorted(self._starts, ids, side="right") - 1
        return [(self._workers[number], np.flatnonzero(owner == number)) for number in np.unique(owner)]

    def _answers(self, parts: list[tuple["_Worker", np.ndarray]]) -> list[Any]:
        """What these workers answer, all of them heard before the first failure is raised.

        In a tolerant pool a worker that is lost is replaced, and None stands for its answer.
        """
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        answers, failures = [], []
        for worker, _ in parts:
            try:
                answer, faults = worker.hear(deadline, self._timeout)
                answers.append(answer)
                self._faults += faults
            except WorkerLost as error:
                if self._tolerant:
                    answers.append(None)
                    self._faults.append(str(error).removesuffix("."))
                    self._replace(worker)
                else:
                    failures.append(error)
            except (RunError, UserError) as error:
                failures.append(error)
            except BaseException:  # Ctrl-C: answers unheard would be taken for those of the next step
                self.close()
                raise
        if failures:
            raise failures[0]
        return answers

    def _replace(self, worker: "_Worker") -> None:
        """A new worker in place of one that is lost."""
        worker.leave()
        new = self._workers[worker.number] = _Worker(worker.number, worker.indices)
        new.say(self._order)
        new.hear(None)


class WorkerLost(RunError):
    """A worker died or was stopped."""


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, number: int, indices: list[int]) -> None:
        self.number = number
        self.indices = indices
        self._pipe, other = multiprocessing.Pipe()
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )
        # A pool that is dropped without close() must not leave processes behind.
        self._last_resort = weakref.finalize(self, _kill, self.process)
        self.say(sys.path)
        self.say(indices)

    def say(self, message: Any) -> None:
        """Send; a worker that is gone is reported by the `hear` that follows."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send(message)

    def hear(self, deadline: float | None, timeout: float | None = None) -> Any:
        """The answer, or the failure, raised here."""
        try:
            if deadline is not None and not self._pipe.poll(max(0.0, deadline - time.monotonic())):
                _kill(self.process)
                raise WorkerLost(f"{self} has not answered within {timeout:g} seconds and was stopped.")
            kind, answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerLost(f"{self} died {self._how()}.") from None
        if kind == "answer":
            return answer
        error, text = answer
        raise error from RemoteTraceback("\n" + text)

    def dismiss(self) -> None:
        """Ask it to leave."""
        self.say(None)

    def leave(self) -> None:
        """Wait until it has left, or make it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SECONDS_TO_LEAVE)
        self._last_resort()
        self._pipe.close()

    def __str__(self) -> str:
        who = self.indices
        these = f"environment {who[0]}" if len(who) == 1 else f"environments {who[0]}–{who[-1]}"
        return f"worker {self.number} ({these})"

    def _how(self) -> str:
        try:
            code = self.process.wait(SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            _kill(self.process)
            return "without closing"
        name = f", {signal.Signals(-code).name}" if -code in signal.Signals.__members__.values() else ""
        return f"with exit code {code}{name}"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()  # nothing happens to one that has left
    process.wait()


def serve(pipe: Connection) -> None:
    """A worker's life: make the environments, then answer until told to leave."""
    indices = pipe.recv()
    block: Block | None = None
    try:
        while True:
            message = pipe.recv()
            if message is None:
                return
            try:
                if block is None:
                    env, costs, tolerant = cloudpickle.loads(message)
                    block = Block(env, indices, costs, {}, tolerant)
                    answer: Any = block.spec, block.observations, block.actions
                else:
                    order, places, payload = message
                    answer = getattr(block, order)(places, payload)
                reply = ("answer", (answer, block.take_faults()))
            except Exception as error:
                told = error if isinstance(error, RunError | UserError) else _as_run_error(error, indices)
                reply = ("failure", (told, traceback.format_exc()))
            pipe.send(reply)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone
    finally:
        if block is not None:
            block.close()


def _as_run_error(error: Exception, indices: list[int]) -> RunError:
    return RunError(f"environment {indices[0]} could not be made: {type(error).__name__}: {error}")
