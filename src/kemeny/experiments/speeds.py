"""The speed of a body over one long trajectory, step by step (Figure 2)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kemeny.errors import UserError
from kemeny.experiments.curves import group_runs
from kemeny.experiments.drawing import COLORS, empty_figure
from kemeny.runs.directory import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEED = "x_velocity"
"""The entry of `info` that is the forward speed."""
LONGEST = 10_000
TOGETHER = 100
"""Steps over which the bold line is averaged."""
MOST_RUNS = 12
"""In one picture, each with a panel of its own."""


def speed_of(run: Run, *, seed: int = 0, max_steps: int = LONGEST) -> np.ndarray:
    """The forward speed at each step of one trajectory by the mean action, until a fall or `max_steps`.

    The same seed gives the same start state to every run on an environment.
    """
    from kemeny.runs.evaluation import evaluate

    try:
        found = evaluate(
            run, trajectories=1, max_steps=max_steps, seed=seed, costs=(SPEED,), returns_only=True, keep_trajectory=True
        )
    except UserError as error:
        if f"no cost {SPEED!r}" in str(error):
            raise UserError(f"{run.env} has no forward speed: its info has no {SPEED}.") from error
        raise
    assert found.trajectory is not None
    return found.trajectory.costs[:, -1]


def speeds_of_runs(runs: Sequence[Run]) -> "Figure":
    """A panel per run, each with a trajectory from the same start state."""
    if len(runs) > MOST_RUNS:
        raise UserError(f"There are {len(runs)} runs; name at most {MOST_RUNS}, of which each has a panel of its own.")
    titles = {}
    for curve in group_runs(runs):
        for run in curve.runs:
            titles[run] = f"{curve.env}, {curve.name}, seed {run.settings['seed']}"
    return draw_speeds({titles[run]: speed_of(run) for run in runs})


def draw_speeds(speeds: Mapping[str, np.ndarray], longest: int = LONGEST) -> "Figure":
    """Speeds of trajectories by their titles, in panels with the same axes: each step, and the average of a hundred."""
    figure = empty_figure(7.5, 0.5 + 1.9 * len(speeds))
    axes = figure.subplots(len(speeds), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for number, (axis, (title, speed)) in enumerate(zip(axes, speeds.items(), strict=True)):
        _draw(axis, speed, COLORS[number % len(COLORS)], longest)
        axis.set_title(_with_end(title, speed, longest), fontsize="medium", loc="left")
        axis.set_ylabel("forward speed")
    axes[-1].set_xlabel("step of the trajectory")
    axes[-1].set_xlim(
        0, min(longest, 1.05 * max(map(len, speeds.values())))
    )  # where all fall early, only the beginning
    return figure


def _draw(axis: Any, speed: np.ndarray, color: str, longest: int) -> None:
    steps = np.arange(1, len(speed) + 1)
    axis.plot(steps, speed, color=color, lw=0.3, alpha=0.45)
    if len(speed) >= TOGETHER:
        smooth = np.convolve(speed, np.full(TOGETHER, 1 / TOGETHER), "valid")
        axis.plot(steps[TOGETHER - 1 :], smooth, color=color, lw=1.6)
    if len(speed) < longest:
        axis.axvline(len(speed), color="0.3", lw=1.0, ls="--")


def _with_end(title: str, speed: np.ndarray, longest: int) -> str:
    ended = "goes on to the end" if len(speed) >= longest else f"falls after {len(speed):,} steps"
    return f"{title}: {ended}, {speed.mean():.2f} on average"
