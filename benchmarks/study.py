"""Keep the results of the study in one file, and make the tables and pictures of docs/results.md from them.

    kemeny sweep benchmarks/study.toml --only ARM…      # the missing runs of some arms: study.toml says what they are
    python benchmarks/study.py commands                 # print the command of every run
    python benchmarks/study.py keep RUN…                # evaluate finished runs to 10,000 steps and keep the results
    python benchmarks/study.py tables                   # write the tables into docs/results.md
    python benchmarks/study.py pictures                 # draw docs/pictures/results.png and docs/pictures/acpo.png
    python benchmarks/study.py unpack FOLDER            # kept runs as run directories, for `kemeny plot`

`benchmarks/results/study.jsonl` has one line per run, sorted by name:

    name           ARM-SEED
    config         config.json as it was written, with the names that settings had then
    evaluations    the lines of evaluations.jsonl
    final          the evaluation of the last policy to 10,000 steps
    earlier        (humanoid-10M-10 alone) the same of earlier checkpoints, by their steps
"""

import dataclasses
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import kemeny
import kept
from kemeny.experience.evaluate import evaluation_seed
from kemeny.experiments.grid import Planned, as_line
from kemeny.experiments.grid_file import read_grid
from kemeny.experiments.plots import plot
from kemeny.runs.settings import DEFAULT_GAMMA, from_flat

ROOT = Path(__file__).parents[1]
STUDY = read_grid(ROOT / "benchmarks" / "study.toml")
KEPT = ROOT / "benchmarks" / "results" / "study.jsonl"
PAGE = ROOT / "docs" / "results.md"
DRAWN = ROOT / "docs" / "pictures"
FINAL = kemeny.EvaluationProtocol(eval_trajectories=10, eval_max_steps=10_000)
LAST = 20
"""Batches at the end of training over which a cost is averaged."""
app = tyro.extras.SubcommandApp()

WORDS = {
    "delta": "δ = {:g}",
    "gae_lambda": "λ = {:g}",
    "damping": "damping {:g}",
    "cost_gae_lambda": "cost's λ = {:g}",
    "log_std": "log std {:g}",
    "cut": "cut at {:,}",
    "long_cut": "some cut at {:,}",
    "long_share": "{:.0%} of the environments",
    "reset_cost": "reset cost {:g}",
    "rate_by": "ρ̂ by {}",
    "gauge": "{} gauge",
    "num_envs": "{} environments",
    "batch_size": "batches of {:,}",
    "cg_iterations": "{} CG iterations",
    "observation_clip": "clip ±{:g}",
    "critic_epochs": "{} critic epochs",
    "critic_minibatch": "minibatches of {}",
}
"""How a table names a setting."""
BASES = {
    "paper": ["paper"],
    "auto": ["λ from the data"],
    "undecayed": ["λ from the data", "critics without decay"],
}
"""What a table calls the bases of the study; nothing for that of the first."""
IN_THE_TITLE = {
    "deployed_envs",
    "group",
    "env",
    "steps",
    "seeds",
    "base",
    "algorithm",
    "gamma",
    "cost",
    "limit",
    "episodic",
}
"""What a table or a title names in another way."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """One choice of settings on one task: one run per seed, kept as NAME-SEED."""

    written: Mapping[str, Any]
    """As it stands in the file."""
    runs: tuple[Planned, ...]

    @property
    def name(self) -> str:
        """Of the arm."""
        return self.runs[0].arm

    @property
    def env(self) -> str:
        """Its task."""
        return self.runs[0].env.name

    @property
    def steps(self) -> int:
        """Of each run."""
        return self.runs[0].settings.steps

    @property
    def seeds(self) -> list[int]:
        """One run each."""
        return [run.settings.seed for run in self.runs]

    @property
    def title(self) -> str:
        """Its name in a table: the algorithm, whose settings, what is changed."""
        changes, settings = self.written, self.runs[0].settings
        words = [settings.algorithm.upper()]
        if settings.algorithm in ("trpo", "cpo"):
            words.append(f"γ = {changes.get('gamma', DEFAULT_GAMMA):g}")
        words += [f"{cost} ≤ {limit:g}" for cost, limit in zip(settings.cost, settings.limit, strict=True)]
        words += ["episodic"] if changes.get("episodic") else []
        words += BASES.get(changes.get("base"), [])
        words += [WORDS[name].format(value) for name, value in changes.items() if name not in IN_THE_TITLE]
        return ", ".join(words).replace("-", "−")


def _arms() -> dict[str, Arm]:
    runs = STUDY.grid.runs()
    return {name: Arm(written, tuple(run for run in runs if run.arm == name)) for name, written in STUDY.arms.items()}


ARMS = _arms()
TABLES = {
    group: tuple(arm for arm in ARMS.values() if arm.written["group"] == group)
    for group in dict.fromkeys(arm.written["group"] for arm in ARMS.values())
}
"""The arms of each table of docs/results.md."""

PICTURES: dict[str, tuple[str, ...]] = {
    "results": (
        "ant-3M", "ant-trpo95", "ant-trpo99", "ant-trpo99-episodic", "ant-trpo999",
        "cheetah-1M", "cheetah-trpo95", "cheetah-trpo99", "cheetah-trpo99-episodic", "cheetah-trpo999",
        "humanoid-3M", "humanoid-10M", "humanoid-trpo95-3M", "humanoid-trpo99-3M", "humanoid-trpo99-episodic-3M",
        "humanoid-trpo999-3M",
    ),
    "acpo": ("ant-acpo", "cheetah-acpo", "humanoid-acpo"),
}  # fmt: skip
"""The names of the arms in each picture of docs/pictures, in the order of its legend."""


def kept_runs() -> dict[str, dict[str, Any]]:
    """The lines of study.jsonl by the name of the run."""
    return kept.read(KEPT)


def store(line: dict[str, Any]) -> None:
    """Add the line of a run to study.jsonl, or put it in place of the one that has its name."""
    runs = kept_runs()
    old = runs.get(line["name"], {})
    if "earlier" in old and old["config"] == line["config"]:  # the same run, evaluated again
        line = {**line, "earlier": old["earlier"]}
    runs[line["name"]] = line
    kept.write(KEPT, runs)


@app.command
def commands() -> None:
    """Print the command of every run."""
    for arm in ARMS.values():
        for run in arm.runs:
            print(as_line(run.command(STUDY.out / run.name)))


@app.command
def keep(runs: tyro.conf.Positional[tuple[Path, ...]]) -> None:
    """Evaluate the last policy of finished runs on trajectories of up to 10,000 steps, and keep the results.

    Args:
        runs: Run directories, named ARM-SEED.
    """
    for path in runs:
        run = kemeny.Run.open(path)
        settings = from_flat(run.config["settings"])
        name = path.absolute().name
        arm, _, seed = name.rpartition("-")
        if arm not in ARMS or seed not in map(str, ARMS[arm].seeds):
            sys.exit(f"{path} is no run of the study: there is no arm {arm} with a seed {seed}.")
        if not run.evaluations or run.evaluations[-1]["steps"] < settings.steps:
            sys.exit(f"{path} is not finished; go on with: kemeny resume {path}")
        how = {"seed": evaluation_seed(settings.seed, 10**9), "costs": settings.cost}
        final = kemeny.evaluate(run.policy, run.config["env"], FINAL, **how).record()
        if settings.limit:  # which holds for the policy that explores
            exploring = kemeny.evaluate(run.policy, run.config["env"], FINAL, **how, explore=True)
            final["exploring"] = exploring.record()
            final["training_costs"] = np.mean([record["cost"] for record in run.metrics[-LAST:]], 0).tolist()
        config = json.loads((run.path / "config.json").read_text())
        store({"name": name, "config": config, "evaluations": run.evaluations, "final": final})
        print(f"{name}: {np.mean(final['returns_1000']):,.0f}, {np.mean(final['returns_10000']):,.0f}", flush=True)


@app.command
def unpack(folder: tyro.conf.Positional[Path], arms: tuple[str, ...] = ()) -> None:
    """Write kept runs as run directories with config.json and evaluations.jsonl.

    Args:
        folder: Where to make the directories.
        arms: Names of arms [all].
    """
    for path in run_directories(arms or tuple(ARMS), folder):
        print(path)


def run_directories(arms: tuple[str, ...], folder: Path) -> list[Path]:
    """The kept runs of these arms, written into a folder."""
    if unknown := set(arms) - ARMS.keys():
        sys.exit(f"There is no arm {', '.join(sorted(unknown))}; there are: {', '.join(ARMS)}.")
    runs = kept_runs()
    names = [f"{name}-{seed}" for name in arms for seed in ARMS[name].seeds]
    return [kept.write_out(runs[name], folder) for name in names if name in runs]


def cell(values: list[list[float]]) -> str:
    """The mean over seeds, and in brackets that of each seed."""
    means = [f"{np.mean(value):,.0f}" for value in values]
    return f"{np.mean(values):,.0f}" + (f" ({' / '.join(means)})" if len(set(means)) > 1 else "")


def each(values: list[list[float]]) -> str:
    """The cost of each seed."""
    return " / ".join(f"{np.mean(value):.2f}" for value in values)


def row(arm: Arm, runs: dict[str, dict[str, Any]]) -> str:
    """The results of an arm: one line of a table."""
    finals = [runs[f"{arm.name}-{seed}"]["final"] for seed in arm.seeds]
    seeds = ", ".join(map(str, arm.seeds))
    if "limit" in arm.written:
        columns = [
            each([final["training_costs"] for final in finals]),
            each([final["exploring"]["average_costs"] for final in finals]),
            each([final["average_costs"] for final in finals]),
            cell([final["returns_1000"] for final in finals]),
        ]
    else:
        columns = [cell([final[field] for final in finals]) for field in ("returns_1000", "returns_10000", "lengths")]
    return f"| {arm.env} | {arm.steps / 1e6:g}M | {arm.title} | {seeds} | {' | '.join(columns)} |"


def table(arms: tuple[Arm, ...], runs: dict[str, dict[str, Any]]) -> str:
    """The arms of which every run is kept, as Markdown."""
    done = [arm for arm in arms if all(f"{arm.name}-{seed}" in runs for seed in arm.seeds)]
    heads = ["task", "steps", "settings", "seeds"]
    if "limit" in arms[0].written:
        heads += ["in training", "exploring", "mean action", "its return, ≤ 1,000 steps"]
    else:
        heads += ["return, ≤ 1,000 steps", "return, ≤ 10,000 steps", "length"]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(row(arm, runs) for arm in done)])


def written(page: str) -> str:
    """The page with the tables of the kept runs, each after its mark."""
    runs = kept_runs()
    for name, arms in TABLES.items():
        mark = f"<!-- benchmarks/study.py: {name} -->\n\n"
        filled = f"{mark}{table(arms, runs)}\n"
        page, found = re.subn(re.escape(mark) + r"(\|.*\n)*", lambda _, filled=filled: filled, page)
        if not found:
            sys.exit(f"{PAGE} has no place for the table {name}: {mark}")
    return page


@app.command
def tables() -> None:
    """Write the tables into docs/results.md."""
    PAGE.write_text(written(PAGE.read_text()))


@app.command
def pictures() -> None:
    """Draw the learning curves of docs/pictures."""
    for name, arms in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            runs = run_directories(arms, Path(folder))
            for path in runs:
                with_default_reset_cost(path / "config.json")
            plot(runs, DRAWN / f"{name}.png", band="deviation")


def with_default_reset_cost(path: Path) -> None:
    """Write a reset cost of 100 as the default, which is the same on these tasks: the first runs name the number."""
    config = json.loads(path.read_text())
    if config["settings"]["reset_cost"] == 100.0:
        config["settings"]["reset_cost"] = None
        path.write_text(json.dumps(config))


if __name__ == "__main__":
    app.cli(description=__doc__, config=(tyro.conf.OmitArgPrefixes,))
