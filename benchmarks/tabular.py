"""Average-reward solvers on large sparse models: Kemeny beside what else a Python user would pick.

    python benchmarks/tabular.py --peers PEERS_PYTHON [--sizes 10000 100000] [--output benchmarks/results/tabular.md]

PEERS_PYTHON is the interpreter of another environment, with `benchmarks/requirements-tabular.txt` installed. Every
measurement is a process of its own, one after another, on the same model file; its memory is the peak of the process
with the model loaded in the form that the library wants. Times are of the solver alone, loading and conversion left
out: processor time, which other work on the machine disturbs little, and the clock's. Every solver gets one thread.

The stopping rule is the same where a library has one to set: stop when the span of v_{n+1} − v_n, which bounds the
error of the gain, is at most the tolerance. QuantEcon has no average criterion: it gets γ = 0.999 and the tolerance ε
for which its own rule guarantees (1−γ)·v to that accuracy. How far each gain is from the best known is a column of the
result: for libraries that return no gain, the gain of their policy. No gain is known better than the tolerance.
"""

import argparse
import json
import math
import os
import pathlib
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import scipy.sparse as sp

TOLERANCE = 1e-4
GAMMA = 0.999
ACTIONS = 4
PROCESSOR_LIMIT = 600
"""Seconds of processor time for one measurement, loading included."""
SLOW = (
    "pymdptoolbox, relative value iteration",
    "QuantEcon γ = 0.999, value iteration",
    "QuantEcon γ = 0.999, policy iteration",
)
"""They take seconds to minutes at 10,000 states, where they get 20 seconds; more states are not tried (pymdptoolbox
makes S × S matrices)."""


def garnet(states: int) -> tuple[sp.csr_array, np.ndarray]:
    """Five random successors for each state and action, one of which is the next state on a ring."""
    rng = np.random.default_rng(0)
    rows, branches = states * ACTIONS, 5
    successors = rng.integers(states, size=(rows, branches))
    successors[:, 0] = (np.tile(np.arange(states), ACTIONS) + 1) % states
    weights = rng.random((rows, branches)) + 0.05
    weights /= weights.sum(axis=1, keepdims=True)
    matrix = sp.csr_array((weights.ravel(), successors.ravel(), np.arange(rows + 1) * branches), shape=(rows, states))
    matrix.sum_duplicates()
    return matrix, rng.random((states, ACTIONS))


def queues(states: int) -> tuple[sp.csr_array, np.ndarray]:
    """Four queues of different speed; an action routes the next customer to one of them. Uniformised, cost = customers.

    Customers arrive at rate 1.6 and are served at rates 1.0, 0.8, 0.6 and 0.4; one who finds the chosen queue full is
    lost, at a cost of 20.
    """
    side = round(states**0.25)
    arrival, service, lost = 1.6, np.array([1.0, 0.8, 0.6, 0.4]), 20.0
    total = arrival + service.sum()
    n = side**4
    state = np.arange(n)
    stride = side ** np.arange(4)
    length = state[:, None] // stride % side
    departs = np.where(length > 0, state[:, None] - stride, state[:, None])
    blocks, rewards = [], np.empty((n, ACTIONS))
    for a in range(ACTIONS):
        full = length[:, a] == side - 1
        target = np.where(full, state, state + stride[a])
        columns = np.concatenate([target[:, None], departs], axis=1)
        weights = np.tile(np.concatenate([[arrival], service]) / total, (n, 1))
        block = sp.csr_array((weights.ravel(), columns.ravel(), np.arange(n + 1) * 5), shape=(n, n))
        block.sum_duplicates()
        blocks.append(block)
        rewards[:, a] = -length.sum(axis=1) - np.where(full, lost * arrival / total, 0.0)
    return sp.csr_array(sp.vstack(blocks, format="csr")), rewards


MODELS = {"garnet": garnet, "queues": queues}


class Clock:
    """Processor and clock seconds since it was made."""

    def __init__(self):
        self.processor, self.clock = time.process_time(), time.perf_counter()

    def __call__(self) -> dict[str, float]:
        """The seconds passed."""
        return {"processor": time.process_time() - self.processor, "clock": time.perf_counter() - self.clock}


# Workers: each returns (gain, seconds, iterations or None)


def kemeny_solver(method: str):
    def run(matrix: sp.csr_array, rewards: np.ndarray):
        from kemeny.tabular import MDP, solve

        n = matrix.shape[1]
        mdp = MDP([matrix[a * n : (a + 1) * n] for a in range(ACTIONS)], rewards)
        mdp.by_action, mdp.rewards_by_action  # noqa: B018, views of the model, part of loading it
        solver = getattr(solve, method)
        scale = float(np.abs(rewards).max()) if method == "policy_iteration" else 1.0
        clock = Clock()
        found = solver(mdp, tolerance=TOLERANCE / scale)
        return found.gain, clock(), found.iterations

    return run


def mdpsolver_solver(algorithm: str):
    def run(matrix: sp.csr_array, rewards: np.ndarray):
        import mdpsolver

        n = matrix.shape[1]
        columns, weights = [], []
        for s in range(n):
            spans = [slice(matrix.indptr[a * n + s], matrix.indptr[a * n + s + 1]) for a in range(ACTIONS)]
            columns.append([matrix.indices[span].tolist() for span in spans])
            weights.append([matrix.data[span].tolist() for span in spans])
        model = mdpsolver.model()
        model.mdp(discount=0.99, rewards=rewards.tolist(), tranMatProbs=weights, tranMatColumns=columns)
        clock = Clock()
        model.solve(algorithm=algorithm, criterion="average", tolerance=TOLERANCE, parallel=False)
        seconds = clock()
        return gain_of(matrix, rewards, np.array(model.getPolicy())), seconds, None

    return run


def mdptoolbox_solver(matrix: sp.csr_array, rewards: np.ndarray):
    import mdptoolbox.mdp

    n = matrix.shape[1]
    P = [sp.csr_matrix(matrix[a * n : (a + 1) * n]) for a in range(ACTIONS)]
    solver = mdptoolbox.mdp.RelativeValueIteration(P, rewards, epsilon=TOLERANCE, max_iter=100_000)
    clock = Clock()
    solver.run()
    return float(solver.average_reward), clock(), solver.iter


def quantecon_solver(method: str):
    def run(matrix: sp.csr_array, rewards: np.ndarray):
        from quantecon.markov import DiscreteDP

        n = matrix.shape[1]
        order = (np.arange(ACTIONS)[None, :] * n + np.arange(n)[:, None]).ravel()
        by_state = sp.csr_matrix(matrix[order])
        s, a = np.repeat(np.arange(n), ACTIONS), np.tile(np.arange(ACTIONS), n)
        model = DiscreteDP(rewards.ravel(), by_state, GAMMA, s, a)
        clock = Clock()
        # QuantEcon guarantees |v − v*| < ε/2; (1−γ)·v is then known to the tolerance.
        found = model.solve(method=method, epsilon=2 * TOLERANCE / (1 - GAMMA), max_iter=1_000_000)
        seconds = clock()
        return gain_of(matrix, rewards, found.sigma), seconds, found.num_iter

    return run


def gain_of(matrix: sp.csr_array, rewards: np.ndarray, policy: np.ndarray) -> float:
    """The gain of a policy, by averaging along its chain: for libraries that return a policy and no gain."""
    n = matrix.shape[1]
    rows = sp.csr_array(matrix[policy * n + np.arange(n)])
    h, earned = np.zeros(n), rewards[np.arange(n), policy]
    for _ in range(200_000):
        rise = rows @ h + earned - h
        if np.ptp(rise) < TOLERANCE / 10:
            break
        h += 0.95 * rise
        h -= h[0]
    return float((rise.min() + rise.max()) / 2)


SOLVERS = {
    "Kemeny, relative value iteration": ("own", kemeny_solver("relative_value_iteration")),
    "Kemeny, modified policy iteration": ("own", kemeny_solver("modified_policy_iteration")),
    "Kemeny, policy iteration": ("own", kemeny_solver("policy_iteration")),
    "MDPSolver, value iteration": ("peer", mdpsolver_solver("vi")),
    "MDPSolver, modified policy iteration": ("peer", mdpsolver_solver("mpi")),
    "MDPSolver, policy iteration": ("peer", mdpsolver_solver("pi")),
    "pymdptoolbox, relative value iteration": ("peer", mdptoolbox_solver),
    "QuantEcon γ = 0.999, value iteration": ("peer", quantecon_solver("value_iteration")),
    "QuantEcon γ = 0.999, modified policy iteration": ("peer", quantecon_solver("modified_policy_iteration")),
    "QuantEcon γ = 0.999, policy iteration": ("peer", quantecon_solver("policy_iteration")),
}


def work(name: str, directory: pathlib.Path) -> None:
    """Solve the model in a directory and print the measurement as JSON."""
    parts = [np.load(directory / f"{part}.npy") for part in ("data", "indices", "indptr")]
    rewards = np.load(directory / "rewards.npy")
    matrix = sp.csr_array(tuple(parts), shape=(rewards.size, len(rewards)))
    gain, seconds, iterations = SOLVERS[name][1](matrix, rewards)
    print(json.dumps({"gain": gain, "iterations": iterations, "gigabytes": peak_memory()} | seconds))


def peak_memory() -> float:
    """Peak memory of this process in GB; `getrusage` would include that of the process that started it."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024**2


def measure(name: str, python: str, directory: pathlib.Path) -> dict:
    """The measurement of one solver in a process of its own; if it did not finish, why."""
    limit = 20 if name in SLOW else PROCESSOR_LIMIT
    command = [python, __file__, "--work", name, "--directory", str(directory), "--limit", str(limit)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | threads, check=False)
    if done.returncode == -signal.SIGXCPU:
        return {"failed": f"not done in {limit} s of processor time, loading included"}
    if done.returncode != 0:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        return {"failed": (lines[-1] if lines else f"exit code {done.returncode}")[:80]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def save_model(make, size: int, directory: pathlib.Path) -> tuple[int, int]:
    matrix, rewards = make(size)
    for part in ("data", "indices", "indptr"):
        np.save(directory / f"{part}.npy", getattr(matrix, part))
    np.save(directory / "rewards.npy", rewards)
    return len(rewards), matrix.nnz


def table(rows: dict[str, dict]) -> list[str]:
    done = {name: row for name, row in rows.items() if "processor" in row}
    fastest_peer = min((row["processor"] for name, row in done.items() if "Kemeny" not in name), default=math.nan)
    best = max(row["gain"] for row in done.values())
    lines = [
        "| solver | processor s | ÷ fastest peer | clock s | iterations | peak memory, GB | gain below the best |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "failed" in row:
            lines.append(f"| {name} | {row['failed']} | | | | | |")
            continue
        lines.append(
            f"| {name} | {row['processor']:.3g} | {row['processor'] / fastest_peer:.2f} | {row['clock']:.3g} "
            f"| {row['iterations'] or ''} | {row['gigabytes']:.2f} | {best - row['gain']:.1e} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="the interpreter of the environment that holds the peers")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--only", default="", help="solvers whose name contains this")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("benchmarks/results/tabular.md"))
    parser.add_argument("--append", action="store_true", help="add tables to the result instead of replacing it")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        resource.setrlimit(resource.RLIMIT_CPU, (args.limit, args.limit + 5))
        work(args.work, args.directory)
        return
    lines = args.output.read_text().splitlines() if args.append else header()
    for model in args.models:
        for size in args.sizes:
            lines += section(model, size, args)
            args.output.parent.mkdir(parents=True, exist_ok=True)
            args.output.write_text("\n".join(lines) + "\n")


def section(model: str, size: int, args: argparse.Namespace) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        states, entries = save_model(MODELS[model], size, directory)
        rows = {}
        for name, (where, _) in SOLVERS.items():
            python = sys.executable if where == "own" else args.peers
            if python is None or args.only not in name:
                continue
            if name in SLOW and states > 20_000:
                rows[name] = {"failed": "not tried: see 10,000 states"}
            else:
                rows[name] = measure(name, python, directory)
            print(model, states, name, rows[name], flush=True)
    load = os.getloadavg()[0]
    title = f"## {model}, {states:,} states × {ACTIONS} actions, {entries:,} transitions"
    return [title, "", *table(rows), "", f"Load average of the machine at the end of this table: {load:.1f}.", ""]


def header() -> list[str]:
    return [
        "# Average-reward solvers on large sparse models",
        "",
        f"Written by `benchmarks/tabular.py` (Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{os.cpu_count()} cores). Stopping rule: span of v_{{n+1}} − v_n ≤ {TOLERANCE:g}; what each column means "
        "is in the script's docstring.",
        "",
    ]


if __name__ == "__main__":
    main()
