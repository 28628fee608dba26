"""Fault injection: kill a training process at any moment, resume it, compare with one that was never stopped.

A run passes many moments: before and after each phase that it tells its observers of, collection, update, evaluation
and checkpoints, and before, in the middle of and after each thing that is done to a file. They are counted, so that a
process can kill itself at the n-th (`Kill.moment`), or be killed by the clock (`Kill.seconds`). Each process is forked
from one that has imported everything and started nothing.
"""

import contextlib
import dataclasses
import functools
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kemeny.observers import Observer
from kemeny.runs import checkpoint
from kemeny.runs.directory import Run
from kemeny.runs.train import resume, train
from tests.envs.toys import Counter

TINY = {
    "steps": 2_400, "num_envs": 4, "batch_size": 200, "hidden": (8,), "eval_max_steps": 30, "cut": 60,
    "eval_trajectories": 2, "eval_every": 400, "checkpoint_every": 400, "keep_checkpoints": 2,
}  # fmt: skip
LIMITED = {"cost": ("cost",), "limit": (8.0,)}
FALLS = functools.partial(Counter, falls_at=23)
SCENARIOS: dict[str, tuple[Any, dict[str, Any]]] = {
    "atrpo, EnvPool": ("InvertedPendulum-v5", {"algorithm": "atrpo"}),
    "cpo, Gymnasium": (FALLS, {"algorithm": "cpo", **LIMITED}),
    "acpo, Gymnasium in workers": (FALLS, {"algorithm": "acpo", "workers": 2, **LIMITED}),
    "trpo, EnvPool, episodic": ("CartPole-v1", {"algorithm": "trpo", "episodic": True}),
    "acpo, EnvPool": ("HalfCheetah-v3", {"algorithm": "acpo", "cost": ("speed",), "limit": (0.2,)}),
    "trpo, Gymnasium in workers": ("Pendulum-v1", {"algorithm": "trpo", "workers": 2}),
    "trpo, extended": (FALLS, {"algorithm": "trpo", "steps": 1_000, "extend": 2_000}),
}
"""All four algorithms; EnvPool and Gymnasium, in the process and in workers; continuing and episodic; extended."""


@dataclasses.dataclass(frozen=True)
class Kill:
    """When a process ends by SIGKILL: at its n-th moment, or after so many seconds."""

    moment: int | None = None
    seconds: float | None = None


@dataclasses.dataclass
class Life:
    """What became of one process."""

    killed: bool
    moments: int
    last: str
    """The last moment it passed."""


class Moments(Observer):
    """Counts the moments of a process, and kills it at one of them."""

    OFTEN = frozenset({"act", "simulate"})
    """Phases of every single step, which would drown the others."""

    def __init__(self, kill_at: int | None, record: Path) -> None:
        self.count, self._kill_at = 0, kill_at
        self._record = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._lock = threading.Lock()

    def begin(self, phase: str, *about: Any) -> None:
        """A moment before; of a write, one in the middle, too."""
        if phase not in self.OFTEN:
            self._pass(f"before {phase}")
        if phase in ("write", "append"):
            self._pass(f"in the middle of {phase}", *about)

    def end(self, phase: str, *outcome: Any) -> None:
        """A moment after."""
        if phase not in self.OFTEN:
            self._pass(f"after {phase}")

    def _pass(self, name: str, path: Path | None = None, content: bytes = b"") -> None:
        """One more moment; perhaps the last, with half of the content in the file."""
        with self._lock:
            self.count += 1
            os.pwrite(self._record, f"{self.count} {name}".ljust(80).encode(), 0)
            if self.count != self._kill_at:
                return
            if path is not None:
                with path.open("ab") as file:
                    file.write(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)


def live(action: Callable[[list[Observer]], Any], record: Path, kill: Kill | None = None) -> Life:
    """Let a new process do this, with these observers; it is killed as asked, or must come to its end."""
    record.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _be_born(action, record, kill)
    if kill is not None and kill.seconds is not None:
        deadline = time.monotonic() + kill.seconds
        while time.monotonic() < deadline and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if not killed and status != 0:
        raise AssertionError(f"a process ended with status {status}:\n{record.with_suffix('.err').read_text()}")
    words = record.read_text().split(maxsplit=1) if record.exists() else []
    return Life(killed, int(words[0]) if words else 0, words[1].strip() if words else "before the first")


def _be_born(action: Callable[[list[Observer]], Any], record: Path, kill: Kill | None) -> None:
    try:
        errors = os.open(record.with_suffix(".err"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(errors, 2)
        action([Moments(None if kill is None else kill.moment, record)])
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(3)


@dataclasses.dataclass
class Survival:
    """Of one run: the kills it got, where, and how many moments an unharmed one has."""

    kills: list[str]
    moments: int


def survive(name: str, folder: Path, kills: int, rng: random.Random, by_clock: float = 0.0) -> Survival:
    """Run a scenario unharmed, then again with kills; raise unless the two are the same bit for bit.

    A share `by_clock` of the kills comes at a random time, the others at a random moment.
    """
    env, settings = SCENARIOS[name]
    settings = {**TINY, **settings}
    extend = settings.pop("extend", None)
    record = folder / "moments"
    places: list[str] = []
    whole, killed = folder / "whole", folder / "killed"

    def go_on(watch: list[Observer], path: Path = killed):
        again = {"env": None if isinstance(env, str) else env, "observers": watch}
        if not (path / "config.json").exists():
            train(env, out=path, observers=watch, **settings)
        else:
            resume(path, **again)
        if extend is not None:
            resume(path, steps=extend, **again)

    began = time.monotonic()
    unharmed = live(lambda watch: go_on(watch, whole), record)
    lasts = time.monotonic() - began
    while len(places) < kills:
        at_random = Kill(moment=rng.randint(1, unharmed.moments))
        life = live(go_on, record, Kill(seconds=rng.uniform(0, lasts)) if rng.random() < by_clock else at_random)
        if life.killed:
            places.append(life.last)
        else:  # it came to its end: the next kills are for another
            compare(whole, killed)
            shutil.rmtree(killed)
    live(go_on, record)
    compare(whole, killed)
    return Survival(places, unharmed.moments)


def compare(whole: Path, killed: Path) -> None:
    """Every logged number but the clock's, and every array and fact of the newest and of the best checkpoint."""
    for name in ("metrics", "evaluations"):
        first, second = (
            [{key: value for key, value in line.items() if key != "seconds"} for line in getattr(Run(path), name)]
            for path in (whole, killed)
        )
        assert first == second, f"{name} differ"
    for load in (checkpoint.latest, checkpoint.best):
        first, second = load(whole), load(killed)
        assert first.path.name == second.path.name
        assert first.arrays.keys() == second.arrays.keys()
        for key, array in first.arrays.items():
            other = second.arrays[key]
            assert (array.dtype, array.shape) == (other.dtype, other.shape)
            assert array.tobytes() == other.tobytes(), f"{key} differs"
        assert {k: v for k, v in first.facts.items() if k not in ("seconds", "log_sizes")} == {
            k: v for k, v in second.facts.items() if k not in ("seconds", "log_sizes")
        }


def main(scenario: str, kills: int, seed: int, folder: Path, by_clock: float = 0.0) -> None:
    """One scenario, as a program: the process that forks must not have started JAX."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    survival = survive(scenario, folder, kills, random.Random(seed), by_clock)
    for place in survival.kills:
        print(place)
    print(f"survived {len(survival.kills)} of {survival.moments} moments")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), float(sys.argv[5]))
