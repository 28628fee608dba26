"""Keep the runs of the paper's figures in one file, and make the tables and pictures of docs/reproduction.md from them.

    kemeny reproduce all --scale small                  # run what is missing, and draw it from the runs themselves
    python benchmarks/reproduction.py keep DIR          # keep what is finished in the directory of these runs
    python benchmarks/reproduction.py page              # write the tables and pictures of docs/reproduction.md
    python benchmarks/reproduction.py unpack FOLDER     # kept runs as run directories, for `kemeny plot` and `compare`

`benchmarks/results/reproduction.jsonl` has one line per run, sorted by name:

    name           ARM-SEED
    config         config.json
    evaluations    the lines of evaluations.jsonl, rounded to two digits
    speed          (Humanoid, where Figure 2 needs it) the forward speed at each step of one trajectory, rounded
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import kemeny
import kept
from kemeny.experiments.grid import Planned
from kemeny.experiments.paper.figures import FIGURES, PaperFigure
from kemeny.experiments.paper.reproduce import Reproduction, draw
from kemeny.experiments.speeds import speed_of
from kemeny.runs.glance import State

ROOT = Path(__file__).parents[1]
SMALL = Reproduction("small")
EVERY = list(FIGURES.values())
KEPT = ROOT / "benchmarks" / "results" / "reproduction.jsonl"
PAGE = ROOT / "docs" / "reproduction.md"
DRAWN = ROOT / "docs" / "pictures" / "reproduction"
WITH_SPEED = FIGURES["figure-2"].arms(list(SMALL.file.arms))
app = tyro.extras.SubcommandApp()


def kept_runs() -> dict[str, dict[str, Any]]:
    """The lines of reproduction.jsonl by the name of the run."""
    return kept.read(KEPT)


def store(lines: list[dict[str, Any]]) -> None:
    """Add lines of runs to reproduction.jsonl, or put them in place of those that have their names."""
    kept.write(KEPT, {**kept_runs(), **{line["name"]: line for line in lines}})


def rounded(value: Any) -> Any:
    """Numbers with two digits behind the point."""
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 2) if isinstance(value, float) else value


def line_of(name: str, arm: str, run: kemeny.Run) -> dict[str, Any]:
    """What is kept of a finished run."""
    line = {
        "name": name,
        "config": json.loads((run.path / "config.json").read_text()),
        "evaluations": [{key: rounded(value) for key, value in record.items()} for record in run.evaluations],
    }
    return {**line, "speed": rounded(speed_of(run).tolist())} if arm in WITH_SPEED else line


@app.command
def keep(directory: tyro.conf.Positional[Path]) -> None:
    """Keep the results of the runs that are finished.

    Args:
        directory: Of the runs of `kemeny reproduce … --scale small`.
    """
    looked, known = Reproduction("small", directory).sweep(EVERY).look(), kept_runs()
    lines = []
    for planned, seen in looked:
        run = kemeny.Run.open(directory / planned.name) if seen.state == State.FINISHED else None
        if run is None:
            continue
        config = json.loads((run.path / "config.json").read_text())
        if known.get(planned.name, {}).get("config") != config:
            lines.append(line_of(planned.name, planned.arm, run))
            print(planned.name, flush=True)
    store(lines)
    print(f"{len(lines)} more kept; {len(kept_runs())} of {len(looked)} in all.")


@app.command
def unpack(folder: tyro.conf.Positional[Path]) -> None:
    """Write kept runs as run directories with config.json and evaluations.jsonl.

    Args:
        folder: Where to make the directories.
    """
    for line in kept_runs().values():
        print(kept.write_out(line, folder))


def drawn(figure: PaperFigure, every: list[Planned], folder: Path, pictures: Path) -> str:
    """A figure from the kept ones of all runs: the text, and in it the picture."""
    lines, arms = kept_runs(), figure.arms([run.arm for run in every])
    planned = [run for run in every if run.arm in arms]
    runs: dict[str, list[kemeny.Run]] = {}
    for one in planned:
        if one.name in lines:
            runs.setdefault(one.arm, []).append(kemeny.Run.open(kept.write_out(lines[one.name], folder / figure.name)))
    found = draw(
        figure,
        runs,
        pictures,
        missing=_missing({one.name: one.arm for one in planned if one.name not in lines}, len(planned)),
        speed=lambda run: np.array(lines[run.path.name]["speed"]),
        brief=True,
    )
    _, *parts = found.text.strip().split("\n\n")  # the page has headings of its own
    shown = [f"![{figure.title}](pictures/reproduction/{path.name})" for path in found.pictures]
    return "\n\n".join([*parts[:1], *shown, *parts[1:]])


def _missing(names: dict[str, str], count: int) -> str:
    """A sentence about runs that are not kept, by their arms."""
    arms = {arm: [name.rpartition("-")[2] for name in names if names[name] == arm] for arm in names.values()}
    said = ", ".join(f"{arm} ({', '.join(seeds)})" for arm, seeds in arms.items())
    return f"**Not run yet**: {len(names)} of {count} runs, by arm and seed: {said}." if names else ""


def written(page: str, pictures: Path) -> str:
    """The page with what the kept runs say, each figure between its marks; pictures are drawn on the way."""
    every = SMALL.sweep(EVERY).runs
    with tempfile.TemporaryDirectory() as folder:
        for name, figure in FIGURES.items():
            begin, end = f"<!-- benchmarks/reproduction.py: {name} -->\n", f"<!-- end of {name} -->"
            filled = f"{begin}\n{drawn(figure, every, Path(folder), pictures)}\n\n{end}"
            page, found = re.subn(
                f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, filled=filled: filled, page, flags=re.DOTALL
            )
            if not found:
                sys.exit(f"{PAGE} has no place for {name}: {begin}")
    return page


@app.command
def page() -> None:
    """Write the tables and pictures of docs/reproduction.md."""
    PAGE.write_text(written(PAGE.read_text(), DRAWN))


if __name__ == "__main__":
    app.cli(description=__doc__, config=(tyro.conf.OmitArgPrefixes,))
