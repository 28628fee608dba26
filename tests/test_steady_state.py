"""Long evaluations of queues: cycles between visits to an empty queue, blocks of steps; M/M/1 queues are the truth."""

import functools
import itertools
import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import kemeny
from kemeny.envs.pool import Step, make_pool
from kemeny.errors import RunError
from kemeny.experience import record as records
from kemeny.experience.cycles import LEAST_CYCLES, Cycles
from kemeny.experience.long_run import long_run
from kemeny.experience.record import Record, block_length
from kemeny.tabular import zoo
from kemeny.tabular.environment import MDPEnv
from kemeny.tasks import Outcome, Process, ProcessEnv, ProcessVectorEnv, criss_cross
from tests.probes import policy_for


class MM1(Process):
    """One queue and one server, uniformised: a job arrives or one leaves. The reward is minus the number of jobs."""

    name, parts, start, choices, events = "M/M/1 queue", ("jobs",), (0,), (2,), 2
    lowest, highest = (0,), (None,)

    def __init__(self, load=0.5):
        self._likely = np.array([load, 1.0]) / (1 + load)

    def probabilities(self, states, actions):
        return self._likely

    def outcome(self, states, actions, events):
        after = np.maximum(states + np.where(events == 0, 1, -1)[:, None], 0)
        return Outcome(after, -states[:, 0].astype(float), np.empty((len(states), 0)))


def copies(num_envs, load=0.5, **options):
    return ProcessVectorEnv(MM1(load), num_envs, **options)


EITHER = policy_for(1, 2, discrete=True)
"""A policy whose actions do nothing."""


def numbers_of_jobs(load, steps, queues, seed):
    """Before each step and after the last: (time, queue), from the empty queue on."""
    rng = np.random.default_rng(seed)
    jobs = np.zeros((steps + 1, queues), np.int64)
    for t in range(steps):
        jobs[t + 1] = np.maximum(jobs[t] + np.where(rng.random(queues) < load / (1 + load), 1, -1), 0)
    return jobs


def cycles_of(jobs, looks=()):
    """The cycles of these queues, whose reward is the number of jobs; room is made for as many steps as each look."""
    steps, queues = len(jobs) - 1, jobs.shape[1]
    cycles, total = Cycles(queues, 1), np.cumsum(jobs[:-1], 0, dtype=float)
    looks = [*looks, steps]
    cycles.grow(looks.pop(0))
    for t in range(1, steps + 1):
        if t > cycles._until:
            cycles.grow(looks.pop(0))
        cycles.add(t, jobs[t] == 0, total[t - 1], 2 * total[t - 1][:, None])
    return cycles


def by_hand(jobs):
    """Average, half-width, number and mean length of the cycles that count: one cycle after the other, no sums kept."""
    steps = len(jobs) - 1
    bin_length = 1
    while bin_length * 128 < steps:
        bin_length *= 2
    whole = []
    for queue in jobs.T:
        visits = [t for t in range(1, steps + 1) if queue[t] == 0]
        whole += [(a, b - a, queue[a:b].sum()) for a, b in itertools.pairwise(visits)]
    half = steps // 2 // bin_length * bin_length
    longest = max(length for begin, length, _ in whole if begin < half)
    last = max((steps - longest) // bin_length * bin_length, half)
    length, total = np.array([(length, total) for begin, length, total in whole if begin < last]).T
    ratio = total.sum() / length.sum()
    error = np.std(total - ratio * length, ddof=1) / np.sqrt(len(length)) / length.mean()
    return ratio, 1.959963984540054 * error, len(length), length.mean()


@pytest.mark.parametrize(("steps", "looks"), [(700, ()), (700, (100, 200, 400)), (64, (7,))])
def test_the_estimate_from_cycles_is_that_of_a_slow_oracle(steps, looks, monkeypatch):
    monkeypatch.setattr("kemeny.experience.cycles.LEAST_CYCLES", 1)
    jobs = numbers_of_jobs(0.3, steps, 40, seed=1)
    found = Cycles.estimates([cycles_of(jobs[:, :30], looks), cycles_of(jobs[:, 30:], looks)])
    ratio, half_width, cycles, length = by_hand(jobs)
    assert (found.left_out, found.cycles, found.length) == ("", cycles, pytest.approx(length))
    assert found.reward.average == pytest.approx(ratio, rel=1e-12)
    assert found.reward.half_width == pytest.approx(half_width, rel=1e-9)
    assert found.costs[0].average == pytest.approx(2 * ratio, rel=1e-12)
    assert found.reward.spread == "cycles"


def test_both_intervals_have_the_mean_number_of_jobs_in_them():
    """ρ/(1−ρ) = 1, over 40 replications of 40 queues of 900 steps."""
    jobs = numbers_of_jobs(0.5, 900, 40 * 40, seed=2)
    by_cycles, by_batches = [], []
    for part in np.split(jobs, 40, 1):
        by_cycles.append(Cycles.estimates([cycles_of(part)]).reward)
        record = Record(40, 0)
        record.grow(900)
        nothing = np.zeros(40, bool)
        for now in part[:-1]:
            record.add_all(0, Step(np.empty(0), now, nothing, nothing, np.empty((40, 0)), nothing))
        by_batches.append(long_run(record.series()).reward)
    for intervals in (by_cycles, by_batches):
        assert np.mean([one.low <= 1 <= one.high for one in intervals]) > 0.85
        averages = np.array([one.average for one in intervals])
        assert abs(averages.mean() - 1) < 3.5 * averages.std() / np.sqrt(40)
        # and the intervals are not so wide that anything would be in them
        assert np.mean([one.half_width for one in intervals]) == pytest.approx(1.96 * averages.std(), rel=0.35)


def test_the_cycle_that_is_cut_off_makes_no_bias():
    """Which it does if all whole cycles are counted, for it is a long one more often than not."""
    jobs = numbers_of_jobs(0.5, 320, 20_000, seed=3)
    total = np.cumsum(jobs[:-1], 0)
    last = 320 - np.argmax(jobs[:0:-1] == 0, 0)  # the last visit of each queue
    naive = total[last - 1, np.arange(20_000)].sum() / last.sum()
    found = Cycles.estimates([cycles_of(jobs)])
    error = found.reward.half_width / 1.96
    assert naive - 1 < -6 * error
    assert abs(found.reward.average - 1) < 3 * error


def test_an_evaluation_of_a_queue_tells_both():
    result = kemeny.evaluate(EITHER, env=copies, trajectories=400, max_steps=600)
    found = result.long_run.regenerative
    assert found.cycles > LEAST_CYCLES
    assert found.length == pytest.approx(2, rel=0.05)  # the empty queue has the probability 1 − ρ
    assert found.reward.low < -1 < found.reward.high
    assert result.long_run.reward.low < -1 < result.long_run.reward.high
    assert "reward per step, from whole cycles" in str(result)
    assert f"{found.cycles:,} whole cycles from one visit to the regeneration state to the next" in str(result)
    assert json.loads(json.dumps(result.full_record()))["long_run"]["regenerative"] == {
        "cycles": found.cycles,
        "length": found.length,
        "reward": found.reward.record(),
        "costs": None,
        "left_out": None,
    }


@pytest.mark.parametrize(
    ("options", "trajectories", "steps", "why"),
    [
        ({"load": 0.97}, 100, 400, "some cycle takes more than half of a trajectory"),
        ({"load": 0.3}, 4, 200, "and it takes 10,000: ask for more steps"),
        ({"largest": 4}, 400, 600, "a trajectory was restarted, which cuts a cycle"),
    ],
)
def test_too_few_or_broken_cycles_are_left_out_with_a_sentence(options, trajectories, steps, why):
    env = functools.partial(copies, **options)
    result = kemeny.evaluate(EITHER, env=env, trajectories=trajectories, max_steps=steps)
    found = result.long_run.regenerative
    assert (found.reward, found.costs) == (None, ())
    assert why in found.left_out
    assert f"There is no estimate from whole cycles, for {found.left_out}." in str(result)


def test_an_environment_that_names_no_regeneration_state_has_no_cycles():
    result = kemeny.evaluate(lambda _: 0, env=functools.partial(MDPEnv, zoo.queue_admission()), max_steps=20)
    assert result.long_run.regenerative is None
    assert "whole cycles" not in str(result)


@pytest.mark.parametrize("make", [ProcessEnv, functools.partial(ProcessVectorEnv, num_envs=3)])
def test_a_process_says_when_it_is_where_it_began(make):
    env = make(criss_cross("IL"))
    observation, info = env.reset(seed=0)
    seen = []
    for _ in range(300):
        np.testing.assert_array_equal(info["regeneration"], (observation == 0).all(-1))
        seen.append(np.mean(info["regeneration"]))
        observation, *_, info = env.step(env.action_space.sample() * 0)
    assert 0 < np.mean(seen) < 1


class Says(gymnasium.Env):
    """Whatever it is told to."""

    def __init__(self, info):
        self.observation_space, self.action_space, self.info = spaces.Discrete(2), spaces.Discrete(2), info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, self.info


@pytest.mark.parametrize("info", [{"regeneration": True}, {"regeneration": np.array([False])}, {}, None])
def test_a_pool_hands_on_what_an_environment_says(info):
    pool = make_pool(functools.partial(Says, info), 2, seed=0)
    pool.reset(np.arange(2))
    pool.send(np.zeros(2, int))
    expected = bool(np.any(info["regeneration"])) if info else False
    assert pool.recv().regeneration.tolist() == [expected] * 2


def test_what_is_not_true_or_false_is_refused():
    with pytest.raises(RunError, match=r"a info\['regeneration'\] of shape \(2,\)"):
        kemeny.evaluate(lambda _: 0, env=functools.partial(Says, {"regeneration": [1, 0]}), max_steps=2)


def test_the_record_of_a_long_evaluation_takes_megabytes():
    """Single steps would take 1.6 GB."""
    record = Record(2_000, 0)
    assert record.bytes_of(100_000) == 2_000 * 100_000 * 8 / 10
    record.grow(100_000)
    series = record.series()
    assert (series.length, series.reward.nbytes) == (10, record.bytes_of(100_000))
    assert Record(2_000, 0).bytes_of(5_000) == 2_000 * 5_000 * 8  # of these each step is kept, as ever
    assert block_length(2_000 * 8, 10**9) * records.FINE_BYTES >= 2_000 * 8 * 10**9
    assert block_length(8 * 10**6, 2_000) == 1  # never fewer than 1,000 blocks


@pytest.fixture
def small_memory(monkeypatch):
    """So that an evaluation of 600 steps of five trajectories keeps blocks of 10."""
    monkeypatch.setattr(records, "FINE_BYTES", 2 * 5 * 8 * 60)
    monkeypatch.setattr(records, "LEAST_BLOCKS", 60)


class Falls(MDPEnv):
    """Admission to a queue that ends when the queue is full."""

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, bool(observation >= 10), False, info


def evaluate_queue(**how):
    env = functools.partial(Falls, zoo.queue_admission())
    return kemeny.evaluate(lambda _: 1, env=env, trajectories=5, costs=("cost",), **how)


def test_blocks_change_no_average(request):
    fine = evaluate_queue(max_steps=600, warm_up=40).long_run
    request.getfixturevalue("small_memory")
    coarse = evaluate_queue(max_steps=600, warm_up=40).long_run
    assert (fine.block, coarse.block) == (1, 10)
    assert coarse.falls > 0
    for name in ("steps", "warm_up", "falls", "goals", "cuts", "falls_per_million"):
        assert getattr(coarse, name) == getattr(fine, name), name
    for one, other in ((fine.reward, coarse.reward), (fine.charged, coarse.charged), (fine.costs[0], coarse.costs[0])):
        assert other.average == pytest.approx(one.average, rel=1e-12)
        assert other.half_width == pytest.approx(one.half_width, rel=0.5)
    assert "only the means of blocks of 10 were kept" in str(evaluate_queue(max_steps=600))
    assert evaluate_queue(max_steps=600, warm_up=41).long_run.warm_up == 50
    assert evaluate_queue(max_steps=600, warm_up=599).long_run.warm_up == 590
    assert evaluate_queue(max_steps=600).long_run.warm_up % 10 == 0


def test_what_comes_after_the_last_whole_block_is_left_out(request):
    whole, longer = (evaluate_queue(max_steps=steps, warm_up=0).long_run for steps in (600, 609))
    assert longer.falls > whole.falls
    request.getfixturevalue("small_memory")
    found = evaluate_queue(max_steps=609, warm_up=0).long_run
    assert (found.falls, found.steps) == (whole.falls, whole.steps)
    assert found.charged.average == pytest.approx(whole.charged.average, rel=1e-12)


def test_blocks_that_grow_are_those_of_a_record_that_was_as_long_from_the_start(small_memory):
    rng = np.random.default_rng(5)
    reward, nothing = rng.random((600, 5)), np.zeros(5, bool)
    grown, at_once = Record(5, 1), Record(5, 1)
    at_once.grow(600)
    lengths = []
    for t, now in enumerate(reward):
        if t in (0, 64, 243):
            grown.grow({0: 64, 64: 243, 243: 600}[t])
            lengths.append(grown.series().length)
        for record in (grown, at_once):
            record.add_all(0, Step(np.empty(0), now, nothing, nothing, -now[:, None], nothing))
    assert lengths == [1, 1, 10]
    np.testing.assert_allclose(grown.series().reward, reward.reshape(60, 10, 5).mean(1), rtol=1e-12)
    np.testing.assert_allclose(grown.series().costs[..., 0], at_once.series().costs[..., 0], rtol=1e-12)


GOLDEN = {
    "returns_1000": [1880.0, 1925.0, 1850.0, 1885.0, 1890.0],
    "returns_1203": [2235.0, 2325.0, 2220.0, 2235.0, 2275.0],
    "counts": (40, 5_815, 0, "batches"),
    "reward": (1.8624247635425624, 1.809599306005903, 1.9152502210792217),
    "cost": (2.9707652622527947, 2.8585889623727314, 3.082941562132858),
}


def test_the_numbers_are_those_from_before_blocks_and_cycles():
    """Computed by the code that kept all steps of all trajectories, and indexed them one by one."""
    mdp = zoo.queue_admission()
    admit = np.where(np.arange(mdp.n_states) // 2 < 4, 1, 0)
    env = functools.partial(MDPEnv, mdp)
    result = kemeny.evaluate(lambda s: int(admit[s]), env=env, trajectories=5, max_steps=1_203, costs=("cost",))
    found = result.long_run
    assert result.returns[1_000].tolist() == GOLDEN["returns_1000"]
    assert result.returns[1_203].tolist() == GOLDEN["returns_1203"]
    assert (found.warm_up, found.steps, found.falls, found.reward.spread) == GOLDEN["counts"]
    assert found.reward[:3] == pytest.approx(GOLDEN["reward"], rel=1e-12)
    assert found.costs[0][:3] == pytest.approx(GOLDEN["cost"], rel=1e-12)
    assert found.charged == found.reward
