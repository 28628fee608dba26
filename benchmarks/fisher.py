"""Which Fisher-vector product to solve H⁻¹g with: the Gauss–Newton form, or the jvp of the gradient of the KL?

    python benchmarks/fisher.py [--rounds 25]

Times the whole conjugate-gradient solve (10 iterations, 5,000 samples, 2 × 64 tanh) for the paper's three bodies, both
forms in turn within every round so that a busy machine slows both, and writes benchmarks/results/fisher.md.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from kemeny.learning.networks import POLICY_HEAD_GAIN, GaussianPolicy, Perceptron
from kemeny.learning.settings import Networks
from kemeny.learning.steps.trust_region import conjugate_gradient, fisher_product

BODIES = {"HalfCheetah": (17, 6), "Ant": (111, 8), "Humanoid": (376, 17)}
SAMPLES, HIDDEN, ITERATIONS, DAMPING = 5_000, (64, 64), 10, 0.01
OUTPUT = Path(__file__).parent / "results" / "fisher.md"


def jvp_of_gradient(distribution, theta, damping) -> Callable:
    """x ↦ (H + damping·I) x as the derivative of the KL's gradient in direction x."""
    here = distribution(theta)
    gradient = jax.grad(lambda point: jnp.mean(distribution(point).kl(here)))
    return lambda x: jax.jvp(gradient, (theta,), (x,))[1] + damping * x


def solver(form: Callable) -> Callable:
    @jax.jit
    def solve(policy, x, g):
        theta, unravel = ravel_pytree(policy)
        return conjugate_gradient(form(lambda point: unravel(point)(x), theta, DAMPING), g, ITERATIONS)[0]

    return solve


def milliseconds(solve: Callable, *problem) -> tuple[float, float]:
    """CPU time of this process, and time on the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    solve(*problem).block_until_ready()
    return 1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)


def measure(observation: int, action: int, rounds: int) -> tuple[np.ndarray, float]:
    """(rounds, form, cpu or wall) milliseconds, Gauss–Newton first; and the relative difference of one product."""
    keys = jax.random.split(jax.random.key(0), 3)
    network = Perceptron.init(Networks(hidden=HIDDEN), keys[0], observation, action, POLICY_HEAD_GAIN)
    policy = GaussianPolicy(network, jnp.full(action, -0.5, jnp.float32))
    x = jax.random.normal(keys[1], (SAMPLES, observation))
    theta, unravel = ravel_pytree(policy)
    g = jax.random.normal(keys[2], theta.shape)

    one, other = (form(lambda point: unravel(point)(x), theta, 0.0)(g) for form in (fisher_product, jvp_of_gradient))
    difference = float(jnp.linalg.norm(one - other) / jnp.linalg.norm(other))

    solvers = [solver(fisher_product), solver(jvp_of_gradient)]
    for solve in solvers:
        milliseconds(solve, policy, x, g)  # compile
    times = np.empty((rounds, 2, 2))
    for i in range(rounds):
        for j in (0, 1) if i % 2 == 0 else (1, 0):
            times[i, j] = milliseconds(solvers[j], policy, x, g)
    return times, difference


def quartiles(values: np.ndarray, digits: int) -> str:
    low, median, high = np.percentile(values, [25, 50, 75])
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def row(body: str, observation: int, action: int, rounds: int) -> str:
    times, difference = measure(observation, action, rounds)
    cpu_ratio, wall_ratio = (times[:, 1] / times[:, 0]).T
    cells = (
        f"{body}, {observation} → {action}",
        quartiles(times[:, 0, 0], 1),
        quartiles(times[:, 1, 0], 1),
        quartiles(cpu_ratio, 2),
        quartiles(wall_ratio, 2),
        f"{difference:.0e}",
    )
    return "| " + " | ".join(cells) + " |"


REPORT = """# Fisher-vector products

CPU milliseconds of one conjugate-gradient solve: {iterations} iterations, {samples:,} samples, hidden layers {hidden},
tanh, float32. Median of {rounds} rounds, quartiles in brackets. Ratios (jvp of the gradient over Gauss–Newton) are
taken within each round, in which both forms ran one after the other, of CPU time and of the clock. The last column is
the relative difference of the two forms' product with one random vector, undamped.

| body | Gauss–Newton (`trust_region.fisher_product`) | jvp of the gradient | CPU ratio | clock ratio | difference |
|---|---|---|---|---|---|
{rows}

Measured on {cores} cores ({machine}) with a load of {load:.1f} before the start. A load above 0 means that other work
shared the machine: trust the ratios rather than the milliseconds. JAX {jax}, `XLA_FLAGS="{flags}"`.
"""


def main(rounds: int) -> None:
    load = os.getloadavg()[0]
    rows = []
    for body, sizes in BODIES.items():
        rows.append(row(body, *sizes, rounds))
        print(rows[-1], flush=True)
    report = REPORT.format(
        iterations=ITERATIONS,
        samples=SAMPLES,
        hidden=HIDDEN,
        rounds=rounds,
        rows="\n".join(rows),
        cores=os.cpu_count(),
        machine=platform.machine(),
        load=load,
        jax=jax.__version__,
        flags=os.environ.get("XLA_FLAGS", ""),
    )
    OUTPUT.write_text(report)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=25)
    main(parser.parse_args().rounds)
