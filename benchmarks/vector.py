"""What a vector environment gains: the same pendulum as one environment per object and as 1,000 copies in one call.

    python benchmarks/vector.py [--copies 1000] [--batch-size 50000] [--batches 6] [--seconds 3]

Measures steps per second of each alone and behind a pool, and in the whole training loop. Writes
benchmarks/results/vector.md.
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import kemeny
from kemeny.envs.pool import make_in_turn

OUTPUT = Path(__file__).parent / "results" / "vector.md"
DT, GRAVITY, LARGEST_SPEED, LARGEST_TORQUE = 0.05, 10.0, 8.0, 2.0
OBSERVATIONS = spaces.Box(
    np.array([-1, -1, -LARGEST_SPEED], np.float32), np.array([1, 1, LARGEST_SPEED], np.float32), dtype=np.float32
)
ACTIONS = spaces.Box(-LARGEST_TORQUE, LARGEST_TORQUE, (1,), np.float32)


class Pendulum(gymnasium.Env):
    """The usual pendulum, which has no end, with Python's numbers as an author would write it."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = OBSERVATIONS, ACTIONS
        self.angle, self.speed = 0.0, 0.0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Anywhere."""
        super().reset(seed=seed)
        self.angle, self.speed = self.np_random.uniform((-np.pi, -1.0), (np.pi, 1.0))
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One twentieth of a second."""
        torque = float(action[0])
        angle = (self.angle + np.pi) % (2 * np.pi) - np.pi
        reward = -(angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2)
        speed = self.speed + (1.5 * GRAVITY * np.sin(self.angle) + 3.0 * torque) * DT
        self.speed = min(max(speed, -LARGEST_SPEED), LARGEST_SPEED)
        self.angle += self.speed * DT
        return self.observe(), float(reward), False, False, {}

    def observe(self) -> np.ndarray:
        """As Gymnasium's."""
        return np.array([np.cos(self.angle), np.sin(self.angle), self.speed], np.float32)


class Pendulums(VectorEnv):
    """The same, all copies in one call."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = OBSERVATIONS, ACTIONS
        self.observation_space = batch_space(OBSERVATIONS, num_envs)
        self.action_space = batch_space(ACTIONS, num_envs)
        self.angle, self.speed = np.zeros(num_envs), np.zeros(num_envs)
        self.never = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Some of them, anywhere."""
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        count = int(mask.sum())
        self.angle[mask] = self.np_random.uniform(-np.pi, np.pi, count)
        self.speed[mask] = self.np_random.uniform(-1.0, 1.0, count)
        return self.observe(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One twentieth of a second of all."""
        torque = actions[:, 0].astype(np.float64)
        angle = (self.angle + np.pi) % (2 * np.pi) - np.pi
        reward = -(angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2)
        speed = self.speed + (1.5 * GRAVITY * np.sin(self.angle) + 3.0 * torque) * DT
        self.speed = np.clip(speed, -LARGEST_SPEED, LARGEST_SPEED)
        self.angle += self.speed * DT
        return self.observe(), reward, self.never, self.never, {}

    def observe(self) -> np.ndarray:
        """As Gymnasium's."""
        return np.column_stack([np.cos(self.angle), np.sin(self.angle), self.speed]).astype(np.float32)

    def get_state(self) -> dict:
        """For exact resumes."""
        return {"angle": self.angle, "speed": self.speed, "random": self.np_random}

    def set_state(self, state: dict) -> None:
        """For exact resumes."""
        self.angle, self.speed, self.np_random = state["angle"], state["speed"], state["random"]


def rate(step: Callable[[], int], seconds: float) -> float:
    """Steps per second; `step` returns how many steps it took."""
    step()
    taken, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        taken += step()
    return taken / (time.perf_counter() - began)


def alone(copies: int, seconds: float) -> tuple[float, float]:
    """The environments themselves, without Kemeny."""
    action = np.zeros((copies, 1), np.float32)
    singles = [Pendulum() for _ in range(copies)]
    for i, single in enumerate(singles):
        single.reset(seed=i)
    together = Pendulums(copies)
    together.reset(seed=0)

    def one_by_one() -> int:
        for single, row in zip(singles, action, strict=True):
            single.step(row)
        return copies

    def all_at_once() -> int:
        together.step(action)
        return copies

    return rate(one_by_one, seconds), rate(all_at_once, seconds)


def pools(env: Callable[..., object], copies: int, seconds: float) -> float:
    """Behind the pools that a run uses in turn."""
    in_turn = [pool for _, pool in make_in_turn(env, copies, seed=0)]
    for pool in in_turn:
        pool.reset(np.arange(pool.num_envs))

    def step() -> int:
        for pool in in_turn:
            pool.send(np.zeros((pool.num_envs, 1), np.float32))
            pool.recv()
        return copies

    return rate(step, seconds)


def training(env: Callable[..., object], copies: int, batch_size: int, batches: int) -> float:
    """The whole loop: from the end of the second batch, when all is compiled, to the end of the last."""
    with tempfile.TemporaryDirectory() as folder:
        run = kemeny.train(
            env, out=Path(folder) / "run", num_envs=copies, batch_size=batch_size, steps=batches * batch_size, seed=0,
            eval_every=10**9, eval_trajectories=1, eval_max_steps=1, checkpoint_every=10**9,
        )  # fmt: skip
        seconds = [record["seconds"] for record in run.metrics]
    return (len(seconds) - 2) * batch_size / (seconds[-1] - seconds[1])


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--copies", type=int, default=1_000)
    parser.add_argument("--batch-size", type=int, default=50_000)
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--note", default="", help="what else the machine was doing")
    options = parser.parse_args()
    copies, batch_size = options.copies, options.batch_size

    rows = [("the environment alone", *alone(copies, options.seconds))]
    kinds: tuple[Callable[..., object], ...] = (Pendulum, Pendulums)
    rows.append(("behind Kemeny's pools", *(pools(kind, copies, options.seconds) for kind in kinds)))
    rows.append(("training", *(training(kind, copies, batch_size, options.batches) for kind in kinds)))
    lines = [f"| {what} | {one:,.0f} | {many:,.0f} | {many / one:.1f} |" for what, one, many in rows]
    command = f"--copies {copies} --batch-size {batch_size} --batches {options.batches} --seconds {options.seconds:g}"
    text = f"""# A vector environment and the same environment unvectorised

`python benchmarks/vector.py {command}`, on {platform.machine()}, {os.cpu_count()} cores. {options.note}

A pendulum with {copies:,} copies, in steps per second: as {copies:,} Gymnasium environments in one process, and as one
vector environment that steps all copies in one NumPy call. Training is the whole loop with the default networks and
batches of {batch_size:,} steps, without evaluations.

| | one by one | vector environment | ratio |
|---|---|---|---|
{chr(10).join(lines)}
"""
    OUTPUT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
