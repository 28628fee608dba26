"""`kemeny plot`."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


def plot(
    runs: Annotated[Positional[list[Path]], arg(metavar="DIR…")],
    output: Annotated[Path, arg(aliases=["-o"])] = Path("curve.png"),
    kind: Literal["curves", "profile", "speed"] = "curves",
    band: Literal["iqm", "deviation"] = "iqm",
    against: Literal["steps", "time"] = "steps",
    rows: tuple[Literal["return", "rate", "cost"], ...] = (),
) -> None:
    """Draw runs; those that differ only in their seed share a colour: each seed, their middle, a band.

    Args:
        runs: Run directories, or directories that hold runs, such as a sweep's.
        output: The picture to write; its ending chooses the format (png, pdf, svg).
        kind: Learning curves; performance profiles (which share of the runs has at least which return at the end); or
            the forward speed over one trajectory of each run, which is run anew.
        band: Of learning curves: the interquartile mean with its bootstrap interval, or the mean with one standard
            deviation.
        against: Of learning curves: draw over steps, or over the time of training.
        rows: Of learning curves: which quantities [all].
    """
    from kemeny.experiments.plots import plot as draw

    draw(runs, output, kind=kind, band=band, against=against, rows=rows)
    print(f"Wrote {output}.")
