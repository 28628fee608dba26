"""Reading sweep.json: which runs a sweep has, and what is decided about each. Loads no environment."""

import json
import os
import re
from pathlib import Path
from typing import Any

from kemeny.errors import UserError
from kemeny.runs import disk as files
from kemeny.runs.disk import reason
from kemeny.runs.same import decided
from kemeny.runs.settings import Settings, with_new_names

FORMAT = 1
PLAN = "sweep.json"
LARGEST_PLAN = 256 * 1024**2
LONGEST_NAME = 120
"""Characters. A file's name may have 255, of which some are for what is written aside."""
NAME = re.compile(r"[\w+=][\w.+=-]*")
"""What may be the name of an arm or of a run: it becomes the name of a directory."""
DEFAULTS = decided("", {}, Settings(), None)


def read_plan(directory: Path) -> list[dict[str, Any]]:
    """The runs of a sweep's directory, each with its name, its arm and what is decided about it; none if it is new."""
    path = directory / PLAN
    if not os.path.lexists(path):
        if os.path.lexists(directory) and not os.path.isdir(directory):
            raise UserError(f"{directory} is no directory: choose another --out.")
        return []
    try:
        plan = json.loads(files.read(path, LARGEST_PLAN))
        if plan["format"] > FORMAT:
            raise UserError(f"{path} was written by a newer Kemeny; upgrade to use it.")
        common = {**DEFAULTS, **with_new_names(plan["common"])}  # an older Kemeny had fewer settings
        known = [
            {"name": one["name"], "arm": one["arm"], "decided": {**common, **with_new_names(one["differs"])}}
            for one in plan["runs"]
        ]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is not the plan of a sweep, or is damaged: {reason(error)}.") from error
    for one in known:  # each becomes a path
        name = one["name"]
        if not (isinstance(name, str) and NAME.fullmatch(name) and len(name) <= LONGEST_NAME + 30):
            raise UserError(f"{path} is not the plan of a sweep: it has a run that is named {str(name)[:50]!r}.")
    return known
