"""The models of `tabular.py`, by name, and the files through which every process gets the same one.

A name is a family, a size and perhaps a number of actions: `garnet-10000`, `garnet-10000x8`, `queues-1000000`,
`criss-cross-BH-130`, `n-model-500`. The size of the last two is the truncation of each queue.
"""

import dataclasses
import json
import pathlib

import numpy as np
import scipy.sparse as sp

ABSOLUTE = 1e-4
"""The stopping rule of Garnet models and routed queues: the span of v_{n+1} − v_n is at most this."""

RELATIVE = 1e-4
"""The stopping rule of networks: the span is at most this times the published optimum."""

PUBLISHED = {
    "criss-cross-IL": 0.6706,
    "criss-cross-BL": 0.8432,
    "criss-cross-IM": 2.0836,
    "criss-cross-BM": 2.8289,
    "criss-cross-IH": 9.9715,
    "criss-cross-BH": 15.095,
    "n-model": 46.165,
}
"""The mean costs of the unlimited networks."""

SMALL = "small"
"""The small model's place in the directory of a model."""

DEFAULT = (
    *(f"{family}-{size}" for size in (10_000, 100_000, 1_000_000) for family in ("garnet", "queues")),
    "criss-cross-BM-40",
    "criss-cross-IH-80",
    "criss-cross-BH-130",
    "n-model-500",
)


@dataclasses.dataclass(eq=False)
class Model:
    """A model as arrays, and what every solver is asked for."""

    matrix: sp.csr_array
    """The transitions, (A·S) × S, action after action."""

    rewards: np.ndarray
    """S × A."""

    tolerance: float
    """Stop when the gain is known to within this."""

    about: float
    """A gain near the optimum, for solvers whose tolerance is relative to it."""

    gamma: float
    """The discount for solvers without the average criterion."""

    grid: list[int] | None = None
    """The shape of the grid whose points are the states, if they are."""

    @property
    def bytes(self) -> int:
        """The size of the model's own arrays."""
        parts = (self.matrix.data, self.matrix.indices, self.matrix.indptr, self.rewards)
        return sum(part.nbytes for part in parts)

    @property
    def actions(self) -> int:
        """The number of actions."""
        return self.rewards.shape[1]

    @property
    def states(self) -> int:
        """The number of states."""
        return len(self.rewards)

    @property
    def by_state(self) -> sp.csr_array:
        """The transitions, state after state, as libraries with state-action pairs want them."""
        order = (np.arange(self.actions)[None, :] * self.states + np.arange(self.states)[:, None]).ravel()
        return sp.csr_array(self.matrix[order])


def make(name: str) -> Model:
    """The model of this name."""
    family, _, size = name.rpartition("-")
    if family in ("garnet", "queues"):
        states, _, actions = size.partition("x")
        matrix, rewards = {"garnet": garnet, "queues": queues}[family](int(states), int(actions or 4))
        about = 0.8 if family == "garnet" else -2.6
        grid = None if family == "garnet" else [round(len(rewards) ** (1 / rewards.shape[1]))] * rewards.shape[1]
        return Model(matrix, rewards, ABSOLUTE, about=about, gamma=0.999, grid=grid)
    if family not in PUBLISHED:
        raise SystemExit(f"There is no model {name!r}; the models are {', '.join(DEFAULT)}, and other sizes of them.")
    from kemeny.tabular import zoo

    if family == "n-model":
        mdp = zoo.n_model(truncation=int(size))
    else:
        mdp = zoo.criss_cross(family.rpartition("-")[2], truncation=int(size))
    cost = PUBLISHED[family]
    return Model(mdp.P, mdp.rewards, RELATIVE * cost, about=-cost, gamma=0.9999, grid=list(mdp.grid or ()))


def garnet(states: int, actions: int) -> tuple[sp.csr_array, np.ndarray]:
    """Five random successors for each state and action, one of which is the next state on a ring."""
    rng = np.random.default_rng(0)
    rows, branches = states * actions, 5
    successors = rng.integers(states, size=(rows, branches)).astype(np.int32)
    successors[:, 0] = (np.tile(np.arange(states), actions) + 1) % states
    weights = rng.random((rows, branches)) + 0.05
    weights /= weights.sum(axis=1, keepdims=True)
    pointers = np.arange(rows + 1, dtype=np.int32) * branches
    matrix = sp.csr_array((weights.ravel(), successors.ravel(), pointers), shape=(rows, states))
    matrix.sum_duplicates()
    return matrix, rng.random((states, actions))


def queues(states: int, actions: int) -> tuple[sp.csr_array, np.ndarray]:
    """Queues of different speed; an action routes the next customer to one of them. Uniformised, cost = customers.

    Customers of four queues arrive at rate 1.6 and are served at rates 1.0, 0.8, 0.6 and 0.4 (of fewer queues the
    fastest remain, and the load is the same). One who finds the chosen queue full is lost, at a cost of 20.
    """
    service = np.array([1.0, 0.8, 0.6, 0.4])[:actions]
    if len(service) < actions:
        raise SystemExit(f"The routed queues have at most {len(service)} actions, not {actions}.")
    side = round(states ** (1 / actions))
    arrival, lost = service.sum() * 1.6 / 2.8, 20.0
    total = arrival + service.sum()
    n = side**actions
    state = np.arange(n, dtype=np.int32)
    stride = (side ** np.arange(actions)).astype(np.int32)
    length = state[:, None] // stride % side
    departs = np.where(length > 0, state[:, None] - stride, state[:, None])
    blocks, rewards = [], np.empty((n, actions))
    for a in range(actions):
        full = length[:, a] == side - 1
        target = np.where(full, state, state + stride[a])
        columns = np.concatenate([target[:, None], departs], axis=1)
        weights = np.tile(np.concatenate([[arrival], service]) / total, (n, 1))
        pointers = np.arange(n + 1, dtype=np.int32) * (actions + 1)
        block = sp.csr_array((weights.ravel(), columns.ravel(), pointers), shape=(n, n))
        block.sum_duplicates()
        blocks.append(block)
        rewards[:, a] = -length.sum(axis=1) - np.where(full, lost * arrival / total, 0.0)
    return sp.csr_array(sp.vstack(blocks, format="csr")), rewards


def save(model: Model, directory: pathlib.Path) -> None:
    """Write a model to a directory, and in it a small one, which every solver solves first to be compiled."""
    write(model, directory)
    write(dataclasses.replace(make("criss-cross-IL-12"), gamma=0.9), directory / SMALL)


def write(model: Model, directory: pathlib.Path) -> None:
    """Write one model to a directory."""
    directory.mkdir(exist_ok=True)
    for part in ("data", "indices", "indptr"):
        np.save(directory / f"{part}.npy", getattr(model.matrix, part))
    np.save(directory / "rewards.npy", model.rewards)
    settings = {"tolerance": model.tolerance, "about": model.about, "gamma": model.gamma, "grid": model.grid}
    (directory / "settings.json").write_text(json.dumps(settings))


def load(directory: pathlib.Path) -> Model:
    """Read a model written by `save`."""
    parts = [np.load(directory / f"{part}.npy") for part in ("data", "indices", "indptr")]
    rewards = np.load(directory / "rewards.npy")
    matrix = sp.csr_array(tuple(parts), shape=(rewards.size, len(rewards)))
    return Model(matrix, rewards, **json.loads((directory / "settings.json").read_text()))
