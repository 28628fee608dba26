"""`kemeny resume`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


def resume(run: Annotated[Positional[Path], arg(metavar="DIR")], inexact: bool = False) -> None:
    """Go on with a stopped or killed run, exactly where its last checkpoint left it.

    Args:
        run: A run directory.
        inexact: Where an environment cannot be brought back to where it was, go on from a start state.
    """
    from kemeny.cli.ending import say_finished
    from kemeny.runs.progress import Terminal
    from kemeny.runs.train import resume as resume_run

    say_finished(resume_run(run, inexact=inexact, observers=[Terminal()]))
