"""What was learned on tasks whose best answer is known: keep the runs of tasks.toml, and make the table from them.

    kemeny sweep benchmarks/tasks.toml                # run what is missing
    python benchmarks/tasks.py keep runs/tasks        # evaluate and keep what is finished
    python benchmarks/tasks.py page                   # write benchmarks/results/tasks.md

`benchmarks/results/tasks.jsonl` has one line per run, sorted by name:

    name         INSTANCE-CRITERION-SEED
    env, env_kwargs, algorithm, gamma, seed, steps, commit
    minutes      of training
    cost         mean cost per unit of time or per period, of the last policy by its likeliest action, simulated
    low, high    the interval of the cost, 95 %
    settled      whether the warm-up ended within the first half of the trajectories
    exact        the same cost, from the stationary distribution of the model; null if the model is too large
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import kemeny
import kept
from kemeny import tasks
from kemeny.runs.glance import State, glance
from kemeny.tasks.registration import OPTIONS

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results" / "tasks.jsonl"
PAGE = ROOT / "benchmarks" / "results" / "tasks.md"
TRAJECTORIES, STEPS, PRECISION = 1_000, 20_000, 0.005
"""Of the evaluation in the steady state."""
TRUNCATIONS = {
    "criss-IL": 16,
    "criss-BL": 18,
    "criss-IM": 30,
    "criss-BM": 36,
    "criss-IH": 80,
    "criss-BH": 80,
    "n-model": 400,
}
"""Largest length of a queue in the model by which a policy is judged."""

PUBLISHED = {
    "criss-IL": (0.6706, "PPO 0.671"),
    "criss-BL": (0.8432, "PPO 0.844"),
    "criss-IM": (2.0836, "PPO 2.084"),
    "criss-BM": (2.8289, "PPO 2.833"),
    "criss-IH": (9.9715, "PPO 10.014"),
    "criss-BH": (15.095, "PPO 15.353, 16.513"),
    "n-model": (46.165, "best threshold 47.240"),
    "six-6": (None, "PPO 14.130 ± 0.208"),
    "six-9": (None, "PPO 23.269 ± 0.251"),
    "six-12": (None, "PPO 32.171 ± 0.556"),
    "six-15": (None, "PPO 39.300 ± 0.612"),
    "six-18": (None, "PPO 51.472 ± 0.973"),
    "six-21": (None, "PPO 55.124 ± 1.807"),
    "lost-2-4": (4.395295, "capped base-stock 4.4057"),
    "lost-2-9": (6.093642, "capped base-stock 6.1191"),
    "lost-3-4": (4.598719, "capped base-stock 4.6308"),
    "lost-3-9": (6.531371, "capped base-stock 6.6164"),
    "lost-4-4": (4.728526, "capped base-stock 4.7978"),
    "lost-4-9": (6.835942, "capped base-stock 6.9123"),
    "dual-2-105": (216.7698, "capped dual-index 216.7824"),
    "dual-2-110": (219.7333, "capped dual-index 219.7994"),
    "dual-3-105": (216.8767, "capped dual-index 216.8783"),
    "dual-3-110": (220.3411, "capped dual-index 220.4657"),
    "dual-4-105": (216.8931, "capped dual-index 216.8931"),
    "dual-4-110": (220.6122, "capped dual-index 220.8638"),
}
"""Of each instance the exact optimum, where it is known (tasks_exact.md; criss-cross and N-model: tabular.md), and the
best of others: Dai & Gluzman's PPO with 500 million steps, or the best rule of its kind, exactly."""
ARMS = {
    "atrpo": "ATRPO",
    "sampled": "ATRPO, values sampled",
    "trpo90": "TRPO γ = 0.9",
    "trpo99": "TRPO γ = 0.99",
    "trpo998": "TRPO γ = 0.998",
}
HEAD = """# Tasks whose best answer is known

Written by `python benchmarks/tasks.py page` from [tasks.jsonl](tasks.jsonl). Mean cost of the last policy, by its
likeliest action; lower is better. Costs of several seeds are divided by /, and the percentage is how far their mean is
above the exact optimum. Where the model is small enough, a cost is exact (from the stationary distribution of the
policy); otherwise it is simulated. The second table has all intervals."""
DOCS, BEGIN, END = ROOT / "docs" / "tasks.md", "<!-- benchmarks/tasks.py: results -->", "<!-- end of results -->"
app = tyro.extras.SubcommandApp()


def exact_cost(policy: Any, process: tasks.Process, truncation: int | None) -> float | None:
    """The mean cost of the likeliest actions, from the stationary distribution; None if the model is too large."""
    if truncation is None and None in process.highest:
        return None
    model = process.model(truncation)
    states = np.indices(model.grid).reshape(len(model.grid), -1).T + np.array(process.lowest)
    allowed = process.allowed(states)
    rows = states if allowed is None else np.concatenate([states, allowed], axis=1)
    chosen = np.concatenate([policy.mode(policy.head(part)) for part in np.array_split(rows.astype(np.float32), 64)])
    joint = np.ravel_multi_index(chosen.reshape(len(states), -1).T, process.choices)
    stationary = model.chain(joint).stationary
    return float(-stationary @ model.rewards[np.arange(len(states)), joint])


def line_of(run: kemeny.Run) -> dict[str, Any]:
    """What is kept of a finished run."""
    instance = run.path.name.rsplit("-", 2)[0]
    kwargs = dict(run.config["env_kwargs"])
    process = tasks.process_of(run.config["env"], **{name: kwargs[name] for name in kwargs if name not in OPTIONS})
    found = kemeny.evaluate(run, trajectories=TRAJECTORIES, max_steps=STEPS, precision=PRECISION, seed=1)
    assert found.long_run is not None
    reward, settings = found.long_run.reward, run.config["settings"]
    try:
        exact = exact_cost(kemeny.load_policy(run.path), process, TRUNCATIONS.get(instance))
    except kemeny.UserError as error:  # such as a chain that mixes too slowly for the solver
        print(f"{run.path.name}: {error}")
        exact = None
    return {
        "name": run.path.name,
        "env": run.config["env"],
        "env_kwargs": kwargs,
        **{name: settings[name] for name in ("algorithm", "gamma", "seed", "steps")},
        "commit": run.config["git_commit"],
        "minutes": round(run.metrics[-1]["seconds"] / 60, 2),
        "cost": round(-reward.average, 4),
        "low": round(-reward.high, 4),
        "high": round(-reward.low, 4),
        "settled": bool(found.long_run.settled),
        "exact": None if exact is None else round(exact, 5),
    }


@app.command
def keep(runs: tyro.conf.Positional[Path], only: tuple[str, ...] = ()) -> None:
    """Evaluate the finished runs of a sweep that are not kept yet, and keep them."""
    for path in sorted(runs.iterdir()):
        lines = kept.read(KEPT) if KEPT.exists() else {}
        chosen = not only or any(path.name.startswith(begin) for begin in only)
        if (
            chosen
            and (path / "config.json").exists()
            and path.name not in lines
            and glance(path).state is State.FINISHED
        ):
            line = line_of(kemeny.Run(path))
            kept.write(KEPT, {**lines, line["name"]: line})
            print(line)


def cell(lines: list[dict[str, Any]], optimum: float | None) -> str:
    """The costs of the seeds, and how far their mean is above the optimum."""
    if not lines:
        return ""
    costs = [line["cost"] if line["exact"] is None else line["exact"] for line in lines]
    text = " / ".join(f"{cost:.4g}" if cost < 100 else f"{cost:.2f}" for cost in costs)
    return text if optimum is None else f"{text} ({100 * (np.mean(costs) / optimum - 1):+.2f} %)"


def results(lines: list[dict[str, Any]]) -> list[str]:
    """The table of instances × criteria."""
    by_arm: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        instance, arm, _ = line["name"].rsplit("-", 2)
        by_arm.setdefault((instance, arm), []).append(line)
    arms = {arm: title for arm, title in ARMS.items() if any(arm == other for _, other in by_arm)}
    text = [
        f"| instance | steps | minutes | exact optimum | others | {' | '.join(arms.values())} |",
        f"|---|---|---|---|---|{'---|' * len(arms)}",
    ]
    for instance, (optimum, others) in PUBLISHED.items():
        mine = [line for (of, _), group in by_arm.items() if of == instance for line in group]
        if mine:
            best = "" if optimum is None else f"{optimum:g}"
            minutes = f"{np.median([line['minutes'] for line in mine]):.1f}"
            cells = [cell(by_arm.get((instance, arm), []), optimum) for arm in arms]
            row = [instance, f"{mine[0]['steps'] / 1e6:g}M", minutes, best, others, *cells]
            text.append(f"| {' | '.join(row)} |")
    return text


def intervals(lines: list[dict[str, Any]]) -> list[str]:
    """The table of all runs."""
    text = ["| run | simulated | 95 % interval | exact | settled |", "|---|---|---|---|---|"]
    for line in lines:
        exact = "" if line["exact"] is None else f"{line['exact']:.5g}"
        interval = "" if math.isnan(line["low"]) else f"{line['low']:.5g} to {line['high']:.5g}"
        settled = "yes" if line["settled"] else "no"
        text.append(f"| {line['name']} | {line['cost']:.5g} | {interval} | {exact} | {settled} |")
    return text


def pages() -> dict[Path, str]:
    """What tasks.md and the page of the documentation are to be."""
    lines = list(kept.read(KEPT).values())
    table = "\n".join(results(lines))
    begin, rest = DOCS.read_text().split(BEGIN)
    docs = f"{begin}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}"
    return {PAGE: "\n".join([HEAD, "", table, "", *intervals(lines), ""]), DOCS: docs}


@app.command
def page() -> None:
    """Write the tables."""
    for file, text in pages().items():
        file.write_text(text)


if __name__ == "__main__":
    app.cli()
