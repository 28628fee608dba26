"""Long-run averages by Storm and by Kemeny, on the same `.drn` files.

    python benchmarks/storm.py --storm STORM_PYTHON [--output benchmarks/results/storm.md]

STORM_PYTHON is the interpreter of another environment, with `benchmarks/requirements-storm.txt` installed. Standard
models (written for PRISM, shipped with stormpy) are exported by Storm, models of Kemeny's zoo by Kemeny; then both read
the files. Storm computes soundly and reports bounds; its precision is its default. Where the gain depends on the start
state, it is that of the state `init`, and Kemeny's number comes from multichain policy iteration, which has no bounds.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any

CASES: list[tuple[str, str, str]] = [
    ("dtmc/die.pm", "reward", "coin_flips"),
    ("dtmc/die.pm", "label", "one"),
    ("dtmc/nand-5-2.pm", "label", "target"),
    ("ctmc/tiny.sm", "label", "full"),
    ("ctmc/polling2.sm", "reward", "waiting"),
    ("ctmc/polling2.sm", "reward", "served"),
    ("ctmc/tandem5.sm", "reward", "customers"),
    ("ctmc/tandem5.sm", "label", "network_full"),
    ("ctmc/cluster2.sm", "reward", "num_repairs"),
    ("ctmc/cluster2.sm", "label", "premium"),
    ("ctmc/fms2.sm", "reward", "productivity"),
    ("mdp/maze_2.nm", "label", "goal"),
    ("mdp/two_dice.nm", "label", "seven"),
    ("mdp/coin2-2.nm", "label", "agree"),
    ("mdp/coin2-2.nm", "reward", "steps"),
    ("mdp/csma2-2.nm", "reward", "time"),
    ("zoo/riverswim", "reward", "reward"),
    ("zoo/access_control", "reward", "reward"),
    ("zoo/machine_replacement", "reward", "reward"),
    ("zoo/queue_admission", "reward", "reward"),
    ("zoo/queue_admission", "reward", "cost"),
    ("zoo/garnet", "reward", "reward"),
]
"""Where a model comes from, and what is maximised: the average of a reward model, or the share of time with a label."""


def work(directory: pathlib.Path) -> None:
    """In Storm's environment: export its models, check every case, and print the results as JSON."""
    import stormpy
    import stormpy.examples.files as examples
    import stormpy.io

    results = []
    for source, kind, name in CASES:
        path = directory / f"{source.replace('/', '_')}.drn"
        if not path.exists():
            full = str(pathlib.Path(examples.testfile_dir) / source)
            options = stormpy.BuilderOptions()
            options.set_build_all_reward_models()
            options.set_build_all_labels()
            program = stormpy.parse_prism_program(full, prism_compatibility=True)
            stormpy.io.export_to_drn(stormpy.build_model(program, options=options), str(path))
        model = stormpy.build_model_from_drn(str(path))
        best = "max" if "MDP" in str(model.model_type) else ""
        text = f'R{{"{name}"}}{best}=? [ LRA ]' if kind == "reward" else f'LRA{best}=? [ "{name}" ]'
        begin = time.process_time()
        result = stormpy.model_checking(model, stormpy.parse_property(text))
        seconds = time.process_time() - begin
        first = model.initial_states[0]
        results.append({"property": text, "value": float(result.get_value(first)), "seconds": seconds})
    print(json.dumps(results))


def solve_case(path: pathlib.Path, name: str) -> dict[str, Any]:
    """Kemeny's gain from the first start state, with bounds if the gain is the same from everywhere."""
    from kemeny.errors import Renormalised, UserError
    from kemeny.tabular import MDP, solve

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Renormalised)  # Storm prints ten digits
        mdp = MDP.load(path, reward=name)
    begin = time.process_time()
    try:
        found = solve.policy_iteration(mdp, initial=mdp.rewards_by_action.argmax(axis=0))
        bounds = found.gain_bounds
        value = found.gain
    except UserError:
        gains = solve.multichain_policy_iteration(mdp).gain
        bounds, value = None, float(gains[int(mdp.start.argmax())])
    pairs = mdp.n_states * mdp.n_actions if mdp.allowed is None else int(mdp.allowed.sum())
    return {
        "states": mdp.n_states, "pairs": pairs, "transitions": mdp.P.nnz, "value": value, "bounds": bounds,
        "seconds": time.process_time() - begin,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storm", help="the interpreter of the environment that holds stormpy")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("benchmarks/results/storm.md"))
    parser.add_argument("--work", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work)
        return
    if args.storm is None:
        parser.error("--storm is needed: the interpreter of the environment that holds stormpy")
    from kemeny.tabular import zoo

    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        for source in {source for source, _, _ in CASES if source.startswith("zoo/")}:
            zoo.model(source.removeprefix("zoo/")).save(directory / f"{source.replace('/', '_')}.drn")
        done = subprocess.run([args.storm, __file__, "--work", folder], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"Storm's part failed:\n{done.stdout}\n{done.stderr}")
        storm = json.loads(done.stdout.strip().splitlines()[-1])
        own = [solve_case(directory / f"{source.replace('/', '_')}.drn", name) for source, _, name in CASES]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("\n".join(report(storm, own)) + "\n")


def report(storm: list[dict[str, Any]], own: list[dict[str, Any]]) -> list[str]:
    """The table."""
    lines = [
        "# Long-run averages by Storm and by Kemeny",
        "",
        f"Written by `benchmarks/storm.py` (Python {platform.python_version()}, {os.cpu_count()} cores). Both read the "
        "same `.drn` files. The difference is between the two values; Storm's precision is its default, 1e-6 relative "
        "to the value. Where there is no interval, the gain depends on the start state.",
        "",
        "| model | property | states | pairs | transitions | Storm | Kemeny | Kemeny's interval | difference |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    largest = 0.0
    for (source, _, _), theirs, mine in zip(CASES, storm, own, strict=True):
        interval = "" if mine["bounds"] is None else "[{:.12g}, {:.12g}]".format(*mine["bounds"])
        difference = abs(theirs["value"] - mine["value"])
        largest = max(largest, difference / max(1.0, abs(mine["value"])))
        lines.append(
            f"| {source} | `{theirs['property']}` | {mine['states']:,} | {mine['pairs']:,} | {mine['transitions']:,} | "
            f"{theirs['value']:.10g} | {mine['value']:.10g} | {interval} | {difference:.1e} |"
        )
    lines += ["", f"The largest difference, relative to the value if it is above 1, is {largest:.1e}."]
    return lines


if __name__ == "__main__":
    main()
