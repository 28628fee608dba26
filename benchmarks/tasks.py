"""What was learned on tasks whose best answer is known: keep the runs of tasks.toml, and make the table from them.

    kemeny sweep benchmarks/tasks.toml                # run what is missing
    python benchmarks/tasks.py keep runs/tasks        # evaluate and keep what is finished
    python benchmarks/tasks.py page                   # write benchmarks/results/tasks.md

`benchmarks/results/tasks.jsonl` has one line per run, sorted by name:

    name         INSTANCE-CRITERION-SEED
    env, env_kwargs, algorithm, gamma, seed, steps, commit
    minutes      of training
    exact        mean cost per unit of time or per period, of the last policy by its likeliest action, from the
                 stationary distribution of the model; null if the model is too large
    cost         the same, simulated, where it is not known exactly; null if it is
    low, high    the interval of the simulated cost, 95 %
    settled      whether the warm-up ended within the first half of the trajectories
    exploring    the mean cost of the last tenth of training, of policies that explore
"""

import functools
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
TRAJECTORIES, STEPS, PRECISION = 500, 120_000, 0.01
"""Of the evaluation in the steady state, where a cost is not known exactly."""
TRUNCATIONS = {
    "criss-IL": 16,
    "criss-BL": 18,
    "criss-IM": 30,
    "criss-BM": 36,
    "criss-IH": 130,
    "criss-BH": 100,
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
    "trpo90": "TRPO γ = 0.9",
    "trpo99": "TRPO γ = 0.99",
    "trpo998": "TRPO γ = 0.998",
    "sampled": "values sampled",
    "plain": "no quadratic part",
    "targets": "targets alone",
    "equal": "states equal",
    "mean": "ρ̂ the mean reward",
}
PARTS = {"atrpo", "sampled", "plain", "targets", "equal", "mean"}
"""Arms of the second table: the settings, and the same with one part of them taken away."""
HEAD = """# Tasks whose best answer is known

Written by `python benchmarks/tasks.py page` from [tasks.jsonl](tasks.jsonl). Mean cost of the last policy, by its
likeliest action; lower is better. Costs of several seeds are divided by /, and the percentage is how far their mean is
above the exact optimum. Where the model is small enough, a cost is exact (from the stationary distribution of the
policy); otherwise it is simulated, and the last table has its interval."""
DOCS = ROOT / "docs" / "tasks.md"
app = tyro.extras.SubcommandApp()


@functools.cache
def model_of(instance: str, env: str, kwargs: tuple[tuple[str, Any], ...]) -> tuple[Any, np.ndarray, np.ndarray] | None:
    """The exact model of an instance, its states, and the rows that a policy sees; None if it is too large."""
    process, truncation = tasks.process_of(env, **dict(kwargs)), TRUNCATIONS.get(instance)
    if truncation is None and None in process.highest:
        return None
    model = process.model(truncation)
    states = np.indices(model.grid).reshape(len(model.grid), -1).T + np.array(process.lowest)
    allowed = process.allowed(states)
    rows = states if allowed is None else np.concatenate([states, allowed], axis=1)
    return model, np.array(process.choices), rows.astype(np.float32)


def exact_cost(policy: Any, instance: str, env: str, kwargs: dict[str, Any]) -> float | None:
    """The mean cost of the likeliest actions, from the stationary distribution; None if the model is too large."""
    known = model_of(instance, env, tuple(kwargs.items()))
    if known is None:
        return None
    model, choices, rows = known
    chosen = np.concatenate([policy.mode(policy.head(part)) for part in np.array_split(rows, 64)])
    joint = np.ravel_multi_index(chosen.reshape(len(rows), -1).T, choices)
    return float(-model.chain(joint).stationary @ model.rewards[np.arange(len(rows)), joint])


def line_of(run: kemeny.Run) -> dict[str, Any]:
    """What is kept of a finished run."""
    instance = run.path.name.rsplit("-", 2)[0]
    env, kwargs, settings = run.config["env"], dict(run.config["env_kwargs"]), run.config["settings"]
    described = {name: kwargs[name] for name in kwargs if name not in OPTIONS}
    try:
        exact = exact_cost(kemeny.load_policy(run.path), instance, env, described)
    except kemeny.UserError as error:  # such as a chain that mixes too slowly for the solver
        print(f"{run.path.name}: {error}")
        exact = None
    cost = low = high = settled = None
    if exact is None:
        found = kemeny.evaluate(run, trajectories=TRAJECTORIES, max_steps=STEPS, precision=PRECISION, seed=1).long_run
        assert found is not None
        cost, low, high = (round(-value, 4) for value in (found.reward.average, found.reward.high, found.reward.low))
        settled = bool(found.settled)
    late = [record["rate"] for record in run.metrics[-max(1, len(run.metrics) // 10) :]]
    return {
        "name": run.path.name,
        "env": env,
        "env_kwargs": kwargs,
        **{name: settings[name] for name in ("algorithm", "gamma", "seed", "steps")},
        "commit": run.config["git_commit"],
        "minutes": round(run.metrics[-1]["seconds"] / 60, 2),
        "exact": None if exact is None else round(exact, 5),
        "cost": cost,
        "low": low,
        "high": high,
        "settled": settled,
        "exploring": round(-float(np.mean(late)), 4),
    }


@app.command
def keep(runs: tyro.conf.Positional[Path], only: tuple[str, ...] = ()) -> None:
    """Evaluate the finished runs of a sweep that are not kept yet, and keep them."""
    for path in sorted(runs.iterdir()):
        lines = kept.read(KEPT)
        chosen = not only or any(path.name.startswith(begin) for begin in only)
        if (
            chosen
            and (path / "config.json").exists()
            and path.name not in lines
            and glance(path).state is State.FINISHED
        ):
            line = line_of(kemeny.Run(path))
            kept.write(KEPT, {**kept.read(KEPT), line["name"]: line})  # read anew: another process may keep runs, too
            print(line)


def cell(lines: list[dict[str, Any]], optimum: float | None) -> str:
    """The costs of the seeds, and how far their mean is above the optimum."""
    if not lines:
        return ""
    costs = [line["cost"] if line["exact"] is None else line["exact"] for line in lines]
    text = " / ".join(f"{cost:.4g}" if cost < 100 else f"{cost:.2f}" for cost in costs)
    return text if optimum is None else f"{text} ({100 * (np.mean(costs) / optimum - 1):+.2f} %)"


def by_arm(lines: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The runs of each instance and arm."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        instance, arm, _ = line["name"].rsplit("-", 2)
        found.setdefault((instance, arm), []).append(line)
    return found


def results(lines: list[dict[str, Any]]) -> list[str]:
    """The table of instances × criteria."""
    runs = by_arm(lines)
    arms = {arm: title for arm, title in ARMS.items() if arm not in PARTS - {"atrpo"}}
    text = [
        f"| instance | steps | minutes | exact optimum | others | {' | '.join(arms.values())} |",
        f"|---|---|---|---|---|{'---|' * len(arms)}",
    ]
    for instance, (optimum, others) in PUBLISHED.items():
        mine = [line for arm in arms for line in runs.get((instance, arm), [])]
        if mine:
            best = "" if optimum is None else f"{optimum:g}"
            minutes = f"{np.median([line['minutes'] for line in mine]):.1f}"
            cells = [cell(runs.get((instance, arm), []), optimum) for arm in arms]
            row = [instance, f"{mine[0]['steps'] / 1e6:g}M", minutes, best, others, *cells]
            text.append(f"| {' | '.join(row)} |")
    return text


def parts(lines: list[dict[str, Any]]) -> list[str]:
    """The table of the settings with one part taken away."""
    runs = by_arm(lines)
    arms = {arm: title for arm, title in ARMS.items() if arm in PARTS}
    text = [f"| instance | {' | '.join(arms.values())} |", f"|---|{'---|' * len(arms)}"]
    for instance, (optimum, _) in PUBLISHED.items():
        if any((instance, arm) in runs for arm in PARTS - {"atrpo"}):
            text.append(f"| {instance} | {' | '.join(cell(runs.get((instance, arm), []), optimum) for arm in arms)} |")
    return text


def intervals(lines: list[dict[str, Any]]) -> list[str]:
    """The table of all runs whose costs are simulated."""
    text = ["| run | simulated | 95 % interval | settled | in training, exploring |", "|---|---|---|---|---|"]
    for line in lines:
        if line["exact"] is None:
            interval = "" if math.isnan(line["low"]) else f"{line['low']:.5g} to {line['high']:.5g}"
            settled = "yes" if line["settled"] else "no"
            text.append(f"| {line['name']} | {line['cost']:.5g} | {interval} | {settled} | {line['exploring']:.5g} |")
    return text


def pages() -> dict[Path, str]:
    """What tasks.md and the page of the documentation are to be."""
    lines = list(kept.read(KEPT).values())
    tables = {"results": "\n".join(results(lines)), "parts": "\n".join(parts(lines))}
    docs = DOCS.read_text()
    for name, table in tables.items():
        begin, end = f"<!-- benchmarks/tasks.py: {name} -->", f"<!-- end of {name} -->"
        before, rest = docs.split(begin)
        docs = f"{before}{begin}\n\n{table}\n\n{end}{rest.split(end)[1]}"
    page = [
        HEAD,
        "",
        tables["results"],
        "",
        "The same with one part of the settings taken away:",
        "",
        tables["parts"],
        "",
    ]
    return {PAGE: "\n".join([*page, *intervals(lines), ""]), DOCS: docs}


@app.command
def page() -> None:
    """Write the tables."""
    for file, text in pages().items():
        file.write_text(text)


if __name__ == "__main__":
    app.cli()
