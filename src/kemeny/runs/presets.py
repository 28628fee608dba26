"""Named sets of settings: what a run uses where the user gives nothing, on the command line and in Python alike."""

from typing import Any, Literal, get_args

from kemeny.errors import UserError
from kemeny.runs.settings import Settings, from_flat, to_flat

Preset = Literal["default", "paper", "queues"]

PAPER: dict[str, Any] = {
    "delta": 0.01,
    "gae_lambda": 0.95,
    "damping": 0.01,
    "log_std": None,
    "critic_l2": 3e-3,
    "cut": 5_000,
    "reset_cost": 100.0,
    "deployed_envs": 0,
}
"""Where the paper's settings (Appendix H, cut at its batch size) are not those of `Settings`.

`docs/results.md` has the runs by which the defaults depart from the paper."""

QUEUES: dict[str, Any] = {
    "num_envs": 500,
    "batch_size": 25_000,
    "gae_lambda": 0.9,
    "critic_gae_lambda": 0.99,
    "delta_end": 0.002,
    "damping": 0.1,
    "rate_by": "td",
    "next_value": "expected",
    "cut": 10**9,
    "observation_clip": 1_000.0,
    "critic_unit": "targets",
    "critic_form": "quadratic",
    "quadratic_fit": "bellman",
    "state_weight": "relative",
    "critic_step_size": 1e-3,
    "critic_epochs": 3,
    "critic_minibatch": 500,
    "eval_every": 1_000_000,
    "eval_trajectories": 100,
    "eval_max_steps": 1_000,
    "checkpoint_every": 1_000_000,
}
"""For Kemeny's own tasks and others that are simulated by the thousand and never end: queues, stocks, machines.

`docs/tasks.md` has the runs. A queue is never restarted, and its values are much larger than its rewards."""

DIFFERENCES: dict[str, dict[str, Any]] = {"default": {}, "paper": PAPER, "queues": QUEUES}


def preset(name: str) -> Settings:
    """All settings: `default`, what was found to serve; `paper`, the paper's; `queues`, for Kemeny's own tasks."""
    if name not in DIFFERENCES:
        raise UserError(f"There is no preset named {name}; there are {', '.join(get_args(Preset))}.")
    return from_flat(DIFFERENCES[name])


def described(name: str, settings: Settings) -> str:
    """Which differences of a preset are in force, as flags."""
    flat, differences = to_flat(settings), DIFFERENCES[name]
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in differences.items() if flat[name] == value)
