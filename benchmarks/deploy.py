"""How long does one action take: by `load_policy`, by the loader of npz files, by ONNX Runtime?

    OPENBLAS_NUM_THREADS=1 python benchmarks/deploy.py [--rounds 200]

Times untrained policies of the paper's three bodies (2 × 64 tanh) on one observation at a time and on batches of 100,
all ways in turn within every round so that a busy machine slows each, and writes benchmarks/results/deploy.md.
"""

import argparse
import functools
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

import kemeny
from kemeny.runs import checkpoint

BODIES = {"HalfCheetah": (17, 6), "Ant": (111, 8), "Humanoid": (376, 17)}
HIDDEN, BATCH, CALLS = 64, 100, 50
ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "benchmarks" / "results" / "deploy.md"


def make_run(path: Path, observation: int, action: int) -> Path:
    """A run directory with one checkpoint of a random policy."""
    rng, sizes = np.random.default_rng(0), (observation, HIDDEN, HIDDEN, action)
    arrays = {
        "normalizer/mean": np.zeros(observation),
        "normalizer/scale": np.ones(observation),
        "normalizer/clip": np.array(10.0),
        "policy/log_std": np.full(action, -1.0),
        "action/low": np.full(action, -1.0),
        "action/high": np.full(action, 1.0),
    }
    for i in range(3):
        arrays[f"policy/network/weights/{i}"] = rng.normal(0, sizes[i] ** -0.5, sizes[i : i + 2])
        arrays[f"policy/network/biases/{i}"] = np.zeros(sizes[i + 1])
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"env": path.name, "env_is_id": True, "settings": {}}))
    checkpoint.prepare(path)
    spaces = {"observation": {"kind": "box", "shape": [observation]}, "action": {"kind": "box", "shape": [action]}}
    facts = {"iteration": 0, "seconds": 0.0, "log_sizes": {}, "best_score": None, "spaces": spaces}
    checkpoint.Saver(path).save(0, {name: array.astype(np.float32) for name, array in arrays.items()}, facts)
    return path


def documented_loader() -> Callable:
    """`load` of docs/deployment.md."""
    text = (ROOT / "docs" / "deployment.md").read_text()
    names: dict = {}
    exec(re.findall(r"^```python npz_policy\.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0], names)
    return names["load"]


def microseconds(act: Callable, observation: np.ndarray) -> float:
    """Of one call: the CPU time of this thread, which does all the work."""
    start = time.thread_time()
    for _ in range(CALLS):
        act(observation)
    return 1e6 * (time.thread_time() - start) / CALLS


def measure(run: Path, size: int, rounds: int) -> dict[str, np.ndarray]:
    """Microseconds in each round, by the way."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(kemeny.export(run, run / "policy.onnx"), options)
    policy, npz = kemeny.load_policy(run), documented_loader()(kemeny.export(run, run / "policy.npz"))

    def graph(batch: np.ndarray) -> np.ndarray:
        return session.run(["action"], {"observation": batch})[0]

    many = np.random.default_rng(1).normal(size=(BATCH, size)).astype(np.float32)
    one = many[0]
    ways = {
        "load_policy": functools.partial(microseconds, policy, one),
        "npz": functools.partial(microseconds, npz, one),
        "ONNX": functools.partial(microseconds, graph, one[None]),
        "load_policy, batch": functools.partial(microseconds, policy, many),
        "ONNX, batch": functools.partial(microseconds, graph, many),
    }
    np.testing.assert_allclose(graph(one[None])[0], policy(one), atol=1e-5)
    np.testing.assert_allclose(npz(one), policy(one), atol=1e-5)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for i in range(rounds):
        for way in list(ways) if i % 2 == 0 else list(ways)[::-1]:
            times[way].append(ways[way]())
    return {way: np.array(each) for way, each in times.items()}


def quartiles(values: np.ndarray, digits: int) -> str:
    low, median, high = np.percentile(values, [25, 50, 75])
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def row(body: str, sizes: tuple[int, int], rounds: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        times = measure(make_run(Path(folder) / body, *sizes), sizes[0], rounds)
    cells = (
        f"{body}, {sizes[0]} → {sizes[1]}",
        quartiles(times["load_policy"], 0),
        quartiles(times["npz"] / times["load_policy"], 2),
        quartiles(times["ONNX"] / times["load_policy"], 2),
        quartiles(times["load_policy, batch"] / times["load_policy"], 2),
        quartiles(times["ONNX, batch"] / times["load_policy"], 2),
    )
    return "| " + " | ".join(cells) + " |"


REPORT = """# One action

CPU time for one action of a policy with two hidden layers of {hidden} tanh units, in one thread. The first column of
numbers has microseconds. The others have ratios to it, taken within each round of {calls} calls in which all ways ran
one after the other. Median of {rounds} rounds, quartiles in brackets. The last two columns are for one call with a
batch of {batch} observations.

| body | `load_policy`, µs | npz loader | ONNX Runtime | `load_policy`, batch | ONNX Runtime, batch |
|---|---|---|---|---|---|
{rows}

Measured on {cores} cores ({machine}) with a load of {load:.1f} before the start. A load above 0 means that other work
shared the machine: trust the ratios rather than the microseconds. NumPy {numpy}, ONNX Runtime {onnxruntime}.
"""


def main(rounds: int) -> None:
    load, rows = os.getloadavg()[0], []
    for body, sizes in BODIES.items():
        rows.append(row(body, sizes, rounds))
        print(rows[-1], flush=True)
    report = REPORT.format(
        hidden=HIDDEN,
        calls=CALLS,
        rounds=rounds,
        batch=BATCH,
        rows="\n".join(rows),
        cores=os.cpu_count(),
        machine=platform.machine(),
        load=load,
        numpy=np.__version__,
        onnxruntime=onnxruntime.__version__,
    )
    OUTPUT.write_text(report)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    main(parser.parse_args().rounds)
