"""How fast the Bellman sweep reads memory: bytes per second, beside a plain copy of an array.

    python benchmarks/sweep.py [--models criss-cross-IH-80 garnet-1000000] [--output benchmarks/results/sweep.md]

A sweep computes max_a [r + P·h]. It must read the probabilities, the columns, the row pointers, the rewards and h at
least once, and write the result. These bytes, divided by the time, are compared with those that a copy of a large array
reads and writes per second, on one thread and on two. A sweep at the speed of the copy is as fast as memory allows. A
model that fits into a cache is faster than the copy, so only large models tell. Random columns (Garnet) read h in any
order, so they stay below the copy.
"""

import argparse
import concurrent.futures
import os
import pathlib
import time
from collections.abc import Callable

import numpy as np

import tabular_models
from tabular_models import Model

COPY_BYTES = 400_000_000
"""The array that is copied: much larger than any cache."""


def library_sweep(model: Model, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """The library's sweep with so many threads."""
    from kemeny.tabular import MDP, blocks, sweeps

    n = model.states
    mdp = MDP([model.matrix[a * n : (a + 1) * n] for a in range(model.actions)], model.rewards)
    ready = sweeps.Sweeps(mdp)

    def sweep(h: np.ndarray) -> np.ndarray:
        blocks.available_cores = lambda: threads
        return ready.backup(h).best

    return sweep


def scipy_sweep(model: Model) -> Callable[[np.ndarray], np.ndarray]:
    """The plain way: one product for all actions, then the maximum."""
    by_action = np.ascontiguousarray(model.rewards.T)
    return lambda h: ((model.matrix @ h).reshape(model.actions, -1) + by_action).max(axis=0)


def copy_speed(threads: int) -> float:
    """Bytes per second that a copy reads and writes, divided among threads (NumPy copies without holding the lock)."""
    source, target = np.ones(COPY_BYTES // 8), np.empty(COPY_BYTES // 8)
    pairs = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        seconds = best_time(lambda: list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs)))
    return 2 * COPY_BYTES / seconds


def best_time(run: Callable[[], object], repeats: int = 7) -> float:
    """The shortest of some runs, for other work on the machine only adds to it."""
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def rows_of(key: str, copies: dict[int, float]) -> list[str]:
    """The rows of one model."""
    model = tabular_models.make(key)
    h = np.random.default_rng(0).random(model.states)
    moved = model.bytes + 2 * h.nbytes
    sweeps = {"SciPy, 1 thread": (1, scipy_sweep(model))}
    for threads in copies:
        sweep = library_sweep(model, threads)
        np.testing.assert_allclose(sweep(h), scipy_sweep(model)(h), rtol=1e-12)
        sweeps[f"Kemeny, {threads} thread{'s' if threads > 1 else ''}"] = (threads, sweep)
    lines = []
    for name, (threads, sweep) in sweeps.items():
        speed = moved / best_time(lambda sweep=sweep: sweep(h))
        lines.append(
            f"| {key} | {name} | {1e3 * moved / speed:.3g} | {speed / 1e9:.2f} | {speed / copies[threads]:.2f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["criss-cross-IH-80", "criss-cross-BH-130", "garnet-1000000"])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results" / "sweep.md")
    args = parser.parse_args()
    copies = {threads: copy_speed(threads) for threads in (1, 2)}
    lines = [
        "# The Bellman sweep and the speed of memory",
        "",
        "Written by `benchmarks/sweep.py`. A plain copy reads and writes "
        + " and ".join(f"{speed / 1e9:.2f} GB/s on {threads} thread(s)" for threads, speed in copies.items())
        + ".",
        "",
        "| model | sweep | ms | GB/s | ÷ copy on as many threads |",
        "|---|---|---|---|---|",
    ]
    for key in args.models:
        lines += rows_of(key, copies)
    lines += ["", f"Load average of the machine at the end: {os.getloadavg()[0]:.1f}."]
    args.output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
