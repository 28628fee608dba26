"""Models in files, and models made from Gymnasium's toy-text environments."""

import pathlib
from typing import Any

import numpy as np
import scipy.sparse as sp

from kemeny.errors import UserError
from kemeny.tabular import drn
from kemeny.tabular.mdp import MDP
from kemeny.tabular.transitions import Stacked


def save(mdp: MDP, path: pathlib.Path | str) -> None:
    """Write a model to a file; its suffix says in which format: `.drn` for Storm, otherwise .npz."""
    if pathlib.Path(path).suffix == ".drn":
        drn.save(mdp, path)
    else:
        save_arrays(mdp, path)


def load(path: pathlib.Path | str, reward: str | None = None, costs: str | None = None) -> MDP:
    """Read a model; `reward` and `costs` choose among the rewards of a `.drn` file (see `drn.load`)."""
    if pathlib.Path(path).suffix == ".drn":
        return drn.load(path, reward, costs)
    if reward is not None or costs is not None:
        raise UserError(f"Only a .drn file names its rewards; {path} has arrays, so leave out reward and costs.")
    return load_arrays(path)


def save_arrays(mdp: MDP, path: pathlib.Path | str) -> None:
    """Write a model to a .npz file: the arrays `P`, `r`, `costs`, `start`, `name`, `allowed`, `grid` and `edge`.

    `P` is S × A × S; of a sparse model the CSR arrays of the stacked (A·S) × S matrix are written instead.
    """
    arrays: dict[str, Any] = {"r": mdp.rewards, "start": mdp.start, "name": np.array(mdp.name)}
    if mdp.is_sparse:
        arrays |= {"P_data": mdp.P.data, "P_indices": mdp.P.indices, "P_indptr": mdp.P.indptr}
    else:
        arrays["P"] = mdp.transitions
    optional = {"costs": mdp.costs, "allowed": mdp.allowed, "grid": mdp.grid, "edge": mdp.edge}
    arrays |= {key: np.array(value) for key, value in optional.items() if value is not None}
    with pathlib.Path(path).open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load_arrays(path: pathlib.Path | str) -> MDP:
    """Read a model written by `save_arrays` or by `numpy.savez(file, P=…, r=…)`; nothing in the file is executed."""
    try:
        with pathlib.Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise UserError(f"The file {path} does not exist.") from None
    except Exception:  # zipfile, zlib and NumPy raise errors of many kinds on a damaged file
        raise UserError(f"{path} is not a .npz file of plain arrays; write one with numpy.savez.") from None
    if "r" not in arrays or not ("P" in arrays or "P_data" in arrays):
        held = ", ".join(sorted(arrays)) or "nothing"
        raise UserError(f"{path} needs the arrays P (S × A × S) and r (S × A), but it contains {held}.")
    settings: dict[str, Any] = {key: arrays[key] for key in ("costs", "start", "allowed", "edge") if key in arrays}
    if "grid" in arrays:
        settings["grid"] = tuple(arrays["grid"].ravel().tolist())
    name = str(arrays["name"]) if "name" in arrays else pathlib.Path(path).stem
    return MDP(arrays["P"] if "P" in arrays else unpack(arrays), arrays["r"], name=name, **settings)


def unpack(arrays: dict[str, np.ndarray]) -> Stacked:
    """The stacked matrix from its CSR arrays."""
    if arrays["r"].ndim != 2 or 0 in arrays["r"].shape:
        raise UserError(f"The rewards of a sparse model must be S × A, but they have shape {arrays['r'].shape}.")
    states, actions = arrays["r"].shape
    try:
        stacked = sp.csr_array(
            (arrays["P_data"], arrays["P_indices"], arrays["P_indptr"]), shape=(actions * states, states), dtype=float
        )
        stacked.check_format(full_check=True)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"The sparse transitions do not fit {states} states and {actions} actions: {error}.") from None
    stacked.sum_duplicates()
    return Stacked(stacked)


def from_gymnasium(env: Any, reset_cost: float = 0.0) -> MDP:
    """Make a continuing model from a Gymnasium toy-text environment (FrozenLake, CliffWalking, Taxi, …).

    Where an episode would end, the model moves to a start state and `reset_cost` is subtracted from the reward. This
    is the paper's reset scheme (§5.2), which turns an episodic task into a unichain model.
    """
    table = getattr(env.unwrapped, "P", None)
    start = getattr(env.unwrapped, "initial_state_distrib", None)
    if not isinstance(table, dict) or start is None:
        raise UserError(
            f"{env} has no transition table; it needs the attributes P and initial_state_distrib, like FrozenLake."
        )
    states, actions = len(table), len(table[0])
    P, r = np.zeros((states, actions, states)), np.zeros((states, actions))
    for s in range(states):
        for a in range(actions):
            for probability, following, reward, ends in table[s][a]:
                P[s, a] += probability * (np.asarray(start) if ends else np.eye(states)[following])
                r[s, a] += probability * (reward - (reset_cost if ends else 0.0))
    return MDP(P, r, start=start, name=env.spec.id if env.spec is not None else "gymnasium")
