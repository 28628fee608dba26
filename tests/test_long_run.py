"""The statistics of the long run, against processes whose averages are known."""

import functools

import numpy as np
import pytest
import scipy.stats

from kemeny.errors import UserError
from kemeny.experience.ends import UsualRewards
from kemeny.experience.long_run import Ends, Series, average, long_run, mser, rate
from kemeny.tabular import zoo
from kemeny.tabular.mdp import MDP


def ar1(correlation, steps, series, *, seed, start=0.0):
    """Series of mean 0 and variance 1/(1 − correlation²) that begin at `start`: (time, series)."""
    noise = np.random.default_rng(seed).standard_normal((steps, series))
    x, now = np.empty((steps, series)), np.full(series, start)
    for t in range(steps):
        now = correlation * now + noise[t]
        x[t] = now
    return x


def coverage(intervals, truth):
    return np.mean([interval.low <= truth <= interval.high for interval in intervals])


@pytest.mark.parametrize("trajectories", [1, 5])
@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_an_interval_has_the_mean_in_it_95_times_in_100(correlation, trajectories):
    """Of an AR(1) process; over 400 replications, whose own standard error is 0.011."""
    x = ar1(correlation, 2_000, 400 * trajectories, seed=1).reshape(2_000, 400, trajectories)
    found = [average(x[:, i]) for i in range(400)]
    assert 0.915 < coverage(found, 0.0) < 0.985
    # the width is that of the true standard error: Var(mean) → 1/(1 − correlation)²/steps
    error = 1 / (1 - correlation) / np.sqrt(2_000 * trajectories)
    assert np.mean([interval.half_width for interval in found]) == pytest.approx(2.1 * error, rel=0.15)


def test_steps_that_are_taken_as_independent_would_have_the_mean_in_it_less_than_half_as_often():
    """Which is what the test above must be able to see."""
    x = ar1(0.9, 2_000, 300, seed=2)
    half = 1.96 * x.std(0) / np.sqrt(2_000)
    assert np.mean(np.abs(x.mean(0)) < half) < 0.5


def test_trajectories_that_have_averages_of_their_own_are_compared_with_each_other():
    """Four processes around four means: batches within them say nothing about how far the next one would be."""
    rng = np.random.default_rng(3)
    hits = []
    for _ in range(200):
        found = average(rng.standard_normal((1_000, 4)) + rng.standard_normal(4))
        assert found.spread == "trajectories"
        hits.append(found.low <= 0 <= found.high)
    assert 0.90 < np.mean(hits) < 0.99


def test_the_interval_of_trajectory_means_is_student_s():
    means = np.array([1.0, 5.0, 3.0, 8.0])
    found = average(np.repeat(means[None], 50, 0))
    low, high = scipy.stats.t.interval(0.95, 3, loc=means.mean(), scale=scipy.stats.sem(means))
    assert (found.average, found.low, found.high) == pytest.approx((4.25, low, high))


def test_a_constant_is_known_exactly_and_a_single_step_not_at_all():
    assert average(np.full((100, 3), 0.1))[:3] == pytest.approx((0.1, 0.1, 0.1), abs=1e-15)
    found = average(np.ones((1, 1)))
    assert found.average == 1
    assert found.spread == "none"
    assert found.record() == {"average": 1.0, "low": None, "high": None, "spread": "none"}
    assert average(np.array([[1.0, 2.0]])).spread == "trajectories"


def test_the_warm_up_is_left_out():
    """From 100 deviations away an AR(1) process takes about 100 steps; they are left out."""
    x = ar1(0.9, 3_000, 200, seed=4, start=230.0)
    starts = [mser(x[:, i]) for i in range(200)]
    assert 30 <= np.median(starts) <= 120
    assert coverage([average(x[start:, [i]]) for i, start in enumerate(starts)], 0.0) > 0.9
    after = [x[start:, i].mean() for i, start in enumerate(starts)]
    assert abs(np.mean(after)) < 0.06  # its standard error is 0.013
    assert x.mean() > 0.6  # 230 · 0.9/(1 − 0.9)/3,000 without a warm-up


@pytest.mark.parametrize("signal", [np.ones(1_000), np.ones(3), np.tile([0.0, 1.0, 5.0, 2.0], 250)])
def test_what_is_settled_from_the_start_has_no_warm_up(signal):
    assert mser(signal) <= 5


def test_mser_5_by_its_definition():
    x = ar1(0.8, 203, 1, seed=5, start=8.0)[:, 0]
    blocks = [x[i : i + 5].mean() for i in range(0, 200, 5)]
    errors = [np.var(blocks[d:]) / len(blocks[d:]) for d in range(21)]
    assert mser(x) == 5 * int(np.argmin(errors))


@pytest.mark.parametrize("events", [0, 1, 7, 1_000])
def test_a_rate_has_garwood_s_interval(events):
    found = rate(np.array([events]), 20_000, 1e6)
    low = scipy.stats.chi2.ppf(0.025, 2 * events) / 2 if events else 0
    high = scipy.stats.chi2.ppf(0.975, 2 * events + 2) / 2
    assert (found.average, found.low, found.high) == pytest.approx((50 * events, 50 * low, 50 * high))
    assert found.spread == "poisson"


def test_a_rate_over_trajectories_that_differ_is_from_their_spread():
    events = np.array([0, 0, 0, 0, 120])
    found = rate(events, 1_000, 1_000)
    assert found.spread == "trajectories"
    assert found.low == 0
    assert found.high == pytest.approx(24 + scipy.stats.t.ppf(0.975, 4) * scipy.stats.sem(events))
    assert rate(np.array([22, 25, 24, 28, 21]), 1_000, 1_000).spread == "poisson"


@pytest.mark.parametrize("events", [[3], [4, 4, 0]])
def test_there_are_no_more_falls_than_steps(events):
    found = rate(np.array(events), 4, 1e6)
    assert found.spread == ("poisson" if len(events) == 1 else "trajectories")
    assert found.high == 1e6


def test_the_interval_of_a_rate_has_the_rate_in_it_95_times_in_100():
    rng = np.random.default_rng(6)
    found = [rate(rng.binomial(1_000, 0.004, 5), 1_000, 1.0) for _ in range(500)]
    assert 0.93 < coverage(found, 0.004) <= 1


def series_from(reward, costs, terminated, truncated):
    """The series of single steps, given (time, trajectory) arrays of them."""
    usual = UsualRewards()
    usual.add(reward[~terminated])
    time, trajectory = np.nonzero(terminated | truncated)
    ends = Ends(time, trajectory, reward[time, trajectory], terminated[time, trajectory])
    return Series(reward, costs, ends, usual.bound)


def replications(steps, count):
    """Some series, each of some of the trajectories."""
    return [series_from(*parts) for parts in zip(*(np.split(array, count, 1) for array in steps), strict=True)]


def steps_of(mdp, policy, steps, trajectories, seed, falls=()):
    """What a policy does in a finite model; reaching one of the states `falls` is a fall."""
    rng = np.random.default_rng(seed)
    states = rng.choice(mdp.n_states, trajectories, p=mdp.start)
    reward, ended = np.empty((steps, trajectories)), np.zeros((steps, trajectories), bool)
    cost = np.zeros((steps, trajectories, 0 if mdp.costs is None else 1))
    for t in range(steps):
        action = policy[states]
        reward[t] = mdp.rewards[states, action]
        if mdp.costs is not None:
            cost[t, :, 0] = mdp.costs[states, action]
        states = mdp.draw_next(states, action, rng)
        ended[t] = np.isin(states, falls)
    return reward, cost, ended, np.zeros_like(ended)


def test_the_long_run_of_a_finite_model_is_its_exact_gain():
    """Admission to a queue: the interval has the gain and the average cost in it, over 60 replications."""
    mdp = zoo.queue_admission()
    policy = np.ones(mdp.n_states, int)
    gain, cost = (mdp.evaluate(policy, signal=signal).rho for signal in ("reward", "cost"))
    found = [long_run(series) for series in replications(steps_of(mdp, policy, 3_000, 10 * 60, seed=8), 60)]
    assert coverage([run.reward for run in found], gain) > 0.88
    assert coverage([run.costs[0] for run in found], cost) > 0.88
    assert np.mean([run.reward.average for run in found]) == pytest.approx(gain, rel=0.01)
    assert all(run.falls == 0 and run.falls_per_million.low == 0 < run.falls_per_million.high for run in found)


def machine(breaks):
    """State 0 runs and pays 2; with probability `breaks` it falls into 1, from where it starts again, paying 2."""
    P = np.zeros((2, 1, 2))
    P[:, 0] = [1 - breaks, breaks]
    return MDP(P, np.full((2, 1), 2.0))


def test_falls_per_million_steps_and_what_they_cost():
    """Falls are a Bernoulli process here: the stationary share of state 1 is the rate of falls."""
    mdp, policy = machine(0.003), np.zeros(2, int)
    share = mdp.chain(policy).stationary[1]
    everything = steps_of(mdp, policy, 3_000, 3 * 80, seed=9, falls=(1,))
    found = [long_run(series, reset_cost=50) for series in replications(everything, 80)]
    assert coverage([run.falls_per_million for run in found], 1e6 * share) > 0.88
    assert coverage([run.charged for run in found], 2 - 50 * share) > 0.88
    assert {run.reward.average for run in found} == {2.0}
    assert found[0].reset_cost == 50


def test_a_goal_is_free_unless_a_reset_cost_is_given():
    reward = np.ones((200, 1))
    ended = np.zeros((200, 1), bool)
    ended[49::50] = True
    reward[ended] = 1_000.0
    series = series_from(reward, np.zeros((200, 1, 0)), ended, np.zeros_like(ended))
    free = long_run(series, warm_up=0)
    assert (free.falls, free.goals) == (0, 4)
    assert free.charged.average == free.reward.average == pytest.approx(1 + 999 / 50)
    charged = long_run(series, warm_up=0, reset_cost=10)
    assert (charged.falls, charged.goals) == (4, 0)
    assert charged.charged.average == pytest.approx(free.reward.average - 10 / 50)


def test_the_warm_up_that_is_given_is_the_one_that_is_left_out():
    reward = np.arange(100.0)[:, None]
    series = series_from(reward, np.zeros((100, 1, 0)), np.zeros((100, 1), bool), np.zeros((100, 1), bool))
    found = long_run(series, warm_up=90)
    assert (found.reward.average, found.steps, found.warm_up, found.settled) == (94.5, 10, 90, True)
    assert not long_run(series).settled  # it rises to the end
    with pytest.raises(UserError, match="warm-up is 100 steps"):
        long_run(series, warm_up=100)


def test_the_warm_up_is_the_longest_that_reward_or_a_cost_needs():
    settled = np.random.default_rng(7).standard_normal((2_000, 1))
    rising = settled + 50 * np.exp(-np.arange(2_000) / 50)[:, None]
    flags = np.zeros((2_000, 1), bool)
    build = functools.partial(series_from, terminated=flags, truncated=flags)
    alone = long_run(build(settled, settled[..., None][..., :0])).warm_up
    assert long_run(build(settled, rising[..., None])).warm_up == long_run(build(rising, settled[..., None])).warm_up
    assert long_run(build(settled, rising[..., None])).warm_up > alone + 100
