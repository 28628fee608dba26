"""`kemeny reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from kemeny.experiments.paper.reproduce import Reproduction


def reproduce(
    figures: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME…]")] = (),
    scale: Literal["smoke", "small", "paper"] = "smoke",
    out: Path | None = None,
    pictures: Path | None = None,
    formats: tuple[Literal["png", "svg", "pdf"], ...] = ("png",),
    jobs: int | None = None,
    draw_only: bool = False,
    list: bool = False,
) -> None:
    """Reproduce figures and tables of the paper: run what is missing, then draw, beside the paper's numbers.

    Without a NAME, the figures and tables are listed, with how far their runs are. The runs are those of one sweep,
    which all figures share. The same command again goes on.

    Args:
        figures: Names of figures and tables, or all.
        scale: smoke: minutes, to see that all works; small: a night or two on two cores; paper: 10M steps and 10 seeds.
        out: The directory of the runs [runs/paper-SCALE].
        pictures: Where pictures and tables are written [figures inside the directory of the runs].
        formats: Of the pictures.
        jobs: Runs side by side [one per core that this process may use].
        draw_only: Run nothing: draw from the runs that there are, and say which are missing.
        list: Print the state of every run that the figures need, and do nothing.
    """
    from kemeny.experiments.board import board
    from kemeny.experiments.paper.figures import chosen
    from kemeny.experiments.paper.reproduce import Reproduction

    reproduction, wanted = Reproduction(scale, out), chosen(figures)
    if not wanted:
        _print_figures(reproduction)
        return
    if list:
        from kemeny.cli.sweep import print_list

        print_list(reproduction.sweep(wanted))
        return
    if not draw_only:
        reproduction.run(wanted, jobs, board())
    folder = reproduction.out / "figures" if pictures is None else pictures
    for figure in wanted:
        drawn = reproduction.draw(figure, folder, formats)
        print(drawn.text)
        for path in (*drawn.pictures, folder / f"{figure.name}.md"):
            print(f"Wrote {path}.")
        print()


def _print_figures(reproduction: "Reproduction") -> None:
    from kemeny.experiments.paper.figures import FIGURES
    from kemeny.runs.glance import State

    width, looked = max(map(len, FIGURES)), reproduction.sweep([*FIGURES.values()]).look()
    for name, figure in FIGURES.items():
        arms = figure.arms([run.arm for run, _ in looked])
        seen = [about.state for run, about in looked if run.arm in arms]
        print(f"{name:<{width}}  {figure.title} ({seen.count(State.FINISHED)} of {len(seen)} runs finished)")
    print(f"The runs are in {reproduction.out}. kemeny reproduce all runs what is missing and draws everything.")
