"""Steps per second of `kemeny train` beside EnvPool's own ceiling, in one interleaved run.

    python benchmarks/throughput.py [--envs HalfCheetah-v3 Ant-v3 Humanoid-v3] [--rounds 3] [--seconds 8]

The ceiling steps two EnvPool pools in turn with actions drawn beforehand: both cores simulate, nothing learns, falls
are restarted. The whole loop is `kemeny.train` at its defaults but for evaluations (none), timed by its log from the
third iteration on: simulation, acting, storage, update, logging and checkpoints. Rounds alternate between the two;
medians and ranges are reported, for machines are shared and noisy.
"""

import dataclasses
import os
import tempfile
import time
from pathlib import Path

import envpool
import numpy as np
import tyro

import kemeny

POOL = 10
"""Environments in each of two pools, as in training at the default of 20."""


@dataclasses.dataclass
class Throughput:
    """What to measure."""

    envs: tuple[str, ...] = ("HalfCheetah-v3", "Ant-v3", "Humanoid-v3")
    rounds: int = 3
    seconds: float = 8.0
    out: Path = Path("benchmarks/results/throughput.md")


def ceiling(env: str, seconds: float, seed: int) -> float:
    pools = [
        envpool.make_gymnasium(
            env, num_envs=POOL, seed=seed + i, max_episode_steps=10**9, num_threads=os.cpu_count() or 1
        )
        for i in range(2)
    ]
    shape = (100, POOL, *pools[0].action_space.shape)
    low, high = pools[0].action_space.low, pools[0].action_space.high
    noise = np.random.default_rng(seed).normal(scale=np.exp(-0.5), size=shape)
    actions, everyone = np.clip(noise, low, high), np.arange(POOL)
    for pool in pools:
        pool.reset()
        pool.send(actions[0], everyone)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for t in range(100):
            for pool in pools:
                _, _, terminated, _, _ = pool.recv()
                if terminated.any():
                    pool.reset(np.flatnonzero(terminated))
                pool.send(actions[t], everyone)
        steps += 100 * 2 * POOL
    speed = steps / (time.perf_counter() - began)
    for pool in pools:
        pool.recv()
    return speed


def whole_loop(env: str, seconds: float, seed: int, expected: float) -> float:
    batches = max(6, int(seconds * expected / 5_000))
    with tempfile.TemporaryDirectory() as folder:
        run = kemeny.train(
            env, out=Path(folder) / "run", steps=batches * 5_000, seed=seed, eval_every=10**9, eval_max_steps=1
        )
        lines = run.metrics
    first, last = lines[2], lines[-1]  # the first two iterations compile
    return (last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"])


def main(args: Throughput) -> None:
    rows = []
    for env in args.envs:
        pairs = []
        expected = 0.6 * ceiling(env, 2.0, 0)
        for seed in range(args.rounds):
            pairs.append((ceiling(env, args.seconds, seed), whole_loop(env, args.seconds, seed, expected)))
            print(f"{env}: ceiling {pairs[-1][0]:,.0f}, whole loop {pairs[-1][1]:,.0f} steps/s", flush=True)
        top, loop = np.array(pairs).T
        shares = loop / top
        rows.append(
            f"| {env} | {np.median(top):,.0f} ({top.min():,.0f}–{top.max():,.0f}) "
            f"| {np.median(loop):,.0f} ({loop.min():,.0f}–{loop.max():,.0f}) "
            f"| **{np.median(shares):.2f}** ({shares.min():.2f}–{shares.max():.2f}) |"
        )
    table = "\n".join(
        [
            f"Steps per second, median (range) of {args.rounds} interleaved rounds; {os.cpu_count()} cores, "
            f"kemeny {kemeny.__version__}, EnvPool {envpool.__version__}.",
            "",
            "| environment | EnvPool's ceiling | whole loop of `kemeny train` | share of the ceiling |",
            "|---|---|---|---|",
            *rows,
        ]
    )
    args.out.write_text(table + "\n")
    print(table)


if __name__ == "__main__":
    main(tyro.cli(Throughput))
