"""A trained policy from a run directory, with NumPy and safetensors alone."""

from pathlib import Path

from kemeny.experience.acting import PERCEPTRON, Policy, check_policy
from kemeny.runs import checkpoint


def load_policy(run: str | Path, *, best: bool = False) -> Policy:
    """The policy of a run directory's newest sound checkpoint (or of a checkpoint); imports no JAX, runs no code.

    With `best`, that of the run's best evaluation.
    """
    saved = checkpoint.best(Path(run)) if best else checkpoint.latest(Path(run))
    network = saved.facts.get("network", PERCEPTRON)
    check_policy(saved.arrays, network, f"The checkpoint {saved.path}")
    return Policy(saved.arrays, network)
