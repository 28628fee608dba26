"""Falls: their limit, the running mean of rare costs, the reset cost by itself, and what is said of all three."""

import dataclasses
import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kemeny
from kemeny.envs.settings import Simulation
from kemeny.errors import UserError
from kemeny.experience.collect import Collector
from kemeny.experience.deployed import Deployed
from kemeny.experience.evaluate import evaluate
from kemeny.experience.long_run import Ends, Series, long_run
from kemeny.experience.settings import Deployment, EvaluationProtocol, Task
from kemeny.learning.learner import init
from kemeny.learning.rare_events import memory_for
from kemeny.learning.reset_cost import LARGEST, STEP, FallTarget, ResetCost
from kemeny.learning.running_mean import RunningMean
from kemeny.learning.settings import TrustRegion
from kemeny.learning.steps.natural import Natural
from kemeny.learning.update import update
from kemeny.observers import NOBODY
from kemeny.runs import out_of_reach
from kemeny.runs.assembly import make_learner
from kemeny.runs.interrupts import Interrupted
from kemeny.runs.out_of_reach import LimitsOutOfReach, NothingFalls, TargetOutOfReach, watch
from kemeny.runs.settings import from_flat
from kemeny.tabular import MDP
from kemeny.tabular.linear_programme import linear_programme
from tests.model_source import ModelSource
from tests.probes import policy_for
from tests.test_constraints import learner_of, same
from tests.test_learner import BOX, SMALL, random_batch
from tests.test_training import ENV, Interrupt, Listener, same_numbers

# The running mean


def test_a_running_mean_of_few_batches_is_their_mean():
    """As long as they are fewer than its memory, with the standard error of a textbook."""
    numbers = np.array([3.0, 5.0, 4.0, 10.0])
    running = RunningMean.init(1)
    for number in numbers:
        running = running.add(jnp.array([number]), (10,))
    assert float(running.mean[0]) == pytest.approx(numbers.mean())
    assert float(running.error[0]) == pytest.approx(numbers.std(ddof=1) / np.sqrt(len(numbers)))


def test_a_running_mean_forgets():
    """In the long run a batch k ago counts (1 − 1/M)ᵏ/M, and the error is that of such a mean."""
    rng = np.random.default_rng(0)
    numbers, memory = rng.normal(7.0, 2.0, 3_000), 20
    step = jax.jit(lambda running, number: running.add(number[None], (memory,)))
    running = RunningMean.init(1)
    for number in numbers:
        running = step(running, jnp.float32(number))
    weights = (1 - 1 / memory) ** np.arange(500) / memory
    assert float(running.mean[0]) == pytest.approx(weights @ numbers[::-1][:500], rel=1e-5)
    assert float(running.weights[0]) == pytest.approx(1 / (2 * memory - 1), rel=1e-4)
    assert float(running.error[0]) == pytest.approx(2.0 / np.sqrt(2 * memory - 1), rel=0.5)


def test_one_batch_is_its_own_mean():
    """Beside a rare cost, another with a memory of one batch is compared as it is."""
    running = RunningMean.init(2)
    for number in (0.3, 0.1, 0.7):
        running = running.add(jnp.float32([number, number]), (1, 5))
    running = running.add(jnp.float32([0.123, 0.123]), (1, 5))
    assert running.mean[0] == jnp.float32(0.123)
    assert np.isnan(running.error[0])
    assert np.isfinite(running.error[1])


@pytest.mark.parametrize(
    ("rate", "steps", "batches"), [(1e-4, 5_000, 20), (1e-3, 5_000, 2), (1.0, 10, 1), (1e-9, 5_000, 200), (0.0, 5, 200)]
)
def test_a_memory_sees_ten_events(rate, steps, batches):
    assert memory_for(rate, steps) == batches


def test_only_falls_have_a_memory_by_themselves():
    def of(**settings):
        return make_learner(from_flat({"algorithm": "acpo", **settings})).cost_memory

    assert of(cost="speed", limit=2.0) == (1,)
    assert of(cost=["speed", "fall"], limit=[2.0, 1e-4]) == (1, 20)
    assert of(cost=["speed", "fall"], limit=[2.0, 1e-4], cost_memory=7) == (7, 7)
    assert of(algorithm="cpo", gamma=0.99, cost="fall", limit=1e-2) == (20,)


@pytest.mark.exact
def test_a_memory_of_one_batch_changes_nothing():
    """Bit for bit, update after update."""
    plain = dataclasses.replace(SMALL, limits=(0.05, 0.5))
    ones = dataclasses.replace(plain, cost_memory=(1, 1))
    a, b = (init(learner, BOX, jax.random.key(0)) for learner in (plain, ones))
    assert b.running_costs is None
    for seed in range(2):
        batch = random_batch(BOX, seed, signals=3)
        a, _ = update(plain, a, batch)
        b, _ = update(ones, b, batch)
    assert same((a.policy, a.critics, a.optimizers), (b.policy, b.critics, b.optimizers))


def test_the_step_is_told_the_running_excess():
    learner = dataclasses.replace(SMALL, limits=(0.05,), cost_memory=(4,))
    state = init(learner, BOX, jax.random.key(0))
    costs = []
    for seed in range(3):
        batch = random_batch(BOX, seed, signals=2)
        state, metrics = update(learner, state, batch)
        costs.append(float(np.mean(batch.signals[1])))
    assert float(metrics.costs.running.running_cost[0]) == pytest.approx(np.mean(costs), abs=1e-6)
    assert float(metrics.costs.violation[0]) == pytest.approx(np.mean(costs) - 0.05, abs=1e-6)
    assert float(metrics.costs.cost[0]) == pytest.approx(costs[-1], abs=1e-6)


# A rare event whose optimum under a limit is known


def walker():
    """Leans further by chance, more often if it hurries, which pays twice as much, and falls from the last state."""
    states, forward, back = 5, (0.02, 0.3), (0.5, 0.1)
    transitions, rewards, costs = np.zeros((states, 2, states)), np.zeros((states, 2)), np.zeros((states, 2))
    for s in range(states):
        for a in range(2):
            falls = s + 1 == states
            transitions[s, a, 0 if falls else s + 1] += forward[a]
            transitions[s, a, max(s - 1, 0)] += back[a]
            transitions[s, a, s] += 1 - forward[a] - back[a]
            rewards[s, a], costs[s, a] = (0.5, 1.0)[a], forward[a] if falls else 0.0
    return MDP(transitions, rewards, costs=costs)


class Falls(ModelSource):
    """The cost is 1 where the walker fell, instead of the probability of it."""

    def roll_out(self, state):
        batch = super().roll_out(state)
        last, first = batch.observation[..., -1] > 0, batch.next_observation[..., 0] > 0
        return batch._replace(signals=(batch.signals[0], (last & first).astype(np.float32)))


@pytest.mark.slow
def test_reaches_the_optimum_under_a_limit_on_rare_falls():
    """One fall in 1,000 steps: two per batch. The optimum hurries until it leans too far.

    A policy swings around a limit that it sees through a memory, the less the smaller its steps.
    """
    mdp, limit, iterations = walker(), 1e-3, 300
    best = linear_programme(mdp, limit)
    assert best.gain < 0.97 * linear_programme(mdp).gain
    source = Falls(mdp, [mdp.costs], num_envs=40, batch_length=50)
    learner = learner_of(limit, iterations=iterations)
    learner = dataclasses.replace(learner, cost_memory=(5,), step=Natural(TrustRegion(delta=0.003)))
    state, found = None, []
    for _ in range(iterations // 20):
        state, _ = source.learn(learner, 20, state)
        policy = source.policy(state)
        found.append([mdp.evaluate(policy).rho, mdp.evaluate(policy, signal="cost").rho])
    gain, falls = np.mean(found[-8:], 0)
    assert gain >= 0.95 * best.gain
    assert 0.5 * limit <= falls <= 1.5 * limit


# Falls as a cost


class Tumbler(gymnasium.Env):
    """Falls every `life` steps, and earns 1 per step; every third end pays 100 and is a goal, if it `has_goals`."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, life=5, has_goals=False):
        self.life, self.has_goals, self.ends = life, has_goals, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.age += 1
        over = self.age >= self.life
        self.ends += over
        goal = over and self.has_goals and self.ends % 3 == 0
        return np.zeros(2, np.float32), 100.0 if goal else 1.0, over, False, {"age": self.age}


def collected(env, task, **more):
    collector = Collector(env, task, num_envs=4, batch_length=60, seed=0, **more)
    batch = collector.roll_out(policy_for(2, 2, discrete=True), 0)
    collector.close()
    return batch, collector.falls


@pytest.mark.parametrize("reset_cost", [None, 0.0, "auto"])
def test_falls_are_a_cost_and_goals_are_none(reset_cost):
    env = functools.partial(Tumbler, 5, True)
    batch, falls = collected(env, Task(reset_cost=reset_cost, cut=1_000), costs=("age", "fall"))
    ended = batch.signals[1] == 5
    assert ended.sum() == 48
    assert falls == batch.signals[2].sum() == (48 if reset_cost == 0.0 else 32)
    assert set(np.unique(batch.signals[2][ended])) == ({1} if reset_cost == 0.0 else {0, 1})
    assert not batch.signals[2][~ended].any()


@pytest.mark.parametrize(("reset_cost", "falls"), [(None, 32), (0.0, 48), ("auto", 32)])
def test_goals_are_no_falls_where_the_policy_acts_as_deployed(reset_cost, falls):
    task, deployment = Task(reset_cost=reset_cost, cut=1_000), Deployment(deployed_envs=4, deployed_cut=1_000)
    env = functools.partial(Tumbler, 5, True)
    apart = Deployed(deployment, env, task, 60, 0, ("age", "fall"), Simulation(), NOBODY)
    apart.begin()
    assert apart.costs(policy_for(2, 2, discrete=True), 0)[1] == pytest.approx(falls / 240)
    apart.close()


def test_the_learner_charges_what_the_collector_left_to_it():
    """With the cost at 100, the same rewards as a collector that charges 100, goals free."""
    env = functools.partial(Tumbler, 5, True)
    given, _ = collected(env, Task(cut=1_000))
    left, _ = collected(env, Task(reset_cost="auto", cut=1_000))
    assert given.fall is None
    assert left.fall.sum() == 32
    np.testing.assert_array_equal(left.signals[0] - 100 * left.fall, given.signals[0])


def test_an_evaluation_counts_falls_per_step_of_all_trajectories():
    """Not the mean of 1/length, to which a short trajectory adds more than a long one."""
    lives = iter([50, 50, 5, 50, 50, 50, 50])
    policy, protocol = policy_for(2, 2, discrete=True), EvaluationProtocol(4, 40)
    result = evaluate(policy, lambda: Tumbler(next(lives)), protocol, seed=0, costs=("fall",))
    assert sorted(result.lengths.tolist()) == [5, 40, 40, 40]
    assert result.average_costs[:, 0].mean() == pytest.approx(1 / 125)


def test_the_long_run_leaves_goals_out_of_falls():
    costs = np.zeros((100, 2, 2))
    costs[[9, 59, 79], [0, 0, 1], 1] = 1
    ends = Ends(np.array([9, 59, 79]), np.array([0, 0, 1]), np.array([1.0, 50.0, 1.0]), np.ones(3, bool))
    series = Series(np.ones((100, 2)), costs, ends, bound=10.0)
    for _ in range(2):  # and does not do so twice
        found = long_run(series, warm_up=0, fall_costs=(1,))
        assert found.costs[1].average == pytest.approx(2 / 200)
    assert found.costs[1].average * 1e6 == pytest.approx(found.falls_per_million.average)
    assert long_run(series, warm_up=0, reset_cost=1.0, fall_costs=(1,)).costs[1].average == pytest.approx(3 / 200)


# The reset cost by itself


def after(rates, target=1e-2, unit=1.0, first=100.0):
    """The cost after batches of 1,000 steps with such rates of falls."""
    goal = FallTarget(target, first)
    cost = ResetCost.init(goal).settled(goal, jnp.float32(unit))
    batch = random_batch(BOX, time=100, envs=10)
    values = []
    for rate in rates:
        fell = np.zeros(1_000, bool)
        fell[: round(1_000 * rate)] = True
        cost = cost.after(goal, batch._replace(fall=jnp.array(fell.reshape(100, 10))))
        cost = cost.settled(goal, jnp.float32(77.0))  # which the first batch has done
        values.append(float(cost.value))
    return values


def test_a_fall_becomes_dearer_while_there_are_too_many():
    """By STEP · first · (falls − target)/(falls + target), in the unit of the first batch."""
    assert after([0.03]) == pytest.approx([100 * (1 + STEP * (0.03 - 0.01) / 0.04)])
    assert after([0.0]) == pytest.approx([100 * (1 - STEP)])
    assert after([0.01, 0.01]) == pytest.approx([100, 100])
    assert after([0.03], unit=1e-3) == pytest.approx([0.1 * (1 + STEP / 2)])


def test_the_cost_of_a_fall_has_bounds():
    assert after([0.0] * 105)[-1] == 0
    assert after([0.9] * 1_000)[-1] == pytest.approx(LARGEST * 100)


def test_falls_are_charged_in_the_update():
    """An update that charges falls itself is one whose batch was charged before."""
    target = FallTarget(1e-2, 100.0)
    itself, given = dataclasses.replace(SMALL, fall_target=target), SMALL
    batch = random_batch(BOX)
    fell = jnp.array(np.random.default_rng(3).random(batch.cut.shape) < 0.1)
    a, metrics = update(itself, init(itself, BOX, jax.random.key(0)), batch._replace(fall=fell))
    before = batch._replace(signals=(batch.signals[0] - 100 * fell,))
    b, plain = update(given, init(given, BOX, jax.random.key(0)), before)
    assert float(metrics.rate) == pytest.approx(float(plain.rate), rel=1e-5)
    assert float(metrics.reset.reset_cost) == 100
    assert float(metrics.reset.fall_rate) == pytest.approx(float(fell.mean()))
    assert float(a.reset_cost.value) > 100
    for x, y in zip(jax.tree.leaves(a.policy), jax.tree.leaves(b.policy), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


QUICK = {
    "steps": 800, "num_envs": 4, "batch_size": 200, "hidden": (8,), "eval_max_steps": 30, "cut": 60,
    "eval_every": 400, "checkpoint_every": 400,
}  # fmt: skip


@pytest.mark.parametrize("settings", [
    {"reset_cost": "auto", "fall_target": 0.02, "reuse": 2},
    {"algorithm": "acpo", "cost": "fall", "limit": 0.01},
], ids=["reset-cost", "limit"])  # fmt: skip
def test_a_run_goes_on_exactly(settings, tmp_path):
    """Stopped half-way and resumed, it is the run that was never stopped, bit for bit."""
    whole = kemeny.train(ENV, out=tmp_path / "whole", **QUICK, **settings)
    with pytest.raises(Interrupted):
        kemeny.train(
            ENV, out=tmp_path / "half", observers=[Interrupt(200)], **QUICK, **settings
        )  # fmt: skip
    resumed = kemeny.resume(tmp_path / "half")
    assert same_numbers(whole, resumed)
    last = whole.metrics[-1]
    if "cost" in settings:
        assert whole.metrics[0]["cost"][0] == pytest.approx(whole.metrics[0]["falls"] / 200)
        assert whole.metrics[0]["falls"] > 0
        assert last["running_cost"][0] == pytest.approx(np.mean([record["cost"][0] for record in whole.metrics]))
    else:
        assert last["reset_cost"] != whole.metrics[0]["reset_cost"] == 100


def test_the_target_has_an_effect(tmp_path):
    runs = [
        kemeny.train(ENV, out=tmp_path / str(target), reset_cost="auto", fall_target=target, **QUICK)
        for target in (0.02, 0.5)
    ]
    assert runs[0].metrics[-1]["reset_cost"] > 100 > runs[1].metrics[-1]["reset_cost"]


# What is refused, and what is said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "cpo", "cost": "fall", "limit": 0.1, "episodic": True}, "cost fall is for tasks that go on"),
        ({"algorithm": "acpo", "cost": "fall", "limit": 0.1, "episodic": True}, "cost fall is for tasks that go on"),
        ({"algorithm": "trpo", "reset_cost": "auto", "episodic": True}, "--reset-cost auto is for tasks that go on"),
        ({"fall_target": 0.1}, "--fall-target is what --reset-cost auto aims at"),
        ({"reset_cost": "auto", "fall_target": 0.0}, "--fall-target is 0.0; it must be above 0"),
        ({"reset_cost": "auto", "fall_target": 2.0}, "--fall-target is 2.0; it must be at most 1"),
        ({"reset_cost": "automatic"}, "The setting reset_cost is 'automatic'; it must be a number or auto"),
        ({"algorithm": "acpo", "cost": "fall", "limit": -1.0}, "there are never fewer than 0 falls per step"),
        ({"algorithm": "acpo", "cost": "fall", "limit": 1.0, "cost_memory": 0}, "cost-memory is 0; it must be at"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_sentence(settings, message):
    with pytest.raises(UserError, match=message):
        make_learner(from_flat(settings))


def heard(watcher, records):
    listener = Listener()
    watcher.tell = listener.say
    for record in records:
        watcher.iteration(record)
    return listener.said


def test_a_limit_on_falls_that_no_policy_keeps_is_said(monkeypatch):
    """Steps promise to keep it, so that there is no recovery; but falls become no rarer."""
    monkeypatch.setattr(out_of_reach, "RECOVERIES_BEFORE_A_MESSAGE", 5)
    settings = from_flat({"algorithm": "acpo", "cost": "fall", "limit": 1e-3})
    rates = [0.0, 0.01, 0.005, 0.004, 0.0045, 0.0045, 0.0045, 0.0045, 0.0045, 0.0045]
    records = [{"case": 1, "cost": [0.0], "running_cost": [rate], "running_cost_error": [1e-4]} for rate in rates]
    assert heard(LimitsOutOfReach(settings), records) == [
        "For 5 iterations a limit was broken, and no less so; the lowest so far: fall 0.004, one in 250 steps (limit "
        "0.001). Training goes on; if cost no longer falls, perhaps no policy can keep the limit: raise it."
    ]
    unsure = [{**record, "running_cost_error": [0.01]} for record in records]
    assert heard(LimitsOutOfReach(settings), unsure) == []


def test_a_target_that_the_largest_cost_does_not_reach_is_said():
    rates = [0.02, 0.005, 0.01, 0.01]
    records = [
        {"reset_cost": cost, "fall_rate": rate}
        for cost, rate in zip([50.0, 400.0, 500.0, 500.0], rates, strict=True)
    ]  # fmt: skip
    assert heard(TargetOutOfReach(1e-4), records) == [
        "The reset cost has reached 500, its largest value, and there is still one fall in 100 steps, over the last "
        "batches (the fewest so far: 0.005, one in 200 steps). Training goes on with that cost; perhaps no policy "
        "falls as rarely as --fall-target 0.0001 asks: raise it."
    ]
    assert heard(TargetOutOfReach(0.02), records) == []


def test_a_task_without_falls_is_said(monkeypatch):
    monkeypatch.setattr(out_of_reach, "WITHOUT_A_FALL", 2)
    records = [{"steps": 100, "falls": 0}, {"steps": 200, "falls": 0}, {"steps": 300, "falls": 0}]
    assert heard(NothingFalls("Pendulum-v1"), records) == [
        "In the first 200 steps there was no fall: if Pendulum-v1 never says that a trajectory terminated, a limit on "
        "falls or --reset-cost auto has no effect on it."
    ]
    assert heard(NothingFalls("Hopper-v3"), [{"steps": 100, "falls": 1}, *records]) == []


def test_of_the_past_the_user_has_heard(monkeypatch):
    monkeypatch.setattr(out_of_reach, "WITHOUT_A_FALL", 2)
    listener, past = Listener(), [{"steps": 100, "falls": 0, "reset_cost": 100.0, "fall_rate": 0.0}] * 2
    watchers = watch(from_flat({"reset_cost": "auto"}), "Pendulum-v1", past, listener.say)
    assert [type(one) for one in watchers] == [TargetOutOfReach, NothingFalls]
    watchers[1].iteration(past[0])
    assert listener.said == []
    assert watch(from_flat({}), "Pendulum-v1", [], listener.say) == []
