"""A deep ACPO agent against the exact optimum: admit customers to a queue, with a limit on its mean length.

    python benchmarks/queue_admission.py [--steps 150000] [--seeds 2]

The model is `zoo.queue_admission` (a queue of at most 10, a fee per admission). The agent is trained on it as a
Gymnasium environment with the paper's settings; the linear programme gives the best reward under each limit. The
agent's reward and cost are computed exactly too, from its action probabilities in every state. Writes
benchmarks/results/queue_admission.md.
"""

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path

import numpy as np

import kemeny
from kemeny.learning.steps.direction import Case
from kemeny.tabular import zoo
from kemeny.tabular.linear_programme import linear_programme

LIMITS = (1.0, 2.0, 4.0)
OUTPUT = Path(__file__).parent / "results" / "queue_admission.md"


def probabilities(policy: kemeny.Policy, states: int) -> np.ndarray:
    """π(a|s), states × actions."""
    logits = policy.head(np.eye(states, dtype=np.float32)).astype(float)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()

    mdp = zoo.queue_admission()
    free = linear_programme(mdp)
    rows, began = [], time.monotonic()
    for limit in LIMITS:
        best = linear_programme(mdp, limit)
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                run = kemeny.train(
                    mdp.as_gymnasium,
                    preset="paper",
                    out=Path(folder) / "run",
                    algorithm="acpo",
                    cost="cost",
                    limit=limit,
                    steps=options.steps,
                    seed=seed,
                    eval_every=options.steps,
                    eval_max_steps=1,
                )
                policy, records = run.policy, run.metrics
            table = probabilities(policy, mdp.n_states)
            reward, cost = (mdp.evaluate(table, signal=signal).rho for signal in ("reward", "cost"))
            prices = [r["multiplier_cost"][0] for r in records[len(records) // 2 :] if r["case"] == Case.ACTIVE]
            rows.append(
                f"| {limit:g} | {seed} | {best.gain:.4f} | {reward:.4f} | {100 * reward / best.gain:.1f} % "
                f"| {cost:.3f} | {best.price:.3f} | {np.median(prices) if prices else 0:.3f} |"
            )
            print(rows[-1], flush=True)
    OUTPUT.write_text(
        "# Queue admission: ACPO against the exact optimum\n\n"
        f"`python benchmarks/queue_admission.py --steps {options.steps} --seeds {options.seeds}`, "
        f"{time.monotonic() - began:.0f} s on {platform.machine()}, {os.cpu_count()} cores, shared with other work.\n\n"
        "Reward and cost of the learned stochastic policy are exact, from its probabilities in all "
        f"{mdp.n_states} states. Without a limit the best reward is {free.gain:.4f} per step at a mean length of "
        f"{free.cost:.2f}. ν is the median of `multiplier_cost` over the second half of the run, where it bound.\n\n"
        "| limit on mean length | seed | best reward (LP) | ACPO's reward | of the best | ACPO's mean length "
        "| price of the limit (LP) | ν in training |\n|---|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )
    print(f"Wrote {OUTPUT.name}.")


if __name__ == "__main__":
    main()
