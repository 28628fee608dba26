"""How much sooner a sweep is done than the same runs one after another; best on an idle machine.

    python -m benchmarks.side_by_side [--runs 12] [--steps 50000]      # in the root of the repository

Three ways, after one run that fills the cache of compiled code: `kemeny sweep`; the same with `--jobs 1`; and a shell
loop of `kemeny train`, in which each run has all cores.
"""

import dataclasses
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tyro

from kemeny.experiments.grid import Grid
from kemeny.experiments.local import PROGRAM, usable_cores


@dataclasses.dataclass
class SideBySide:
    """How many runs, and how long each is."""

    runs: int = 12
    env: str = "HalfCheetah-v3"
    steps: int = 50_000
    eval_max_steps: int = 1_000
    out: Path = Path("benchmarks/results/side_by_side.md")


def seconds(words: list[str]) -> float:
    """How long a command of Kemeny takes."""
    began = time.monotonic()
    ran = subprocess.run([*PROGRAM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ran.returncode:
        sys.exit(f"kemeny {' '.join(words)}: {ran.stderr}")
    return time.monotonic() - began


def main(args: SideBySide) -> None:
    settings = {"steps": args.steps, "eval_max_steps": args.eval_max_steps}
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    sweep = ["sweep", args.env, *flags, "--seeds", *map(str, range(args.runs))]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        first = Grid.of({"env": args.env, **settings, "seeds": [args.runs]}).runs()[0]
        seconds(first.command(Path(folder) / "first"))  # compiles for all cores
        seconds([*sweep[: -args.runs], "0", "--out", f"{folder}/compiles"])  # for one core
        together = seconds([*sweep, "--out", f"{folder}/together"])
        alone = seconds([*sweep, "--out", f"{folder}/alone", "--jobs", "1"])
        grid = Grid.of({"env": args.env, **settings, "seeds": list(range(args.runs))})
        loop = sum(seconds(run.command(Path(folder) / "loop" / run.name)) for run in grid.runs())
    lines = [
        f"Written by `python -m benchmarks.side_by_side`: {args.runs} runs of {args.env}, {args.steps:,} steps each, "
        f"on {len(usable_cores())} cores, load {load:.1f} at the start, Python {platform.python_version()}.",
        "",
        "| | seconds | the sweep takes |",
        "|---|---|---|",
        f"| `kemeny sweep` | {together:.0f} | |",
        f"| `kemeny sweep --jobs 1`: in turn, each on one core | {alone:.0f} | {together / alone:.2f} of it |",
        f"| `kemeny train` in a loop: in turn, each on all cores | {loop:.0f} | {together / loop:.2f} of it |",
    ]
    args.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main(tyro.cli(SideBySide, description=__doc__))
