"""How speed, memory and start-up of `kemeny train` depend on environments, threads, cores and runs side by side.

    python benchmarks/scaling.py [--env HalfCheetah-v3] [--seconds 6] [--num-envs 4 10 20 50 100] [--threads 1 2]

Every measurement is a `kemeny train` in a process of its own, with the default settings except for evaluations and for
what the table varies. Speed is read from the log of the run, from its third iteration on, over so many seconds. Whether
time or memory per step grow with the length of a run is measured by `benchmarks/long_run.py`.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tyro  # and nothing of Kemeny: the peak memory of a child is at least that of its parent

KEMENY = (sys.executable, "-c", "from kemeny.cli import main; main()")
SINGLE_THREADED = {"NPROC": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""With `--threads 1`: one thread for XLA, one for NumPy, one for EnvPool."""
COMPILING = 2
"""Iterations at the start of a run that are not counted."""
BATCH = 5_000
PATIENCE = 180.0
"""Seconds after which a run that makes no progress is given up."""


@dataclasses.dataclass
class Scaling:
    """What to measure."""

    env: str = "HalfCheetah-v3"
    """Environment of the speed tables."""
    num_envs: tuple[int, ...] = (4, 10, 20, 50, 100)
    threads: tuple[int, ...] = (1, 2)
    seconds: float = 6.0
    """How long each run is timed, after its first iterations."""
    memory: tuple[str, ...] = ("HalfCheetah-v3", "Ant-v3", "Humanoid-v3")
    """Environments whose memory is measured."""
    memory_steps: int = 30_000
    startup: tuple[str, ...] = ("HalfCheetah-v3", "Humanoid-v3")
    """Environments whose start-up is measured."""
    out: Path = Path("benchmarks/results/scaling.md")


class Child:
    """A `kemeny train` in a process of its own."""

    def __init__(
        self, folder: Path, env: str, *flags: object, cores: set[int] | None = None, **environment: str
    ) -> None:
        self.out = Path(tempfile.mkdtemp(dir=folder)) / "run"
        command = [*KEMENY, "train", env, "--out", str(self.out), *map(str, flags)]
        if cores is not None:
            command = ["taskset", "-c", ",".join(map(str, cores)), *command]
        surroundings = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
        surroundings |= {"XDG_CACHE_HOME": str(folder / "cache"), **environment}  # where compiled code is kept
        self.errors = self.out.with_name("stderr")
        self.peak = 0.0
        """Largest resident memory in MiB, known once the process has ended."""
        self.began = time.monotonic()
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(command, env=surroundings, stdout=subprocess.DEVNULL, stderr=errors)
        CHILDREN.append(self)

    def lines(self) -> list[dict]:
        """The iterations it has logged."""
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in (self.out / "metrics.jsonl").read_bytes().split(b"\n")[:-1]]
        return []

    def until(self, count: int) -> float:
        """Wait for so many iterations, and return the seconds since the process was started."""
        while True:
            ended = self.ended()
            if len(self.lines()) >= count:
                return time.monotonic() - self.began
            if ended or time.monotonic() - self.began > PATIENCE:
                sys.exit(f"{self.process.args} made no progress:\n{self.errors.read_text()[-2000:]}")
            time.sleep(0.02)

    def ended(self) -> bool:
        """Whether it has ended; if so, its memory is known."""
        if self.process.returncode is None:
            number, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if number:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self.peak = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        return self.process.returncode is not None

    def finish(self) -> None:
        """Wait for its end, and exit if it failed."""
        while not self.ended():
            time.sleep(0.02)
        if self.process.returncode:
            sys.exit(f"{self.process.args} failed:\n{self.errors.read_text()[-2000:]}")

    def stop(self) -> None:
        """Let it finish its iteration and end."""
        if not self.ended():
            self.process.send_signal(signal.SIGTERM)
        while not self.ended():
            time.sleep(0.02)


CHILDREN: list[Child] = []


def endless(num_envs: int, threads: int) -> tuple[object, ...]:
    return ("--steps", 10**9, "--eval-every", 10**9, "--num-envs", num_envs, "--threads", threads)


def speeds(children: list[Child], seconds: float) -> list[float]:
    """Steps per second of runs side by side, once all of them are past their first iterations."""
    for child in children:
        child.until(1 + COMPILING)
    first = [child.lines()[-1] for child in children]
    time.sleep(seconds)
    for child, line in zip(children, first, strict=True):
        child.until(line["iteration"] + 1)
    last = [child.lines()[-1] for child in children]
    for child in children:
        child.stop()
    return [(b["steps"] - a["steps"]) / (b["seconds"] - a["seconds"]) for a, b in zip(first, last, strict=True)]


def environments_and_threads(args: Scaling, folder: Path) -> list[str]:
    rows = []
    for num_envs in args.num_envs:
        cells = []
        for threads in args.threads:
            cells.append(speeds([Child(folder, args.env, *endless(num_envs, threads))], args.seconds)[0])
            say(f"{num_envs} environments, {threads} threads: {cells[-1]:,.0f} steps/s")
        rows.append(f"| {num_envs} | {' | '.join(f'{cell:,.0f}' for cell in cells)} |")
    heads = " | ".join(f"`--threads {threads}`" for threads in args.threads)
    return [
        "## Environments and threads",
        "",
        f"Steps per second, {args.env}; `--num-envs` down, threads of each of two pools across.",
        "",
        f"| environments | {heads} |",
        "|---" * (1 + len(args.threads)) + "|",
        *rows,
    ]


def side_by_side(args: Scaling, folder: Path) -> list[str]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    pinned = len(cores) > 1 and shutil.which("taskset")
    single = endless(20, 1)
    plans = {
        "one run, single-threaded": ([None], single, SINGLE_THREADED),
        "two runs, single-threaded": ([None, None], single, SINGLE_THREADED),
        "two runs at the defaults": ([None, None], endless(20, 0), {}),
    }
    if pinned:
        plans["one run, pinned to a core"] = ([{cores[0]}], endless(20, 0), {})
        plans["two runs, each pinned to a core"] = ([{cores[0]}, {cores[1]}], endless(20, 0), {})
    totals = {}
    for name, (places, flags, environment) in plans.items():
        found = speeds([Child(folder, args.env, *flags, cores=place, **environment) for place in places], args.seconds)
        totals[name] = sum(found)
        say(f"{name}: {', '.join(f'{one:,.0f}' for one in found)} steps/s")
    alone = "one run, pinned to a core" if pinned else "one run, single-threaded"
    settings = " ".join(f"{name}={value}" for name, value in SINGLE_THREADED.items())
    return [
        "## Runs side by side",
        "",
        f"Steps per second of all runs together, {args.env}, 20 environments each.",
        "",
        f"| | steps/s | over {alone} |",
        "|---|---|---|",
        *(f"| {name} | {total:,.0f} | {total / totals[alone]:.2f} |" for name, total in totals.items()),
        "",
        f"Single-threaded: `{settings} kemeny train … --threads 1`; its two pools still have a thread each,",
        "so a single run uses both cores while it simulates.",
        "Pinned: `taskset -c CORE kemeny train …`, and no other setting: the number of threads follows from the",
        "cores that a process may use.",
    ]


def memory(args: Scaling, folder: Path) -> list[str]:
    rows = []
    for env in args.memory:
        flags = ("--steps", args.memory_steps, "--eval-every", args.memory_steps // 2, "--eval-max-steps", 1000)
        child = Child(folder, env, *flags)
        child.finish()
        rows.append(f"| {env} | {child.peak:,.0f} |")
        say(f"{env}: {child.peak:,.0f} MiB")
    return [
        "## Memory",
        "",
        f"Peak resident memory of a run of {args.memory_steps:,} steps with two evaluations, otherwise at the defaults",
        "(goal: below 1,500 MiB). That it does not grow with the length of a run: [long_run.md](long_run.md).",
        "",
        "| environment | MiB |",
        "|---|---|",
        *rows,
    ]


def startup(args: Scaling, folder: Path) -> list[str]:
    rows = []
    for env in args.startup:
        cells = []
        with tempfile.TemporaryDirectory(dir=folder) as own:  # an empty cache, then the one that the first run leaves
            for _ in ("cold", "warm", "warm", "warm"):
                child = Child(Path(own), env, "--steps", BATCH, "--eval-max-steps", 1)
                cells.append(child.until(1))
                child.finish()
        cold, warm = cells[0], statistics.median(cells[1:])
        rows.append(f"| {env} | {cold:.1f} | {warm:.1f} |")
        say(f"{env}: first iteration after {cold:.1f} s cold, {warm:.1f} s warm")
    return [
        "## Start-up",
        "",
        f"Seconds from `kemeny train` to the end of the first iteration ({BATCH:,} steps collected, policy and critic",
        "updated), with an empty compilation cache and with the one that it leaves (median of three; goal: below 15).",
        "",
        "| environment | cold | warm |",
        "|---|---|---|",
        *rows,
    ]


def say(line: str) -> None:
    print(line, flush=True)


def main(args: Scaling) -> None:
    began, load = time.monotonic(), os.getloadavg()[0]
    parts = (startup, environments_and_threads, side_by_side, memory)
    with tempfile.TemporaryDirectory() as folder:
        try:
            lines = list(itertools.chain.from_iterable(["", *part(args, Path(folder))] for part in parts))
        finally:
            for child in CHILDREN:
                child.stop()
    version = subprocess.check_output([sys.executable, "-c", "import kemeny; print(kemeny.__version__)"], text=True)
    head = (
        f"Written by `python benchmarks/scaling.py` in {time.monotonic() - began:.0f} s: kemeny {version.strip()}, "
        f"{os.cpu_count()} cores, load {load:.1f} at the start."
    )
    args.out.write_text("\n".join([head, *lines]) + "\n")
    print(args.out.read_text())


if __name__ == "__main__":
    main(tyro.cli(Scaling, description=__doc__))
