"""`kemeny compare`."""

import json as json_format
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kemeny.errors import UserError


def compare(
    runs: Annotated[Positional[list[Path]], arg(metavar="DIR…")],
    json: bool = False,
    markdown: bool = False,
) -> None:
    """Compare the last evaluations of runs: settings that differ × tasks, with intervals over seeds.

    Each cell is the interquartile mean over the seeds, with a bootstrap interval. A second table has how often a run of
    one setting is better than a run of another. Sentences say what is not certain.

    Args:
        runs: Run directories, or directories that hold runs, such as a sweep's.
        json: Print one record as JSON instead of tables.
        markdown: Print the tables as Markdown.
    """
    from kemeny.experiments.comparison import compare as compare_runs

    if json and markdown:
        raise UserError("Choose one of --json and --markdown.")
    found = compare_runs(runs)
    if json:
        print(json_format.dumps(found.record()))
    elif markdown:
        print(found.markdown(), end="")
    else:
        import rich.console

        from kemeny.experiments.comparison_text import show

        show(found, rich.console.Console())
