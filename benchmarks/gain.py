"""What one policy step gains, measured on batches that it has not seen.

    python benchmarks/gain.py RUN… [--batches 24]

For the newest checkpoint of each run: batches of the same policy are collected, a step of KL divergence 0.01 is taken
from each, and its first-order gain gᵀx is measured with the gradient of the other batches. The step's own batch
promises far more than the others confirm: the difference is noise to which the step was fitted. λ = 0.98 judges with
little bias and much noise, λ = 0.95 with more bias and less noise; a step whose λ is too low would look worse by
either. Errors are those of the mean over the batches that judge.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax.flatten_util import ravel_pytree

import kemeny
from kemeny.experience.collect import Collector
from kemeny.learning.arrays import from_arrays
from kemeny.learning.estimates import estimate
from kemeny.learning.samples import Samples
from kemeny.learning.steps import trust_region
from kemeny.learning.steps.surrogate import centred, policy_gradient
from kemeny.runs import checkpoint
from kemeny.runs.assembly import make_learner, make_state
from kemeny.runs.settings import from_flat

LAMBDAS, JUDGES = (0.95, 0.9, 0.8, 0.7, 0.5), (0.98, 0.95)
DELTA = 0.01
UNSEEN = 10**6
"""Iterations, and a seed, that no run has seen."""


@dataclasses.dataclass
class Gain:
    """What to look at."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    batches: int = 24


def examine(path: Path, batches: int) -> list[list[str]]:
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
    theta, unravel = ravel_pytree(state.policy)
    unused = settings.task.cut // settings.batch_length  # batches until the environments have gone through a trajectory

    @jax.jit
    def gradient(samples: Samples) -> jax.Array:
        return ravel_pytree(policy_gradient(state.policy, samples, centred(samples, samples.advantage[0])))[0]

    @jax.jit
    def step(x: jax.Array, g: jax.Array) -> jax.Array:
        product = trust_region.fisher_product(lambda point: unravel(point)(x), theta, settings.region.damping)
        natural, _ = trust_region.conjugate_gradient(product, g, settings.region.cg_iterations)
        return natural * jnp.sqrt(2 * DELTA / (natural @ product(natural)))

    estimators = {
        lam: jax.jit(functools.partial(estimate, dataclasses.replace(learner, gae_lambda=lam)))
        for lam in {*LAMBDAS, *JUDGES}
    }
    gradients, steps = {lam: [] for lam in estimators}, {lam: [] for lam in LAMBDAS}
    for i in range(unused + batches):
        rollout = collector.collect(state, UNSEEN + i).rollout
        if i < unused:
            continue
        for lam, estimator in estimators.items():
            samples, _ = estimator(state, rollout)
            gradients[lam].append(np.asarray(gradient(samples)))
            if lam in steps:
                steps[lam].append(np.asarray(step(samples.x, jnp.asarray(gradients[lam][-1]))))
    collector.close()
    name = f"{run.config['env']}, {saved.facts['steps'] / 1e6:g}M, seed {settings.seed}"
    return [[name, f"{lam:g}", *gains(np.stack(steps[lam]), gradients, lam)] for lam in LAMBDAS]


def gains(steps: np.ndarray, gradients: dict[float, list[np.ndarray]], lam: float) -> list[str]:
    """What the steps promise on their own batches, and what they gain on the others."""
    promised = np.mean([x @ g for x, g in zip(steps, gradients[lam], strict=True)])
    cells = [f"{promised:.2f}"]
    for judge in JUDGES:
        gain = steps @ np.stack(gradients[judge]).T
        count = len(steps)
        others = (gain.sum(0) - np.diag(gain)) / (count - 1)  # for each batch, the mean over the steps of the others
        cells.append(f"{others.mean():.4f} ± {others.std(ddof=1) / count**0.5:.4f}")
    return cells


def main(args: Gain) -> None:
    heads = ["run", "λ of the step", "promised", *(f"gained, judged by λ = {judge:g}" for judge in JUDGES)]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    if args.batches < 2:
        raise SystemExit("--batches must be at least 2: a step is judged by other batches than its own.")
    for path in args.runs:
        for cells in examine(path, args.batches):
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Gain, description=__doc__))
