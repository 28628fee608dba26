"""How fast the criss-cross network is: alone, as one environment at a time, and in the whole training loop.

    python benchmarks/tasks_speed.py [--seconds 3] [--steps 3000000]

Writes benchmarks/results/tasks_speed.md. The machine must be idle. "Plain Python" is the same network as its author
would write it for Gymnasium, with Python's own numbers: a reference for both.
"""

import argparse
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import kemeny
from kemeny import tasks
from kemeny.runs.presets import QUEUES

OUTPUT = Path(__file__).parent / "results" / "tasks_speed.md"
COPIES = 1_000


class PlainPython:
    """Criss-cross BM, uniformised: reset and step as in Gymnasium."""

    def __init__(self) -> None:
        self.jobs, self.random = [0, 0, 0], random.Random(0)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One event."""
        x, u = self.jobs, self.random.random() * 4.2
        reward = -float(sum(x))
        if u < 0.6:
            x[0] += 1
        elif u < 1.2:
            x[2] += 1
        elif u < 3.2:
            serves = 0 if action == 0 and x[0] else 2
            if x[serves]:
                x[serves] -= 1
                x[1] += serves == 0
        elif x[1]:
            x[1] -= 1
        mask = np.array([x[0] > 0 or x[2] == 0, x[2] > 0], np.int8)
        return np.array(x, np.float32), reward, False, False, {"action_mask": mask}


def rate(step: Callable[[], int], seconds: float) -> float:
    """Steps per second; `step` returns how many steps it took."""
    step()
    taken, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        taken += step()
    return taken / (time.perf_counter() - began)


def loop(steps: int) -> float:
    """Steps per second of training, from the second batch to the last: the first one compiles."""
    with tempfile.TemporaryDirectory() as folder:
        run = kemeny.train(
            "kemeny/CrissCross-v0", env_kwargs={"regime": "BM"}, preset="queues", steps=steps, eval_every=10**9,
            eval_max_steps=10, checkpoint_every=10**9, out=Path(folder) / "run",
        )  # fmt: skip
        first, last = run.metrics[1], run.metrics[-1]
        return (last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--steps", type=int, default=3_000_000)
    given = parser.parse_args()
    process = tasks.criss_cross("BM")
    many, one, plain = tasks.ProcessVectorEnv(process, COPIES), tasks.ProcessEnv(process), PlainPython()
    many.reset(seed=0)
    one.reset(seed=0)
    actions = np.zeros(COPIES, np.int64)

    def step_many() -> int:
        many.step(actions)
        return COPIES

    def step_one() -> int:
        one.step(0)
        return 1

    def step_plain() -> int:
        plain.step(0)
        return 1

    rows = [
        ("plain Python, one environment", rate(step_plain, given.seconds)),
        ("`ProcessEnv`, one environment", rate(step_one, given.seconds)),
        (f"`ProcessVectorEnv`, {COPIES:,} copies", rate(step_many, given.seconds)),
        (f"whole training loop, batches of {QUEUES['batch_size']:,}, {QUEUES['num_envs']} copies", loop(given.steps)),
    ]
    text = [
        "# Speed of the criss-cross network",
        "",
        f"`python benchmarks/tasks_speed.py` on {os.cpu_count()} cores ({platform.machine()}), criss-cross BM.",
        "",
        "| | steps per second | beside plain Python |",
        "|---|---|---|",
    ]
    text += [f"| {name} | {speed:,.0f} | {speed / rows[0][1]:.2f} |" for name, speed in rows]
    OUTPUT.write_text("\n".join(text) + "\n")
    print(OUTPUT.read_text())


if __name__ == "__main__":
    main()
