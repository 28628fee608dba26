"""Named sets of settings: what a run uses where the user gives nothing, on the command line and in Python alike."""

from typing import Any, Literal, get_args

from kemeny.errors import UserError
from kemeny.runs.settings import Settings, from_flat, to_flat

Preset = Literal["default", "paper"]

PAPER: dict[str, Any] = {"delta": 0.01, "gae_lambda": 0.95, "log_std": None, "cut": 5_000, "reset_cost": 100.0}
"""Where the paper's settings (Appendix H, cut at its batch size) are not those of `Settings`.

`docs/results.md` has the runs by which the defaults depart from the paper."""

DIFFERENCES: dict[str, dict[str, Any]] = {"default": {}, "paper": PAPER}


def preset(name: str) -> Settings:
    """All settings: `default`, what was found to serve; `paper`, the paper's."""
    if name not in DIFFERENCES:
        raise UserError(f"There is no preset named {name}; there are {' and '.join(get_args(Preset))}.")
    return from_flat(DIFFERENCES[name])


def described(name: str, settings: Settings) -> str:
    """Which differences of a preset are in force, as flags."""
    flat, differences = to_flat(settings), DIFFERENCES[name]
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in differences.items() if flat[name] == value)
