"""The paper's evaluation protocol (§6.1): undiscounted returns of the mean action, from start states of its own.

One set of trajectories serves every horizon: the return at 1,000 steps is a prefix of that at 10,000.
"""

import contextlib

import numpy as np

from kemeny.envs.faults import Faults
from kemeny.envs.pool import DEFAULT_SIMULATION, EnvLike, Pool, make_halves, seed_of
from kemeny.envs.settings import Simulation
from kemeny.experience.acting import Policy, check_fits
from kemeny.experience.evaluation import HORIZONS, Evaluation
from kemeny.experience.settings import EvaluationProtocol
from kemeny.naming import name_of

EVALUATION_STREAM = 2**20
"""Keeps evaluation seeds apart from those of training environments, which count up from 0."""

EXPLORATION_STREAM = 2
"""Keeps an exploring evaluation's noise apart from other uses of its seed."""


def evaluate(
    policy: Policy,
    env: EnvLike,
    protocol: EvaluationProtocol,
    *,
    seed: int,
    costs: tuple = (),
    simulation: Simulation = DEFAULT_SIMULATION,
    explore: bool = False,
) -> Evaluation:
    """Run the policy until each trajectory falls or reaches the longest horizon.

    It acts by its mean (or likeliest) action; with `explore` as in training, where limits on costs are kept.
    """
    with contextlib.ExitStack() as stack:
        halves = []
        for first_env, pool in make_halves(
            env, protocol.eval_trajectories, seed=seed, costs=costs, simulation=simulation
        ):
            stack.callback(pool.close)
            check_fits(policy, pool.spec, name_of(env))
            rng = np.random.default_rng([EXPLORATION_STREAM, seed, first_env]) if explore else None
            faults = Faults(pool, simulation.restart_faulty, first_env)
            halves.append(_Trajectories(pool, faults, policy, protocol.eval_max_steps, rng, len(costs)))
        for half in halves:
            half.begin()
        while any(half.alive.size for half in halves):
            for half in halves:  # while one is simulated, the actions of the other are computed
                if half.alive.size:
                    half.finish()
                    half.begin()
    return Evaluation(
        {horizon: np.concatenate([half.returns[horizon] for half in halves]) for horizon in halves[0].returns},
        np.concatenate([half.lengths for half in halves]),
        np.concatenate([half.spent / half.lengths[:, None] for half in halves]),
        sum(half.faults.count for half in halves),
    )


class _Trajectories:
    """Some trajectories of an evaluation, as far as they have come."""

    def __init__(
        self,
        pool: Pool,
        faults: Faults,
        policy: Policy,
        max_steps: int,
        rng: np.random.Generator | None,
        costs: int,
    ) -> None:
        count = pool.num_envs
        self.pool, self.faults, self.policy, self.max_steps, self.rng = pool, faults, policy, max_steps, rng
        self.alive = np.arange(count)
        self.observation, _ = self.faults.reset(self.alive)
        self.total, self.spent = np.zeros(count), np.zeros((count, costs))
        self.lengths = np.zeros(count, np.int64)
        self.returns = {horizon: np.zeros(count) for horizon in (*(h for h in HORIZONS if h < max_steps), max_steps)}

    def begin(self) -> None:
        """Let the simulator start on the next step of those that go on."""
        if not self.alive.size:
            return
        policy, head = self.policy, self.policy.head(self.observation[self.alive])
        action = policy.mode(head) if self.rng is None else policy.explore(head, policy.noise(self.rng, len(head)))
        self.pool.send(action, self.alive)

    def finish(self) -> None:
        """Wait for the step and count it."""
        step, alive = self.pool.recv(), self.alive
        self.observation[alive] = step.observation
        self.total[alive] += step.reward
        self.spent[alive] += step.costs
        self.lengths[alive] += 1
        for horizon, returns in self.returns.items():
            arrived = alive[self.lengths[alive] <= horizon]
            returns[arrived] = self.total[arrived]
        over = step.terminated | step.truncated | (self.lengths[alive] >= self.max_steps)
        failed = self.faults.among(step, alive)
        if failed.size:  # the trajectory begins anew, from another start state
            self.total[failed], self.spent[failed], self.lengths[failed] = 0, 0, 0
            self.observation[failed], _ = self.faults.reset(failed)
            over &= ~np.isin(alive, failed)
        if np.count_nonzero(over):
            self.alive = alive[~over]


def evaluation_seed(seed: int, steps: int) -> int:
    """The seed of the evaluation after so many steps of a run."""
    return seed_of(seed, EVALUATION_STREAM, steps)
