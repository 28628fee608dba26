"""The command line: every flag is a field of the dataclasses that the library itself uses."""

import json as json_format
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import rich.console
import rich.table
import tyro
from tyro.conf import Positional, arg

from kemeny.acting import load_policy
from kemeny.bench import bench
from kemeny.errors import RunError, UserError
from kemeny.evaluation import Protocol, evaluate, evaluation_seed
from kemeny.presets import Preset, described
from kemeny.presets import preset as preset_of
from kemeny.progress import Terminal
from kemeny.run import Run
from kemeny.settings import Settings, from_flat
from kemeny.tabular.report import exact
from kemeny.training import Interrupted
from kemeny.training import resume as resume_run
from kemeny.training import start as start_run

EXIT_MISTAKE, EXIT_INTERRUPTED = 2, 130
DESCRIPTION = """Deep reinforcement learning for tasks that never end.

    kemeny train HalfCheetah-v3 --steps 1000000 --out runs/cheetah
    kemeny evaluate runs/cheetah
    kemeny plot runs/cheetah -o curve.png
    kemeny exact --zoo access_control
"""
DEFAULTS = Settings()
TYRO = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
app = tyro.extras.SubcommandApp()
app.command(bench)
app.command(exact)


@app.command
def train(
    env: Annotated[Positional[str], arg(metavar="ENV")],
    settings: Settings = DEFAULTS,
    out: Path | None = None,
    preset: Preset = "default",
) -> None:
    """Train a policy and leave a run directory.

    Args:
        env: Id of an environment of EnvPool's or Gymnasium's, such as HalfCheetah-v3.
        settings: What to learn and how.
        out: The run directory to make [runs/ENV-ALGORITHM-seedSEED].
        preset: Where a setting is not given: the default, or the paper's (Appendix H).
    """
    if values := preset_of(preset):
        settings = _given(from_flat(values))
        print(f"The paper's settings: {described(values, settings)}")
    run = start_run(env, settings, out, Terminal())
    print(f"Finished. Look at it with: kemeny evaluate {run.path}; kemeny plot {run.path} -o {run.path}/curve.png")


def _given(defaults: Settings) -> Settings:
    """The settings of this command line, with other defaults."""

    def train(
        env: Positional[str], settings: Settings = defaults, out: Path | None = None, preset: Preset = "default"
    ) -> Settings:
        return settings

    return tyro.cli(train, args=sys.argv[2:], config=TYRO)


@app.command
def resume(run: Annotated[Positional[Path], arg(metavar="DIR")], inexact: bool = False) -> None:
    """Go on with a stopped or killed run, exactly where its last checkpoint left it.

    Args:
        run: A run directory.
        inexact: Where an environment cannot be brought back to where it was, go on from a start state.
    """
    resume_run(run, inexact=inexact, progress=Terminal())


@app.command(name="evaluate")
def evaluate_command(
    run: Annotated[Positional[Path], arg(metavar="DIR")],
    trajectories: int = 10,
    max_steps: int = 10_000,
    seed: int = 0,
    cost: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    video: Path | None = None,
    video_steps: int = 1_000,
    best: bool = False,
    explore: bool = False,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Run a trained policy, by its mean action, and report its returns.

    Args:
        run: A run directory, or one of its checkpoints.
        trajectories: How many, each from a start state of its own.
        max_steps: Where a trajectory stops if the agent has not fallen.
        seed: Of the start states.
        cost: A cost to report beside those the run was trained with: `speed`, or any key of info; repeatable.
        video: Film the first trajectory, by the mean action, into this mp4 file, too.
        video_steps: Longest film, in steps.
        best: Take the policy of the best evaluation instead of the newest.
        explore: Let it act as in training, with exploration, instead of by its mean action.
        json: Print the record as JSON instead of a table.
    """
    if trajectories < 1 or max_steps < 1:
        raise UserError("--trajectories and --max-steps must be at least 1.")
    policy = load_policy(run, best=best)
    config = Run.open(run if (run / "config.json").exists() else run.parent.parent).config
    if not config["env_is_id"]:
        raise UserError(f"The run was trained on the function {config['env']}: evaluate it with kemeny.evaluate(…).")
    costs = (*config["settings"]["cost"], *cost)
    protocol = Protocol(trajectories, max_steps)
    result = evaluate(policy, config["env"], protocol, seed=evaluation_seed(seed, 0), costs=costs, explore=explore)
    if video is not None:
        from kemeny.video import record as film

        steps = film(policy, config["env"], video, max_steps=video_steps, seed=evaluation_seed(seed, 0))
        print(f"Filmed {steps:,} steps: {video}", file=sys.stderr)
    record = result.record()
    if json:
        print(json_format.dumps(record))
        return
    manner = "with exploration" if explore else "mean action"
    table = rich.table.Table(title=f"{config['env']}, {trajectories} trajectories, {manner}", title_justify="left")
    for heading in ("", "mean", "std", "min", "median", "max"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    rows = {f"return, ≤ {horizon:,} steps": values for horizon, values in result.returns.items()}
    rows["length"] = result.lengths
    rows |= {f"{name} per step": result.average_costs[:, i] for i, name in enumerate(costs)}
    for name, values in rows.items():
        numbers = (values.mean(), values.std(), values.min(), np.median(values), values.max())
        table.add_row(name, *(f"{number:,.3f}" if "per step" in name else f"{number:,.1f}" for number in numbers))
    rich.console.Console().print(table)


@app.command
def plot(
    runs: Annotated[Positional[list[Path]], arg(metavar="DIR…")],
    output: Annotated[Path, arg(aliases=["-o"])] = Path("curve.png"),
) -> None:
    """Draw learning curves; runs that differ only in their seed share a colour: each seed, their mean, a band.

    Args:
        runs: Run directories.
        output: The picture to write; its ending chooses the format (png, pdf, svg).
    """
    from kemeny.experiments.plots import learning_curves

    if not runs:
        raise UserError("Name at least one run directory.")
    learning_curves(runs, output)
    print(f"Wrote {output}.")


def main() -> None:
    """`kemeny …`"""
    try:
        app.cli(prog="kemeny", description=DESCRIPTION, config=TYRO)
    except (UserError, RunError) as problem:
        print(f"kemeny: {problem}", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED if isinstance(problem, Interrupted) else EXIT_MISTAKE)
    except KeyboardInterrupt:
        print("kemeny: stopped at once; the last checkpoint is intact.", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
