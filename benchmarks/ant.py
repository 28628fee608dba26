"""Why an ant stands still: what a policy's batches say about postures, falls and the gradient.

    python benchmarks/ant.py RUN… [--batches 8]

For the newest checkpoint of each run on Ant: the share of samples upside down, the critic's value of either posture,
falls and advantages, and the mean cosine between the policy gradients of two independent batches, for several λ. A
cosine near 0 means that a batch says nothing about the direction. The critic is that of the run throughout.
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
from kemeny.experience.collect import Collector
from kemeny.learning.arrays import from_arrays
from kemeny.learning.estimates import estimate
from kemeny.learning.learner import State
from kemeny.learning.samples import Samples
from kemeny.learning.steps.surrogate import centred, policy_gradient
from kemeny.rollout import Rollout
from kemeny.runs import checkpoint
from kemeny.runs.assembly import make_learner, make_state
from kemeny.runs.settings import from_flat

LAMBDAS = (0.95, 0.9, 0.8)
UNSEEN = 10**6
"""Iterations, and a seed, that no run has seen."""


@dataclasses.dataclass
class Ant:
    """What to look at."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    batches: int = 8


def upside_down(rollout: Rollout) -> np.ndarray:
    """Where the body's own vertical axis points down: its quaternion is the observation's entries 1 to 4."""
    _, x, y, _ = np.moveaxis(rollout.observation[..., 1:5], -1, 0)
    return 1 - 2 * (x**2 + y**2) < 0


def direction(state: State, samples: Samples, advantage: jax.Array) -> np.ndarray:
    """The policy gradient of a batch, with length 1."""
    gradient = np.asarray(ravel_pytree(policy_gradient(state.policy, samples, advantage))[0])
    return gradient / np.linalg.norm(gradient)


def examine(path: Path, batches: int) -> list[str]:
    run = kemeny.Run.open(path)
    settings, saved = from_flat(run.config["settings"]), checkpoint.latest(run.path)
    learner = make_learner(settings)
    collector = Collector(
        run.config["env"],
        settings.task,
        num_envs=settings.num_envs,
        batch_length=settings.batch_length,
        seed=UNSEEN,
        costs=settings.cost,
        simulation=settings.simulation,
    )
    state = make_state(learner, settings, collector.spec)
    state = from_arrays(state, saved.arrays, f"The checkpoint {saved.path}")
    unused = settings.task.cut // settings.batch_length  # batches until the environments have gone through a trajectory
    down, falls, spreads = [], [], []
    values, directions = {True: [], False: []}, {lam: [] for lam in LAMBDAS}
    for i in range(unused + batches):
        batch = collector.collect(state, UNSEEN + i)
        if i < unused:
            continue
        posture = upside_down(batch.rollout)
        down.append(posture.mean())
        falls.append(batch.falls)
        for lam in LAMBDAS:
            samples, _ = estimate(dataclasses.replace(learner, gae_lambda=lam), state, batch.rollout)
            advantage = centred(samples, samples.advantage[0])
            directions[lam].append(direction(state, samples, advantage))
            if lam == settings.gae_lambda:
                spreads.append(float(advantage.std()))
        value = np.asarray(state.critics[0](state.normalizer(batch.rollout.observation)))
        for which in values:
            values[which].extend(value[posture == which])
    collector.close()
    cosines = [np.mean([a @ b for a, b in itertools.combinations(directions[lam], 2)]) for lam in LAMBDAS]
    setting = (
        f"δ {settings.region.delta:g}, log_std {learner.networks.log_std:g}, λ {settings.gae_lambda:g}, "
        f"reset cost {settings.task.reset_cost:g}"
    )
    return [
        f"{setting}, cut {settings.task.cut:,}, seed {settings.seed}",
        f"{saved.facts['steps'] / 1e6:g}M",
        f"{np.mean(down):.0%}",
        f"{np.mean(values[True]):+.0f} / {np.mean(values[False]):+.0f}",
        f"{np.mean(falls):.1f}",
        f"{np.mean(spreads):.1f}" if spreads else "",
        *(f"{cosine:.3f}" for cosine in cosines),
    ]


def main(args: Ant) -> None:
    heads = ["run", "steps", "upside down", "value upside down / upright", "falls per batch", "std of advantages"]
    heads += [f"cosine, λ {lam:g}" for lam in LAMBDAS]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for path in args.runs:
        print(f"| {' | '.join(examine(path, args.batches))} |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Ant, description=__doc__))
