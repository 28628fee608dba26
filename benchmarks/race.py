"""Return against minutes: Kemeny beside stable-baselines3, sb3-contrib and tianshou, with their authors' settings.

    python3 -m venv ../peers
    ../peers/bin/pip install torch==2.13.0
    ../peers/bin/pip install -r benchmarks/requirements-peers.txt
    .venv/bin/python benchmarks/race.py --peers ../peers/bin/python --minutes 5

It runs under Kemeny's interpreter; `--peers` is that of the other environment. Use an idle machine. Each run is a
process of its own, one after another, and has all cores. A run that ends is a line of `race.jsonl`, and the same
command again runs only what is missing there, so the race may be stopped at any time. A longer `--minutes` replaces a
shorter run. `race.md` and `race.png` are drawn from the file; `--minutes 0` does only that.

What is the same for all:

- The tasks: v3 of EnvPool, one simulator for everybody. Gymnasium's v3 do not run on today's MuJoCo, and its v5 have
  other observations and rewards. For stable-baselines3 and sb3-contrib EnvPool is behind an adapter (`peers.sb3_pool`);
  tianshou supports EnvPool itself, and gets it without infos, which are slow there.
- The clock: from the start of the process, with imports, environments and compilation (Kemeny's cache of compiled code
  is off), without evaluations, for which it is stopped. What is computed in the background is waited for first.
- The evaluation: 10 trajectories of the mean action, of at most 1,000 steps, until a fall. All have the same start
  states.
- One or all cores for torch: a short trial finds out which is faster, for each task and contestant. XLA uses all.

What is not the same: Kemeny (its defaults: ATRPO) learns the continuing task, where a fall costs 100 and the task goes
on. The peers learn the episodic task with its time limit of 1,000, as their libraries do. They have the settings of
their authors, below, which were chosen for the return after a number of steps, partly with one environment, and not for
speed. Tianshou's end after 3 million steps, when their learning rate is 0; their last policy counts from then on.
Kemeny's defaults were chosen on these three tasks, by a study (`docs/results.md`).
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import peers
from peers import FOREVER, PACKAGES, Enough

BEGAN = time.perf_counter()
"""When this process started, nearly."""
TASKS = ("HalfCheetah-v3", "Ant-v3", "Humanoid-v3")
TRAJECTORIES, LONGEST = 10, 1_000
"""Of an evaluation."""
TIMES = (1, 2, 5, 10, 30)
"""Minutes at which the table shows returns."""
GOALS = {"HalfCheetah-v3": (1_000, 2_000, 4_000), "Ant-v3": (2_000, 3_000, 4_000), "Humanoid-v3": (500, 2_000, 5_000)}
"""Returns to which the table shows the time; an Ant that stands still has 1,000, an untrained Humanoid 240."""
MARKERS = ("o", "s", "^", "D", "v", "P")
"""One per contestant."""
SIGN = "race: "
"""Begins the lines that a process prints for the race."""

WIDE = {"log_std_init": -2, "ortho_init": False, "net_arch": {"pi": [256, 256], "vf": [256, 256]}}
"""And ReLU."""
ZOO_TRPO = {"n_envs": 2, "batch_size": 128, "n_steps": 1024, "gamma": 0.99, "gae_lambda": 0.95, "cg_max_steps": 25,
            "cg_damping": 0.1, "n_critic_updates": 20, "sub_sampling_factor": 1, "learning_rate": 1e-3}  # fmt: skip
ZOO = {
    "PPO": {
        "HalfCheetah-v3": {"n_envs": 1, "batch_size": 64, "n_steps": 512, "gamma": 0.98, "learning_rate": 2.0633e-05,
                           "ent_coef": 0.000401762, "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92,
                           "max_grad_norm": 0.8, "vf_coef": 0.58096, "policy_kwargs": WIDE},
        "Ant-v3": {},
        "Humanoid-v3": {"n_envs": 1, "batch_size": 256, "n_steps": 512, "gamma": 0.95, "learning_rate": 3.56987e-05,
                        "ent_coef": 0.00238306, "clip_range": 0.3, "n_epochs": 5, "gae_lambda": 0.9, "max_grad_norm": 2,
                        "vf_coef": 0.431892, "policy_kwargs": WIDE},
    },
    "SAC": {env: {"learning_starts": 10_000} for env in TASKS},
    "TRPO": {"HalfCheetah-v3": {**ZOO_TRPO, "target_kl": 0.04}, "Ant-v3": ZOO_TRPO, "Humanoid-v3": ZOO_TRPO},
}  # fmt: skip
"""Of github.com/DLR-RM/rl-baselines3-zoo: `hyperparams/ppo.yml` at 208b6fd (for v4: there are none for v3),
`hyperparams/sac.yml` at c94924e and `hyperparams/trpo.yml` at eb5d9c7 (for v3). What is not here is the library's
default, and one environment. The zoo's `normalize: true` is for PPO and TRPO: observations and rewards, the latter with
the γ of the settings."""

TIANSHOU = {
    "PPO": {"num_envs": 8, "collect": 2048, "repeat": 10, "minibatch": 64, "lr": 3e-4, "algorithm": {
        "vf_coef": 0.25, "ent_coef": 0.0, "max_grad_norm": 0.5, "eps_clip": 0.2, "dual_clip": None, "value_clip": False,
        "advantage_normalization": False, "recompute_advantage": True}},
    "TRPO": {"num_envs": 16, "collect": 1024, "repeat": 1, "minibatch": None, "lr": 1e-3, "algorithm": {
        "advantage_normalization": True, "optim_critic_iters": 20, "max_kl": 0.01, "backtrack_coeff": 0.8,
        "max_backtracks": 10}},
}  # fmt: skip
TIANSHOU_BOTH = {"gamma": 0.99, "gae_lambda": 0.95, "return_scaling": True}
TIANSHOU_EPOCHS, TIANSHOU_EPOCH, TIANSHOU_BUFFER, TIANSHOU_HIDDEN = 100, 30_000, 4096, (64, 64)
"""Of github.com/thu-ml/tianshou: `examples/mujoco/mujoco_ppo.py` at 002ffd9, `mujoco_trpo.py` at 03132cc and
`mujoco_env.py` at 0046443, for all tasks. The learning rate falls to 0 in 100 epochs of 30,000 steps; then training
ends."""


@dataclasses.dataclass
class Race:
    """Who races, how long, and where the results are."""

    peers: Path
    """The interpreter of the environment with `benchmarks/requirements-peers.txt`."""
    minutes: float = 5.0
    """Training time of each run."""
    every: float = 0.25
    """Minutes of training between two evaluations."""
    seeds: int = 1
    tasks: tuple[str, ...] = TASKS
    contestants: tuple[str, ...] = ()
    """Some of them [all]."""
    trial_seconds: float = 10.0
    """Time of a trial of torch's threads; 0 is for no trials and one thread."""
    steps: int = FOREVER
    """Steps after which a run ends in any case: to try everything out, in another `--out`."""
    out: Path = Path("benchmarks/results")
    """The folder of race.jsonl, race.md and race.png."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One run, as it is handed to its process."""

    env: str
    contestant: str
    seed: int
    minutes: float
    every: float
    steps: int = FOREVER
    threads: int = 1
    """Of torch."""
    trial: bool = False
    """Whether only its speed is asked for, from the first update on."""


class Timekeeper:
    """Stops the time, and evaluates while it stands still."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.curve: list[dict[str, Any]] = []
        self.first: tuple[int, float] | None = None
        self.last = (0, 0.0)
        """Steps and minutes at the first and the last mark."""
        self._off, self._evaluated = 0.0, 0

    @property
    def minutes(self) -> float:
        """Of training."""
        return (time.perf_counter() - BEGAN - self._off) / 60

    def mark(self, steps: int, make_policy: Callable[[], Callable]) -> None:
        """Between two updates: evaluate if it is time for it, leave the training loop if the time is up."""
        now = self.minutes
        self.first, self.last = self.first or (steps, now), (steps, now)
        raced = now - self.first[1] if self.job.trial else now
        over, number = raced >= self.job.minutes or steps >= self.job.steps, int(now / self.job.every)
        if not self.job.trial and (over or number > self._evaluated):
            self._evaluated = number
            self.evaluate(steps, make_policy, min(self.job.minutes, number * self.job.every) if not over else None)
        if over:
            raise Enough

    def evaluate(self, steps: int, make_policy: Callable[[], Callable], due: float | None = None) -> None:
        """Off the clock; `make_policy` is on it, for it waits for what is not computed yet."""
        policy = make_policy()
        minutes, stopped = self.minutes, time.perf_counter()
        returns, lengths = trajectories(policy, self.job.env, 1 + len(self.curve))
        due = self.job.minutes if due is None else due
        point = {"due": due, "minutes": minutes, "steps": steps, "returns": returns, "lengths": lengths}
        self.curve.append(point)
        say(point)
        self._off += time.perf_counter() - stopped

    @property
    def speed(self) -> float:
        """Steps per second since the first mark."""
        (first, began), (last, ended) = self.first or self.last, self.last
        return (last - first) / (60 * (ended - began)) if ended > began else 0.0


def say(what: dict[str, Any]) -> None:
    print(SIGN + json.dumps(what), flush=True)


def trajectories(policy: Callable[[np.ndarray], np.ndarray], env: str, seed: int) -> tuple[list[float], list[int]]:
    """Undiscounted returns and lengths; the same seed has the same start states, whoever acts."""
    import envpool

    cores = os.cpu_count() or 1
    pool: Any = envpool.make_gymnasium(
        env, num_envs=TRAJECTORIES, seed=seed, max_episode_steps=LONGEST, num_threads=min(TRAJECTORIES, cores)
    )
    space = pool.action_space
    returns, lengths, goes_on = np.zeros(TRAJECTORIES), np.zeros(TRAJECTORIES, int), np.ones(TRAJECTORIES, bool)
    observation = pool.reset()[0]
    while goes_on.any():
        action = np.clip(policy(observation.astype(np.float32)), space.low, space.high).astype(space.dtype)
        observation, reward, terminated, truncated, _ = pool.step(action)
        returns += np.where(goes_on, reward, 0)
        lengths += goes_on
        goes_on &= ~(terminated | truncated)
    pool.close()
    return returns.tolist(), lengths.tolist()


def train_kemeny(job: Job, clock: Timekeeper) -> None:
    import tempfile

    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    import jax

    import kemeny
    from kemeny.envs.pool import inspect
    from kemeny.experience.source import numpy_policy

    class Marks(kemeny.Observer):
        steps = 0

        def end(self, phase: str, *outcome: Any) -> None:
            if phase == "update":
                state, _ = outcome
                self.steps += kemeny.Settings.batch_size
                clock.mark(self.steps, lambda: numpy_policy(jax.block_until_ready(state), inspect(job.env)))

    with tempfile.TemporaryDirectory() as folder:
        kemeny.train(
            job.env,
            out=Path(folder) / "run",
            observers=[Marks()],
            seed=job.seed,
            steps=FOREVER,
            eval_every=FOREVER,
            checkpoint_every=FOREVER,
            progress=False,
        )


def train_sb3(job: Job, clock: Timekeeper) -> None:
    import torch
    from sb3_contrib import TRPO
    from stable_baselines3 import PPO, SAC
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(job.threads)
    kind: Any = {"PPO": PPO, "SAC": SAC, "TRPO": TRPO}[job.contestant.split()[-1]]
    settings: dict[str, Any] = dict(ZOO[kind.__name__][job.env])
    setting = peers.Setting("sb3", "EnvPool", settings.pop("n_envs", 1))
    envs = peers.sb3_pool(peers.Job(setting, job.env, 0, job.seed, first=False))
    if kind is not SAC:
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99))
    if "policy_kwargs" in settings:
        settings["policy_kwargs"] = {**WIDE, "activation_fn": torch.nn.ReLU}
    if job.trial and kind is SAC:
        settings["learning_starts"] = 100  # of which the trial would otherwise consist

    def act(observation: np.ndarray) -> np.ndarray:
        normal = envs.normalize_obs(observation) if isinstance(envs, VecNormalize) else observation
        return model.predict(normal, deterministic=True)[0]

    class Marks(BaseCallback):
        def _on_rollout_start(self) -> None:
            clock.mark(self.model.num_timesteps, lambda: act)

        def _on_step(self) -> bool:
            return True

    model = kind("MlpPolicy", envs, seed=job.seed, device="cpu", **settings)
    model.learn(FOREVER, callback=Marks())


def tianshou_networks(pool: Any) -> tuple[Any, Any]:
    """The policy and the critic of tianshou's examples."""
    import torch
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    def body() -> Any:
        return Net(state_shape=pool.observation_space.shape, hidden_sizes=TIANSHOU_HIDDEN, activation=torch.nn.Tanh)

    actor = ContinuousActorProbabilistic(
        preprocess_net=body(), action_shape=pool.action_space.shape, unbounded=True, conditioned_sigma=False
    )
    critic = ContinuousCritic(preprocess_net=body())
    torch.nn.init.constant_(actor.sigma_param, -0.5)
    for layer in (*actor.modules(), *critic.modules()):
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.orthogonal_(layer.weight, gain=math.sqrt(2))
            torch.nn.init.zeros_(layer.bias)
    for layer in actor.mu.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data.mul_(0.01)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda mean_std: torch.distributions.Independent(torch.distributions.Normal(*mean_std), 1),
        action_scaling=True,
        action_bound_method="clip",
        action_space=pool.action_space,
    )
    return policy, critic


def train_tianshou(job: Job, clock: Timekeeper) -> None:
    import torch
    from tianshou.algorithm import PPO, TRPO
    from tianshou.algorithm.optim import AdamOptimizerFactory, LRSchedulerFactoryLinear
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import VectorEnvNormObs
    from tianshou.trainer import OnPolicyTrainerParams

    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    np.random.seed(job.seed)  # noqa: NPY002 - from which tianshou draws
    name = job.contestant.split()[-1]
    chosen = TIANSHOU[name]
    setting = peers.Setting("tianshou", "EnvPool without infos", chosen["num_envs"])
    pool = peers.make_pool(peers.Job(setting, job.env, 0, job.seed, first=False))
    envs = VectorEnvNormObs(peers.PoolWithoutInfos(pool))
    policy, critic = tianshou_networks(pool)
    schedule = {"max_epochs": TIANSHOU_EPOCHS, "epoch_num_steps": TIANSHOU_EPOCH}
    schedule["collection_step_num_env_steps"] = chosen["collect"]
    optim = AdamOptimizerFactory(lr=chosen["lr"]).with_lr_scheduler_factory(LRSchedulerFactoryLinear(**schedule))
    kind: Any = {"PPO": PPO, "TRPO": TRPO}[name]
    algorithm = kind(policy=policy, critic=critic, optim=optim, **TIANSHOU_BOTH, **chosen["algorithm"])

    def act(observation: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            (mean, _), _ = policy.actor(envs.get_obs_rms().norm(observation))
        return policy.map_action(mean)

    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=Collector(algorithm, envs, VectorReplayBuffer(TIANSHOU_BUFFER, len(envs))),
            batch_size=chosen["minibatch"],
            update_step_num_repetitions=chosen["repeat"],
            training_fn=lambda epoch, steps: clock.mark(steps, lambda: act),
            verbose=False,
            show_progress=False,
            **schedule,
        )
    )
    clock.evaluate(TIANSHOU_EPOCHS * TIANSHOU_EPOCH, lambda: act, clock.minutes)


CONTESTANTS: dict[str, Callable[[Job, Timekeeper], None]] = {
    "Kemeny ATRPO": train_kemeny,
    "stable-baselines3 PPO": train_sb3,
    "stable-baselines3 SAC": train_sb3,
    "sb3-contrib TRPO": train_sb3,
    "tianshou PPO": train_tianshou,
    "tianshou TRPO": train_tianshou,
}


def run(job: Job) -> None:
    """The process of one run."""
    clock = Timekeeper(job)
    with contextlib.suppress(Enough):
        CONTESTANTS[job.contestant](job, clock)
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    say({"speed": clock.speed, "versions": versions})


class Results:
    """The file of results: one line per run that ended, and one per trial."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def add(self, line: dict[str, Any]) -> None:
        """Append a line."""
        self.lines.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def runs(self) -> list[dict[str, Any]]:
        """The longest run of each task, contestant and seed."""
        longest: dict[tuple, dict[str, Any]] = {}
        for line in self.lines:
            key = (line["env"], line["contestant"], line["seed"])
            if not line["trial"] and line["minutes"] > longest.get(key, {"minutes": 0})["minutes"]:
                longest[key] = line
        return list(longest.values())

    def has(self, job: Job) -> bool:
        """Whether the run is there, or a longer one."""
        return any(
            (line["env"], line["contestant"], line["seed"]) == (job.env, job.contestant, job.seed)
            and line["minutes"] >= job.minutes
            for line in self.runs()
        )

    def speeds(self, env: str, contestant: str) -> dict[int, float]:
        """Steps per second in the trials, by torch's threads."""
        return {
            line["threads"]: line["speed"]
            for line in self.lines
            if line["trial"] and (line["env"], line["contestant"]) == (env, contestant)
        }


def jobs(args: Race) -> Iterator[Job]:
    """Task by task, contestant by contestant, seed by seed; each seed and task begins with another contestant."""
    names = args.contestants or tuple(CONTESTANTS)
    for seed in range(args.seeds):
        for number, env in enumerate(args.tasks):
            first = (seed + number) % len(names)
            for name in names[first:] + names[:first]:
                yield Job(env, name, seed, args.minutes, args.every, args.steps)


def execute(job: Job, python: Path) -> dict[str, Any] | None:
    """Run a process to its end; what it found out, or None if it failed."""
    name = f"{job.env}, {job.contestant}, seed {job.seed}"
    command = [os.fspath(python), "-W", "ignore", __file__, "run", json.dumps(dataclasses.asdict(job))]
    load, curve, result = os.getloadavg()[0], [], {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if not line.startswith(SIGN):
                continue
            said = json.loads(line.removeprefix(SIGN))
            if "due" in said:
                curve.append(said)
                print(f"{name}: {said['minutes']:.2f} min, {said['steps']:,} steps, {np.mean(said['returns']):,.0f}")
            else:
                result = said
    if process.returncode:
        print(f"{name} failed; the same command again tries it again.", file=sys.stderr)
        return None
    return {**dataclasses.asdict(job), "cores": os.cpu_count(), "load": load, "curve": curve, **result}


def fastest_threads(job: Job, args: Race, results: Results) -> int:
    """Torch's threads, by trials; each is made once."""
    if job.contestant.startswith("Kemeny") or not args.trial_seconds:
        return 1
    for threads in sorted({1, os.cpu_count() or 1} - results.speeds(job.env, job.contestant).keys()):
        trial = dataclasses.replace(job, minutes=args.trial_seconds / 60, threads=threads, trial=True)
        if (line := execute(trial, args.peers)) is not None:
            print(f"{job.env}, {job.contestant}: {line['speed']:,.0f} steps/s with {threads} threads")
            results.add(line)
    speeds = results.speeds(job.env, job.contestant)
    return max(speeds, key=lambda threads: speeds[threads]) if speeds else 1


def at(curve: list[dict[str, Any]], minutes: float) -> float | None:
    """The mean return at a time: of the last evaluation that was due by then."""
    due = [point for point in curve if point["due"] <= minutes]
    return float(np.mean(due[-1]["returns"])) if due else None


def time_to(curve: list[dict[str, Any]], goal: float) -> float:
    """Minutes of training until the first evaluation whose mean return is at least the goal; infinite if none is."""
    return next((point["minutes"] for point in curve if np.mean(point["returns"]) >= goal), math.inf)


def spread(values: list[float | None], form: str) -> str:
    """Median (range) of the seeds; a dash where there is nothing."""
    there = [value for value in values if value is not None]
    if not there or math.isinf(min(there)):
        return "–"
    shown = [f"{value:{form}}" if math.isfinite(value) else "–" for value in (np.median(there), min(there), max(there))]
    return shown[0] if len(there) == 1 else f"{shown[0]} ({shown[1]} to {shown[2]})"


def table(runs: list[dict[str, Any]]) -> str:
    """The page, as Markdown."""
    versions = sorted({f"{name} {version}" for run in runs for name, version in run["versions"].items()})
    loads, minutes = [run["load"] for run in runs], sorted({run["minutes"] for run in runs})
    head = (
        "Written by `benchmarks/race.py`, whose docstring says what is the same for all and what is not, and which has "
        "everybody's settings. Mean return of 10 trajectories of the mean action, of at most 1,000 steps; with several "
        "seeds the median (range). Minutes of training without evaluations. Runs of "
        f"{', '.join(f'{one:g}' for one in minutes)} minutes, seeds: {len({run['seed'] for run in runs})}, "
        f"{runs[0]['cores']} cores, load average before a run at most {max(loads):.1f}. {', '.join(versions)}."
    )
    page = ["# Return against minutes", "", head, "", "![Return against minutes](race.png)"]
    for env in dict.fromkeys(run["env"] for run in runs):
        goals = GOALS.get(env, ())
        columns = [f"{one} min" for one in TIMES] + [f"min to {goal:,}" for goal in goals] + ["steps", "torch threads"]
        page += ["", f"## {env}", "", f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
        for name in CONTESTANTS:
            if mine := [run for run in runs if (run["env"], run["contestant"]) == (env, name)]:
                cells = [
                    *(spread([at(run["curve"], t) for run in mine if run["minutes"] >= t], ",.0f") for t in TIMES),
                    *(spread([time_to(run["curve"], goal) for run in mine], ".1f") for goal in goals),
                    spread([run["curve"][-1]["steps"] for run in mine], ",.0f"),
                    "" if name.startswith("Kemeny") else str(mine[0]["threads"]),
                ]
                page.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(page) + "\n"


def draw(runs: list[dict[str, Any]], output: Path) -> None:
    """One panel per task: each seed a line, each contestant a colour and a marker."""
    from kemeny.experiments.drawing import COLORS, empty_figure, in_style, write

    tasks = list(dict.fromkeys(run["env"] for run in runs))
    with in_style():
        figure = empty_figure(max(7.0, 4.2 * len(tasks)), 3.8)
        panels = figure.subplots(1, len(tasks), squeeze=False)[0]
        for panel, env in zip(panels, tasks, strict=True):
            for number, name in enumerate(CONTESTANTS):
                mine = [run["curve"] for run in runs if (run["env"], run["contestant"]) == (env, name)]
                for first, curve in enumerate(mine):
                    panel.plot(
                        [point["minutes"] for point in curve],
                        [np.mean(point["returns"]) for point in curve],
                        color=COLORS[number],
                        marker=MARKERS[number],
                        markevery=max(1, len(curve) // 8),
                        markersize=4,
                        label="_" if first else name,
                    )
            panel.set(title=env, xlabel="minutes of training", xlim=(0, None))
        panels[0].set_ylabel("return of at most 1,000 steps")
        handles = {
            label: line for panel in panels for line, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    write(figure, output)


def main(args: Race) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    results = Results(args.out / "race.jsonl")
    failed = 0
    for job in jobs(args) if args.minutes else ():
        if results.has(job):
            continue
        job = dataclasses.replace(job, threads=fastest_threads(job, args, results))
        line = execute(job, Path(sys.executable) if job.contestant.startswith("Kemeny") else args.peers)
        failed += line is None
        if line is not None:
            results.add(line)
    if runs := results.runs():
        (args.out / "race.md").write_text(table(runs))
        draw(runs, args.out / "race.png")
    if failed:
        raise SystemExit(f"{failed} runs failed.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(Job(**json.loads(sys.argv[2])))
    else:
        import tyro  # which the peers' environment need not have

        main(tyro.cli(Race))
