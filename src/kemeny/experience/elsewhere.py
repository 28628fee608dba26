"""Collectors in other processes, on this machine or on a Ray cluster: each has a `Part` and answers messages.

What a collector gives depends on the messages alone, not on where it is. So a collector that is lost can be replaced,
and one place by another, and no bit changes.
"""

import contextlib
import dataclasses
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import cloudpickle
import numpy as np

from kemeny import cluster
from kemeny.envs.pool import Comeback
from kemeny.envs.strangers import RAISED, type_and_text
from kemeny.envs.workers import Worker, WorkerLost, die_with
from kemeny.errors import RunError, UserError
from kemeny.experience.acting import Policy
from kemeny.experience.part import Part, Share, Taken, allocate
from kemeny.machine import available_cores
from kemeny.rollout import Rollout
from kemeny.spec import Spec

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""For NumPy in every collector: last digits must not depend on where it is."""
SECONDS_UNTIL_A_WORD = 20.0
"""Of waiting for a free CPU."""


class CollectorLost(RunError):
    """A collector is gone, with what it was doing."""


class Given(NamedTuple):
    """What a collector has done in a batch."""

    rollout: Rollout
    taken: Taken
    standing: dict[str, np.ndarray]
    """Where its environments are now."""


class Elsewhere(Protocol):
    """A collector in another process."""

    def send(self, method: str, *arguments: Any) -> None:
        """Have it call a method of `Answering`; returns at once."""
        ...

    def receive(self) -> Any:
        """What that returned. What it raised is raised here, and a `CollectorLost` if nobody is left to answer."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...


class Employer(Protocol):
    """A place where collectors are."""

    def hire(self, number: int, share: Share) -> Elsewhere:
        """A new collector, which has been told to make its environments."""
        ...

    def close(self) -> None:
        """Leave the place."""
        ...


class Answering:
    """What a collector does in its process."""

    def __init__(self) -> None:
        self._part: Part | None = None
        self._room: Rollout | None = None

    @property
    def part(self) -> Part:
        """Its environments, once they are made."""
        assert self._part is not None
        return self._part

    def make(self, share: bytes, path: Sequence[str] = (), directory: str = ".") -> tuple[Spec, Comeback]:
        """Make the environments, whose code is found as in the run's process, if it is on this machine as well."""
        sys.path += [place for place in path if place not in sys.path]
        if os.path.isdir(directory):
            os.chdir(directory)
        self._part = part = Part(cloudpickle.loads(share))
        self._room = allocate(part.spec, part.share.batch_length, part.share.num_envs, len(part.share.costs))
        return part.spec, part.comeback

    def begin(self) -> tuple[list[tuple[int, np.ndarray]], dict[str, np.ndarray]]:
        """Begin in start states, which are returned, and where that is."""
        return self.part.begin(), self.part.standing()

    def come_back(
        self, standing: Mapping[str, np.ndarray], actions: np.ndarray, inexact: bool
    ) -> tuple[list[int], list[tuple[int, np.ndarray]], dict[str, np.ndarray]]:
        """Go on from where another collector was."""
        return *self.part.come_back(standing, actions, inexact), self.part.standing()

    def roll_out(self, policy: Policy, iteration: int) -> Given:
        """The steps of an iteration."""
        assert self._room is not None
        taken = self.part.roll_out(policy, iteration, self._room)
        rollout = self._room._replace(start_observation=self._room.start_observation[:0])  # which others put together
        return Given(rollout, taken, self.part.standing())

    def reply(self, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """What a call gives, as a message."""
        try:
            return "answer", getattr(self, method)(*arguments)
        except RAISED as error:
            known = isinstance(error, RunError | UserError)
            failure = error if known else RunError(f"A collector failed: {type_and_text(error)}.")
            return "failure", (failure, traceback.format_exc())

    def close(self) -> None:
        """Give back the simulators' threads and processes."""
        if self._part is not None:
            self._part.close()


class Processes:
    """Collectors in processes of this machine, which share its cores."""

    def __init__(self, count: int) -> None:
        self._threads = max(1, available_cores() // count)

    def hire(self, number: int, share: Share) -> "Process":
        """A new process."""
        return Process(number, _with_threads(share, self._threads))

    def close(self) -> None:
        """Nothing is left to leave."""


class Process:
    """A collector in a process of this machine."""

    def __init__(self, number: int, share: Share) -> None:
        envs = list(range(share.first_env, share.first_env + share.num_envs))
        self.worker = Worker(number, envs, __name__, "Collector", {**os.environ, **ONE_THREAD})
        self.send("make", cloudpickle.dumps(share))

    def send(self, method: str, *arguments: Any) -> None:
        """Over a pipe."""
        self.worker.send((method, arguments))

    def receive(self) -> Any:
        """Over the same."""
        try:
            return self.worker.receive()
        except WorkerLost as lost:
            raise CollectorLost(str(lost)) from lost

    def close(self) -> None:
        """Let it close its environments, and end it."""
        self.worker.ask_to_exit()
        self.worker.wait_or_kill()


def serve(pipe: Connection, parent: int | None) -> None:
    """The main loop of such a process: answer messages until one says to exit, or the parent is gone."""
    if parent is not None:
        die_with(parent)
    pipe.recv()  # the indices, for messages
    answering = Answering()
    try:
        while (message := pipe.recv()) is not None:
            pipe.send(answering.reply(*message))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    finally:
        answering.close()


class Actors:
    """Collectors on the nodes of a Ray cluster, each with as many CPUs as its pools have threads."""

    def __init__(self, address: str | None, say: Callable[[str], None]) -> None:
        self._stack = contextlib.ExitStack()
        self._ray = self._stack.enter_context(cluster.connected(address))
        self._say = say

    def hire(self, number: int, share: Share) -> "Actor":
        """A new actor, as soon as there are CPUs for it."""
        share = _with_threads(share, 1)
        options = {
            "num_cpus": share.simulation.threads,
            "runtime_env": {"env_vars": ONE_THREAD},
            "max_restarts": 0,  # a new one must first be told where to begin
        }
        actor = self._ray.remote(Answering).options(**options).remote()
        return Actor(self._ray, actor, number, share, self._say)

    def close(self) -> None:
        """Leave the cluster, if that was reached for this run alone."""
        self._stack.close()


class Actor:
    """A collector on a node of a cluster."""

    def __init__(self, ray: Any, actor: Any, number: int, share: Share, say: Callable[[str], None]) -> None:
        self._ray, self._actor, self._number, self._say = ray, actor, number, say
        self._cpus = share.simulation.threads
        self._answers: list[Any] = []
        self._waits = True
        self.send("make", cloudpickle.dumps(share), list(sys.path), os.getcwd())

    def send(self, method: str, *arguments: Any) -> None:
        """As a task of the actor."""
        self._answers.append(self._actor.reply.remote(method, arguments))

    def receive(self) -> Any:
        """The result of the oldest task that was not received yet."""
        answer = self._answers.pop(0)
        if self._waits:
            self._wait_for_room(answer)
        try:
            kind, said = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            why = next(iter(str(error).splitlines()), "")
            raise CollectorLost(f"Collector {self._number} was lost: {why}") from error
        if kind == "answer":
            return said
        raise said[0] from RuntimeError(said[1])

    def _wait_for_room(self, answer: Any) -> None:
        """Say it if there is no CPU for a new actor."""
        self._waits = False
        if not self._ray.wait([answer], timeout=SECONDS_UNTIL_A_WORD, fetch_local=False)[0]:
            has = self._ray.cluster_resources().get("CPU", 0)
            self._say(
                f"Collector {self._number} waits for {self._cpus} free CPU of the Ray cluster, which has {has:g} in "
                "all; training goes on when there is one."
            )

    def close(self) -> None:
        """Give its CPUs back."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._ray.kill(self._actor)


def _with_threads(share: Share, threads: int) -> Share:
    """With so many threads, unless the user said how many."""
    simulation = share.simulation
    return dataclasses.replace(
        share, simulation=dataclasses.replace(simulation, threads=simulation.threads or threads)
    )  # fmt: skip


def employer(count: int, place: cluster.Place, say: Callable[[str], None]) -> Employer | None:
    """Where the collectors of a run are; None if there is one, in the run's own process."""
    if place.backend == "ray":
        return Actors(place.address, say)
    return Processes(count) if count > 1 else None
