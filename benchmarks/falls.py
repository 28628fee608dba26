"""When a policy falls: long trajectories of the mean action, from every checkpoint that a run has kept.

    python benchmarks/falls.py RUN… [--trajectories 10]

Falls per 1,000 steps are counted by how long the agent had been walking. If they increase, it meets states that it
never sees in training (a heading that has drifted, or whatever lies beyond the cut); if not, it stumbles at any time.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

import kemeny
from kemeny.experience.evaluate import evaluation_seed
from kemeny.runs.settings import from_flat

LONGEST = 10_000
PHASES = ((0, 1_000), (1_000, 5_000), (5_000, LONGEST))
UNSEEN = 2 * 10**9
"""More steps than any run has: gives start states that no evaluation in training had."""


@dataclasses.dataclass
class Falls:
    """What to look at."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    trajectories: int = 10


def hazard(lengths: np.ndarray, begin: int, end: int) -> str:
    """Falls per 1,000 steps walked, among the trajectories that got so far; in brackets their number."""
    walked = np.clip(lengths - begin, 0, end - begin).sum()
    falls = np.count_nonzero((lengths > begin) & (lengths <= end) & (lengths < LONGEST))
    return f"{1_000 * falls / walked:.2f} ({falls})" if walked else "–"


def main(asked: Falls) -> None:
    heads = ["run", "steps", "return, ≤ 1,000", "return, ≤ 10,000", "walked to the end"]
    heads += [f"falls per 1,000 steps, {begin:,} to {end:,}" for begin, end in PHASES]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|", flush=True)
    for path in asked.runs:
        run = kemeny.Run.open(path)
        settings = from_flat(run.config["settings"])
        for folder in sorted((run.path / "checkpoints").glob("step-*")):
            steps = int(folder.name.removeprefix("step-"))
            result = kemeny.evaluate(
                kemeny.load_policy(folder),
                run.config["env"],
                kemeny.EvaluationProtocol(eval_trajectories=asked.trajectories, eval_max_steps=LONGEST),
                seed=evaluation_seed(settings.seed, UNSEEN),
                simulation=settings.simulation,
            )
            cells = [path.name, f"{steps / 1e6:g}M", *(f"{of.mean():,.0f}" for of in result.returns.values())]
            cells += [f"{np.count_nonzero(result.lengths == LONGEST)} of {asked.trajectories}"]
            cells += [hazard(result.lengths, begin, end) for begin, end in PHASES]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Falls, description=__doc__, config=(tyro.conf.OmitArgPrefixes,)))
