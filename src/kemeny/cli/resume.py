"""`kemeny resume`."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kemeny.cluster import Backend


def resume(
    run: Annotated[Positional[Path], arg(metavar="DIR")],
    steps: int | None = None,
    inexact: bool = False,
    trust: bool = False,
    backend: Backend = "local",
    ray_address: str | None = None,
) -> None:
    """Go on with a stopped or killed run, exactly where its last checkpoint left it; or extend a run.

    Args:
        run: A run directory.
        steps: From here on the run has so many steps in all, also if it was finished. The critics' step size is then
            annealed to 0 at the new end: it jumps up once.
        inexact: Where an environment cannot be brought back to where it was, go on from a start state.
        trust: Run the code that the run's environment needs, though you have not trained on it here before.
        backend: Where the run's collectors are from now on: in processes of this machine, or on a Ray cluster.
        ray_address: Of the cluster, as for train.
    """
    from kemeny.cli.ending import say_finished
    from kemeny.runs.progress import Terminal
    from kemeny.runs.train import resume as resume_run

    place = {"backend": backend, "ray_address": ray_address}
    say_finished(resume_run(run, steps=steps, inexact=inexact, trust=trust, observers=[Terminal()], **place))
