"""Run the study of `kemeny.experiments.study`, keep its small text files, make the tables of docs/results.md from them.

    python benchmarks/study.py commands                 # what the study is, as commands
    python benchmarks/study.py run ARM… --cores 0 1     # the runs of these arms that are missing, one a core at a time
    python benchmarks/study.py keep RUN…                # evaluate finished runs to 10,000 steps and keep them
    python benchmarks/study.py tables                   # write the tables into docs/results.md

Kept are config.json, evaluations.jsonl and final.json, under benchmarks/results/runs/ARM-SEED.
"""

import concurrent.futures
import contextlib
import json
import queue
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import tyro

import kemeny
from kemeny.experience.evaluation import Protocol, evaluation_seed
from kemeny.experiments.study import TABLES, Arm
from kemeny.runs.settings import from_flat

ARMS = {arm.name: arm for arms in TABLES.values() for arm in arms}
ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results" / "runs"
PAGE = ROOT / "docs" / "results.md"
WATCHING = ["--threads", "1", "--eval-max-steps", "1000"]
"""One thread for each of the runs side by side; evaluations in training are short, the final one is not."""
LAST = 20
"""Batches at the end of training over which a cost is averaged."""
app = tyro.extras.SubcommandApp()


@app.command
def commands() -> None:
    """Print the command of every run."""
    for arm in ARMS.values():
        for seed in arm.seeds:
            print(shlex.join(["kemeny", *arm.command(seed), *WATCHING, "--out", f"runs/{arm.name}-{seed}"]))


@app.command
def run(
    arms: tyro.conf.Positional[tuple[str, ...]], cores: tuple[int, ...] = (0,), folder: Path = Path("runs")
) -> None:
    """Make the runs of these arms that are not there yet, and resume those that stopped.

    Args:
        arms: Names of arms.
        cores: Processor cores to use, one run at a time on each.
        folder: Where the run directories are.
    """
    if not arms or set(arms) - ARMS.keys():
        sys.exit(f"Name some of the arms: {', '.join(ARMS)}.")
    folder.mkdir(parents=True, exist_ok=True)
    waiting: queue.SimpleQueue[tuple[Arm, int]] = queue.SimpleQueue()
    for name in arms:
        for seed in ARMS[name].seeds:
            waiting.put((ARMS[name], seed))
    failed = []

    def work(core: int) -> None:
        while not waiting.empty():
            with contextlib.suppress(queue.Empty):
                arm, seed = waiting.get_nowait()
                out = folder / f"{arm.name}-{seed}"
                arguments = ["resume", str(out)] if out.exists() else [*arm.command(seed), *WATCHING, "--out", str(out)]
                print(f"core {core}: kemeny {shlex.join(arguments)}", flush=True)
                with (folder / f"{out.name}.log").open("a") as log:
                    command = ["taskset", "-c", str(core), Path(sys.executable).with_name("kemeny"), *arguments]
                    if subprocess.run(command, stdout=log, stderr=log).returncode:
                        failed.append(out.name)

    with concurrent.futures.ThreadPoolExecutor(len(cores)) as pool:
        list(pool.map(work, cores))
    if failed:
        sys.exit(f"Not finished, see the logs in {folder}: {', '.join(failed)}.")


@app.command
def keep(runs: tyro.conf.Positional[tuple[Path, ...]]) -> None:
    """Evaluate the last policy of finished runs on trajectories of up to 10,000 steps, and keep the small text files.

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
        asked = {
            "env": run.config["env"],
            "protocol": Protocol(10, 10_000),
            "seed": evaluation_seed(settings.seed, 10**9),
            "costs": ("speed",),
        }
        final = kemeny.evaluate(run.policy, **asked).record()
        if settings.limit:  # which holds for the policy that explores
            final["exploring"] = kemeny.evaluate(run.policy, **asked, explore=True).record()
            final["training_costs"] = np.mean([line["cost"] for line in run.metrics[-LAST:]], 0).tolist()
        target = KEPT / name
        target.mkdir(parents=True, exist_ok=True)
        for file in ("config.json", "evaluations.jsonl"):
            shutil.copy(run.path / file, target / file)
        (target / "final.json").write_text(json.dumps(final) + "\n")
        print(f"{name}: {np.mean(final['returns_1000']):,.0f}, {np.mean(final['returns_10000']):,.0f}", flush=True)


def cell(values: list[list[float]]) -> str:
    """The mean over seeds, and each seed's."""
    means = [f"{np.mean(value):,.0f}" for value in values]
    return f"{np.mean(values):,.0f}" + (f" ({' / '.join(means)})" if len(set(means)) > 1 else "")


def each(values: list[list[float]]) -> str:
    """Each seed's cost."""
    return " / ".join(f"{np.mean(value):.2f}" for value in values)


def row(arm: Arm) -> str:
    """What became of an arm: a line of a table."""
    finals = [json.loads((KEPT / f"{arm.name}-{seed}" / "final.json").read_text()) for seed in arm.seeds]
    seeds = ", ".join(map(str, arm.seeds))
    if "limit" in arm.changes:
        columns = [
            each([final["training_costs"] for final in finals]),
            each([final["exploring"]["average_costs"] for final in finals]),
            each([final["average_costs"] for final in finals]),
            cell([final["returns_1000"] for final in finals]),
        ]
    else:
        columns = [cell([final[field] for final in finals]) for field in ("returns_1000", "returns_10000", "lengths")]
    return f"| {arm.env} | {arm.steps / 1e6:g}M | {arm.title} | {seeds} | {' | '.join(columns)} |"


def table(arms: tuple[Arm, ...]) -> str:
    """The arms that were run, as Markdown."""
    done = [arm for arm in arms if all((KEPT / f"{arm.name}-{seed}" / "final.json").exists() for seed in arm.seeds)]
    heads = ["task", "steps", "settings", "seeds"]
    if "limit" in arms[0].changes:
        heads += ["in training", "exploring", "mean action", "its return, ≤ 1,000 steps"]
    else:
        heads += ["return, ≤ 1,000 steps", "return, ≤ 10,000 steps", "length"]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *map(row, done)])


def written(page: str) -> str:
    """The page with its tables as they are now, each after its mark."""
    for name, arms in TABLES.items():
        mark = f"<!-- benchmarks/study.py: {name} -->\n\n"
        page, found = re.subn(re.escape(mark) + r"(\|.*\n)*", lambda _, m=mark, a=arms: m + table(a) + "\n", page)
        if not found:
            sys.exit(f"{PAGE} has no place for the table {name}: {mark}")
    return page


@app.command
def tables() -> None:
    """Write the tables into docs/results.md."""
    PAGE.write_text(written(PAGE.read_text()))


if __name__ == "__main__":
    app.cli(description=__doc__, config=(tyro.conf.OmitArgPrefixes,))
