"""A trained policy as one file that other programs can use: an ONNX graph, or plain NumPy arrays."""

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from kemeny import __version__
from kemeny.errors import UserError
from kemeny.experience.acting import PERCEPTRON
from kemeny.experience.agreement import check_agreement
from kemeny.experience.blueprint import draw_up
from kemeny.experience.graph import to_onnx
from kemeny.runs import checkpoint
from kemeny.runs.checkpoint import CONFIG, Checkpoint
from kemeny.runs.directory import Run
from kemeny.runs.disk import Disk
from kemeny.runs.load import policy_of

ENDINGS = (".onnx", ".npz")
CHECKED = 1_000
"""Random observations on which a graph must act as the policy does before it is written."""


def export(
    run: Run | str | Path,
    path: str | Path,
    *,
    best: bool = False,
    distribution: bool = False,
    explore: bool | None = None,
) -> Path:
    """Write the policy of a run directory, or of a checkpoint, to one file; its ending chooses the format.

    `.onnx` is a graph that takes observations as the environment gives them and returns the action as the environment
    takes it: the mean (or likeliest) one, or, if it is to `explore`, one that the graph draws [as the run's --deploy
    says]; with `distribution` also `mean` and `std`, or `probabilities`. Before it is written it is compared with the
    policy, without what it draws. `.npz` is plain arrays with a description. With `best`, the policy of the run's best
    evaluation is taken. A file that exists is replaced.
    """
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise UserError(f"{path} ends neither in .onnx nor in .npz, and its ending chooses what is written.")
    if distribution and path.suffix == ".npz":
        raise UserError("Files that end in .npz have all of the policy's distribution: leave out --distribution.")
    source = run.path if isinstance(run, Run) else Path(run)
    saved = checkpoint.best(source) if best else checkpoint.latest(source)
    policy = policy_of(saved)
    blueprint = draw_up(saved.arrays, saved.facts.get("network", PERCEPTRON), policy.spaces)
    explores = policy.explores(explore)
    about = {**_origin(saved), "deploy": "explore" if explores else "mean", **blueprint.description}
    if path.suffix == ".onnx":
        metadata = {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
        content = to_onnx(blueprint, metadata, distribution=distribution)
        check_agreement(content, blueprint, policy, observations=CHECKED)
        if explores:
            content = to_onnx(blueprint, metadata, distribution=distribution, explore=True)
    else:
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, description=np.array(json.dumps(about)), **blueprint.arrays)
        content = buffer.getvalue()
    _replace(path, content)
    return path


def _origin(saved: Checkpoint) -> dict[str, Any]:
    """Where a policy comes from."""
    origin = {"kemeny": __version__, "steps": saved.facts["steps"]}
    run = Path(os.path.abspath(saved.path)).parent.parent  # the path may begin inside the run
    return {**origin, "environment": Run(run).config["env"]} if (run / CONFIG).exists() else origin


def _replace(path: Path, content: bytes) -> None:
    """Write a file aside and give it its name, so that it is there whole or as it was."""
    disk, aside = Disk(), path.parent / f".{path.name}.{os.getpid()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)  # in a container every process may have the same number
        disk.write(aside, content)
        disk.rename(aside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error
