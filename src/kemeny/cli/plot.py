"""`kemeny plot`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


def plot(
    runs: Annotated[Positional[list[Path]], arg(metavar="DIR…")],
    output: Annotated[Path, arg(aliases=["-o"])] = Path("curve.png"),
) -> None:
    """Draw learning curves; runs that differ only in their seed share a colour: each seed, their mean, a band.

    Args:
        runs: Run directories.
        output: The picture to write; its ending chooses the format (png, pdf, svg).
    """
    from kemeny.experiments.plots import plot as draw

    draw(runs, output)
    print(f"Wrote {output}.")
