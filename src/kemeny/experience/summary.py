"""An evaluation as tables for people to read."""

import io
import math

import numpy as np
import rich.console
import rich.table
from rich.text import Text

from kemeny.experience.cycles import Regenerative
from kemeny.experience.estimate import CONFIDENCE, Estimate
from kemeny.experience.evaluation import Evaluation
from kemeny.experience.long_run import LongRun

MOST_DECIMALS = 12
WIDTH = 110
"""Characters of a line where there is no terminal."""


def show(evaluation: Evaluation, console: rich.console.Console) -> None:
    """Print the tables, and a sentence for each thing that a reader must know."""
    console.print(_returns(evaluation))
    found = evaluation.long_run
    if found is not None:
        title = (
            f"Long run: {_trajectories(len(evaluation.lengths))} of {_steps(max(evaluation.returns))}, going on "
            f"after a fall; the first {_some(found.warm_up, 'step is', 'steps are')} left out"
        )
        console.print(title, style="italic", soft_wrap=True, highlight=False)
        console.print(_averages(found, evaluation))
    for sentence in _sentences(evaluation):
        console.print(sentence, soft_wrap=True, highlight=False, markup=False)


def text(evaluation: Evaluation) -> str:
    """What `show` prints."""
    console = rich.console.Console(file=io.StringIO(), width=WIDTH, color_system=None)
    show(evaluation, console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _returns(evaluation: Evaluation) -> rich.table.Table:
    # names are `Text`, for in a plain string Rich takes `[s]` as markup
    title = Text(evaluation.about, style="table.title") if evaluation.about else None
    table = rich.table.Table(title=title, title_justify="left")
    for heading in ("", "mean", "std", "min", "median", "max"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    rows = [(f"return, ≤ {_steps(horizon)}", values) for horizon, values in evaluation.returns.items()]
    rows.append(("length", evaluation.lengths))
    rows += [(f"{name} per step", evaluation.average_costs[:, i]) for i, name in enumerate(evaluation.cost_names)]
    for name, values in rows:
        if values.size:
            numbers = (values.mean(), values.std(), values.min(), np.median(values), values.max())
            table.add_row(
                Text(name), *(f"{number:,.3f}" if "per step" in name else f"{number:,.1f}" for number in numbers)
            )
    return table


def _averages(found: LongRun, evaluation: Evaluation) -> rich.table.Table:
    table = rich.table.Table()
    for heading in ("", "average", f"{CONFIDENCE:.0%} interval"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    table.add_row("reward per step", *_told(found.reward))
    if found.falls:
        table.add_row(f"reward per step, less {found.reset_cost:g} per fall", *_told(found.charged))
    table.add_row("falls per million steps", *_told(found.falls_per_million))
    for name, cost in zip(evaluation.cost_names, found.costs, strict=True):
        table.add_row(Text(f"{name} per step"), *_told(cost))
    if (cycles := found.regenerative) is not None and cycles.reward is not None:
        table.add_row("reward per step, from whole cycles", *_told(cycles.reward))
        for name, cost in zip(evaluation.cost_names, cycles.costs, strict=True):
            table.add_row(Text(f"{name} per step, from whole cycles"), *_told(cost))
    return table


def _sentences(evaluation: Evaluation) -> list[str]:
    found, longest = evaluation.long_run, max(evaluation.returns)
    reached = int((evaluation.lengths >= longest).sum())
    told = []
    if evaluation.lengths.size:
        told.append(f"{reached} of {_trajectories(len(evaluation.lengths))} reached {_steps(longest)} without a fall.")
    if found is not None:
        told += _warnings(found)
    elif evaluation.falls is not None:
        often, interval = _told(evaluation.falls.per_million)
        told.append(f"Falls per million steps, of each trajectory until its first: {often} ({interval}).")
    return told + [str(verdict) for verdict in evaluation.limits]


def _warnings(found: LongRun) -> list[str]:
    told = []
    if not found.settled:
        told.append("The rewards or costs had not settled after half of the steps: ask for more steps (--max-steps).")
    if found.reward.spread == "trajectories":
        told.append("The trajectories differ more than their batches explain: the interval is from their spread.")
    if found.block > 1:
        told.append(f"Of so many steps only the means of blocks of {found.block} were kept: all is in whole blocks.")
    if found.regenerative is not None:
        told.append(_cycles(found.regenerative))
    if found.goals:
        told.append(f"{_some(found.goals, 'end was a goal', 'ends were goals')}, which cost nothing.")
    if found.cuts:
        times = _some(found.cuts, "time", "times")
        told.append(f"{times} the environment cut a trajectory itself, or failed: it was restarted.")
    return told


def _cycles(found: Regenerative) -> str:
    if found.left_out:
        return f"There is no estimate from whole cycles, for {found.left_out}."
    return (
        f"{found.cycles:,} whole cycles from one visit to the regeneration state to the next, of "
        f"{found.length:,.4g} steps on average."
    )


def _trajectories(number: int) -> str:
    return _some(number, "trajectory", "trajectories")


def _steps(number: int) -> str:
    return _some(number, "step", "steps")


def _some(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _told(estimate: Estimate) -> tuple[str, str]:
    """Average and interval, with as many digits as the interval makes sense of."""
    width = estimate.half_width
    if math.isnan(width):
        return f"{estimate.average:,.4g}", "too few steps"
    scale = width or abs(estimate.average) / 1_000
    decimals = 0 if scale == 0 else min(max(1 - math.floor(math.log10(scale)), 0), MOST_DECIMALS)
    average, low, high = (f"{number:,.{decimals}f}" for number in estimate[:3])
    return average, f"{low} to {high}"
