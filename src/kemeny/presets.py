"""Named sets of settings: what a run uses where the user gives nothing."""

from typing import Any, Literal, get_args

from kemeny.algorithms import ALGORITHMS
from kemeny.errors import UserError
from kemeny.settings import Settings, to_flat

Preset = Literal["default", "paper"]

PAPER: dict[str, Any] = {"delta": 0.01, "gae_lambda": 0.95, "log_std": None, "cut": 5_000}
"""Where the paper's settings (Appendix H, cut at its batch size) are not those of `Settings`.

`docs/results.md` has the runs by which the defaults depart from the paper."""


def preset(name: str, algorithm: Any) -> dict[str, Any]:
    """Settings by their flat names: `default`, what was found to serve the algorithm; `paper`, the paper's.

    With limits on costs the paper's settings serve: with a λ for the reward lower than the costs', a step keeps the
    limit on its own batch and breaks it on the next (docs/results.md#acpo).
    """
    if name not in get_args(Preset):
        raise UserError(f"There is no preset named {name}; there are {' and '.join(get_args(Preset))}.")
    constrained = any(algorithm == known and row.constrained for known, row in ALGORITHMS.items())
    return PAPER if name == "paper" or constrained else {}


def described(values: dict[str, Any], settings: Settings) -> str:
    """What of a preset is in force, as flags."""
    flat = to_flat(settings)
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in values.items() if flat[name] == value)
