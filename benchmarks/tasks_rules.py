"""The mean cost of known rules on networks of queues, simulated, beside what was published.

    python benchmarks/tasks_rules.py criss_cross n_model
    python benchmarks/tasks_rules.py six_class --trajectories 1000 --max-steps 256000

Tasks are criss_cross, n_model and six_class; by default all. Each measurement is a line of
benchmarks/results/tasks_rules.jsonl, and one that is there is made again only if it had not settled and more steps are
allowed now. benchmarks/results/tasks_rules.md is written from all lines. The published numbers are from Dai & Gluzman,
"Queueing network controls via deep reinforcement learning"; exact optima are those of the truncated models, with the
truncation raised until the third digit stood still. The published numbers of LBFS agree with a simulation without
preemption (6 and 9 classes; tests/tasks/test_network_rules.py has that of 6), and the tasks here are preemptive.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

import kemeny
from kemeny import tasks

RESULTS = Path(__file__).parent / "results"
RULES = {"LBFS": tasks.LBFS, "MaxWeight": tasks.MaxWeight, "cμ": tasks.CMu, "threshold 11": tasks.Threshold}


class Instance(NamedTuple):
    """A task of the table."""

    name: str
    env: str
    kwargs: dict[str, Any]
    lbfs: float | None = None
    """As published."""
    optimum: float | None = None
    rules: tuple[str, ...] = ("LBFS", "MaxWeight", "cμ")


OPTIMA = {"IL": 0.6706, "BL": 0.8432, "IM": 2.0836, "BM": 2.8289, "IH": 9.9715, "BH": 15.095}
LBFS = {6: 15.749, 9: 25.257, 12: 34.660, 15: 45.110, 18: 55.724, 21: 65.980}
INSTANCES = {
    "criss_cross": [
        Instance(f"criss-cross {regime}", "kemeny/CrissCross-v0", {"regime": regime}, optimum=optimum)
        for regime, optimum in OPTIMA.items()
    ],
    "n_model": [Instance("N-model", "kemeny/NModel-v0", {}, optimum=46.165, rules=tuple(RULES))],
    "six_class": [
        Instance(f"six-class {classes}", "kemeny/SixClass-v0", {"classes": classes}, lbfs=published)
        for classes, published in LBFS.items()
    ],
}


@dataclass
class Measure:
    """What to measure."""

    only: Annotated[tuple[str, ...], tyro.conf.Positional] = tuple(INSTANCES)
    trajectories: int = 2_000
    max_steps: int = 64_000
    precision: float = 0.005
    rules: tuple[str, ...] = tuple(RULES)


def measure(instance: Instance, rule: str, options: Measure) -> dict[str, Any]:
    process = tasks.process_of(instance.env, **instance.kwargs)
    began = time.monotonic()
    found = kemeny.evaluate(
        RULES[rule](process),
        env=instance.env,
        env_kwargs=instance.kwargs,
        trajectories=options.trajectories,
        max_steps=options.max_steps,
        precision=options.precision,
    )
    long_run = found.long_run
    assert long_run is not None
    return {
        "task": instance.name,
        "rule": rule,
        "cost": -long_run.reward.average,
        "half_width": long_run.reward.half_width,
        "settled": long_run.settled,
        "trajectories": options.trajectories,
        "steps": max(found.returns),
        "warm_up": long_run.warm_up,
        "seconds": round(time.monotonic() - began),
    }


def read() -> dict[tuple[str, str], dict[str, Any]]:
    path = RESULTS / "tasks_rules.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {(line["task"], line["rule"]): line for line in map(json.loads, lines)}


def table() -> str:
    found = read()
    heads = ["task", "exact optimum", "LBFS, published", *RULES]
    rows = [
        [
            instance.name,
            "" if instance.optimum is None else f"{instance.optimum:.5g}",
            "" if instance.lbfs is None else f"{instance.lbfs:.3f}",
            *(cell(found.get((instance.name, rule))) if rule in instance.rules else "" for rule in RULES),
        ]
        for instances in INSTANCES.values()
        for instance in instances
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def cell(line: dict[str, Any] | None) -> str:
    if line is None:
        return "not measured"
    if not line["settled"]:
        return f"not settled: {line['cost']:.3g} in steps {line['warm_up']:,} to {line['steps']:,}"
    return f"{line['cost']:.4g} ± {line['half_width']:.2g}"


def main(options: Measure) -> None:
    for name in options.only:
        if name not in INSTANCES:
            raise SystemExit(f"There is no task {name}; there are {', '.join(INSTANCES)}.")
    wanted = [
        (one, rule) for name in options.only for one in INSTANCES[name] for rule in one.rules if rule in options.rules
    ]
    for instance, rule in sorted(wanted, key=lambda pair: list(RULES).index(pair[1])):
        known = read().get((instance.name, rule))
        if known is not None and (known["settled"] or known["steps"] >= options.max_steps):
            continue
        line = measure(instance, rule, options)
        print(json.dumps(line, ensure_ascii=False), flush=True)
        with open(RESULTS / "tasks_rules.jsonl", "a") as lines:
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
    (RESULTS / "tasks_rules.md").write_text(
        "# Known rules on networks of queues\n\n"
        "`python benchmarks/tasks_rules.py`: 2,000 trajectories from the empty network, until the interval is within "
        "0.5 % or each has 64,000 steps; the warm-up is left out (MSER-5). Mean cost per unit of time with 95 % "
        'intervals; lower is better. "Not settled" is said where the warm-up had not ended in the first half of the '
        "steps: the network is unstable, or was not simulated for long enough. Services are preemptive here. The "
        "published column agrees with a simulation without preemption (checked for 6 and 9 classes). "
        "Each measurement with its trajectories and steps is a line of "
        f"[tasks_rules.jsonl](tasks_rules.jsonl).\n\n{table()}\n"
    )


if __name__ == "__main__":
    main(tyro.cli(Measure, description=__doc__))
