"""Does a run grow? Memory and time per step over a long run of a small environment; size of logs; cost of checkpoints.

    python benchmarks/long_run.py [--steps 10000000] [--costs HalfCheetah-v3 Humanoid-v3]

The long run is CartPole-v1 at the default evaluation and checkpoint intervals, in batches of 20,000. Memory is the
process's resident set, read at each iteration. The cost of checkpoints is the time inside `checkpoint.save`,
`save_best`, the flush of the logs and the snapshot of the environments, against the whole loop from the third
iteration on, at the default settings but for evaluations (none).
"""

import contextlib
import dataclasses
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import kemeny
from kemeny.runs import checkpoint
from kemeny.experience.collect import Collector
from kemeny.runs.progress import silent
from kemeny.runs.directory import Logs


@dataclasses.dataclass
class LongRun:
    """How long."""

    steps: int = 10_000_000
    costs: tuple[str, ...] = ("HalfCheetah-v3", "Humanoid-v3")
    cost_steps: int = 600_000
    out: Path = Path("benchmarks/results/long_run.md")


class Watch(type(silent)):
    """Notes memory and time at each iteration."""

    def __init__(self) -> None:
        object.__setattr__(self, "rows", [])

    def iteration(self, steps: int, record: Any) -> None:
        """Called by the loop."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.rows.append((steps, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, time.process_time(), time.monotonic()))


class Stopwatch:
    """Seconds spent in some functions."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    @contextlib.contextmanager
    def on(self, *functions: tuple[Any, str]):
        """While this is open, these functions are timed."""
        originals = [(home, name, getattr(home, name)) for home, name in functions]
        for home, name, original in originals:
            setattr(home, name, self._timed(original))
        yield self
        for home, name, original in originals:
            setattr(home, name, original)

    def _timed(self, function):
        def timed(*arguments, **more):
            began = time.perf_counter()
            try:
                return function(*arguments, **more)
            finally:
                self.seconds += time.perf_counter() - began
                self.calls += 1

        return timed


def grow(steps: int) -> list[str]:
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        run = kemeny.train(
            "CartPole-v1", out=Path(folder) / "run", steps=steps, num_envs=40, batch_size=20_000, hidden=(16,),
            critic_epochs=1, critic_minibatch=1_000, eval_max_steps=1_000, progress=watch, max_skipped=10**9,
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
    watch, stopwatch = Watch(), Stopwatch()
    watched = ((checkpoint, "save"), (checkpoint, "save_best"), (Logs, "flush"), (Collector, "snapshot"))
    with tempfile.TemporaryDirectory() as folder, stopwatch.on(*watched):
        run = kemeny.train(
            env, out=Path(folder) / "run", steps=steps, eval_every=10**9, eval_max_steps=1, progress=watch
        )
        size = sum(path.stat().st_size for path in checkpoint.latest(run.path).path.iterdir()) / 2**20
    saves = sum(1 for _ in range(100_000, steps + 1, 100_000))
    whole = watch.rows[-1][3] - watch.rows[2][3]
    share = stopwatch.seconds / whole
    return f"| {env} | {size:.1f} | {stopwatch.seconds / saves * 1e3:.0f} | {whole / steps * 1e5:.1f} | {share:.2%} |"


def main(args: LongRun) -> None:
    lines = [f"{os.cpu_count()} cores, load {os.getloadavg()[2]:.0f} from other work; kemeny {kemeny.__version__}.", ""]
    if args.costs:
        table = [
            "| environment | MiB | ms a checkpoint | s per 100,000 steps | share of the time |",
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
    main(tyro.cli(LongRun))
