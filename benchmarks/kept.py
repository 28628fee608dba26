"""Runs that are kept without their checkpoints: a file with one line of JSON per run, sorted by name.

A line has at least the `name` of the run, its `config` (config.json) and its `evaluations` (evaluations.jsonl).
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def read(file: Path) -> dict[str, Line]:
    """The lines by the name of the run; none if there is no file yet."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {line["name"]: line for line in map(json.loads, lines)}


def write(file: Path, runs: Mapping[str, Line]) -> None:
    """Write all lines; what was there stays until they are complete."""
    aside = file.with_suffix(".writing")
    aside.write_text("".join(json.dumps(runs[name]) + "\n" for name in sorted(runs)))
    aside.rename(file)


def write_out(line: Line, folder: Path) -> Path:
    """The run directory of a line, without metrics and checkpoints."""
    path = folder / line["name"]
    if path.exists():
        sys.exit(f"{path} exists already; choose another folder.")
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(line["config"], indent=2) + "\n")
    (path / "evaluations.jsonl").write_text("".join(json.dumps(record) + "\n" for record in line["evaluations"]))
    return path
