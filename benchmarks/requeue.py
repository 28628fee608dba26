"""Be a scheduler that kills: requeue the members of a job array until they are done, and compare bit for bit.

    python -m benchmarks.requeue [--requeues 30] [--seed 0]      # in the root of the repository

Each member is `kemeny sweep … --array`, with its index in SLURM_ARRAY_TASK_ID. It is sent SIGKILL or SIGTERM after a
random time, and called again, until its exit code is 0. Every third call, a second process is called for the same
member at the same time. When all members are done, every logged number except times, and every array of the newest and
the best checkpoint, are compared with those of the same sweep without a kill; then a new round begins, until there were
enough requeues.
"""

import collections
import dataclasses
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tyro

from kemeny.runs.interrupts import CALL_AGAIN
from tests.faults import compare

SWEEP = (
    "sweep InvertedPendulum-v5 --algorithm atrpo trpo --seeds 0 1 --num-envs 4 --batch-size 200 --hidden 8 --cut 60 "
    "--eval-max-steps 30 --eval-trajectories 2 --eval-every 2000 --checkpoint-every 400"
).split()
SURROUNDINGS = {"NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
MEANINGS = {
    0: "finished",
    CALL_AGAIN: f"{CALL_AGAIN}: stopped with a checkpoint, or another process was there",
    -signal.SIGKILL: "killed by SIGKILL",
    -signal.SIGTERM: "killed by SIGTERM, before Python had begun",
}
"""How a member may end; anything else is a failure."""


@dataclasses.dataclass
class Requeue:
    """How often, and how."""

    requeues: int = 30
    seed: int = 0
    steps: int = 20_000
    """Of each run."""
    out: Path = Path("benchmarks/results/requeue.md")


class Scheduler:
    """Calls members, kills them, and counts how they ended."""

    def __init__(self, words: list[str], seed: int) -> None:
        self.words, self.rng = words, random.Random(seed)
        self.calls = 0
        self.endings: collections.Counter[str] = collections.Counter()
        self.longest = 10.0
        """Seconds after which at the latest a member is killed; fewer if one is done before it was killed once."""

    def begin(self, out: Path, *words: str, **surroundings: str) -> subprocess.Popen[bytes]:
        """A process of the sweep in this directory, with some words and variables more."""
        program = [sys.executable, "-c", "from kemeny.cli import main; main()", *self.words, "--out", str(out)]
        with (out.parent / f"{out.name}.log").open("ab") as log:
            environment = {**os.environ, **SURROUNDINGS, **surroundings}
            return subprocess.Popen([*program, *words], env=environment, stdout=log, stderr=log)

    def whole(self, out: Path) -> float:
        """The sweep without a kill, one run after another; how many seconds it took."""
        began = time.monotonic()
        if self.begin(out, "--jobs", "1").wait():
            sys.exit(f"the sweep without a kill failed: {(out.parent / f'{out.name}.log').read_text()}")
        return time.monotonic() - began

    def member(self, out: Path, index: int) -> int:
        """Call a member until it is done; how often it was called again."""
        again = 0
        while True:
            self.calls += 1
            processes = [self.begin(out, "--array", SLURM_ARRAY_TASK_ID=f"{index}")]
            if self.calls % 3 == 0:
                processes.append(self.begin(out, "--array", SLURM_ARRAY_TASK_ID=f"{index}"))
            done = [self._end(process) for process in processes]
            if any(code == 0 for code in done):
                self.longest *= 1 if again else 0.7
                return again
            again += 1

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """Kill it after a while, unless it ends before; its exit code."""
        try:
            code = process.wait(self.rng.uniform(0, self.longest))
        except subprocess.TimeoutExpired:
            process.send_signal(self.rng.choice([signal.SIGKILL, signal.SIGTERM]))
            code = process.wait()
        self.endings[MEANINGS.get(code, f"**{code}: a failure**")] += 1
        return code


def main(args: Requeue) -> None:
    scheduler, rows, total = Scheduler([*SWEEP, "--steps", str(args.steps)], args.seed), [], 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        seconds = scheduler.whole(whole)
        runs = sorted(path for path in whole.iterdir() if path.is_dir())
        scheduler.longest = 2 * seconds / len(runs)
        while total < args.requeues:
            shutil.rmtree(killed, ignore_errors=True)
            for index in range(len(runs)):
                again = scheduler.member(killed, index)
                total += again
                print(f"member {index}: called again {again} times, {total} in all", flush=True)
            verdicts = []
            for run in runs:
                try:
                    compare(run, killed / run.name)
                    verdicts.append("identical")
                except AssertionError as difference:
                    verdicts.append(f"**DIFFERENT**: {difference}")
            rows.append(f"| {len(rows) + 1} | {total} | {', '.join(sorted(set(verdicts)))} |")
            print(rows[-1], flush=True)
    bad = any("DIFFERENT" in row for row in rows) or any("failure" in ending for ending in scheduler.endings)
    lines = [
        f"{total} requeues of {len(runs)} members of a job array, {scheduler.calls} calls, every third with a second "
        f"process at the same run; {(time.monotonic() - began) / 60:.0f} minutes on {os.cpu_count()} cores under load "
        f"{os.getloadavg()[2]:.0f}, Python {platform.python_version()}; seed {args.seed}.",
        "",
        "| round | requeues so far | compared with the sweep without a kill |",
        "|---|---|---|",
        *rows,
        "",
        "How the processes ended: " + "; ".join(f"{what} ({n})" for what, n in scheduler.endings.most_common()) + ".",
    ]
    args.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    sys.exit(bad)


if __name__ == "__main__":
    main(tyro.cli(Requeue, description=__doc__))
