"""The table of docs/results.md, from the evaluations kept under benchmarks/results/runs.

    python benchmarks/summary.py [RUN…] [--keep]

With `--keep`, the small text files of finished runs (config.json, evaluations.jsonl, final.json) are first copied to
benchmarks/results/runs, after evaluating the last checkpoint on trajectories of up to 10,000 steps.
"""

import dataclasses
import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

import kemeny
from kemeny.algorithms import ALGORITHMS
from kemeny.evaluation import Protocol, evaluation_seed

KEPT = Path("benchmarks/results/runs")
RETURNS = ("returns_1000", "returns_10000", "lengths")
COSTS = {"HalfCheetah-v3": ("speed",), "Ant-v3": ("speed",), "Humanoid-v3": ("speed",)}


@dataclasses.dataclass
class Summary:
    """What to summarise."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    keep: bool = False


def keep(run: kemeny.Run) -> None:
    target = KEPT / run.path.name
    target.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "evaluations.jsonl"):
        shutil.copy(run.path / name, target / name)
    config = run.config
    seed = evaluation_seed(config["settings"]["seed"], 10**9)
    asked = {"env": config["env"], "protocol": Protocol(10, 10_000), "seed": seed, "costs": COSTS[config["env"]]}
    final = kemeny.evaluate(run.policy, **asked).record()
    if config["settings"]["limit"]:  # which holds for the policy that explores
        final["exploring"] = kemeny.evaluate(run.policy, **asked, explore=True).record()
    (target / "final.json").write_text(json.dumps(final) + "\n")


def name_of(settings: dict) -> str:
    """The algorithm, and whatever is not the paper's."""
    gamma = settings["gamma"]
    words = [settings["algorithm"].upper()] + ([f"γ = {gamma:g}"] if gamma is not None else [])
    words += [f"{cost} ≤ {limit:g}" for cost, limit in zip(settings["cost"], settings["limit"], strict=True)]
    log_std = ALGORITHMS[settings["algorithm"]].log_std
    words += [f"log std {settings['log_std']:g}"] if settings["log_std"] not in (None, log_std) else []
    words += [f"λ = {settings['gae_lambda']:g}"] if settings["gae_lambda"] != 0.95 else []
    words += [f"reset cost {settings['reset_cost']:g}"] if settings["reset_cost"] != 100 else []
    words += [f"cut at {settings['cut']:,}"] if settings["cut"] != 5_000 else []
    words += [f"gauge {settings['gauge']}"] if settings["gauge"] != "centred" else []
    return ", ".join(words) + (", episodic" if settings["episodic"] else "")


def cell(values: list, form: str) -> str:
    """The mean over seeds, and each seed's."""
    means = [np.mean(value) for value in values]
    each = f" ({' / '.join(f'{mean:{form}}' for mean in means)})" if len(means) > 1 else ""
    return f"{np.mean(means):{form}}{each}"


def main(args: Summary) -> None:
    if args.keep:
        for path in args.runs:
            keep(kemeny.Run.open(path))
    rows = defaultdict(list)
    for folder in sorted(KEPT.iterdir()):
        run = kemeny.Run.open(folder)
        settings = run.config["settings"]
        key = (run.config["env"], settings["steps"], name_of(settings))
        rows[key].append((settings["seed"], json.loads((folder / "final.json").read_text())))
    heads = (
        "task",
        "steps",
        "algorithm",
        "seeds",
        "return, ≤ 1,000 steps",
        "return, ≤ 10,000 steps",
        "length",
        "speed",
    )
    print(f"| {' | '.join(heads)} | speed, exploring |\n{'|---' * (1 + len(heads))}|")
    for (env, steps, name), finals in sorted(rows.items()):
        finals.sort(key=lambda pair: pair[0])
        columns = [cell([final[field] for _, final in finals], ",.0f") for field in RETURNS]
        columns.append(cell([final["average_costs"] for _, final in finals], ",.2f"))
        exploring = [final["exploring"]["average_costs"] for _, final in finals if "exploring" in final]
        columns.append(cell(exploring, ",.2f") if exploring else "")
        seeds = ", ".join(str(seed) for seed, _ in finals)
        print(f"| {env} | {steps / 1e6:g}M | {name} | {seeds} | " + " | ".join(columns) + " |")


if __name__ == "__main__":
    main(tyro.cli(Summary))
