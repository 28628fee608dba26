"""`kemeny plot`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kemeny.errors import UserError


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
