"""What a fall, a cut, a time-out and a restart become in a batch."""

import functools

import jax
import numpy as np
import pytest

from kemeny.envs.settings import Simulation
from kemeny.errors import RunError
from kemeny.experience.collect import Collector
from kemeny.experience.settings import Task
from kemeny.experience.source import numpy_policy
from kemeny.learning.learner import Learner, init
from kemeny.learning.settings import Networks
from tests.envs.toys import Faulty
from tests.probes import Walk, policy_for


def collector(env, task, num_envs=1, batch_length=12, **more):
    return Collector(env, task, num_envs=num_envs, batch_length=batch_length, seed=0, **more)


def walk(**settings):
    return functools.partial(Walk, **settings)


def column(rollout, env=0):
    """The batch of one environment, in readable form: (observation, next observation)."""
    return [tuple(map(int, row)) for row in rollout.observation[:, env]], [
        tuple(map(int, row)) for row in rollout.next_observation[:, env]
    ]


@pytest.mark.parametrize("falls_at", range(1, 14))
def test_a_fall_is_an_ordinary_costly_transition_to_a_start_state(falls_at):
    """…at every position of the batch, its first and last step included."""
    batch = collector(walk(falls_at=falls_at), Task(cut=1_000, reset_cost=100)).roll_out(policy_for(2, 1), 0)
    before, after = column(batch)
    fell = (np.arange(1, 13) % falls_at) == 0
    np.testing.assert_array_equal(batch.signals[0][:, 0], np.where(fell, -99, 1))
    assert not batch.terminal.any()
    assert not batch.cut.any()  # the trace runs through a fall
    assert after[:-1] == before[1:]
    starts = [1 + t // falls_at for t in range(12)]
    assert before == [(start, t % falls_at) for t, start in enumerate(starts)]
    assert after[-1] == ((starts[-1] + 1, 0) if fell[-1] else (starts[-1], 11 % falls_at + 1))


@pytest.mark.parametrize("cut", range(2, 14))
def test_a_cut_keeps_the_true_next_state(cut):
    batch = collector(walk(), Task(cut=cut)).roll_out(policy_for(2, 1), 0)
    before, after = column(batch)
    np.testing.assert_array_equal(batch.cut[:, 0], (np.arange(1, 13) % cut) == 0)
    assert before == [(1 + t // cut, t % cut) for t in range(12)]
    assert after == [(1 + t // cut, t % cut + 1) for t in range(12)]
    assert not batch.terminal.any()
    np.testing.assert_array_equal(batch.signals, np.ones((1, 12, 1)))


def test_a_fall_at_the_cut_is_both():
    """The fall leads to a start state as always; the trace stops there, and no second restart is wasted."""
    batch = collector(walk(falls_at=4), Task(cut=4)).roll_out(policy_for(2, 1), 0)
    before, after = column(batch)
    assert after[3] == before[4] == (2, 0)
    assert batch.cut[3, 0]
    assert batch.signals[0][3, 0] == -99


def test_the_clock_of_a_trajectory_runs_on_through_falls():
    batch = collector(walk(falls_at=5), Task(cut=7)).roll_out(policy_for(2, 1), 0)
    np.testing.assert_array_equal(np.flatnonzero(batch.cut[:, 0]), [6])


def test_an_environments_own_time_out_is_a_cut():
    batch = collector(walk(times_out_at=3), Task(cut=1_000)).roll_out(policy_for(2, 1), 0)
    before, after = column(batch)
    assert after[2] == (1, 3)
    assert before[3] == (2, 0)
    np.testing.assert_array_equal(np.flatnonzero(batch.cut[:, 0]), [2, 5, 8, 11])


def test_episodic_falls_end_and_time_outs_do_not():
    ended = collector(walk(falls_at=5), Task(episodic=True)).roll_out(policy_for(2, 1), 0)
    np.testing.assert_array_equal(np.flatnonzero(ended.terminal[:, 0]), [4, 9])
    assert not ended.cut.any()
    np.testing.assert_array_equal(ended.signals, np.ones((1, 12, 1)))  # no reset cost
    assert column(ended)[1][4] == (1, 5)
    timed_out = collector(walk(times_out_at=5), Task(episodic=True)).roll_out(policy_for(2, 1), 0)
    np.testing.assert_array_equal(np.flatnonzero(timed_out.cut[:, 0]), [4, 9])
    assert not timed_out.terminal.any()
    both = collector(walk(falls_at=5, times_out_at=5), Task(episodic=True)).roll_out(policy_for(2, 1), 0)
    np.testing.assert_array_equal(np.flatnonzero(both.terminal[:, 0]), [4, 9])
    assert not both.cut.any()


def test_a_registered_time_limit_holds_for_episodic_tasks_only():
    """Pendulum never falls, and is registered with 200 steps."""
    policy = policy_for(3, 1)
    episodic = collector("Pendulum-v1", Task(episodic=True), num_envs=2, batch_length=450).roll_out(policy, 0)
    np.testing.assert_array_equal(np.flatnonzero(episodic.cut[:, 0]), [199, 399])
    np.testing.assert_array_equal(np.flatnonzero(episodic.cut[:, 1]), [149, 349])  # which began at step 50
    continuing = collector("Pendulum-v1", Task(cut=300), num_envs=1, batch_length=450).roll_out(policy, 0)
    np.testing.assert_array_equal(np.flatnonzero(continuing.cut[:, 0]), [299])


def test_phases_are_staggered_so_that_each_batch_holds_every_phase_once():
    pool = collector(walk(), Task(cut=20), num_envs=5, batch_length=4)
    policy = policy_for(2, 1)
    for iteration in range(10):
        batch = pool.roll_out(policy, iteration)
        # Each environment is in another fifth of its trajectory; one of them reaches its end.
        assert sorted(np.flatnonzero(batch.cut.any(0))) == [4 - iteration % 5]
    phases = np.sort(batch.observation[:, :, 1].ravel())  # after the first round the steps are those of the trajectory
    np.testing.assert_array_equal(phases, np.arange(20))


def test_start_observations_are_the_latest():
    batch = collector(walk(falls_at=5), Task(cut=1_000), num_envs=2).roll_out(policy_for(2, 1), 0)
    np.testing.assert_array_equal(batch.start_observation[-4:], [[2, 0], [2, 0], [3, 0], [3, 0]])


def test_costs_stand_beside_the_reward_and_a_fall_leaves_them_alone():
    batch = collector(walk(falls_at=3), Task(), costs=("cost",)).roll_out(policy_for(2, 1), 0)
    np.testing.assert_array_equal(batch.signals[1][:, 0], np.tile([1, 2, 3], 4))


@pytest.mark.parametrize("threads", [1, 2])
def test_same_seed_same_batches_whatever_the_threads(threads):
    """Two shards, falls included, against a second collector; bit for bit."""

    def batches(threads):
        pool = collector(
            "InvertedPendulum-v5", Task(cut=50), num_envs=5, batch_length=40, simulation=Simulation(threads=threads)
        )
        return [pool.roll_out(policy_for(4, 1), iteration) for iteration in range(3)]

    for one, other in zip(batches(2), batches(threads), strict=True):
        assert (one.signals[0] < -90).any()
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_other_seed_other_batch():
    first, second = (
        Collector("Pendulum-v1", Task(), num_envs=2, batch_length=5, seed=seed).roll_out(policy_for(3, 1), 0)
        for seed in (0, 1)
    )
    assert not np.array_equal(first.observation, second.observation)
    assert not np.array_equal(first.observation[:, 0], first.observation[:, 1])


@pytest.mark.parametrize("env", ["InvertedPendulum-v5", "CartPole-v1", walk(falls_at=7)])
@pytest.mark.parametrize("episodic", [False, True])
def test_a_restored_collector_goes_on_bit_for_bit(env, episodic):
    task = Task(episodic=episodic, cut=30)

    def make(snapshot=None):
        return collector(env, task, num_envs=3, batch_length=25, snapshot=snapshot)

    original = make()
    spec = original.spec
    discrete = hasattr(spec.action, "n")
    policy = policy_for(spec.observation.size, spec.action.n if discrete else 1, discrete=discrete)
    for iteration in range(4):
        original.roll_out(policy, iteration)
    snapshot = original.snapshot()
    expected = original.roll_out(policy, 4)
    if env not in ("InvertedPendulum-v5", "CartPole-v1"):
        with pytest.raises(RunError, match="cannot be resumed exactly"):
            make(snapshot)  # Walk counts its starts by itself, seed or no seed
        return
    copy = make(snapshot)
    for a, b in zip(copy.roll_out(policy, 4), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert copy.falls == original.falls
    again = make(copy.snapshot())  # a snapshot of a restored collector is as good
    for a, b in zip(again.roll_out(policy, 5), original.roll_out(policy, 5), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_not_finite_is_named():
    pool = collector(functools.partial(Faulty, "nan", at=3), Task(), num_envs=2, batch_length=4)
    with pytest.raises(RunError, match="Environment 0 gave an observation that is not a finite number at its step 2"):
        pool.roll_out(policy_for(3, 1), 0)


@pytest.mark.parametrize("task", [Task(cut=7), Task(episodic=True)])
def test_a_batch_in_used_arrays_is_the_batch_in_new_ones(task):
    """Nothing of the batch before is left in them."""
    policy = policy_for(2, 1)
    fresh, again = (collector(walk(falls_at=5, times_out_at=9), task, num_envs=3) for _ in range(2))
    used = again.allocate()
    for iteration in range(4):
        expected, got = fresh.roll_out(policy, iteration), again.roll_out(policy, iteration, used)
        assert got is used
        for name, array in expected._asdict().items():
            np.testing.assert_array_equal(getattr(got, name), array, err_msg=name)


def test_a_batch_says_what_happened_in_it():
    """Falls and faults of this batch alone, by the policy of a state; its arrays are used again two batches later."""
    pool = collector(walk(falls_at=5), Task(cut=1_000), num_envs=2)
    state = init(Learner(networks=Networks(hidden=())), pool.spec, jax.random.key(0))
    batches = [pool.collect(state, iteration) for iteration in range(4)]
    assert [batch.falls for batch in batches] == [4, 4, 6, 4]
    assert pool.falls == 18
    assert [(batch.faults, batch.fault) for batch in batches] == [(0, "")] * 4
    assert batches[0].rollout.observation is batches[2].rollout.observation
    assert batches[1].rollout.observation is batches[3].rollout.observation
    assert batches[0].rollout.observation is not batches[1].rollout.observation
    fresh = collector(walk(falls_at=5), Task(cut=1_000), num_envs=2)
    for iteration in range(4):
        expected = fresh.roll_out(numpy_policy(state, fresh.spec), iteration)
    for name, array in expected._asdict().items():
        np.testing.assert_array_equal(getattr(batches[3].rollout, name), array, err_msg=name)


def test_a_batch_tells_of_its_own_faults():
    """Both environments fail in the third of four batches."""
    env, tolerant = functools.partial(Faulty, "nan", at=13), Simulation(restart_faulty=True)
    pool = collector(env, Task(), num_envs=2, batch_length=5, simulation=tolerant)
    state = init(Learner(networks=Networks(hidden=())), pool.spec, jax.random.key(0))
    batches = [pool.collect(state, iteration) for iteration in range(4)]
    assert [batch.faults for batch in batches] == [0, 0, 2, 0]
    fault = "Environment 0 gave a number that is not finite."
    assert [batch.fault for batch in batches] == ["", "", fault, ""]
