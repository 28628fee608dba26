"""What Ray costs on one machine, beside processes without Ray; best on an idle machine. The goal is under 10 %.

    python -m benchmarks.ray_overhead      # in the root of the repository; some minutes

Two kinds of work, in turn without Ray and with it, several times: a sweep on all cores, by the clock; and one run with
two collectors, by its steps per second after the first batch. The Ray cluster is begun once, before; how long that
takes is told apart. All that is compiled is compiled before.
"""

import dataclasses
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import ray
import tyro
from benchmarks.side_by_side import seconds

from kemeny.cluster import connected
from kemeny.experiments.local import usable_cores
from kemeny.runs.directory import Run

BACKENDS = ("local", "ray")


@dataclasses.dataclass
class RayOverhead:
    """How much work, and how often."""

    env: str = "HalfCheetah-v3"
    sweep_runs: int = 6
    sweep_steps: int = 250_000
    run_steps: int = 300_000
    repeats: int = 2
    out: Path = Path("benchmarks/results/ray.md")


def place(backend: str, address: str) -> list[str]:
    return ["--backend", backend, *(["--ray-address", address] if backend == "ray" else [])]


def speed(path: Path) -> float:
    """Steps per second after the first batch."""
    first, last = Run(path).metrics[0], Run(path).metrics[-1]
    return (last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"])


def sweep(args: RayOverhead, out: Path, runs: int, where: list[str]) -> float:
    grid = ["--steps", str(args.sweep_steps), "--seeds", *map(str, range(runs))]
    return seconds(["sweep", args.env, *grid, "--eval-max-steps", "1000", "--out", str(out), *where])


def run(args: RayOverhead, out: Path, collectors: int, where: list[str]) -> float:
    work = ["--steps", str(args.run_steps), "--eval-max-steps", "1000", "--eval-every", str(args.run_steps)]
    seconds(["train", args.env, *work, "--collectors", str(collectors), "--out", str(out), *where])
    return speed(out)


def measure(args: RayOverhead, folder: Path, address: str) -> dict[str, dict[str, list[float]]]:
    """By the work and the backend."""
    sweep(args, folder / "compiles", len(usable_cores()), [])
    alone = run(args, folder / "alone", 1, [])
    found = {"sweep": {name: [] for name in BACKENDS}, "run": {name: [] for name in BACKENDS}, "alone": {"": [alone]}}
    for number in range(args.repeats):
        for name in BACKENDS:
            where, out = place(name, address), folder / f"{name}{number}"
            found["sweep"][name].append(sweep(args, out / "sweep", args.sweep_runs, where))
            found["run"][name].append(run(args, out / "run", 2, where))
    return found


def main(args: RayOverhead) -> None:
    load, began = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as folder, connected():
        start = time.monotonic() - began
        found = measure(args, Path(folder), ray.get_runtime_context().gcs_address)
    middle = {work: {name: statistics.median(each) for name, each in by.items()} for work, by in found.items()}
    every = {
        work: {name: ", ".join(f"{one:,.0f}" for one in each) for name, each in by.items()}
        for work, by in found.items()
    }
    slower = middle["sweep"]["ray"] / middle["sweep"]["local"] - 1
    slower_run = middle["run"]["local"] / middle["run"]["ray"] - 1
    lines = [
        "# What Ray costs on one machine",
        "",
        f"Written by `python -m benchmarks.ray_overhead` on {len(usable_cores())} cores, load {load:.1f} at the start, "
        f"Python {platform.python_version()}, Ray {ray.__version__}, {args.env}. Medians; in brackets each of "
        f"{args.repeats}, in turn. To begin the Ray cluster took {start:.0f} s, once, which is in no other number.",
        "",
        "| | without Ray | with Ray | Ray takes longer by |",
        "|---|---|---|---|",
        f"| a sweep of {args.sweep_runs} runs of {args.sweep_steps:,} steps, seconds | {middle['sweep']['local']:.0f} "
        f"({every['sweep']['local']}) | {middle['sweep']['ray']:.0f} ({every['sweep']['ray']}) | {slower:.1%} |",
        f"| a run of {args.run_steps:,} steps with two collectors, steps/s | {middle['run']['local']:,.0f} "
        f"({every['run']['local']}) | {middle['run']['ray']:,.0f} ({every['run']['ray']}) | {slower_run:.1%} |",
        "",
        f"Without collectors, the same run has {middle['alone']['']:,.0f} steps/s.",
    ]
    args.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main(tyro.cli(RayOverhead, description=__doc__))
