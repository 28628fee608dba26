"""A trained policy from a run directory, with NumPy and safetensors alone."""

from pathlib import Path

from kemeny.experience.acting import PERCEPTRON, Policy, check_policy
from kemeny.runs import checkpoint
from kemeny.stored_spaces import read_spaces


def load_policy(run: str | Path, *, best: bool = False) -> Policy:
    """The policy of a run directory's newest sound checkpoint (or of a checkpoint); imports no JAX, runs no code.

    With `best`, that of the run's best evaluation. It takes observations as the environment gives them, and returns
    actions as the environment takes them. It acts as the run's --deploy says.
    """
    return policy_of(checkpoint.best(Path(run)) if best else checkpoint.latest(Path(run)))


def policy_of(saved: checkpoint.Checkpoint) -> Policy:
    """The policy of a checkpoint, or an error that says why it holds none."""
    where = f"The checkpoint {saved.path}"
    network = saved.facts.get("network", PERCEPTRON)
    spaces = read_spaces(saved.facts["spaces"], where) if "spaces" in saved.facts else None
    check_policy(saved.arrays, network, spaces, where)
    return Policy(saved.arrays, network, spaces, saved.facts.get("deploy", "mean"))
