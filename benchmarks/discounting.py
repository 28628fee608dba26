"""What a discount costs on a task that is judged by its average: the N-model, exactly.

    python benchmarks/discounting.py            # compute (some minutes), keep, write, draw
    python benchmarks/discounting.py --draw     # write and draw again from what is kept

For each discount γ per step, the policy that is optimal for it is computed by policy iteration on a truncated model,
and then its long-run average, for longer and longer second queues. Server 2 of the N-model may help class 1, and each
of these policies has the form *help if x₁ ≥ L(x₂)*, where L is its switching curve. Numbers are kept in
benchmarks/results/discounting.jsonl, the page is benchmarks/results/discounting.md, and the picture is
docs/pictures/discounting.png. If there are runs on kemeny/NModel-v0 in benchmarks/results/tasks.jsonl (rows with env,
algorithm, gamma and exact), the averages that they learned are drawn as well.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kemeny.experiments.drawing import COLORS, empty_figure, in_style, write
from kemeny.tabular import MDP
from kemeny.tabular.solve import discounted_policy_iteration, solve
from kemeny.tasks import n_model

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results" / "discounting.jsonl"
LEARNED = ROOT / "benchmarks" / "results" / "tasks.jsonl"
PAGE = ROOT / "benchmarks" / "results" / "discounting.md"
PICTURE = ROOT / "docs" / "pictures" / "discounting.png"

ENV = "kemeny/NModel-v0"
GAMMAS = (0.9, 0.93, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.993, 0.995, 0.997, 0.998, 0.999, 0.9999)
OPTIMUM = 46.165
"""The least average cost (truncation 500 of both queues)."""
SOLVED = 300
"""Where both queues are cut off to compute a policy. Its curve is read up to half of that, and is level beyond."""
FIRST_QUEUE = 100
"""Where queue 1 is cut off to compute an average: above L it is served at rate 1.5 and falls off like 0.82^x₁."""
SECOND_QUEUES = (250, 500, 1000, 2000, 4000)
"""Where queue 2 is cut off to compute an average."""
STILL = 2e-3
"""An average that changes by a smaller share than this from the last cut but one to the last has stood still."""
ARRIVALS = (1.3 * 0.95, 0.4 * 0.95)


class Result(NamedTuple):
    """A policy and its long-run average."""

    gamma: float
    """The discount; 1 stands for the average criterion."""
    curve: list[int]
    """L(x₂) for x₂ = 0, 1, …; level beyond its end."""
    averages: list[float]
    """The average cost for each of `SECOND_QUEUES`."""

    @property
    def served(self) -> float:
        """The rate at which class 2 can be served if its queue is long."""
        return share_below(self.curve[-1])

    @property
    def is_stable(self) -> bool:
        """Whether class 2 is served faster than it arrives."""
        return self.served > ARRIVALS[1]

    @property
    def average(self) -> str:
        """The average cost, or what is known about it."""
        if not self.is_stable:
            return "∞"
        before, last = self.averages[-2:]
        return f"{last:#.4g}" if last - before < STILL * last else f"above {last:.3g}"


def share_below(threshold: int) -> float:
    """How much of the time x₁ < L, if queue 2 is never empty: then x₁ is a birth–death chain.

    It rises at rate λ₁ and falls at rate 1, or at rate 1 + ½ from L on, where server 2 helps.
    """
    below = ARRIVALS[0] ** np.arange(threshold)
    ratio = ARRIVALS[0] / 1.5
    above = below[-1] * ratio / (1 - ratio)
    return float(below.sum() / (below.sum() + above))


def model(first: int, second: int) -> MDP:
    """The N-model with its queues cut off at these lengths."""
    process = n_model()
    process.highest = (first, None)
    return process.model(second)


def curve_of(policy: np.ndarray) -> list[int]:
    """The switching curve of a policy of `model(SOLVED, SOLVED)`, where the cut is far away."""
    helps = policy.reshape(SOLVED + 1, SOLVED + 1)[: SOLVED // 4, : SOLVED // 2 + 1] == 1
    curve = helps.argmax(axis=0)
    assert (helps == (np.arange(len(helps))[:, None] >= curve)).all(), "This policy has no switching curve."
    return curve.tolist()


def average(curve: Sequence[int], second: int) -> float:
    """The long-run average cost of the policy with this curve, exactly."""
    cut = model(FIRST_QUEUE, second)
    level = np.concatenate([curve, np.full(max(0, second + 1 - len(curve)), curve[-1])])[: second + 1]
    policy = (np.arange(FIRST_QUEUE + 1)[:, None] >= level).astype(np.int64).ravel()
    cost = -cut.rewards[np.arange(cut.n_states), policy]
    return float(cut.chain(policy).stationary @ cost)


def results() -> Iterator[Result]:
    """The policy of each discount, and the best one."""
    cut, policy = model(SOLVED, SOLVED), None
    for gamma in GAMMAS:
        policy = discounted_policy_iteration(cut, gamma, policy).policy
        yield judged(gamma, policy)
    yield judged(1.0, solve(cut, precision=1e-6).policy)


def judged(gamma: float, policy: np.ndarray) -> Result:
    """A policy with its averages."""
    curve = curve_of(policy)
    return Result(gamma, curve, [average(curve, second) for second in SECOND_QUEUES])


def learned() -> list[dict[str, Any]]:
    """Rows of runs on the N-model, if any are kept: algorithm, gamma (None for an average) and the exact cost."""
    lines = LEARNED.read_text().splitlines() if LEARNED.exists() else []
    rows = [row for row in map(json.loads, lines) if row["env"] == ENV and row["exact"] is not None]
    return [{**row, "algorithm": row["algorithm"].upper()} for row in rows]


def page(found: Sequence[Result]) -> str:
    """The table."""
    cuts = " | ".join(f"queue 2 ≤ {second}" for second in SECOND_QUEUES)
    lines = [
        "# What a discount costs: the N-model, exactly\n",
        "`python benchmarks/discounting.py`\n",
        "For each discount per step, the policy that is optimal for it, and its long-run average cost. Server 2 helps "
        "class 1 if x₁ ≥ L(x₂). If queue 2 is long, L is level, and class 2 is served only while x₁ < L. That share of "
        "the time follows from a birth–death chain, and must be above the arrival rate of class 2, "
        f"{ARRIVALS[1]:.2f}. Otherwise queue 2 grows without end, and so does the average when queue 2 is cut off "
        f"later and later. The best average is {OPTIMUM}.\n",
        f"| γ | L(0), L(5), L(20), L({SOLVED // 2}) | service left for class 2 | {cuts} | average "
        "| more than the best |",
        "|---" * (5 + len(SECOND_QUEUES)) + "|",
    ]
    for one in found:
        name = "average" if one.gamma == 1 else f"{one.gamma:g}"
        thresholds = ", ".join(str(one.curve[x]) for x in (0, 5, 20, SOLVED // 2))
        averages = " | ".join(f"{cost:.3f}" for cost in one.averages)
        more = f"{100 * (one.averages[-1] / OPTIMUM - 1):.2f} %" if one.is_stable else "∞"
        lines.append(f"| {name} | {thresholds} | {one.served:.4f} | {averages} | {one.average} | {more} |")
    for row in learned():
        gamma = "average" if row.get("gamma") is None else f"{row['gamma']:g}"
        lines.append(f"\nLearned by {row['algorithm']} ({gamma}): {row['exact']:.3f}.")
    return "\n".join(lines) + "\n"


def draw(found: Sequence[Result]) -> None:
    """Cost against γ; the averages as the cut moves away; the switching curves."""
    shown = {**dict(zip((0.9, 0.95, 0.99, 0.998), COLORS, strict=False)), 1.0: "black"}
    with in_style():
        figure = empty_figure(12, 3.9)
        costs, cuts, curves = figure.subplots(1, 3)
        draw_costs(costs, [one for one in found if one.gamma < 1])
        for one in found:
            if one.gamma not in shown:
                continue
            name = "best for the average" if one.gamma == 1 else f"best for γ = {one.gamma:g}"
            look = {"color": shown[one.gamma], "label": name, "linestyle": "--" if one.gamma == 1 else "-"}
            cuts.plot(SECOND_QUEUES, one.averages, marker="o", markersize=4, **look)
            curves.step(range(len(one.curve)), one.curve, where="mid", **look)
        cuts.set(xscale="log", yscale="log", xlabel="queue 2 is cut off at", ylabel="average cost")
        cuts.set_title("As the cut moves away")
        cuts.set_xticks(SECOND_QUEUES, map(str, SECOND_QUEUES))
        cuts.minorticks_off()
        cuts.set_yticks((50, 100, 200, 500, 1000, 2000), ("50", "100", "200", "500", "1000", "2000"))
        cuts.legend()
        curves.set(xlabel="x₂, jobs of class 2", ylabel="L, from which x₁ on server 2 helps", xlim=(0, 100))
        curves.set_yticks(range(0, 21, 5))
        curves.set_title("When server 2 helps")
        write(figure, PICTURE)


def draw_costs(axis: Any, found: Sequence[Result]) -> None:
    """The long-run average of the γ-optimal policies over the horizon 1/(1 − γ)."""
    stable = [one for one in found if one.is_stable]
    horizon = {one.gamma: 1 / (1 - one.gamma) for one in found}
    edge = np.sqrt(max(horizon[one.gamma] for one in found if not one.is_stable) * horizon[stable[0].gamma])
    axis.axvspan(horizon[found[0].gamma] / 1.5, edge, color=COLORS[0], alpha=0.12, lw=0)
    axis.text(horizon[found[0].gamma], 100, "queue 2\ngrows\nwithout\nend", va="center", fontsize="small")
    axis.plot([horizon[one.gamma] for one in stable], [one.averages[-1] for one in stable], "o-", color=COLORS[0],
              markersize=4, label="best policy for γ, exact")  # fmt: skip
    axis.axhline(OPTIMUM, color="black", linestyle="--", label=f"best average, {OPTIMUM}")
    for number, name in enumerate(dict.fromkeys(row["algorithm"] for row in learned())):
        rows = [row for row in learned() if row["algorithm"] == name]
        places = [2e4 if row.get("gamma") is None else 1 / (1 - row["gamma"]) for row in rows]
        axis.plot(
            places,
            [row["exact"] for row in rows],
            "s^D"[number % 3],
            color=COLORS[1 + number],
            label=f"{name}, learned",
        )
    ticks = (0.9, 0.95, 0.97, 0.99, 0.998, 0.9999)
    axis.set(xscale="log", yscale="log", xlabel="discount γ per step", ylabel="long-run average cost")
    axis.set_xticks([1 / (1 - gamma) for gamma in ticks], [f"{gamma:g}" for gamma in ticks], rotation=45)
    axis.set_yticks((50, 60, 80, 100, 150, 200), ("50", "60", "80", "100", "150", "200"))
    axis.minorticks_off()
    axis.set_xlim(horizon[found[0].gamma] / 1.5, None)
    axis.set_title("What a discount costs")
    axis.legend()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="write and draw again from the kept numbers")
    if not parser.parse_args().draw:
        lines = []
        for one in results():
            lines.append(json.dumps(one._asdict()))
            print(one.gamma, one.curve[:: SOLVED // 8], one.averages, flush=True)
        KEPT.write_text("\n".join(lines) + "\n")
    found = [Result(**json.loads(line)) for line in KEPT.read_text().splitlines()]
    PAGE.write_text(page(found))
    draw(found)
    print(f"Wrote {PAGE.name} and {PICTURE.name}.")


if __name__ == "__main__":
    main()
