"""Settings that a task asks for: the defaults of a run on it, below whatever the user gives."""

import re
from typing import Any, Literal, get_args

from kemeny.errors import UserError
from kemeny.settings import Settings, to_flat

Preset = Literal["task", "paper"]

TASKS: dict[str, dict[str, Any]] = {"Ant": {"log_std": -1.0, "gae_lambda": 0.8, "cut": 1_000}}
"""By the environment's name without its version; `docs/results.md` has the runs behind each."""


def preset(env: Any, name: str) -> dict[str, Any]:
    """Settings by their flat names: `task`, what was found to serve this task; `paper`, nothing but the defaults."""
    if name not in get_args(Preset):
        raise UserError(f"There is no preset named {name}; there are {' and '.join(get_args(Preset))}.")
    if name == "paper" or not isinstance(env, str):
        return {}
    return TASKS.get(re.sub(r"-v\d+$", "", env), {})


def described(values: dict[str, Any], settings: Settings) -> str:
    """What of a preset is in force, as flags."""
    flat = to_flat(settings)
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in values.items() if flat[name] == value)
