"""Average-reward solvers on large sparse models: Kemeny beside what else a Python user would pick.

    python benchmarks/tabular.py --peers PEERS_PYTHON [--models garnet-10000 criss-cross-BH-130] [--only Kemeny storm]
    python benchmarks/tabular.py --render

PEERS_PYTHON is the interpreter of another environment, made by

    python3 -m venv DIRECTORY && DIRECTORY/bin/pip install --no-deps -r benchmarks/requirements-tabular.txt

(without `--no-deps`, mdpax installs JAX for GPUs). Measurements are lines of `benchmarks/results/tabular.jsonl`. Of two
measurements of the same model and solver the later one counts, so parts can be measured at different times. Every call
ends by writing the tables, `benchmarks/results/tabular.md`; `--render` does nothing else. What follows `## Notes` in
that file is written by hand and stays.

How it is measured: every measurement is a process of its own on the same model file, one after another. Times are of
the solver alone; importing, loading, converting and compiling are left out: a small model is solved first. Both cores
are allowed to every solver (2 threads). A *sweep* is one product P·v for every action, by SciPy on one thread, measured
in the same process before and after; the time of a solver in sweeps depends less on the machine. Memory is the peak of
the process while it solves, without what it takes before a model is loaded, divided by the size of the model's own
arrays (probabilities, columns, row pointers and rewards). A measurement that takes more than 600 s or 16 GB is ended.

The stopping rule is the same where a library has one to set: stop when the span of v_{n+1} − v_n, which bounds the
error of the gain, is at most the tolerance. It is 10⁻⁴ for Garnet models and routed queues, and 10⁻⁴ of the published
mean cost for the networks of queues. QuantEcon has no average criterion: it gets γ = 0.999 (networks: 0.9999) and the
tolerance ε for which its own rule guarantees (1−γ)·v to that accuracy. Storm's precision is relative and cannot be set
from stormpy 2.0.0, so a constant is added to the costs that makes it the tolerance. The certified width is that of the
bounds on the best gain that a solver returns. The last column says how far the gain is below the best known, which is
the one with the narrowest bounds; for libraries that return no gain, it is the gain of their policy.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile

import numpy as np

import tabular_models
from tabular_models import Model
from tabular_solvers import SOLVERS

RESULTS = pathlib.Path(__file__).parent / "results"

LOADING_SECONDS = 900
"""Time for loading a model and for computing the gain of a policy, beside the limit for the solver."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

NOTES = "## Notes"


# Measuring


def measure(name: str, python: str, directory: pathlib.Path, args: argparse.Namespace) -> dict:
    """The measurement of one solver in a process of its own; if it did not finish, why."""
    limit = min(args.seconds, SOLVERS[name].seconds or args.seconds)
    script = str(pathlib.Path(__file__).with_name("tabular_solvers.py"))
    command = [python, script, name, str(directory), "--seconds", str(limit), "--gigabytes", str(args.gigabytes)]
    # OpenMP's threads sleep while they wait: on a machine with other work, MDPSolver's would otherwise take for ever.
    settings = {variable: str(args.threads) for variable in THREADS} | {"OMP_WAIT_POLICY": "passive"}
    environment = os.environ | settings | {"JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False, timeout=limit + LOADING_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not loaded in {LOADING_SECONDS} s"}
    if done.returncode == -signal.SIGALRM:
        return {"failed": f"not done in {limit} s"}
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        text = lines[-1] if lines else f"exit code {done.returncode}"
        if "MemoryError" in done.stderr or "bad_alloc" in done.stderr or done.returncode == -signal.SIGKILL:
            text = f"needs more than {args.gigabytes:g} GB"
        return {"failed": re.sub(r"/\S*/", "", text)[:100]}  # results name no path of a machine
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure_model(key: str, names: list[str], args: argparse.Namespace) -> None:
    """Measure solvers on one model, and write each measurement at once."""
    model = tabular_models.make(key)
    facts = describe(key, model)
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        tabular_models.save(model, directory)
        del model
        for name in names:
            solver = SOLVERS[name]
            python = sys.executable if solver.is_own else args.peers
            if python is None:
                continue
            if facts["states"] > solver.largest:
                measured = {"failed": f"not tried beyond {solver.largest:,} states"}
            else:
                measured = measure(name, python, directory, args)
            load = {"load": os.getloadavg()[0], "date": datetime.date.today().isoformat(), "threads": args.threads}
            record = {"model": key, "solver": name, "own": solver.is_own} | facts | measured | load
            with args.results.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(key, name, measured, flush=True)


def describe(key: str, model: Model) -> dict:
    return {
        "states": model.states,
        "actions": model.actions,
        "entries": model.matrix.nnz,
        "bytes": model.bytes,
        "tolerance": model.tolerance,
        "gamma": model.gamma,
    }


# Tables


def read(path: pathlib.Path) -> dict[str, dict[str, dict]]:
    """The last record of each model and solver; solvers in the order of `SOLVERS`."""
    tables: dict[str, dict[str, dict]] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        tables.setdefault(record["model"], {})[record["solver"]] = record
    order = list(SOLVERS)
    return {
        key: dict(sorted(rows.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
        for key, rows in tables.items()
    }


def best_known(rows: list[dict]) -> float:
    """The gain with the narrowest certified bounds, or the largest."""
    bounded = [row for row in rows if row["bounds"]]
    if bounded:
        low, high = min((row["bounds"] for row in bounded), key=lambda bounds: bounds[1] - bounds[0])
        return (low + high) / 2
    return max(row["gain"] for row in rows)


def section(key: str, rows: dict[str, dict]) -> list[str]:
    """One table."""
    done = [row for row in rows.values() if "failed" not in row]
    fastest = min((row["clock"] for row in done if not row["own"]), default=None)
    best = best_known(done) if done else None
    some = next(iter(rows.values()))
    lines = [
        f"## {key}: {some['states']:,} states × {some['actions']} actions, {some['entries']:,} transitions",
        "",
        f"{some['bytes'] / 1e6:,.0f} MB; tolerance {some['tolerance']:.4g}.",
        "",
        "| solver | clock s | ÷ fastest peer | processor s | sweeps | iterations | memory ÷ model "
        "| certified width | gain below the best |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "failed" in row:
            lines.append(f"| {name} | {row['failed']} | | | | | | | |")
            continue
        ratio = f"{row['clock'] / fastest:.2f}" if fastest else ""
        width = f"{row['bounds'][1] - row['bounds'][0]:.1e}" if row["bounds"] else ""
        unsure = f" ± {row['gain_width'] / 2:.0e}" if row["gain_width"] > row["tolerance"] else ""
        method = f" ({row['method']})" if name == "Kemeny, default" and row["method"] else ""
        lines.append(
            f"| {name}{method} | {row['clock']:.3g} | {ratio} | {row['processor']:.3g} "
            f"| {row['clock'] / row['sweep']:,.0f} | {row['iterations'] or ''} | {row['memory']:.1f} | {width} "
            f"| {best - row['gain']:.1e}{unsure} |"
        )
    dates = sorted({row["date"] for row in rows.values()})
    loads = [row["load"] for row in rows.values()]
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    lines += ["", f"Measured {when}, at load averages of {min(loads):.1f} to {max(loads):.1f}.", ""]
    return lines


def summary(tables: dict[str, dict[str, dict]]) -> list[str]:
    """For every model, Kemeny's default and its fastest method beside the fastest peer."""
    lines = [
        "| model | fastest peer | s | Kemeny's default | s | ÷ fastest peer | fastest of Kemeny ÷ fastest peer |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, rows in tables.items():
        done = {name: row for name, row in rows.items() if "failed" not in row}
        peers = {name: row["clock"] for name, row in done.items() if not row["own"]}
        own = {name: row["clock"] for name, row in done.items() if row["own"]}
        if not peers or not own:
            continue
        peer = min(peers, key=lambda name: peers[name])
        default = done.get("Kemeny, default")
        cells = ["", "", ""]
        if default is not None:
            seconds = default["clock"]
            cells = [str(default["method"]), f"{seconds:.3g}", f"{seconds / peers[peer]:.2f}"]
        fastest = f"{min(own.values()) / peers[peer]:.2f}"
        lines.append(f"| {' | '.join([key, peer, f'{peers[peer]:.3g}', *cells, fastest])} |")
    return [*lines, ""]


def render(results: pathlib.Path, output: pathlib.Path) -> None:
    """Write the tables of all measurements, and keep the notes."""
    tables = read(results)
    known = list(tabular_models.DEFAULT)
    tables = dict(sorted(tables.items(), key=lambda item: known.index(item[0]) if item[0] in known else len(known)))
    old = output.read_text() if output.exists() else ""
    notes = old[old.index(NOTES) :].rstrip() if NOTES in old else NOTES
    versions = sorted({row["version"] for rows in tables.values() for row in rows.values() if row.get("version")})
    threads = sorted({row["threads"] for rows in tables.values() for row in rows.values()})
    lines = [
        "# Average-reward solvers on large sparse models",
        "",
        f"Written by `benchmarks/tabular.py` (Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{os.cpu_count()} cores, {' or '.join(map(str, threads))} threads for every solver). What the columns mean, "
        "the stopping rule and the limits are in the script's docstring.",
        "",
        f"Versions: {', '.join(versions)}.",
        "",
        *summary(tables),
    ]
    for key, rows in tables.items():
        lines += section(key, rows)
    output.write_text("\n".join([*lines, notes]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="the interpreter of the environment that holds the peers")
    parser.add_argument("--models", nargs="+", default=list(tabular_models.DEFAULT), help="names, such as garnet-10000")
    parser.add_argument("--only", nargs="+", default=[""], help="solvers whose name contains one of these")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS / "tabular.jsonl")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS / "tabular.md")
    parser.add_argument("--replace", action="store_true", help="forget earlier measurements of these models")
    parser.add_argument("--render", action="store_true", help="only write the tables")
    parser.add_argument("--seconds", type=int, default=600, help="limit for one solver")
    parser.add_argument("--gigabytes", type=float, default=16, help="limit for one process")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if not args.render:
        names = [name for name in SOLVERS if any(part.lower() in name.lower() for part in args.only)]
        if not names:
            parser.error(f"no solver is called so; the solvers are: {'; '.join(SOLVERS)}")
        args.results.parent.mkdir(parents=True, exist_ok=True)
        if args.replace and args.results.exists():
            kept = [
                line for line in args.results.read_text().splitlines() if json.loads(line)["model"] not in args.models
            ]
            args.results.write_text("".join(f"{line}\n" for line in kept))
        for key in args.models:
            measure_model(key, names, args)
    if not args.results.exists():
        parser.error(f"{args.results} does not exist; measure something first")
    render(args.results, args.output)


if __name__ == "__main__":
    main()
