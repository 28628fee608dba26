"""Steps per second of whole training loops: Kemeny beside sb3-contrib and tianshou, in one interleaved run.

    python3 -m venv ../peers
    ../peers/bin/pip install torch==2.13.0
    ../peers/bin/pip install -r benchmarks/requirements-peers.txt
    .venv/bin/python benchmarks/peers.py --peers ../peers/bin/python [--rounds 3] [--seconds 5]

It runs under Kemeny's interpreter; `--peers` is the interpreter of the other environment. With the defaults, expect
about 15 minutes on two idle cores. Every measurement is a process of its own, one after another. A first pass tries
each setting of each peer briefly: its vector settings with one thread for torch, then the fastest of them with two. The
rounds compare the fastest with Kemeny; ratios are taken within a round.

All train TRPO with γ = 0.99 on the episodic task, in batches of 5,000, with two hidden layers of 64 tanh units,
δ = 0.01, ten conjugate-gradient iterations, damping 0.01, up to ten step lengths × 0.8, λ = 0.95, and a critic fitted
for ten epochs in minibatches of 100 by Adam at 3e-4. No evaluations, no saved models. The clock runs over whole
iterations, from the end of the first (for Kemeny, which compiles, of the third). What is not the same:

- Kemeny also normalises observations, decays its critic's weights and writes its log. The peers do none of that.
- sb3-contrib does not support EnvPool. It is measured as it comes, on Gymnasium's environments, whose v3 do not run on
  today's MuJoCo: on v5 instead, with nearly the same observations. It is also measured on EnvPool, through an adapter
  written here.
- Tianshou's TRPO has no minibatches for the critic alone. As it comes, its critic takes ten steps, each on the whole
  batch, where the others take 500. It is also measured with a critic that is fitted like the others', written here.
- EnvPool's infos, which nothing here reads, are slow in tianshou. It is also measured without them.
- Tianshou's damping is 0.1, which costs no time.
"""

import contextlib
import dataclasses
import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

BATCH, EPOCHS, MINIBATCH, HIDDEN, RATE = 5_000, 10, 100, (64, 64), 3e-4
GAMMA, LAMBDA, DELTA, CG, DAMPING, BACKTRACK, TRIES, LOG_STD = 0.99, 0.95, 0.01, 10, 0.01, 0.8, 10, -0.5
"""The paper's settings, for Kemeny and its peers."""
FOREVER = 10**9
PACKAGES = ("kemeny", "jax", "stable-baselines3", "sb3-contrib", "tianshou", "torch", "envpool", "gymnasium", "mujoco")
TIME_LIMIT, FIRST_TIME_LIMIT = 600, 40
"""Seconds after which a process counts as hung, or in the first pass as too slow a setting."""


@dataclasses.dataclass
class Peers:
    """What to measure."""

    peers: Path
    """The interpreter of the environment with `benchmarks/requirements-peers.txt`."""
    envs: tuple[str, ...] = ("HalfCheetah-v3", "Ant-v3", "Humanoid-v3")
    rounds: int = 3
    seconds: float = 5.0
    """Least time of a measurement in the rounds, after its warm-up; whole iterations are measured."""
    first_seconds: float = 1.0
    """The same, of the first pass."""
    out: Path = Path("benchmarks/results/peers.md")


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a library is run."""

    library: str
    vector: str
    num_envs: int
    threads: int = 1
    """Of torch; Kemeny leaves that to XLA."""

    def __str__(self) -> str:
        torch = "" if self.library == "kemeny" else f", torch on {self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.vector} × {self.num_envs}{torch}"


KEMENY = Setting("kemeny", "EnvPool", 20)
PEERS = {
    "sb3-contrib": (
        *(Setting("sb3", "DummyVecEnv", num_envs) for num_envs in (1, 4, 10, 20)),
        Setting("sb3", "SubprocVecEnv", 2),
    ),
    "sb3-contrib on EnvPool": (Setting("sb3", "EnvPool", 20),),
    "tianshou": (Setting("tianshou", "EnvPool", 20), Setting("tianshou", "EnvPool without infos", 20)),
    "tianshou, critic in minibatches": (Setting("tianshou in minibatches", "EnvPool without infos", 20),),
}


def task(setting: Setting, env: str) -> str:
    """The environment, in a version that its simulator has."""
    return env if setting.vector.startswith("EnvPool") else env.replace("-v3", "-v5")


@dataclasses.dataclass
class Job:
    """One measurement, as it is handed to its process."""

    setting: Setting
    env: str
    seconds: float
    seed: int
    first: bool
    """Whether this is the first pass, which is rough and cheap."""

    @property
    def warm_up(self) -> int:
        """Iterations before the clock starts: Kemeny and tianshou compile, sb3 does not."""
        return {"kemeny": 3, "sb3": 0 if self.first else 1}.get(self.setting.library, 1)


class Enough(Exception):
    """The time is up: how a training loop is left."""


class Clock:
    """Steps and times at the same point of each iteration."""

    def __init__(self, seconds: float, warm_up: int) -> None:
        self.seconds, self.warm_up = seconds, warm_up
        self.marks: list[tuple[int, float]] = []

    def mark(self, steps: int) -> None:
        """An iteration is over; leaves the loop if it was the last."""
        if steps >= self.warm_up:
            self.marks.append((steps, time.perf_counter()))
            if len(self.marks) > 1 and self.marks[-1][1] - self.marks[0][1] >= self.seconds:
                raise Enough

    @property
    def speed(self) -> float:
        """Steps per second since the warm-up."""
        (first, began), (last, ended) = self.marks[0], self.marks[-1]
        return (last - first) / (ended - began)


def train_kemeny(job: Job, clock: Clock) -> None:
    import kemeny

    class Marks(kemeny.Observer):
        def iteration(self, record: Any) -> None:
            clock.mark(record["steps"])

    with tempfile.TemporaryDirectory() as folder:
        kemeny.train(
            task(job.setting, job.env),
            out=Path(folder) / "run",
            observers=[Marks()],
            preset="paper",
            algorithm="trpo",
            gamma=GAMMA,
            episodic=True,
            seed=job.seed,
            num_envs=job.setting.num_envs,
            batch_size=BATCH,
            steps=FOREVER,
            eval_every=FOREVER,
            checkpoint_every=FOREVER,
        )


def make_pool(job: Job) -> Any:
    import envpool

    return envpool.make_gymnasium(
        task(job.setting, job.env),
        num_envs=job.setting.num_envs,
        seed=job.seed,
        num_threads=min(job.setting.num_envs, os.cpu_count() or 1),
    )


def sb3_vector(job: Job) -> Any:
    """Environments as sb3 wants them; without the Monitor, which only costs it time."""
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    if job.setting.vector == "EnvPool":
        return sb3_pool(job)
    kind = {"DummyVecEnv": DummyVecEnv, "SubprocVecEnv": SubprocVecEnv}[job.setting.vector]
    return kind([lambda: gymnasium.make(task(job.setting, job.env), disable_env_checker=True)] * job.setting.num_envs)


def sb3_pool(job: Job) -> Any:
    """EnvPool behind sb3's interface: what has ended restarts within the step, and its last observation is an info."""
    import gymnasium
    from stable_baselines3.common.vec_env import VecEnv

    pool = make_pool(job)
    infinite = np.full(pool.observation_space.shape, np.inf, np.float32)

    class EnvPoolVecEnv(VecEnv):
        def reset(self) -> np.ndarray:
            return pool.reset()[0].astype(np.float32)

        def step_async(self, actions: np.ndarray) -> None:
            pool.send(actions.astype(np.float64))

        def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
            observation, reward, terminated, truncated, _ = pool.recv()
            observation, done = observation.astype(np.float32), terminated | truncated
            infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            if done.any():
                over = np.flatnonzero(done)
                for i in over:
                    cut = bool(truncated[i] and not terminated[i])
                    infos[i] = {"terminal_observation": observation[i].copy(), "TimeLimit.truncated": cut}
                observation[over] = pool.reset(over)[0]
            return observation, reward, done, infos

        def close(self) -> None:
            pool.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [None] * self.num_envs

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

    return EnvPoolVecEnv(job.setting.num_envs, gymnasium.spaces.Box(-infinite, infinite), pool.action_space)


def train_sb3(job: Job, clock: Clock) -> None:
    import torch
    from sb3_contrib import TRPO
    from stable_baselines3.common.callbacks import BaseCallback

    class Marks(BaseCallback):
        def _on_rollout_start(self) -> None:
            clock.mark(self.model.num_timesteps)

        def _on_step(self) -> bool:
            return True

    torch.set_num_threads(job.setting.threads)
    model = TRPO(
        "MlpPolicy",
        sb3_vector(job),
        n_steps=BATCH // job.setting.num_envs,
        batch_size=MINIBATCH,
        n_critic_updates=EPOCHS,
        learning_rate=RATE,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        target_kl=DELTA,
        cg_max_steps=CG,
        cg_damping=DAMPING,
        line_search_shrinking_factor=BACKTRACK,
        line_search_max_iter=TRIES,
        policy_kwargs={
            "net_arch": {"pi": HIDDEN, "vf": HIDDEN},
            "activation_fn": torch.nn.Tanh,
            "log_std_init": LOG_STD,
        },
        seed=job.seed,
        device="cpu",
    )
    try:
        model.learn(FOREVER, callback=Marks())
    finally:
        model.env.close()


class PoolWithoutInfos:
    """What tianshou's collector asks of EnvPool, with single-precision observations and empty infos."""

    is_async = False

    def __init__(self, pool: Any) -> None:
        self.pool, self.action_space = pool, pool.action_space
        self.infos = np.array([{} for _ in range(len(pool))])

    def __len__(self) -> int:
        return len(self.pool)

    def reset(self, env_id: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Restart some environments, or all."""
        observation = self.pool.reset(env_id)[0].astype(np.float32)
        return observation, self.infos[: len(observation)].copy()

    def step(self, action: np.ndarray, env_id: np.ndarray) -> tuple[np.ndarray, ...]:
        """One step of each."""
        observation, *rest, _ = self.pool.step(action, env_id)
        return observation.astype(np.float32), *rest, self.infos[: len(observation)].copy()


def tianshou_algorithm(pool: Any, minibatches: bool) -> Any:
    import torch
    from tianshou.algorithm import TRPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    def body() -> Any:
        return Net(state_shape=pool.observation_space.shape, hidden_sizes=HIDDEN, activation=torch.nn.Tanh)

    actor = ContinuousActorProbabilistic(
        preprocess_net=body(), action_shape=pool.action_space.shape, unbounded=True, conditioned_sigma=False
    )
    torch.nn.init.constant_(actor.sigma_param, LOG_STD)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda mean_std: torch.distributions.Independent(torch.distributions.Normal(*mean_std), 1),
        action_space=pool.action_space,
    )
    kind = tianshou_in_minibatches() if minibatches else TRPO
    return kind(
        policy=policy,
        critic=ContinuousCritic(preprocess_net=body()),
        optim=AdamOptimizerFactory(lr=RATE),
        max_kl=DELTA,
        backtrack_coeff=BACKTRACK,
        max_backtracks=TRIES,
        optim_critic_iters=1 if minibatches else EPOCHS,
        gae_lambda=LAMBDA,
        gamma=GAMMA,
        max_batchsize=BATCH,
    )


def tianshou_in_minibatches() -> Any:
    """Tianshou's TRPO, with a critic that is fitted in minibatches after its one step on the whole batch."""
    import torch
    from tianshou.algorithm import TRPO

    class TRPOInMinibatches(TRPO):
        def _update_with_batch(self, batch: Any, batch_size: int | None, repeat: int) -> Any:
            stats = super()._update_with_batch(batch, batch_size, repeat)
            observations = torch.as_tensor(batch.obs, dtype=torch.float32)
            for _ in range(EPOCHS):
                for rows in torch.randperm(len(observations)).split(MINIBATCH):
                    value = self.critic(observations[rows]).flatten()
                    self.optim.step(torch.nn.functional.mse_loss(batch.returns[rows], value))
            return stats

    return TRPOInMinibatches


def train_tianshou(job: Job, clock: Clock) -> None:
    import torch
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.trainer import OnPolicyTrainerParams

    torch.set_num_threads(job.setting.threads)
    torch.manual_seed(job.seed)
    pool = make_pool(job)
    algorithm = tianshou_algorithm(pool, minibatches=job.setting.library == "tianshou in minibatches")
    envs = PoolWithoutInfos(pool) if job.setting.vector == "EnvPool without infos" else pool
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=Collector(algorithm, envs, VectorReplayBuffer(BATCH, len(envs))),
            collection_step_num_env_steps=BATCH,
            batch_size=None,
            update_step_num_repetitions=1,
            max_epochs=FOREVER,
            epoch_num_steps=20 * BATCH,
            training_fn=lambda epoch, steps: clock.mark(steps),
            verbose=False,
            show_progress=False,
        )
    )


def measure(job: Job) -> None:
    """The process of one measurement: its result is the last line that it prints."""
    train = {"kemeny": train_kemeny, "sb3": train_sb3}.get(job.setting.library, train_tianshou)
    clock = Clock(job.seconds, job.warm_up * BATCH)
    with contextlib.suppress(Enough):
        train(job, clock)
    assert {after - before for (before, _), (after, _) in itertools.pairwise(clock.marks)} == {BATCH}
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    print(json.dumps({"speed": clock.speed, "iterations": len(clock.marks) - 1, "versions": versions}), flush=True)


class Measurements:
    """Runs measurements one after another, and remembers which versions took part."""

    def __init__(self, peers: Path) -> None:
        self.peers = peers
        self.versions: set[str] = set()

    def speed(self, job: Job) -> float:
        """Steps per second of one process; 0 if it was too slow for the first pass."""
        python = sys.executable if job.setting.library == "kemeny" else str(self.peers)
        command = [python, "-W", "ignore", __file__, "measure", json.dumps(dataclasses.asdict(job))]
        name = f"{task(job.setting, job.env)}, {job.setting.library}, {job.setting}"
        try:
            limit = FIRST_TIME_LIMIT if job.first else TIME_LIMIT
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            if not job.first:
                raise
            print(f"{name}: not done in {FIRST_TIME_LIMIT} s", flush=True)
            return 0.0
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr}")
        result = json.loads(done.stdout.splitlines()[-1])
        self.versions |= {f"{package} {version}" for package, version in result["versions"].items()}
        print(f"{name}: {result['speed']:,.0f} steps/s, {result['iterations']} iterations", flush=True)
        return result["speed"]


def fastest(speeds: dict[Setting, float]) -> Setting:
    return max(speeds, key=lambda setting: speeds[setting])


def first_pass(args: Peers, runs: Measurements, env: str) -> dict[str, dict[Setting, float]]:
    """Each vector setting of each peer with one thread, and the fastest of them with two."""
    tried = {}
    for peer, settings in PEERS.items():
        speeds = {}
        for setting in settings:
            speeds[setting] = runs.speed(Job(setting, env, args.first_seconds, seed=0, first=True))
        more = dataclasses.replace(fastest(speeds), threads=2)
        speeds[more] = runs.speed(Job(more, env, args.first_seconds, seed=0, first=True))
        tried[peer] = speeds
    return tried


def interleaved(args: Peers, runs: Measurements, env: str, best: dict[str, Setting]) -> dict[str, np.ndarray]:
    """Speeds in each round; each round begins with another library."""
    names = list(best)
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(args.rounds):
        first = seed % len(names)
        for name in names[first:] + names[:first]:
            speeds[name].append(runs.speed(Job(best[name], env, args.seconds, seed, first=False)))
    return {name: np.array(values) for name, values in speeds.items()}


def spread(values: np.ndarray, form: str) -> str:
    return f"{np.median(values):{form}} ({values.min():{form}}–{values.max():{form}})"


def round_rows(env: str, best: dict[str, Setting], speeds: dict[str, np.ndarray]) -> list[str]:
    rows = []
    for name, setting in best.items():
        ratio = "" if setting is KEMENY else spread(speeds["Kemeny"] / speeds[name], ".1f")
        rows.append(f"| {task(setting, env)} | {name} | {setting} | {spread(speeds[name], ',.0f')} | {ratio} |")
    return rows


def first_rows(env: str, tried: dict[str, dict[Setting, float]]) -> list[str]:
    rows = []
    for peer, speeds in tried.items():
        for setting, speed in speeds.items():
            result = f"{speed:,.0f}" if speed else f"not done in {FIRST_TIME_LIMIT} s"
            rows.append(f"| {task(setting, env)} | {peer} | {setting} | {result} |")
    return rows


def main(args: Peers) -> None:
    began, runs = time.monotonic(), Measurements(args.peers)
    load = os.getloadavg()[0]
    compared, firsts = [], []
    for env in args.envs:
        tried = first_pass(args, runs, env)
        best = {"Kemeny": KEMENY} | {peer: fastest(speeds) for peer, speeds in tried.items()}
        compared += round_rows(env, best, interleaved(args, runs, env, best))
        firsts += first_rows(env, tried)
    minutes = (time.monotonic() - began) / 60
    table = "\n".join(
        [
            "# Whole training loops, beside others",
            "",
            "Written by `benchmarks/peers.py`, whose docstring says what is the same for all and what is not. Steps "
            f"per second, median (range) of {args.rounds} interleaved rounds of at least {args.seconds:g} s each; "
            f"ratios are within a round. Gymnasium has no v3 that runs: v5 instead. {os.cpu_count()} cores, load "
            f"average {load:.1f} at the start, {minutes:.0f} minutes in all. "
            f"Python {sys.version.split()[0]}, {', '.join(sorted(runs.versions))}.",
            "",
            "| environment | | setting | steps/s | Kemeny ÷ it |",
            "|---|---|---|---|---|",
            *compared,
            "",
            "## First pass",
            "",
            "Each setting of each peer once, briefly; the fastest went into the rounds.",
            "",
            "| environment | | setting | steps/s |",
            "|---|---|---|---|",
            *firsts,
        ]
    )
    args.out.write_text(table + "\n")
    print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        asked = json.loads(sys.argv[2])
        measure(Job(**{**asked, "setting": Setting(**asked["setting"])}))
    else:
        import tyro  # which the peers' environment need not have

        main(tyro.cli(Peers))
