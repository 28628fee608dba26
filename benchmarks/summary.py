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
from kemeny.evaluation import Protocol, evaluation_seed

KEPT = Path("benchmarks/results/runs")
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
    result = kemeny.evaluate(run.policy, config["env"], Protocol(10, 10_000), seed=seed, costs=COSTS[config["env"]])
    (target / "final.json").write_text(json.dumps(result.record()) + "\n")


def name_of(settings: dict) -> str:
    gamma = settings["gamma"]
    words = [settings["algorithm"].upper()] + ([f"γ = {gamma:g}"] if gamma is not None else [])
    words += [f"{cost} ≤ {limit:g}" for cost, limit in zip(settings["cost"], settings["limit"], strict=True)]
    words += [f"reset cost {settings['reset_cost']:g}"] if settings["reset_cost"] != 100 else []
    words += [f"cut at {settings['cut']:,}"] if settings["cut"] != 5_000 else []
    words += [f"gauge {settings['gauge']}"] if settings["gauge"] != "centred" else []
    return ", ".join(words) + (", episodic" if settings["episodic"] else "")


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
    print("| task | steps | algorithm | seeds | return, ≤ 1,000 steps | return, ≤ 10,000 steps | length | speed |")
    print("|---|---|---|---|---|---|---|---|")
    for (env, steps, name), finals in sorted(rows.items()):
        columns = []
        for field in ("returns_1000", "returns_10000", "lengths", "average_costs"):
            means = [np.mean(final[field]) for _, final in sorted(finals, key=lambda pair: pair[0])]
            shape = "{:,.2f}" if field == "average_costs" else "{:,.0f}"
            each = f" ({' / '.join(shape.format(mean) for mean in means)})" if len(means) > 1 else ""
            columns.append(shape.format(np.mean(means)) + each)
        seeds = ", ".join(str(seed) for seed, _ in sorted(finals, key=lambda pair: pair[0]))
        print(f"| {env} | {steps / 1e6:g}M | {name} | {seeds} | " + " | ".join(columns) + " |")


if __name__ == "__main__":
    main(tyro.cli(Summary))
