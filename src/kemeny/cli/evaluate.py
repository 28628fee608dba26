"""`kemeny evaluate`."""

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

from kemeny.cli.parsing import chosen_manner
from kemeny.errors import UserError
from kemeny.runs.disk import refuse_unwritable

if TYPE_CHECKING:
    from kemeny.envs.names import Environment
    from kemeny.experience.rules import Rule


def evaluate(
    run: Annotated[Positional[Path | None], arg(metavar="[DIR]")] = None,
    env: str | None = None,
    env_kwargs: Annotated[str | None, arg(metavar="JSON")] = None,
    rule: str | None = None,
    trajectories: int = 10,
    max_steps: int = 10_000,
    seed: int = 0,
    cost: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    returns_only: bool = False,
    warm_up: int | None = None,
    precision: float | None = None,
    trajectory: Path | None = None,
    plot: Path | None = None,
    video: Path | None = None,
    video_steps: int = 1_000,
    best: bool = False,
    explore: bool = False,
    mean: bool = False,
    trust: bool = False,
    json: bool = False,
) -> None:
    """Run a trained policy, as it is deployed, or a rule, and report its returns and its long-run averages.

    Args:
        run: A run directory, or one of its checkpoints.
        env: Without DIR, the environment on which to run a rule: an id, module:function or file.py:function.
        env_kwargs: Arguments with which that environment is made, as JSON.
        rule: The rule: module:name or file.py:name of a function from an observation to an action. A function or class
            with a parameter `network` or `process` makes the rule for the environment's process: kemeny.tasks:LBFS.
        trajectories: How many, each from a start state of its own.
        max_steps: Steps of each trajectory. Returns are until a fall; for the long run it goes on, by a restart.
        seed: Of the start states.
        cost: A cost to report beside those the run was trained with: `fall`, `speed`, `jerk`, or any key of info;
            repeatable.
        returns_only: Stop each trajectory at a fall, and estimate no long run.
        warm_up: Steps of each trajectory that the long run leaves out [chosen by MSER-5].
        precision: Stop before --max-steps as soon as the interval of the long-run reward is so narrow, relative to the
            average: 0.01 is ±1 %.
        trajectory: Write the first trajectory, step by step, into this csv file, too.
        plot: Draw the first trajectory into this picture, too; its ending chooses the format (png, pdf, svg).
        video: Film the first trajectory, of the policy as it is deployed, into this mp4 file, too.
        video_steps: Longest film, in steps.
        best: Take the policy of the best evaluation instead of the newest.
        explore: Let it act as in training, with exploration [as the run's --deploy says].
        mean: Let it act by its mean (or likeliest) action [as the run's --deploy says].
        trust: Run the code that the run's environment needs, though you have not trained on it here before.
        json: Print the record as JSON instead of tables.
    """
    if trajectories < 1 or max_steps < 1:
        raise UserError("--trajectories and --max-steps must be at least 1.")
    _refuse_mixed(run, env, env_kwargs, rule)
    if rule is not None:
        manners = {"--explore": explore, "--mean": mean}
        _refuse_for_rules({"--best": best, **manners, "--trust": trust, "--video": video is not None})
    manner = chosen_manner(explore, mean)
    from kemeny.experience.picture import draw, refuse_unknown_ending
    from kemeny.runs.evaluation import evaluate as evaluate_run

    if trajectory is not None and trajectory.suffix != ".csv":
        raise UserError(f"A trajectory is written as csv: {trajectory} must end in .csv. (How many: --trajectories.)")
    if plot is not None:
        refuse_unknown_ending(plot)
    for path in (trajectory, plot, video):
        if path is not None:
            refuse_unwritable(path)
    subject, environment = (run, None) if run is not None else _named(rule, env, env_kwargs)
    result = evaluate_run(
        subject,
        environment,
        trajectories=trajectories,
        max_steps=max_steps,
        seed=seed,
        costs=cost,
        returns_only=returns_only,
        warm_up=warm_up,
        precision=precision,
        best=best,
        explore=manner,
        trust=trust,
        keep_trajectory=trajectory is not None or plot is not None,
    )
    if json:
        print(json_format.dumps(result.full_record()))
    else:
        import rich.console

        from kemeny.experience.summary import show

        show(result, rich.console.Console())
    steps = result.trajectory
    if trajectory is not None and steps is not None:
        steps.write(trajectory)
        print(f"Wrote {len(steps):,} steps: {trajectory}", file=sys.stderr)
    if plot is not None and steps is not None:
        limits = {verdict.cost: verdict.limit / verdict.slope for verdict in result.limits}
        draw(steps, plot, title=result.about, limits=limits)
        print(f"Drew {len(steps):,} steps: {plot}", file=sys.stderr)
    if video is not None and run is not None:  # last, so that what cannot be filmed has been evaluated
        _film(run, best, trust, video, video_steps, seed)


def _refuse_mixed(run: Path | None, env: str | None, env_kwargs: str | None, rule: str | None) -> None:
    """Refuse what is neither a run alone nor a rule and its environment."""
    if run is not None and (rule is not None or env is not None or env_kwargs is not None):
        given = "--rule" if rule is not None else "--env" if env is not None else "--env-kwargs"
        raise UserError(
            f"Evaluate a run or a rule: {run} is a run, which has its own policy and environment, so leave "
            f"out {given}; or leave out {run}."
        )
    if run is None and rule is None:
        what = "--env says where, but not what is evaluated" if env is not None else "There is nothing to evaluate"
        raise UserError(f"{what}: name a run directory alone, or --env ENV with --rule MODULE:NAME.")
    if rule is not None and env is None:
        raise UserError(f"Say on which environment the rule {rule} is evaluated: add --env ENV.")


def _refuse_for_rules(flags: dict[str, bool]) -> None:
    given = [flag for flag, is_given in flags.items() if is_given]
    if given:
        raise UserError(f"{given[0]} is for runs, not for a rule: leave it out.")


def _named(rule: str | None, env: str | None, env_kwargs: str | None) -> "tuple[Rule, Environment]":
    """The rule and its environment."""
    from kemeny.envs.names import as_environment, read_kwargs
    from kemeny.experience.rule_names import rule_named

    assert rule is not None
    assert env is not None
    environment = as_environment(env, None if env_kwargs is None else read_kwargs(env_kwargs))
    return rule_named(rule, environment), environment


def _film(run: Path, best: bool, trust: bool, video: Path, steps: int, seed: int) -> None:
    from kemeny.experience.evaluate import evaluation_seed
    from kemeny.experience.film import record
    from kemeny.runs.directory import run_of
    from kemeny.runs.environment import environment_of
    from kemeny.runs.load import load_policy

    env = environment_of(run_of(run), trust=trust)
    filmed = record(load_policy(run, best=best), env, video, max_steps=steps, seed=evaluation_seed(seed, 0))
    print(f"Filmed {filmed:,} steps: {video}", file=sys.stderr)
