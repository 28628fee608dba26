"""`kemeny report`."""

import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


def report(
    runs: Annotated[Positional[list[Path]], arg(metavar="DIR…")],
    output: Annotated[Path, arg(aliases=["-o"])] = Path("report.html"),
    no_films: bool = False,
    trust: bool = False,
) -> None:
    """Write one page about runs, for a browser: a summary, curves, trajectory lengths, limits, settings, films.

    Args:
        runs: Run directories, or directories of sweeps.
        output: The page to write. It needs no network and no other file.
        no_films: Make no film strips, which take some seconds per run.
        trust: Run the code that the environment of a run needs for its film, though you have not trained on it here.
    """
    from kemeny.experiments.report.page import report as write

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    written = write(runs, output, films=not no_films, trust=trust, progress=say)
    print(f"Wrote {written}.")
