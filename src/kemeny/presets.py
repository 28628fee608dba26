"""Settings that a task or the paper asks for: the defaults of a run, below whatever the user gives."""

import re
from typing import Any, Literal, get_args

from kemeny.errors import UserError

Preset = Literal["task", "paper"]

PAPER: dict[str, Any] = {"log_std": None, "gae_lambda": 0.95, "cut": 5_000}
"""Where the defaults are not those of Appendix H and §6.2; `log_std` None is the paper's own for each algorithm."""

TASKS: dict[str, dict[str, Any]] = {
    "HalfCheetah": {"gae_lambda": 0.9},
    "Ant": {"gae_lambda": 0.8, "cut": 1_000},
}
"""By the environment's name without its version; `docs/results.md` has the runs behind each."""


def preset(env: Any, name: str) -> dict[str, Any]:
    """Settings by their flat names: `task` is what was found to serve this task, `paper` what the paper used."""
    if name not in get_args(Preset):
        raise UserError(f"There is no preset named {name}; there are {' and '.join(get_args(Preset))}.")
    if name == "paper":
        return PAPER
    return TASKS.get(re.sub(r"-v\d+$", "", env), {}) if isinstance(env, str) else {}


def described(settings: dict[str, Any]) -> str:
    """As flags, for the user to read."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items() if value is not None)
