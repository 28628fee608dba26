"""Kemeny: deep reinforcement learning for tasks that never end.

    run = kemeny.train("HalfCheetah-v3", algorithm="atrpo", steps=1_000_000, out="runs/cheetah")
    policy = kemeny.load_policy("runs/cheetah")
    action = policy(observation)

`load_policy` needs NumPy and safetensors alone; everything else is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kemeny.acting import Policy, load_policy
    from kemeny.criterion import Average, Discounted
    from kemeny.errors import RunError, UserError
    from kemeny.evaluation import evaluate
    from kemeny.run import Run
    from kemeny.settings import Settings
    from kemeny.training import resume, train

__version__ = "0.1.0"
__all__ = [
    "Average",
    "Discounted",
    "Policy",
    "Run",
    "RunError",
    "Settings",
    "UserError",
    "evaluate",
    "load_policy",
    "resume",
    "train",
]

_HOMES = {
    "Average": "kemeny.criterion",
    "Discounted": "kemeny.criterion",
    "Policy": "kemeny.acting",
    "Run": "kemeny.run",
    "RunError": "kemeny.errors",
    "Settings": "kemeny.settings",
    "UserError": "kemeny.errors",
    "evaluate": "kemeny.evaluation",
    "load_policy": "kemeny.acting",
    "resume": "kemeny.training",
    "train": "kemeny.training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kemeny' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # also in place of the submodule of that name, which the import has just put there
    return value
