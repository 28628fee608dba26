"""Named sets of settings: what a run uses where the user gives nothing."""

from typing import Any, Literal, get_args

from kemeny.errors import UserError
from kemeny.settings import Settings, to_flat

Preset = Literal["default", "paper"]

PAPER: dict[str, Any] = {"delta": 0.01, "gae_lambda": 0.95, "log_std": None, "cut": 5_000}
"""Where the paper's settings (Appendix H, cut at its batch size) are not those of `Settings`.

`docs/results.md` has the runs by which the defaults depart from the paper."""


def preset(name: str) -> dict[str, Any]:
    """Settings by their flat names: `default`, what was found to serve; `paper`, the paper's."""
    if name not in get_args(Preset):
        raise UserError(f"There is no preset named {name}; there are {' and '.join(get_args(Preset))}.")
    return PAPER if name == "paper" else {}


def described(values: dict[str, Any], settings: Settings) -> str:
    """What of a preset is in force, as flags."""
    flat = to_flat(settings)
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in values.items() if flat[name] == value)
