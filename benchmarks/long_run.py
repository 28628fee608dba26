"""Does a run grow? Memory and time per step over a long run of a small environment; size of logs; cost of checkpoints.

    python benchmarks/long_run.py [--steps 10000000] [--costs HalfCheetah-v3 Humanoid-v3]

The long run is CartPole-v1 at the default evaluation and checkpoint intervals, in batches of 20,000. Memory is the
resident set of the process, read at each iteration. The cost of checkpoints is the time of the loop in its phase
`checkpoint` (snapshot of the environments, flush of the logs) and of the thread that writes them in its phase `save`,
compared with the time of the whole loop from the third iteration on. In these runs only the last policy is evaluated,
for one step; all other settings are the defaults.
"""

import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import kemeny
from kemeny.runs import checkpoint


@dataclasses.dataclass
class LongRun:
    """How long."""

    steps: int = 10_000_000
    costs: tuple[str, ...] = ("HalfCheetah-v3", "Humanoid-v3")
    cost_steps: int = 600_000
    out: Path = Path("benchmarks/results/long_run.md")


class Watch(kemeny.Observer):
    """Notes memory and time at each iteration."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, float, float]] = []
        """Steps, MiB, CPU seconds, seconds on the clock."""

    def iteration(self, record: Mapping[str, Any]) -> None:
        """Called by the loop."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        self.rows.append((record["steps"], mib, time.process_time(), time.monotonic()))


class Stopwatch(kemeny.Observer):
    """Seconds of some phases, in whichever thread they run."""

    def __init__(self, *phases: str) -> None:
        self.seconds = dict.fromkeys(phases, 0.0)
        self.times = dict.fromkeys(phases, 0)
        """How often each phase was passed."""
        self._began: dict[tuple[int, str], float] = {}

    def begin(self, phase: str, *about: Any) -> None:
        """A phase begins."""
        if phase in self.seconds:
            self._began[threading.get_ident(), phase] = time.perf_counter()

    def end(self, phase: str, *outcome: Any) -> None:
        """A phase ends."""
        if phase in self.seconds:
            self.seconds[phase] += time.perf_counter() - self._began.pop((threading.get_ident(), phase))
            self.times[phase] += 1


def grow(steps: int) -> list[str]:
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        run = kemeny.train(
            "CartPole-v1", out=Path(folder) / "run", steps=steps, num_envs=40, batch_size=20_000, hidden=(16,),
            critic_epochs=1, critic_minibatch=1_000, eval_max_steps=1_000, observers=[watch], max_skipped=10**9,
        )  # fmt: skip
        sizes = {path.name.split(".1")[0]: path.stat().st_size for path in run.path.iterdir() if path.is_file()}
    rows = np.array(watch.rows)
    tenth = len(rows) // 10
    lines = ["| part of the run | resident memory, MiB (largest) | CPU µs per step (median) |", "|---|---|---|"]
    for part in range(10):
        chosen = rows[part * tenth : (part + 1) * tenth]
        cpu = np.median(np.diff(chosen[:, 2])) / 20_000 * 1e6
        lines.append(f"| {chosen[0, 0]:,.0f} to {chosen[-1, 0]:,.0f} steps | {chosen[:, 1].max():.0f} | {cpu:.2f} |")
    named = ", ".join(f"`{name}` {size / 1024:,.0f} kB" for name, size in sorted(sizes.items()) if size > 1024)
    return [f"{steps:,} steps of CartPole-v1.", "", *lines, "", f"Files after {len(rows)} iterations: {named}."]


def cost(env: str, steps: int) -> str:
    watch, stopwatch = Watch(), Stopwatch("checkpoint", "save")
    with tempfile.TemporaryDirectory() as folder:
        run = kemeny.train(
            env, out=Path(folder) / "run", steps=steps, eval_every=10**9, eval_max_steps=1, observers=[watch, stopwatch]
        )
        size = sum(path.stat().st_size for path in checkpoint.latest(run.path).path.iterdir()) / 2**20
    whole, steps_timed = watch.rows[-1][3] - watch.rows[2][3], watch.rows[-1][0] - watch.rows[2][0]
    spent = sum(stopwatch.seconds.values())
    ms, pace = spent / stopwatch.times["checkpoint"] * 1e3, whole / steps_timed * 1e5
    return f"| {env} | {size:.1f} | {ms:.0f} | {pace:.1f} | {spent / whole:.2%} |"


def main(args: LongRun) -> None:
    lines = [f"{os.cpu_count()} cores, load {os.getloadavg()[2]:.0f} from other work; kemeny {kemeny.__version__}.", ""]
    if args.costs:
        table = [
            "| environment | MiB | ms per checkpoint | s per 100,000 steps | share of the time |",
            "|---|---|---|---|---|",
        ]
        lines += table
        for env in args.costs:
            lines.append(cost(env, args.cost_steps))
            print(lines[-1], flush=True)
        lines.append("")
    if args.steps:
        lines += grow(args.steps)
    args.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main(tyro.cli(LongRun, description=__doc__))
