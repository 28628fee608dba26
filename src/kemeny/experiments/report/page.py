"""Writing the page: one file with its data, style and script inside. It loads nothing, and runs nothing else."""

import base64
import hashlib
import html
import importlib.resources
import json
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kemeny import __version__
from kemeny.errors import UserError
from kemeny.experiments.curves import RunLike, open_runs
from kemeny.experiments.report.contents import choose, contents
from kemeny.experiments.report.strip import film_strip
from kemeny.runs.directory import Run
from kemeny.runs.disk import refuse_unwritable

MOST_TASKS_IN_TITLE = 4


def report(
    runs: RunLike | Sequence[RunLike],
    output: str | Path = "report.html",
    *,
    films: bool = True,
    trust: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write one page about runs, for a browser; it needs no network. The path of the page.

        kemeny.report("runs/sweep", "report.html")

    Args:
        runs: Run directories, directories of sweeps, or `kemeny.Run`s. Runs without an evaluation are named only.
        output: The page to write.
        films: Film each run. Where pictures cannot be made, the page says why.
        trust: Run the code that the environment of a run needs for its film, though you have not trained on it here.
        progress: Called with a sentence before each film, which takes some seconds.
    """
    output = Path(output)
    shown = choose(open_runs(runs))
    refuse_unwritable(output)
    strips = {}
    for number, run in enumerate(shown.runs if films else [], 1):
        progress(f"Filming run {number} of {len(shown.runs)}: {run.path}")
        strips[run] = film_strip(run, trust=trust)
    page = render(_title(shown.runs), contents(shown, strips))
    try:
        output.write_bytes(page)
    except OSError as error:
        raise UserError(f"The page {output} cannot be written: {error.strerror}.") from error
    return output


def render(title: str, data: dict[str, Any]) -> bytes:
    """The page. Nothing in the title or the data becomes markup, and the browser is told to run this script alone."""
    files = importlib.resources.files("kemeny.experiments.report")
    template, style, script = ((files / f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    policy = (
        f"default-src 'none'; img-src data:; style-src {_checksum(style)}; script-src {_checksum(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    filled = string.Template(template).substitute(
        title=html.escape(title),
        version=html.escape(__version__),
        policy=policy,
        style=style,
        script=script,
        data=_inside_html(data),
    )
    return filled.encode(errors="replace")


def _inside_html(data: dict[str, Any]) -> str:
    """JSON that means the same to `JSON.parse` and nothing to a parser of HTML: it has no <, > or &."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _title(runs: Sequence[Run]) -> str:
    tasks = sorted({run.env for run in runs})
    named = ", ".join(tasks) if len(tasks) <= MOST_TASKS_IN_TITLE else f"{len(tasks)} tasks"
    return f"{named}: {len(runs)} run{'s' if len(runs) > 1 else ''}"
