"""The paper's evaluation protocol (§6.1): undiscounted returns of the mean action, from start states of its own.

One set of trajectories serves every horizon: the return at 1,000 steps is a prefix of that at 10,000.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from kemeny.acting import Policy
from kemeny.envs.faults import Faults
from kemeny.envs.pool import EnvLike, make_pool, seed_of

HORIZONS = (1_000, 10_000)
"""Steps at which returns are reported (§6.1)."""
EVALUATION_STREAM = 2**20
"""Keeps evaluation seeds apart from those of training environments, which count up from 0."""

EXPLORATION_STREAM = 2
"""Keeps an exploring evaluation's noise apart from other uses of its seed."""


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a policy is evaluated."""

    eval_trajectories: int = 10
    """Trajectories of each evaluation, each with a seed of its own."""
    eval_max_steps: int = 10_000
    """Steps after which an evaluation trajectory stops, if the agent has not fallen; fewer are cheaper."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One entry a trajectory."""

    returns: dict[int, np.ndarray]
    """Undiscounted return up to a fall or to each horizon, without any reset cost."""
    lengths: np.ndarray
    average_costs: np.ndarray
    """(trajectory, cost): total cost / length."""
    faults: int = 0
    """Trajectories that were begun anew because their environment failed."""

    def record(self) -> dict[str, Any]:
        """As a line of evaluations.jsonl; a horizon beyond the longest allowed trajectory is null."""
        returns = {
            f"returns_{horizon}": self.returns[horizon].tolist() if horizon in self.returns else None
            for horizon in sorted({*HORIZONS, *self.returns})
        }
        costs = self.average_costs.tolist() if self.average_costs.size else None
        return {**returns, "lengths": self.lengths.tolist(), "average_costs": costs, "faults": self.faults}

    def score(self, limits: Sequence[float] = (), slope: float = 1.0) -> list[float]:
        """What makes a policy best, in order: least cost above the limits, then the return at the longest horizon.

        `slope` turns cost per step into the units of the limits: 1, or 1/(1−γ) for a limit on the discounted sum.
        """
        excess = np.maximum(slope * self.average_costs.mean(0) - np.asarray(limits, float), 0)
        return [-float(excess.sum()), float(self.returns[max(self.returns)].mean())]


def evaluate(
    policy: Policy,
    env: EnvLike,
    protocol: Protocol,
    *,
    seed: int,
    costs: tuple = (),
    threads: int = 0,
    workers: int = 0,
    step_timeout: float | None = None,
    restart_faulty: bool = False,
    explore: bool = False,
) -> Evaluation:
    """Run the policy until each trajectory falls or reaches the longest horizon.

    It acts by its mean (or likeliest) action; with `explore` as in training, where limits on costs are kept.
    """
    count = protocol.eval_trajectories
    horizons = [h for h in HORIZONS if h < protocol.eval_max_steps] + [protocol.eval_max_steps]
    pool = make_pool(
        env,
        count,
        seed=seed,
        costs=costs,
        threads=threads,
        workers=workers,
        step_timeout=step_timeout,
        tolerant=restart_faulty,
    )
    try:
        faults = Faults(pool, restart_faulty)
        rng = np.random.default_rng([EXPLORATION_STREAM, seed])
        alive = np.arange(count)
        observation, _ = faults.reset(alive)
        total, spent = np.zeros(count), np.zeros((count, len(costs)))
        lengths = np.zeros(count, np.int64)
        returns = {horizon: np.zeros(count) for horizon in horizons}
        while alive.size:
            head = policy.head(observation[alive])
            pool.send(policy.explore(head, policy.noise(rng, len(head))) if explore else policy.mode(head), alive)
            step = pool.recv()
            observation[alive] = step.observation
            total[alive] += step.reward
            spent[alive] += step.costs
            lengths[alive] += 1
            for horizon in horizons:
                arrived = alive[lengths[alive] <= horizon]
                returns[horizon][arrived] = total[arrived]
            over = step.terminated | step.truncated | (lengths[alive] >= protocol.eval_max_steps)
            failed = faults.among(step, alive)
            if failed.size:  # the trajectory begins anew, from another start state
                total[failed], spent[failed], lengths[failed] = 0, 0, 0
                observation[failed], _ = faults.reset(failed)
            alive = alive[~over | np.isin(alive, failed)]
    finally:
        pool.close()
    return Evaluation(returns, lengths, spent / lengths[:, None], faults.count)


def evaluation_seed(seed: int, steps: int) -> int:
    """The seed of the evaluation after so many steps of a run."""
    return seed_of(seed, EVALUATION_STREAM, steps)
