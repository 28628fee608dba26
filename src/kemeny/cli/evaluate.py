"""`kemeny evaluate`."""

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

from kemeny.errors import UserError

if TYPE_CHECKING:
    from kemeny.experience.evaluation import Evaluation


def evaluate(
    run: Annotated[Positional[Path], arg(metavar="DIR")],
    trajectories: int = 10,
    max_steps: int = 10_000,
    seed: int = 0,
    cost: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    video: Path | None = None,
    video_steps: int = 1_000,
    best: bool = False,
    explore: bool = False,
    json: bool = False,
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
    from kemeny.cli.ending import EXPLORING, MEAN_ACTION, limits_kept
    from kemeny.experience.evaluate import evaluate as run_protocol
    from kemeny.experience.evaluate import evaluation_seed
    from kemeny.experience.settings import EvaluationProtocol
    from kemeny.runs.directory import Run
    from kemeny.runs.load import load_policy

    policy = load_policy(run, best=best)
    config = Run.open(run if (run / "config.json").exists() else run.parent.parent).config
    env = config["env"]
    if not config["env_is_id"]:
        raise UserError(f"The run was trained on the function {env}: evaluate it with kemeny.evaluate(…).")
    costs = (*config["settings"]["cost"], *cost)
    protocol = EvaluationProtocol(trajectories, max_steps)
    result = run_protocol(policy, env, protocol, seed=evaluation_seed(seed, 0), costs=costs, explore=explore)
    if json:
        print(json_format.dumps(result.record()))
    else:
        manner = EXPLORING if explore else MEAN_ACTION
        noun = "trajectory" if trajectories == 1 else "trajectories"
        _print(result, f"{env}, {trajectories} {noun}, {manner}", costs)
        for line in limits_kept(config, result.average_costs, manner):
            print(line)
    if video is not None:  # last, so that what cannot be filmed has been evaluated
        from kemeny.experience.film import record as film

        steps = film(policy, env, video, max_steps=video_steps, seed=evaluation_seed(seed, 0))
        print(f"Filmed {steps:,} steps: {video}", file=sys.stderr)


def _print(result: "Evaluation", title: str, costs: tuple[str, ...]) -> None:
    import numpy as np
    import rich.console
    import rich.table

    table = rich.table.Table(title=title, title_justify="left")
    for heading in ("", "mean", "std", "min", "median", "max"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    rows = {f"return, ≤ {horizon:,} steps": values for horizon, values in result.returns.items()}
    rows["length"] = result.lengths
    rows |= {f"{name} per step": result.average_costs[:, i] for i, name in enumerate(costs)}
    for name, values in rows.items():
        numbers = (values.mean(), values.std(), values.min(), np.median(values), values.max())
        table.add_row(name, *(f"{number:,.3f}" if "per step" in name else f"{number:,.1f}" for number in numbers))
    rich.console.Console().print(table)
