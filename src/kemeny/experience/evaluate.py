"""The paper's evaluation protocol (§6.1), and from the same trajectories the long run.

Returns are undiscounted, of the mean action, from start states of its own. One set of trajectories serves every
horizon: the return at 1,000 steps is a prefix of that at 10,000. For the long run a trajectory goes on after a fall, by
a restart as in training; what comes after the first fall changes nothing in its return.
"""

import contextlib
import dataclasses

import numpy as np

from kemeny.envs.costs import FALL
from kemeny.envs.faults import Faults
from kemeny.envs.names import EnvLike, as_environment
from kemeny.envs.pool import DEFAULT_SIMULATION, Pool, Step, make_in_turn, seed_of
from kemeny.envs.settings import Simulation
from kemeny.experience.acting import Policy, check_fits
from kemeny.experience.cycles import Cycles
from kemeny.experience.ends import UsualRewards
from kemeny.experience.evaluation import HORIZONS, Evaluation, Falls
from kemeny.experience.long_run import LongRun, long_run
from kemeny.experience.record import FirstTrajectory, Record, refuse_too_large
from kemeny.experience.rules import Rule, RulePolicy
from kemeny.experience.settings import EvaluationProtocol, LongRunProtocol
from kemeny.naming import name_of

EVALUATION_STREAM = 2**20
"""Keeps evaluation seeds apart from those of training environments, which count up from 0."""
EXPLORATION_STREAM, RESTARTED_STREAM = 2, 3
"""Keep an exploring evaluation's noise apart from other uses of its seed, before and after the first fall."""
FIRST_LOOK = 1_000
"""Steps after which the precision is looked at for the first time; then after twice as many, and so on."""


def evaluate(
    policy: Policy | Rule,
    env: EnvLike,
    protocol: EvaluationProtocol,
    *,
    seed: int,
    costs: tuple = (),
    simulation: Simulation = DEFAULT_SIMULATION,
    explore: bool = False,
    long_run: LongRunProtocol | None = None,
    reset_cost: float | None = None,
    keep_trajectory: bool = False,
) -> Evaluation:
    """Run the policy until each trajectory falls or reaches the longest horizon; for the long run, beyond each fall.

    It acts by its mean (or likeliest) action; with `explore` as in training, where limits on costs are kept. An end is
    a fall, and not a goal, by the rule of training: with a `reset_cost` every end is. With `keep_trajectory` the first
    trajectory is kept step by step.
    """
    record = None if long_run is None else Record(protocol.eval_trajectories, len(costs))
    usual = UsualRewards() if record is None else record.usual
    with contextlib.ExitStack() as stack:
        portions: list[_Trajectories] = []
        for first_env, pool in make_in_turn(
            env, protocol.eval_trajectories, seed=seed, costs=costs, simulation=simulation
        ):
            stack.callback(pool.close)
            if isinstance(policy, Policy):
                check_fits(policy, pool.spec, as_environment(env).name)
                actor = policy
            else:
                actor = RulePolicy(policy, pool.spec)
            rngs = [
                np.random.default_rng([stream, seed, first_env]) if explore else None
                for stream in (EXPLORATION_STREAM, RESTARTED_STREAM)
            ]
            faults = Faults(pool, simulation.restart_faulty, first_env)
            first = FirstTrajectory(pool, len(costs)) if keep_trajectory and first_env == 0 else None
            portions.append(_Trajectories(pool, first_env, faults, actor, rngs, len(costs), record, usual, first))
        fall_costs = tuple(number for number, cost in enumerate(costs) if cost == FALL)
        longest, found = _run(portions, record, protocol.eval_max_steps, long_run, fall_costs)
    first, lengths = portions[0].first, np.concatenate([portion.lengths for portion in portions])
    bound = usual.bound if reset_cost is None else np.inf
    average_costs = np.concatenate([portion.spent / portion.lengths[:, None] for portion in portions])
    for number in fall_costs:  # whose mean over trajectories is then falls per step, however long each of them is
        average_costs[:, number] = np.concatenate([portion.fell(bound) for portion in portions]) / lengths.mean()
    return Evaluation(
        {
            horizon: np.concatenate([portion.returns.get(horizon, portion.total) for portion in portions])
            for horizon in (*(horizon for horizon in HORIZONS if horizon < longest), longest)
        },
        lengths,
        average_costs,
        sum(portion.faults.count for portion in portions),
        falls=Falls.of(sum(portion.falls(bound) for portion in portions), lengths, longest),
        long_run=found,
        trajectory=None if first is None else first.trajectory(tuple(map(name_of, costs))),
        cost_names=tuple(map(name_of, costs)),
    )


def _run(
    portions: list["_Trajectories"],
    record: Record | None,
    max_steps: int,
    protocol: LongRunProtocol | None,
    fall_costs: tuple[int, ...],
) -> tuple[int, LongRun | None]:
    """Run all trajectories; how far each went unless it fell, and what the long run is."""
    first = sum(portion.first.bytes_per_step for portion in portions if portion.first is not None)
    refuse_too_large((0 if record is None else record.bytes_of(max_steps)) + first * max_steps)
    sequential = protocol is not None and protocol.precision is not None
    until = min(FIRST_LOOK, max_steps) if sequential else max_steps
    while True:
        if record is not None:
            record.grow(until)
        for portion in portions:
            portion.go_on(until)
            portion.begin()
        while any(portion.ids.size for portion in portions):
            for portion in portions:  # while one is simulated, the actions of the other are computed
                if portion.ids.size:
                    portion.finish()
                    portion.begin()
        if protocol is None or record is None:
            return until, None
        found = long_run(
            record.series(), reset_cost=protocol.reset_cost, warm_up=protocol.warm_up, fall_costs=fall_costs
        )
        if until == max_steps or protocol.is_met_by(found.reward.precision):
            cycles = Cycles.estimates([portion.cycles for portion in portions])
            return until, dataclasses.replace(found, regenerative=cycles)
        until = min(2 * until, max_steps)


class _Trajectories:
    """Some trajectories of an evaluation, as far as they have come."""

    def __init__(
        self,
        pool: Pool,
        first_env: int,
        faults: Faults,
        policy: Policy | RulePolicy,
        rngs: list[np.random.Generator | None],
        costs: int,
        record: Record | None,
        usual: UsualRewards,
        first: FirstTrajectory | None,
    ) -> None:
        """`record` and `usual` are those of all trajectories, of which these begin at number `first_env`."""
        count = pool.num_envs
        self.pool, self.faults, self.policy, self.rngs = pool, faults, policy, rngs
        self.first_env, self.record, self.usual, self.first, self.until = first_env, record, usual, first, 0
        self.everyone = np.arange(count)
        self.observation, _ = self.faults.reset(self.everyone)
        self.total, self.spent = np.zeros(count), np.zeros((count, costs))
        self.lengths = np.zeros(count, np.int64)
        self.returns = {horizon: np.zeros(count) for horizon in HORIZONS}
        self.cycles = Cycles(count, costs)
        self.together = True
        """Whether none has ended or failed so far: then all take the same step, and are counted without an index."""
        self.ended = np.zeros(count, bool)
        """Which have fallen, or were cut by their environment, at least once."""
        self.ended_with = np.full(count, np.nan)
        """The reward of the step that ended in their first fall or goal, if it was no cut."""
        self.alive = self.later = self.ids = self.everyone
        """Those on their way to their first end; those beyond it; and both, the ones that take the next step."""

    def go_on(self, until: int) -> None:
        """Let each have so many steps."""
        self.until = until
        self.alive = self.everyone if self.together else self.everyone[~self.ended & (self.lengths < until)]
        self.later = self.everyone[:0]
        self.cycles.grow(until)
        if self.first is not None:
            self.first.grow(until)
        if self.record is not None:
            self.later = self.everyone[self.ended & (self._clock < until)]

    def begin(self) -> None:
        """Let the simulator start on the next step of those that go on."""
        self.ids = np.concatenate([self.alive, self.later]) if self.later.size else self.alive
        if not self.ids.size:
            return
        # Those beyond their first end act apart, so that they change no digit of what the others do.
        groups = [(ids, rng) for ids, rng in zip((self.alive, self.later), self.rngs, strict=True) if ids.size]
        actions = [self._act(ids, rng) for ids, rng in groups]
        everyone = self.ids is self.everyone
        self.pool.send(actions[0] if len(actions) == 1 else np.concatenate(actions), None if everyone else self.ids)

    def finish(self) -> None:
        """Wait for the step and count it."""
        step = self.pool.recv()
        failed = self.faults.among(step, self.ids)
        ended = step.terminated | step.truncated
        if self.together and not failed.size and not np.count_nonzero(ended):
            self._count_all(step)
        else:
            self.together, self.cycles.broken = False, True
            self._count(step, failed, ended)

    def falls(self, bound: float) -> int:
        """How many fell at their first end."""
        return int(np.count_nonzero(self.fell(bound)))

    def fell(self, bound: float) -> np.ndarray:
        """Which fell at their first end: it was neither a cut nor, by a reward above the bound, a goal."""
        return self.ended_with <= bound

    def _count_all(self, step: Step) -> None:
        """Count a step of all that ends nothing."""
        if self.record is not None:
            self.record.add_all(self.first_env, step)
        else:
            self.usual.add(step.reward)
        if self.first is not None:
            self.first.add(self.observation[0], 0, step)
        self.observation[:] = step.observation
        self.total += step.reward
        self.spent += step.costs
        self.lengths += 1
        time = int(self.lengths[0])
        if time in self.returns:
            self.returns[time][:] = self.total
        if self.record is not None:
            self.cycles.add(time, step.regeneration, self.total, self.spent)
        if time >= self.until:
            self.alive = self.everyone[:0]

    def _count(self, step: Step, failed: np.ndarray, ended: np.ndarray) -> None:
        """Count a step of some, each of which may end or fail."""
        alive, ids = self.alive, self.ids
        self._keep(step, failed)
        self.observation[ids] = step.observation
        mine = slice(len(alive))  # the rows of those that have not ended yet
        self.total[alive] += step.reward[mine]
        self.spent[alive] += step.costs[mine]
        self.lengths[alive] += 1
        for horizon, returns in self.returns.items():
            arrived = alive[self.lengths[alive] <= horizon]
            returns[arrived] = self.total[arrived]
        over = ended[mine] | (self.lengths[alive] >= self.until)
        if failed.size:  # the trajectory begins anew, from another start state
            anew = alive[np.isin(alive, failed)]
            self.total[anew], self.spent[anew], self.lengths[anew] = 0, 0, 0
            over &= ~np.isin(alive, anew)
            ended &= ~np.isin(ids, failed)
            self.observation[failed], _ = self.faults.reset(failed)
        if np.count_nonzero(over):
            self.ended[alive[ended[mine]]] = True
            fell = np.flatnonzero(ended[mine] & step.terminated[mine])
            self.ended_with[alive[fell]] = step.reward[fell]
            self.alive = alive[~over]
        if self.record is not None:
            self._restart(ids[ended])

    def _keep(self, step: Step, failed: np.ndarray) -> None:
        """Write down a step of some."""
        if self.record is not None:
            self.record.add(self.first_env + self.ids, self.first_env + failed, step)
        else:
            self.usual.add(step.reward[~step.terminated & ~np.isin(self.ids, failed)])
        row = np.flatnonzero(self.ids == 0)
        if self.first is None or not row.size:
            return
        if 0 in failed:
            self.first.cut()
        else:
            self.first.add(self.observation[0], int(row[0]), step)

    @property
    def _clock(self) -> np.ndarray:
        """Steps of each trajectory so far, in the record."""
        assert self.record is not None
        return self.record.clock[self.first_env : self.first_env + len(self.everyone)]

    def _restart(self, ids: np.ndarray) -> None:
        """Put these into start states; those that have steps left go on."""
        if ids.size:
            self.observation[ids], _ = self.faults.reset(ids)
        if ids.size or self.later.size:
            self.later = self.everyone[self.ended & (self._clock < self.until)]

    def _act(self, ids: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        policy = self.policy
        head = policy.head(self.observation.copy() if ids is self.everyone else self.observation[ids])
        if rng is None or isinstance(policy, RulePolicy):
            return policy.mode(head)
        return policy.explore(head, policy.noise(rng, len(head)))


def evaluation_seed(seed: int, steps: int) -> int:
    """The seed of the evaluation after so many steps of a run."""
    return seed_of(seed, EVALUATION_STREAM, steps)
