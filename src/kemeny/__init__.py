"""Kemeny: deep reinforcement learning for tasks that never end.

    run = kemeny.train("HalfCheetah-v3", algorithm="atrpo", steps=1_000_000, out="runs/cheetah")
    policy = kemeny.load_policy("runs/cheetah")
    action = policy(observation)

`load_policy` needs NumPy and safetensors alone; everything else is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kemeny.criterion import Average, Discounted
    from kemeny.errors import RunError, UserError
    from kemeny.experience.acting import Policy
    from kemeny.experience.check import Check, check
    from kemeny.experience.evaluation import Evaluation
    from kemeny.experience.settings import EvaluationProtocol
    from kemeny.experiments.comparison import Comparison, compare
    from kemeny.experiments.plots import plot
    from kemeny.experiments.report.page import report
    from kemeny.experiments.sweep import sweep
    from kemeny.observers import Observer
    from kemeny.runs.directory import Run
    from kemeny.runs.evaluation import evaluate
    from kemeny.runs.export import export
    from kemeny.runs.load import load_policy
    from kemeny.runs.settings import Settings
    from kemeny.runs.train import resume, train

__version__ = "0.1.0"
__all__ = [
    "Average",
    "Check",
    "Comparison",
    "Discounted",
    "Evaluation",
    "EvaluationProtocol",
    "Observer",
    "Policy",
    "Run",
    "RunError",
    "Settings",
    "UserError",
    "check",
    "compare",
    "evaluate",
    "export",
    "load_policy",
    "plot",
    "report",
    "resume",
    "sweep",
    "train",
]

_HOMES = {
    "Average": "kemeny.criterion",
    "Check": "kemeny.experience.check",
    "Comparison": "kemeny.experiments.comparison",
    "Discounted": "kemeny.criterion",
    "Evaluation": "kemeny.experience.evaluation",
    "EvaluationProtocol": "kemeny.experience.settings",
    "Observer": "kemeny.observers",
    "Policy": "kemeny.experience.acting",
    "Run": "kemeny.runs.directory",
    "RunError": "kemeny.errors",
    "Settings": "kemeny.runs.settings",
    "UserError": "kemeny.errors",
    "check": "kemeny.experience.check",
    "compare": "kemeny.experiments.comparison",
    "evaluate": "kemeny.runs.evaluation",
    "export": "kemeny.runs.export",
    "load_policy": "kemeny.runs.load",
    "plot": "kemeny.experiments.plots",
    "report": "kemeny.experiments.report.page",
    "resume": "kemeny.runs.train",
    "sweep": "kemeny.experiments.sweep",
    "train": "kemeny.runs.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kemeny' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # also in place of the submodule of that name, which the import has just put there
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))})
