"""One measurement of `tabular.py`: load a model for one solver, solve it, print what was measured as JSON.

    python benchmarks/tabular_solvers.py SOLVER DIRECTORY --seconds 600 --gigabytes 16

It runs in the environment of the solver, so at the top it imports nothing but NumPy and SciPy.
"""

import argparse
import ctypes
import dataclasses
import gc
import importlib
import importlib.metadata
import json
import pathlib
import resource
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

import tabular_models
from tabular_models import Model

EVALUATION_SECONDS = 120
"""For how long the gain of a policy is computed, for libraries that return no gain. Not part of the measurement."""

STORM_PRECISION = 1e-6
"""Storm's relative precision of long-run averages, which stormpy 2.0.0 cannot change."""


@dataclasses.dataclass
class Found:
    """What a solver returns."""

    gain: float | None = None
    bounds: tuple[float, float] | None = None
    policy: np.ndarray | None = None
    values: np.ndarray | None = None
    iterations: int | None = None
    method: str | None = None


@dataclasses.dataclass(frozen=True)
class Solver:
    """A method of a library."""

    load: Callable[[Model], Callable[[], Found]]
    """Brings the model into the form that the library wants and returns what is to be timed."""

    modules: tuple[str, ...]
    """What is imported before memory is measured."""

    is_own: bool = False
    largest: int = 10**9
    """The most states that are tried."""

    seconds: int | None = None
    """A shorter limit than the usual one."""

    note: str = ""


# Kemeny


def kemeny(method: str) -> Callable[[Model], Callable[[], Found]]:
    """A solver of `kemeny.tabular.solve`."""

    def load(model: Model) -> Callable[[], Found]:
        from kemeny.tabular import MDP, solve

        solver = getattr(solve, method, None)
        if solver is None:
            raise SystemExit(f"kemeny.tabular.solve has no function {method}")
        n = model.states
        grid = tuple(model.grid) if model.grid else None
        mdp = MDP([model.matrix[a * n : (a + 1) * n] for a in range(model.actions)], model.rewards, grid=grid)
        mdp.by_action  # noqa: B018, views of the model, part of loading it
        # The tolerance of policy iteration is relative to the largest reward; that of the others is absolute.
        scale = float(np.abs(model.rewards).max()) if method == "policy_iteration" else 1.0
        tolerance = model.tolerance / scale

        def run() -> Found:
            found = solver(mdp, tolerance=tolerance)
            return Found(found.gain, found.gain_bounds, iterations=found.iterations, method=found.method)

        return run

    return load


# Peers


def mdpsolver(algorithm: str, parallel: bool = True) -> Callable[[Model], Callable[[], Found]]:
    """MDPSolver with both cores or with one, for its threads wait for each other after every sweep."""

    def load(model: Model) -> Callable[[], Found]:
        import mdpsolver

        n, matrix = model.states, model.matrix
        columns, weights = [], []
        for s in range(n):
            rows = range(s, s + n * model.actions, n)
            spans = [slice(matrix.indptr[row], matrix.indptr[row + 1]) for row in rows]
            columns.append([matrix.indices[span].tolist() for span in spans])
            weights.append([matrix.data[span].tolist() for span in spans])
        solver, tolerance = mdpsolver.model(), model.tolerance
        solver.mdp(discount=0.99, rewards=model.rewards.tolist(), tranMatProbs=weights, tranMatColumns=columns)

        def run() -> Found:
            solver.solve(algorithm=algorithm, criterion="average", tolerance=tolerance, parallel=parallel)
            return Found(policy=np.array(solver.getPolicy()), values=np.array(solver.getValueVector()))

        return run

    return load


def mdptoolbox(model: Model) -> Callable[[], Found]:
    import mdptoolbox.mdp

    n = model.states
    P = [sp.csr_matrix(model.matrix[a * n : (a + 1) * n]) for a in range(model.actions)]
    solver = mdptoolbox.mdp.RelativeValueIteration(P, model.rewards, epsilon=model.tolerance, max_iter=10_000_000)

    def run() -> Found:
        solver.run()
        return Found(float(solver.average_reward), iterations=solver.iter)

    return run


def quantecon(method: str) -> Callable[[Model], Callable[[], Found]]:
    """A discounted solver."""

    def load(model: Model) -> Callable[[], Found]:
        from quantecon.markov import DiscreteDP

        n, actions = model.states, model.actions
        s, a = np.repeat(np.arange(n), actions), np.tile(np.arange(actions), n)
        solver = DiscreteDP(model.rewards.ravel(), sp.csr_matrix(model.by_state), model.gamma, s, a)
        # QuantEcon guarantees |v − v*| < ε/2; (1−γ)·v is then known to the tolerance.
        epsilon = 2 * model.tolerance / (1 - model.gamma)

        def run() -> Found:
            found = solver.solve(method=method, epsilon=epsilon, max_iter=1_000_000)
            return Found(policy=np.asarray(found.sigma), values=np.asarray(found.v), iterations=found.num_iter)

        return run

    return load


def mdpax(model: Model) -> Callable[[], Found]:
    """mdpax wants functions of a state, an action and a random event; here they look the model's arrays up.

    Its batches over several devices do not run with the JAX of the requirements, so it has one device, whose threads
    are XLA's. It is compiled by one iteration before.
    """
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    from mdpax.core.problem import Problem
    from mdpax.solvers.relative_value_iteration import RelativeValueIteration

    n, matrix, actions = model.states, model.matrix, model.actions
    counts = np.diff(matrix.indptr)
    events = int(counts.max())
    row = np.repeat(np.arange(n * actions), counts)
    place = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], counts)
    columns, weights = np.zeros((n * actions, events), dtype=np.int32), np.zeros((n * actions, events))
    columns[row, place], weights[row, place] = matrix.indices, matrix.data
    table = [jnp.asarray(part) for part in (columns, weights, model.rewards.T.ravel())]

    class Table(Problem):
        """The model as a mdpax problem: a random event is the number of an entry in a row."""

        name = "table"

        def _construct_state_space(self):
            return jnp.arange(n, dtype=jnp.int32)

        def _construct_action_space(self):
            return jnp.arange(actions, dtype=jnp.int32)

        def _construct_random_event_space(self):
            return jnp.arange(events, dtype=jnp.int32)

        def state_to_index(self, state):
            return state[0]

        def random_event_probability(self, state, action, random_event):
            return table[1][action[0] * n + state[0], random_event[0]]

        def transition(self, state, action, random_event):
            chosen = action[0] * n + state[0]
            return table[0][chosen, random_event[0]][None], table[2][chosen]

    solver = RelativeValueIteration(Table(), epsilon=model.tolerance, verbose=0, max_batch_size=16_384)
    solver.solve(max_iterations=1)
    solver._initialize_solver_state_elements()

    def run() -> Found:
        state = solver.solve(max_iterations=10_000_000)
        return Found(float(state.info.gain), iterations=int(state.info.iteration))

    return run


def storm(model: Model) -> Callable[[], Found]:
    """Storm's long-run average by value iteration, its default.

    Its precision is relative to the average. A constant is added to the costs so that this means the tolerance.
    """
    import stormpy
    import stormpy.datastructures
    import stormpy.models

    n, actions, by_state = model.states, model.actions, model.by_state
    constant = model.tolerance / STORM_PRECISION + model.about
    builder = stormpy.datastructures.SparseMatrixBuilder[float](
        rows=n * actions, columns=n, entries=by_state.nnz, has_custom_row_grouping=True, row_groups=n
    )
    rows = np.repeat(np.arange(n * actions), np.diff(by_state.indptr))
    groups = list(range(0, n * actions, actions))
    builder.add_next_values(rows.tolist(), by_state.indices.tolist(), by_state.data.tolist(), groups)
    labels = stormpy.models.StateLabeling(n)
    labels.add_label("init")
    labels.add_label_to_state("init", 0)
    costs = (constant - model.rewards).ravel().tolist()
    parts = stormpy.models.SparseModelComponents[float](
        transition_matrix=builder.build(),
        state_labeling=labels,
        reward_models={"cost": stormpy.models.SparseRewardModel[float](optional_state_action_reward_vector=costs)},
    )
    solver = stormpy.models.SparseMdp[float](parts)
    question = stormpy.parse_properties('R{"cost"}min=? [LRA]')[0]

    def run() -> Found:
        answer = stormpy.model_checking(solver, question, only_initial_states=True, environment=stormpy.Environment())
        return Found(constant - answer.get_value(0))

    return run


def madupite(model: Model) -> Callable[[], Found]:
    """Only for a machine on which it is installed; its interface was not tried here."""
    raise SystemExit("madupite is in no package index that pip finds here")


SOLVERS = {
    "Kemeny, default": Solver(kemeny("solve"), ("kemeny.tabular",), is_own=True),
    "Kemeny, relative value iteration": Solver(kemeny("relative_value_iteration"), ("kemeny.tabular",), is_own=True),
    "Kemeny, modified policy iteration": Solver(kemeny("modified_policy_iteration"), ("kemeny.tabular",), is_own=True),
    "Kemeny, policy iteration": Solver(kemeny("policy_iteration"), ("kemeny.tabular",), is_own=True),
    "MDPSolver, value iteration": Solver(mdpsolver("vi"), ("mdpsolver",)),
    "MDPSolver, modified policy iteration": Solver(mdpsolver("mpi"), ("mdpsolver",)),
    "MDPSolver, modified policy iteration, one thread": Solver(mdpsolver("mpi", parallel=False), ("mdpsolver",)),
    "MDPSolver, policy iteration": Solver(mdpsolver("pi"), ("mdpsolver",)),
    "stormpy, long-run average": Solver(storm, ("stormpy", "stormpy.models", "stormpy.datastructures")),
    "mdpax, relative value iteration": Solver(mdpax, ("jax", "mdpax.solvers.relative_value_iteration")),
    "QuantEcon (discounted), modified policy iteration": Solver(
        quantecon("modified_policy_iteration"), ("quantecon.markov",)
    ),
    # The next three take seconds to minutes at 10,000 states; pymdptoolbox makes S × S matrices.
    "QuantEcon (discounted), value iteration": Solver(
        quantecon("value_iteration"), ("quantecon.markov",), largest=20_000, seconds=60
    ),
    "QuantEcon (discounted), policy iteration": Solver(
        quantecon("policy_iteration"), ("quantecon.markov",), largest=20_000, seconds=60
    ),
    "pymdptoolbox, relative value iteration": Solver(mdptoolbox, ("mdptoolbox.mdp",), largest=20_000, seconds=60),
    "madupite (discounted)": Solver(madupite, ()),
}


# Measuring


class Clock:
    """Processor and clock seconds since it was made."""

    def __init__(self):
        self.processor, self.clock = time.process_time(), time.perf_counter()

    def __call__(self) -> dict[str, float]:
        """The seconds passed."""
        return {"processor": time.process_time() - self.processor, "clock": time.perf_counter() - self.clock}


def sweeps(model: Model) -> list[float]:
    """The clock seconds of some products P·v for every action, by SciPy on one thread."""
    v = np.linspace(0.0, 1.0, model.states)
    model.matrix @ v
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < 5 or (time.perf_counter() - began < 0.5 and len(seconds) < 200):
        before = time.perf_counter()
        model.matrix @ v
        seconds.append(time.perf_counter() - before)
    return seconds


def memory(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at the most since the last `forget_peak`."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) * 1024


def forget_peak() -> None:
    """Give freed memory back to the system and let the peak begin at what is left."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def gain_of(model: Model, found: Found) -> tuple[float, float]:
    """Bounds on the gain of a policy, by averaging along its chain from the values that the solver returned."""
    n, policy = model.states, found.policy
    rows = sp.csr_array(model.matrix[policy * n + np.arange(n)])
    earned = model.rewards[np.arange(n), policy]
    h = np.zeros(n) if found.values is None or found.values.shape != (n,) else found.values.copy()
    began = time.perf_counter()
    while True:
        rise = rows @ h + earned - h
        if np.ptp(rise) < model.tolerance / 10 or time.perf_counter() - began > EVALUATION_SECONDS:
            return float(rise.min()), float(rise.max())
        h += 0.95 * rise
        h -= h[0]


def work(name: str, directory: pathlib.Path, seconds: int) -> dict[str, Any]:
    """Solve the model in a directory and return the measurement."""
    solver = SOLVERS[name]
    for module in solver.modules:
        importlib.import_module(module)
    solver.load(tabular_models.load(directory / tabular_models.SMALL))()
    base = memory("VmRSS")
    model = tabular_models.load(directory)
    timed, size = sweeps(model), model.bytes
    solve = solver.load(model)
    del model
    forget_peak()
    signal.alarm(seconds)  # without a handler it ends the process, also in the midst of compiled code
    clock = Clock()
    found = solve()
    measured = clock()
    signal.alarm(0)
    peak = memory("VmHWM") - base
    del solve
    model = tabular_models.load(directory)
    timed += sweeps(model)
    gain, gain_width = found.gain, 0.0
    if gain is None:
        low, high = gain_of(model, found)
        gain, gain_width = (low + high) / 2, high - low
    return measured | {
        "gain": gain,
        "gain_width": gain_width,
        "bounds": found.bounds,
        "iterations": found.iterations,
        "method": found.method,
        "sweep": statistics.median(timed),
        "peak": peak,
        "memory": peak / size,
        "version": version(solver),
    }


def version(solver: Solver) -> str:
    package = {"mdptoolbox": "pymdptoolbox", "jax": "mdpax"}.get(solver.modules[0].split(".")[0])
    package = package or solver.modules[0].split(".")[0]
    return f"{package} {importlib.metadata.version(package)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("solver", choices=list(SOLVERS))
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--gigabytes", type=float, default=16)
    args = parser.parse_args()
    limit = int(args.gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(json.dumps(work(args.solver, args.directory, args.seconds)))


if __name__ == "__main__":
    main()
