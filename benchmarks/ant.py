"""Why an ant stands still: what a policy's batches say about postures, falls and the gradient.

    python benchmarks/ant.py RUN… [--batches 8]

For the newest checkpoint of each run on Ant: the share of samples upside down, the critic's value of either posture,
falls and advantages, and the mean cosine of the policy gradients of two independent batches, for several λ. A cosine
near 0 means that a batch says nothing about the direction; the critic stays that of the run.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import tyro
from jax.flatten_util import ravel_pytree

import kemeny
from kemeny.runs import checkpoint
from kemeny.learning import update as learner
from kemeny.experience.acting import Policy
from kemeny.experience.collect import Collector
from kemeny.rollout import Rollout, flatten
from kemeny.runs.settings import from_flat
from kemeny.learning.arrays import acting_arrays, from_arrays

LAMBDAS = (0.95, 0.9, 0.8)
UNSEEN = 10**6
"""Iterations, and a seed, that no run has seen."""


@dataclasses.dataclass
class Ant:
    """What to look at."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    batches: int = 8


def upside_down(batch: Rollout) -> np.ndarray:
    """Where the body's own vertical axis points down: its quaternion is the observation's entries 1 to 4."""
    _, x, y, _ = np.moveaxis(batch.observation[..., 1:5], -1, 0)
    return 1 - 2 * (x**2 + y**2) < 0


def direction(state: learner.State, batch: Rollout, advantage: jax.Array) -> np.ndarray:
    x, action = flatten(state.normalizer(batch.observation)), flatten(batch.action)
    gradient = np.asarray(ravel_pytree(learner.policy_gradient(state.policy, x, action, advantage))[0])
    return gradient / np.linalg.norm(gradient)


def examine(path: Path, batches: int) -> list[str]:
    run = kemeny.Run.open(path)
    settings, saved = from_flat(run.config["settings"]), checkpoint.latest(run.path)
    learning = settings.learner()
    collector = Collector(
        run.config["env"], settings.task, num_envs=settings.num_envs, horizon=settings.horizon, seed=UNSEEN
    )
    state = learner.init(learning, collector.spec, jax.random.key(0))
    state = from_arrays(state, saved)
    policy = Policy(acting_arrays(state, collector.spec))
    first = settings.task.cut // settings.horizon  # until the environments have gone through a trajectory
    down, values, spreads, directions = [], {True: [], False: []}, [], {lam: [] for lam in LAMBDAS}
    for i in range(first + batches):
        batch = collector.collect(policy, UNSEEN + i)
        if i == first:
            fallen = collector.falls
        if i < first:
            continue
        posture = upside_down(batch)
        down.append(posture.mean())
        for lam in LAMBDAS:
            estimate = learner.estimate(dataclasses.replace(learning, gae_lambda=lam), state, batch)[0]
            advantage = estimate.advantage - estimate.advantage.mean()
            directions[lam].append(direction(state, batch, advantage))
            if lam == settings.gae_lambda:
                spreads.append(float(advantage.std()))
        value = np.asarray(estimate.value).reshape(posture.shape)
        for which in values:
            values[which].extend(value[posture == which])
    falls = (collector.falls - fallen) / max(1, batches - 1)
    collector.close()
    cosines = [np.mean([a @ b for a, b in itertools.combinations(directions[lam], 2)]) for lam in LAMBDAS]
    setting = (
        f"δ {settings.region.delta:g}, log_std {learning.networks.log_std:g}, λ {settings.gae_lambda:g}, "
        f"reset cost {settings.task.reset_cost:g}"
    )
    return [
        f"{setting}, cut {settings.task.cut:,}, seed {settings.seed}",
        f"{saved.facts['steps'] / 1e6:g}M",
        f"{np.mean(down):.0%}",
        f"{np.mean(values[True]):+.0f} / {np.mean(values[False]):+.0f}",
        f"{falls:.1f}",
        f"{np.mean(spreads):.1f}" if spreads else "",
        *(f"{cosine:.3f}" for cosine in cosines),
    ]


def main(args: Ant) -> None:
    heads = ["run", "steps", "upside down", "value there / upright", "falls a batch", "std of advantages"]
    heads += [f"cosine, λ {lam:g}" for lam in LAMBDAS]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for path in args.runs:
        print(f"| {' | '.join(examine(path, args.batches))} |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Ant))
