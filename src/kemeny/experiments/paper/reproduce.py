"""Run what a figure of the paper still needs, then draw it, with its numbers beside the paper's."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from kemeny.errors import UserError
from kemeny.experiments.board import Board
from kemeny.experiments.comparison import compare
from kemeny.experiments.drawing import in_style, write
from kemeny.experiments.grid import Planned
from kemeny.experiments.grid_file import read_grid
from kemeny.experiments.paper.figures import PaperFigure
from kemeny.experiments.paper.numbers import beside_the_paper, last_return
from kemeny.experiments.plots import Manner, learning_curves
from kemeny.experiments.speeds import draw_speeds, speed_of
from kemeny.experiments.sweep import Sweep
from kemeny.runs.directory import Run
from kemeny.runs.glance import Glance, State

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["smoke", "small", "paper"]
MOST_NAMES = 8
"""Of missing runs that a sentence names."""


class Drawn(NamedTuple):
    """What was made of a figure."""

    text: str
    """Its title, what the paper says, and the numbers, as Markdown."""
    pictures: tuple[Path, ...]


class Reproduction:
    """The figures at one scale, and the sweep from which they are drawn."""

    def __init__(self, scale: Scale, out: str | Path | None = None) -> None:
        """`out` is the directory of the sweep [runs/paper-SCALE]."""
        self.file = read_grid(Path(__file__).with_name(f"{scale}.toml"))
        self.out = self.file.out if out is None else Path(out)

    def sweep(self, figures: Sequence[PaperFigure]) -> Sweep:
        """The runs that these figures need."""
        there = list(self.file.arms)
        arms = list(dict.fromkeys(arm for figure in figures for arm in figure.arms(there)))
        return Sweep(self.file.grid, self.out, arms)

    def run(self, figures: Sequence[PaperFigure], jobs: int | None, show: Board) -> None:
        """Train what is missing."""
        self.sweep(figures).train(jobs, show)

    def draw(self, figure: PaperFigure, folder: Path, formats: Sequence[str] = ("png",)) -> Drawn:
        """Draw a figure from the runs that there are, and write its numbers beside the picture."""
        looked = self.sweep([figure]).look()
        runs: dict[str, list[Run]] = {}
        for planned, seen in looked:
            if seen.state not in (State.MISSING, State.UNREADABLE):
                run = Run(self.out / planned.name)
                runs.setdefault(planned.arm, []).extend([run] if run.evaluations else [])
        drawn = draw(figure, runs, folder, missing=missing(looked), formats=formats)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{figure.name}.md").write_text(drawn.text)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error.strerror}.") from error
        return drawn


def missing(looked: Sequence[tuple[Planned, Glance]]) -> str:
    """A sentence about the runs that are not finished; empty if there are none."""
    behind = [(planned.name, seen) for planned, seen in looked if seen.state != State.FINISHED]
    if not behind:
        return ""
    words = [
        f"{name} ({f'{seen.steps:,} of {seen.total:,} steps' if seen.steps else seen.state})"
        for name, seen in behind[:MOST_NAMES]
    ]
    more = f" and {len(behind) - MOST_NAMES} more" if len(behind) > MOST_NAMES else ""
    return f"{len(behind)} of its {len(looked)} runs are not finished: {', '.join(words)}{more}."


def draw(
    figure: PaperFigure,
    runs: Mapping[str, Sequence[Run]],
    folder: Path,
    *,
    missing: str = "",
    formats: Sequence[str] = ("png",),
    speed: Callable[[Run], np.ndarray] = speed_of,
    brief: bool = False,
) -> Drawn:
    """Draw a figure from these runs, by their arm.

    `missing` is a sentence about runs that are not there, `speed` gives that of a run's trajectory, for Figure 2, and
    `brief` leaves out of the text which setting is better than which.
    """
    there = {arm: list(runs[arm]) for arm in figure.arms([arm for arm, found in runs.items() if found])}
    parts = [f"## {figure.title}", "The paper: " + " ".join(figure.paper)]
    if not there:
        parts.append(f"Not drawn: what it is about has not been run yet. {missing}".strip())
        return Drawn(_joined(parts), ())
    picture, remark = _picture(figure, there, speed)
    pictures = ()
    if picture is not None:
        pictures = tuple(folder / f"{figure.name}.{ending}" for ending in formats)
        for path in pictures:
            write(picture, path)
    every = [run for found in there.values() for run in found]
    parts += [remark, beside_the_paper(figure, there)]
    if figure.kind == "curves":
        parts.append(compare(every).only(figure.longest, brief).markdown().strip())
    parts.append(missing)
    return Drawn(_joined(parts), pictures)


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _picture(
    figure: PaperFigure, runs: Mapping[str, Sequence[Run]], speed: Callable[[Run], np.ndarray]
) -> tuple["Figure | None", str]:
    """The picture, and what must be said about it."""
    every = [run for found in runs.values() for run in found]
    match figure.kind:
        case "lengths":
            return None, ""
        case "speed":
            shown = _same_seed(runs)
            with in_style():
                return draw_speeds({title: speed(run) for title, run in shown.items()}), (
                    "The seed is the one whose TRPO run has the highest return at 10,000 steps, as in the paper."
                )
    with in_style():
        manner = Manner("deviation", rows=figure.rows, longest=figure.longest)
        return learning_curves(every, manner), "Lines are means over seeds, bands one standard deviation."


def _same_seed(runs: Mapping[str, Sequence[Run]]) -> dict[str, Run]:
    """A run of each arm, all of the seed that is best for TRPO."""
    discounted = next((found for arm, found in runs.items() if "-trpo" in arm), None)
    first = next(iter(runs.values()))
    best = max(discounted or first, key=lambda run: np.nan_to_num(last_return(run, 10_000), nan=-np.inf))
    shown = {}
    for arm, found in runs.items():
        run = next((one for one in found if one.settings["seed"] == best.settings["seed"]), None)
        if run is not None:
            name = "TRPO γ = {:g}".format(run.settings["gamma"]) if "-trpo" in arm else "ATRPO"
            shown[f"{run.env}, {name}, seed {run.settings['seed']}, after {run.evaluations[-1]['steps']:,} steps"] = run
    return shown
