"""Gymnasium environments in worker processes, with an error that says which worker died or hung.

A worker is a new Python process that holds a block of environments and communicates over one pipe. It is started as a
program and not by `multiprocessing`, whose children import the user's main module again: a script without an
`if __name__ == "__main__"` guard would start itself again in each of them. Functions are sent by cloudpickle, by value
if they are defined in the main module. If the parent is gone, a worker reads the end of the pipe and exits; one that
hangs is killed by Linux.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from kemeny.envs.costs import Cost
from kemeny.envs.gymnasium import Block, RestartSeeds, make_env
from kemeny.envs.names import EnvLike, as_environment
from kemeny.envs.pool import Clock, Comeback, Step
from kemeny.envs.settings import Simulation
from kemeny.envs.strangers import RAISED, close_quietly, type_and_text
from kemeny.errors import RunError, UserError

SECONDS_TO_EXIT = 5.0  # time for an environment's own close(); then the worker is killed

# Only the parent reacts to Ctrl-C, a scheduler's signals and a terminal that is closed (it finishes the iteration), so
# workers ignore them from their first instruction on.
PROGRAM = """
import signal
for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(stop, signal.SIG_IGN)
import os, sys
parent = os.getppid()
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
sys.path[:] = pipe.recv()
import importlib
importlib.import_module(sys.argv[3]).serve(pipe, parent if sys.argv[2] == "True" else None)
"""
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker, as text."""


class WorkerPool:
    """Gymnasium environments in worker processes: the numbers are those of `GymnasiumPool`, bit for bit."""

    comeback: Comeback = "replay"

    def __init__(
        self,
        env: EnvLike,
        num_envs: int,
        *,
        seed: int,
        first_env: int = 0,
        costs: Sequence[Cost] = (),
        time_limit: int | None = None,
        simulation: Simulation,
    ) -> None:
        env = as_environment(env)
        if isinstance(env.source, str):
            close_quietly(make_env(env)[0])  # finds a mistake at once; a worker would need a second to find it
        self.num_envs = num_envs
        self._num_costs = len(costs)
        self._simulation = simulation
        self._faults: list[str] = []
        self._clock = Clock(num_envs, time_limit)
        self._seeds = RestartSeeds(seed, first_env, num_envs)
        blocks = np.array_split(np.arange(num_envs), min(simulation.workers, num_envs))
        self._starts = np.array([block[0] for block in blocks])
        self._block_arguments = cloudpickle.dumps((env, tuple(costs), simulation.restart_faulty))
        self._workers: list[Worker] = []
        try:
            for number, block in enumerate(blocks):
                self._workers.append(Worker(number, [first_env + int(j) for j in block]))
            for worker in self._workers:
                worker.send(self._block_arguments)
            answers = [worker.receive()[0] for worker in self._workers]
        except BaseException:
            self.close()
            raise
        self.spec, self._observations, self._actions = answers[0]
        self._parts: list[tuple[Worker, np.ndarray]] = []
        self.sent = np.empty(0)

    def reset(self, ids: np.ndarray) -> np.ndarray:
        """Restart these environments; returns their start observations, one row per id."""
        ids = self._clock.restart(ids)
        seeds = np.array(self._seeds.take(ids), dtype=np.int64)
        parts = self._divide(ids)
        observation = np.empty((len(ids), *self.spec.observation.shape), self.spec.observation.dtype)
        for worker, rows in parts:
            worker.send(("reset", (ids[rows] - self._starts[worker.number]).tolist(), seeds[rows].tolist()))
        for (_, rows), answer in zip(parts, self._receive(parts), strict=True):
            observation[rows] = np.nan if answer is None else answer
        return observation

    def send(self, action: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Begin a step of all environments, or of these only; returns at once."""
        ids = self._clock.begin(ids)
        self.sent = self._actions.batch(action)
        self._parts = self._divide(ids)
        for worker, rows in self._parts:
            worker.send(("step", (ids[rows] - self._starts[worker.number]).tolist(), self.sent[rows]))

    def recv(self) -> Step:
        """Wait for the step that was begun; its rows are in the order of the ids sent."""
        step = Step.empty(len(self._clock.stepping()), self.spec.observation, self._num_costs)
        try:
            answers = self._receive(self._parts)
        except BaseException:
            self._clock.abandon()
            raise
        for (_, rows), answer in zip(self._parts, answers, strict=True):
            if answer is None:
                step.mark_failed(rows)
            else:
                for column, part in zip(step, answer, strict=True):
                    column[rows] = part
        return step._replace(truncated=self._clock.end(step.terminated, step.truncated))

    def fast_forward(self, restarts: np.ndarray) -> None:
        """Continue as after this many restarts of each environment."""
        self._seeds.fast_forward(restarts)

    def take_faults(self) -> list[str]:
        """What failed since the last call."""
        faults, self._faults = self._faults, []
        return faults

    def close(self) -> None:
        """Ask the workers to close their environments and exit; kill those that do not."""
        for worker in self._workers:
            worker.ask_to_exit()
        for worker in self._workers:
            worker.wait_or_kill()
        self._workers = []

    def processes(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def _divide(self, ids: np.ndarray) -> list[tuple["Worker", np.ndarray]]:
        """The workers that hold these environments, each with its rows of the batch."""
        owner = np.searchsorted(self._starts, ids, side="right") - 1
        return [(self._workers[number], np.flatnonzero(owner == number)) for number in np.unique(owner)]

    def _receive(self, parts: list[tuple["Worker", np.ndarray]]) -> list[Any]:
        """The answers of these workers; all are received before the first failure is raised.

        With `restart_faulty` a worker that is lost is replaced, and its answer is None.
        """
        timeout = self._simulation.step_timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        answers, failures = [], []
        for worker, _ in parts:
            try:
                answer, faults = worker.receive(deadline, timeout)
                answers.append(answer)
                self._faults += faults
            except WorkerLost as error:
                if self._simulation.restart_faulty:
                    answers.append(None)
                    self._faults.append(str(error))
                    self._replace(worker)
                else:
                    failures.append(error)
            except (RunError, UserError) as error:
                failures.append(error)
            except BaseException:  # Ctrl-C: answers not yet received would be taken for those of the next step
                self.close()
                raise
        if failures:
            raise failures[0]
        return answers

    def _replace(self, worker: "Worker") -> None:
        """Start a new worker in place of one that is lost."""
        worker.wait_or_kill()
        new = self._workers[worker.number] = Worker(worker.number, worker.indices)
        new.send(self._block_arguments)
        new.receive()


class WorkerLost(RunError):
    """A worker died or was stopped."""


class Worker:
    """The parent's end of one worker process, in which the function `serve` of a module answers."""

    def __init__(
        self,
        number: int,
        indices: list[int],
        module: str = __name__,
        title: str = "Worker",
        surroundings: Mapping[str, str] | None = None,
    ) -> None:
        """`indices` are those of its environments; `surroundings` are its environment variables [those here]."""
        self.number = number
        self.indices = indices
        self._title = title
        self._pipe, other = multiprocessing.Pipe()
        # Linux takes the end of the thread that starts a worker for the end of the parent; the main thread ends last.
        lasting = threading.current_thread() is threading.main_thread()
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(other.fileno()), str(lasting), module],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env=surroundings,
            )
        # A pool that is dropped without close() must not leave processes behind.
        self._kill_at_last = weakref.finalize(self, _kill, self.process)
        self.send(sys.path)
        self.send(indices)

    def send(self, message: Any) -> None:
        """Send a message; if the worker is gone, the next `receive` raises."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send(message)

    def receive(self, deadline: float | None = None, timeout: float | None = None) -> Any:
        """The worker's answer; its failure, or its loss, is raised."""
        try:
            if deadline is not None and not self._pipe.poll(max(0.0, deadline - time.monotonic())):
                _kill(self.process)
                raise WorkerLost(f"{self} has not answered within {timeout:g} seconds and was stopped.")
            kind, answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerLost(f"{self} died {self._cause_of_death()}.") from None
        if kind == "answer":
            return answer
        error, text = answer
        raise error from RemoteTraceback("\n" + text)

    def ask_to_exit(self) -> None:
        """Ask the worker to close its environments and exit."""
        self.send(None)

    def wait_or_kill(self) -> None:
        """Wait until the worker has exited; kill it if that takes too long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SECONDS_TO_EXIT)
        self._kill_at_last()
        self._pipe.close()

    def __str__(self) -> str:
        first, last = self.indices[0], self.indices[-1]
        indices = f"environment {first}" if first == last else f"environments {first}–{last}"
        return f"{self._title} {self.number} ({indices})"

    def _cause_of_death(self) -> str:
        try:
            code = self.process.wait(SECONDS_TO_EXIT)
        except subprocess.TimeoutExpired:
            _kill(self.process)
            return "without closing"
        name = f", {signal.Signals(-code).name}" if -code in signal.Signals.__members__.values() else ""
        return f"with exit code {code}{name}"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()  # does nothing to a process that has exited
    process.wait()


def serve(pipe: Connection, parent: int | None) -> None:
    """The main loop of a worker: make the environments, then answer messages until one says to exit.

    `parent` is the process with which it dies, even if it hangs.
    """
    if parent is not None:
        die_with(parent)
    indices = pipe.recv()
    block: Block | None = None
    try:
        while True:
            message = pipe.recv()
            if message is None:
                return
            try:
                if block is None:
                    env, costs, restart_faulty = cloudpickle.loads(message)
                    block = Block(env, indices, costs, restart_faulty=restart_faulty)
                    answer: Any = block.spec, block.observations, block.actions
                else:
                    method, places, argument = message
                    answer = getattr(block, method)(places, argument)
                reply = ("answer", (answer, block.take_faults()))
            except RAISED as error:
                failure = error if isinstance(error, RunError | UserError) else _as_run_error(error, indices)
                reply = ("failure", (failure, traceback.format_exc()))
            pipe.send(reply)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone
    finally:
        if block is not None:
            block.close()


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent dies; only Linux can."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has died already
            sys.exit()


def _as_run_error(error: BaseException, indices: list[int]) -> RunError:
    return RunError(f"Environment {indices[0]} could not be made: {type_and_text(error)}.")
