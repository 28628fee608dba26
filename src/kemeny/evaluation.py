"""The paper's evaluation protocol (§6.1): undiscounted returns of the mean action, from start states of its own.

One set of trajectories serves every horizon: the return at 1,000 steps is a prefix of that at 10,000.
"""

import dataclasses
from typing import Any

import numpy as np

from kemeny.acting import Policy
from kemeny.envs.pool import EnvLike, make_pool, seed_of

HORIZONS = (1_000, 10_000)
"""Steps at which returns are reported (§6.1)."""
EVALUATION_STREAM = 2**20
"""Keeps evaluation seeds apart from those of training environments, which count up from 0."""


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

    def record(self) -> dict[str, Any]:
        """As a line of evaluations.jsonl; a horizon beyond the longest allowed trajectory is null."""
        returns = {
            f"returns_{horizon}": self.returns[horizon].tolist() if horizon in self.returns else None
            for horizon in sorted({*HORIZONS, *self.returns})
        }
        costs = self.average_costs.tolist() if self.average_costs.size else None
        return {**returns, "lengths": self.lengths.tolist(), "average_costs": costs}


def evaluate(
    policy: Policy, env: EnvLike, protocol: Protocol, *, seed: int, costs: tuple = (), threads: int = 0
) -> Evaluation:
    """Run the policy without exploration until each trajectory falls or reaches the longest horizon."""
    count = protocol.eval_trajectories
    horizons = [h for h in HORIZONS if h <= protocol.eval_max_steps] or [protocol.eval_max_steps]
    pool = make_pool(env, count, seed=seed, costs=costs, threads=threads)
    try:
        alive = np.arange(count)
        observation = pool.reset(alive)
        total, spent = np.zeros(count), np.zeros((count, len(costs)))
        lengths = np.zeros(count, np.int64)
        returns: dict[int, np.ndarray] = {}
        for t in range(1, protocol.eval_max_steps + 1):
            pool.send(policy.mode(policy.head(observation)), alive)
            step = pool.recv()
            total[alive] += step.reward
            spent[alive] += step.costs
            lengths[alive] = t
            if t in horizons:
                returns[t] = total.copy()
            going = ~(step.terminated | step.truncated)
            alive, observation = alive[going], step.observation[going]
            if not alive.size:
                break
    finally:
        pool.close()
    for horizon in horizons:
        returns.setdefault(horizon, total.copy())
    return Evaluation(returns, lengths, spent / lengths[:, None])


def evaluation_seed(seed: int, steps: int) -> int:
    """The seed of the evaluation after so many steps of a run."""
    return seed_of(seed, EVALUATION_STREAM, steps)
