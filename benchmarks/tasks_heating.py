"""ATRPO and ACPO against the exact optimum on kemeny/Heating-v0, a room under random weather.

    python benchmarks/tasks_heating.py [--steps 500000] [--seeds 3] [--limit 0.5]

Each learned policy is run for a long time in many copies, on the same random numbers as the best rule. The difference
between the two is therefore known much better than each alone. Writes benchmarks/results/tasks_heating.md.
"""

import argparse
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

import kemeny
from kemeny.tasks import Heating, HeatingVectorEnv
from kemeny.tasks.linear_quadratic import AffineRule, Optimum

OUTPUT = Path(__file__).parent / "results" / "tasks_heating.md"
COPIES, WARM_UP, STEPS = 200, 500, 5_000
"""Of the simulation that judges a policy."""
Act = Callable[[np.ndarray], np.ndarray]


class Judged(NamedTuple):
    """Means over the steps, one per copy."""

    energy: np.ndarray
    discomfort: np.ndarray


def judge(act: Act, seed: int) -> Judged:
    """Run a policy in steady state; the same seed gives the same weather."""
    env, sums = HeatingVectorEnv(Heating(), COPIES), np.zeros((2, COPIES))
    observations, _ = env.reset(seed=seed)
    for step in range(WARM_UP + STEPS):
        observations, _, _, _, info = env.step(act(observations))
        if step >= WARM_UP:
            sums += info["energy"], info["discomfort"]
    return Judged(*sums / STEPS)


def interval(differences: np.ndarray) -> str:
    """A mean with its 95 % interval, from independent copies."""
    return f"{differences.mean():.3f} ± {1.96 * differences.std(ddof=1) / np.sqrt(len(differences)):.3f}"


def row(name: str, act: Act, best: Optimum, comfort: float, seed: int) -> str:
    """A policy beside the best rule: what it costs more, and its discomfort."""
    mine, reference = judge(act, seed), judge(best.rule.rows, seed)
    more = (mine.energy - reference.energy) + comfort * (mine.discomfort - reference.discomfort)
    exact = best.effort + comfort * best.error
    return (
        f"| {name} | {exact + more.mean():.3f} | {interval(more)} | {100 * more.mean() / exact:.2f} % "
        f"| {interval(mine.discomfort)} |"
    )


def best_simple_rule(heating: Heating) -> AffineRule:
    """Of the rules that look at the room alone, the one with the least cost: how much the other temperatures matter."""

    def rule(x: np.ndarray) -> AffineRule:
        return AffineRule(np.array([[x[0], 0.0, 0.0]]), np.array([x[1]]))

    def cost(x: np.ndarray) -> float:
        measured = heating.measure(rule(x))
        return measured.effort + heating.comfort * measured.error

    return rule(minimize(cost, np.array([0.5, 14.0]), method="Nelder-Mead", options={"xatol": 1e-8}).x)


def learned(algorithm: str, seed: int, options: argparse.Namespace) -> kemeny.Policy:
    """The last policy of a run."""
    limits = {"cost": "discomfort", "limit": options.limit} if algorithm == "acpo" else {}
    with tempfile.TemporaryDirectory() as folder:
        return kemeny.train(
            "kemeny/Heating-v0",
            out=Path(folder) / "run",
            algorithm=algorithm,
            steps=options.steps,
            num_envs=100,
            seed=seed,
            eval_every=options.steps,
            checkpoint_every=options.steps,
            eval_trajectories=1,
            eval_max_steps=1,
            **limits,
        ).policy


def rows_of(algorithm: str, best: Optimum, comfort: float, options: argparse.Namespace) -> list[str]:
    """Of each seed, the mean actions and the actions as they are drawn in training."""
    rows = []
    for seed in range(options.seeds):
        policy, rng = learned(algorithm, seed, options), np.random.default_rng(seed)
        name = f"{algorithm.upper()}, seed {seed}"
        rows.append(row(f"{name}, mean actions", policy, best, comfort, 1000 + seed))
        rows.append(row(f"{name}, drawn actions", lambda x: policy.sample(x, rng), best, comfort, 1000 + seed))  # noqa: B023
        print(*rows[-2:], sep="\n", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=0.5)
    options = parser.parse_args()

    heating = Heating()
    free, within = heating.best(), heating.best_within(options.limit)
    simple = row(
        "best rule of the room's temperature alone", best_simple_rule(heating).rows, free, heating.comfort, 1000
    )
    atrpo = rows_of("atrpo", free, heating.comfort, options)
    acpo = rows_of("acpo", within, 0.0, options)
    head = "| {} | {} | more than the best (95 %) | in percent | discomfort (95 %) |\n|---|---|---|---|---|\n"
    OUTPUT.write_text(
        "# Heating: ATRPO and ACPO against the exact optimum\n\n"
        f"`python benchmarks/tasks_heating.py --steps {options.steps} --seeds {options.seeds} "
        f"--limit {options.limit:g}` on {platform.machine()}, shared with other work.\n\n"
        "The task is `kemeny/Heating-v0`: temperatures of a room, its wall and outdoors; the action is the heating "
        "power. Its optimum is that of a linear system with a quadratic cost, from the Riccati equation. The best "
        f"rules reach the limits of the power in a share of {heating.clipped(free.rule):.0e} and "
        f"{heating.clipped(within.rule):.0e} of the steps.\n\n"
        f"Each run has {options.steps:,} steps in 100 copies and the default settings; its last policy is judged. A "
        f"row is {COPIES} copies of {STEPS:,} steps after {WARM_UP} steps of warm-up, on the same random numbers as "
        "the best rule. *Mean actions* is the policy without its noise, as one would use it; *drawn actions* is the "
        "policy that the algorithm improves, and that ACPO's limit is about.\n\n"
        "## Without a limit: cost = energy + discomfort\n\n"
        f"The best cost is {free.cost:.4f}: energy {free.effort:.4f}, discomfort {free.error:.4f}.\n\n"
        + head.format("policy", "cost")
        + "\n".join([simple, *atrpo])
        + f"\n\n## Least energy with a mean discomfort of at most {options.limit:g}\n\n"
        f"The least energy is {within.effort:.4f}. The price of the limit is {within.weight:.3f}: so much less energy "
        "is needed per unit of discomfort more.\n\n" + head.format("policy", "energy") + "\n".join(acpo) + "\n"
    )
    print(f"Wrote {OUTPUT.name}.")


if __name__ == "__main__":
    main()
