"""Kill training processes at random moments and times, resume them, and compare bit for bit.

    python -m benchmarks.soak [--kills 60] [--seed 0]      # in the root of the repository

Each scenario of `tests/faults.py` is run once without a kill, and once with its share of the kills: two in three at a
random one of the moments that are counted (before and after each collection, update, evaluation and change to a file,
and in the middle of each write), one in three after a random time. Whatever is left is resumed, killed again, and in
the end left to finish; then every logged number except times, and every array of the newest and the best checkpoint,
are compared.
"""

import collections
import dataclasses
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tyro

from tests.faults import SCENARIOS

CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


@dataclasses.dataclass
class Soak:
    """How many kills, and how."""

    kills: int = 60
    seed: int = 0
    compile_anew: bool = False
    """Let each process compile by itself instead of sharing the compilation cache of JAX: four times as slow."""
    out: Path = Path("benchmarks/results/soak.md")


def main(args: Soak) -> None:
    each = -(-args.kills // len(SCENARIOS))
    rows, places, began = [], collections.Counter(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cache = {} if args.compile_anew else {**CACHE, "JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
        for number, name in enumerate(SCENARIOS):
            arguments = (name, f"{each}", f"{args.seed + number}", f"{folder}/run", "0.33")
            ran = subprocess.run(
                [sys.executable, "-m", "tests.faults", *arguments],
                env={**os.environ, **cache, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            *where, summary = ran.stdout.splitlines() or [""]
            verdict = "identical" if ran.returncode == 0 else "**DIFFERENT**"
            places.update(where)
            rows.append(f"| {name} | {len(where)} | {summary.split()[-2] if where else '?'} | {verdict} |")
            print(rows[-1], flush=True)
    total = sum(places.values())
    lines = [
        f"{total} kills (SIGKILL), {(time.monotonic() - began) / 60:.0f} minutes on {os.cpu_count()} cores under load "
        f"{os.getloadavg()[2]:.0f}, Python {platform.python_version()}; seed {args.seed}"
        + ("; each process compiled by itself." if args.compile_anew else "; JAX's compilation cache shared."),
        "",
        "| scenario | kills | moments in an unharmed run | compared with the unharmed run |",
        "|---|---|---|---|",
        *rows,
        "",
        "The last moment passed before the kill: "
        + ", ".join(f"{where} {n}" for where, n in places.most_common())
        + ".",
    ]
    args.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    sys.exit(any("DIFFERENT" in row for row in rows))


if __name__ == "__main__":
    main(tyro.cli(Soak, description=__doc__))
