"""EnvPool behind the interface: order, restarts, randomness, exact replay, and its public interface as an oracle."""

import envpool
import numpy as np
import pytest

from kemeny.envs.envpool import EnvPoolPool
from kemeny.envs.pool import make_pool, seed_of
from kemeny.envs.settings import Simulation

ONE_THREAD = Simulation(threads=1)
PAPER = ["HalfCheetah-v3", "Ant-v3", "Humanoid-v3"]


def actions(pool, steps, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return scale * rng.standard_normal((steps, pool.num_envs, pool.spec.action.size)).astype(np.float32)


def advance(pool, action, ids=None):
    pool.send(action, ids)
    return pool.recv()


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_rows_follow_the_ids_and_a_run_can_be_divided_into_any_pools():
    whole = make_pool("HalfCheetah-v3", 4, seed=5, costs=["speed"], simulation=Simulation(threads=3))
    single = [
        make_pool("HalfCheetah-v3", 1, seed=5, first_env=j, costs=["speed"], simulation=ONE_THREAD) for j in range(4)
    ]
    zero = np.array([0])
    action = actions(whole, 30)
    for ids in ([3, 1], [0, 2], [2, 0, 3], [0, 1, 2, 3]):
        started = whole.reset(np.array(ids))
        assert same(started, [single[i].reset(zero)[0] for i in ids])
    for t, ids in enumerate([[0, 1, 2, 3], [2, 0], [1], [3, 2, 1, 0], [0, 3]] * 6):
        step = advance(whole, action[t, ids], np.array(ids))
        for row, i in enumerate(ids):
            assert same([part[row] for part in step], [part[0] for part in advance(single[i], action[t, [i]])])


def test_environments_differ_and_seeds_matter():
    starts = [make_pool("HalfCheetah-v3", 3, seed=s).reset(np.arange(3)) for s in (0, 0, 1)]
    assert np.array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])
    assert len(np.unique(starts[0][:, 0])) == 3


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_agrees_with_the_public_interface_of_envpool():
    """`_send` and `_recv` are private methods of EnvPool; this test notices if they change their meaning."""
    pool = make_pool("Hopper-v3", 3, seed=2, simulation=ONE_THREAD, costs=["x_velocity"])
    seeds = [seed_of(2, j) for j in range(3)]
    public = envpool.make_gymnasium("Hopper-v3", num_envs=3, seed=seeds, num_threads=1)
    observation, _ = public.reset()
    assert np.array_equal(pool.reset(np.arange(3)), observation.astype(np.float32))
    ends = 0
    for action in actions(pool, 60):
        step = advance(pool, action)
        public_step = public.step(np.clip(action, -1, 1))
        assert np.array_equal(step.observation, public_step[0].astype(np.float32))
        assert same(step[1:4], public_step[1:4])
        assert np.array_equal(step.costs[:, 0], public_step[4]["x_velocity"])
        ended = np.flatnonzero(step.terminated)
        ends += len(ended)
        if len(ended):
            assert np.array_equal(pool.reset(ended), public.reset(ended.astype(np.int32))[0].astype(np.float32))
    assert ends > 0


def test_a_restart_after_a_fall_is_fresh_and_the_next_action_counts():
    def fallen():
        pool = make_pool("Hopper-v3", 1, seed=0, simulation=ONE_THREAD)
        pool.reset(np.array([0]))
        for action in actions(pool, 200):
            if advance(pool, action).terminated[0]:
                return pool
        raise AssertionError("it never fell")

    after = {}
    for torque in (-1.0, 1.0):
        pool, fresh = fallen(), make_pool("Hopper-v3", 1, seed=0, simulation=ONE_THREAD)
        fresh.fast_forward(np.array([1]))
        action = np.full((1, 3), torque, np.float32)
        assert np.array_equal(pool.reset(np.array([0])), fresh.reset(np.array([0])))
        step = advance(pool, action)
        assert same(step, advance(fresh, action))
        after[torque] = step.observation
    assert np.abs(after[-1.0] - after[1.0]).max() > 0.1


def test_restarts_of_others_leave_an_environment_alone():
    pool, quiet = (make_pool("Ant-v3", 2, seed=1, simulation=ONE_THREAD) for _ in range(2))
    for p in (pool, quiet):
        p.reset(np.arange(2))
    for t, action in enumerate(actions(pool, 20)):
        if t % 5 == 3:
            pool.reset(np.array([0]))
        assert same([x[1] for x in advance(pool, action)], [x[1] for x in advance(quiet, action)])
    assert np.array_equal(pool.reset(np.array([1])), quiet.reset(np.array([1])))


@pytest.mark.parametrize("env", PAPER)
def test_the_number_of_threads_changes_nothing(env):
    one, three = (make_pool(env, 6, seed=3, simulation=Simulation(threads=n)) for n in (1, 3))
    assert np.array_equal(one.reset(np.arange(6)), three.reset(np.arange(6)))
    for action in actions(one, 25):
        step = advance(one, action)
        assert same(step, advance(three, action))
        ended = np.flatnonzero(step.terminated)
        assert np.array_equal(one.reset(ended), three.reset(ended))


@pytest.mark.parametrize("env", PAPER)
def test_replay_since_the_last_restart_is_exact(env):
    """A fresh pool, fast-forwarded, reset, and given the actions since each restart, is where the old one was."""
    pool = make_pool(env, 3, seed=4, simulation=Simulation(threads=2))
    pool.reset(np.arange(3))
    restarts, since, taken = np.ones(3, int), np.zeros(3, int), []
    for t, action in enumerate(actions(pool, 60, scale=1.5)):
        taken.append(action)
        last = advance(pool, action)
        since += 1
        again = np.flatnonzero(last.terminated | (np.array([t % 23, t % 31, 1]) == 0))
        if len(again) and t < 55:
            pool.reset(again)
            restarts[again] += 1
            since[again] = 0
    assert len(set(restarts)) > 1
    assert (since > 0).all()
    fresh = make_pool(env, 3, seed=4, simulation=ONE_THREAD)
    fresh.fast_forward(restarts - 1)
    fresh.reset(np.arange(3))
    for t in range(60):
        ids = np.flatnonzero(60 - t <= since)
        if len(ids):
            step = advance(fresh, taken[t][ids], ids)
    assert same(step, last)


def test_what_was_received_is_not_overwritten_later():
    pool = make_pool("CartPole-v1", 2, seed=0, simulation=ONE_THREAD)
    kept = [pool.reset(np.arange(2))]
    copies = [kept[0].copy()]
    for t in range(40):
        step = advance(pool, np.array([t % 2, 0]), None)
        kept.extend(step)
        copies.extend(part.copy() for part in step)
        if (ended := np.flatnonzero(step.terminated)).size:
            pool.reset(ended)
    assert same(kept, copies)


def test_actions_are_clipped_and_left_as_they_were():
    pools = [make_pool("Humanoid-v3", 1, seed=0, simulation=ONE_THREAD) for _ in range(3)]
    steps, sent = [], np.full((1, 17), 5.0)
    for pool, action in zip(pools, (sent, np.full((1, 17), 0.4), np.full((1, 17), 0.3)), strict=True):
        pool.reset(np.array([0]))
        steps.append(advance(pool, action))
    assert same(steps[0], steps[1])
    assert not np.array_equal(steps[0].observation, steps[2].observation)
    assert (sent == 5.0).all()


def test_one_hot_states_and_discrete_actions():
    pool = make_pool("FrozenLake-v1", 3, seed=0, simulation=ONE_THREAD)
    assert np.array_equal(pool.reset(np.arange(3)), np.eye(16, dtype=np.float32)[[0, 0, 0]])
    step = advance(pool, np.array([1, 2, 1]))
    assert step.observation.dtype == np.float32
    assert (step.observation.sum(1) == 1).all()
    assert set(step.observation.argmax(1)) <= {0, 1, 4}


def test_a_cut_by_envpool_itself_is_no_fall(monkeypatch):
    monkeypatch.setattr("kemeny.envs.envpool.FOREVER", 3)
    pool = make_pool("HalfCheetah-v3", 2, seed=0, simulation=ONE_THREAD)
    pool.reset(np.arange(2))
    steps = [advance(pool, np.zeros((2, 6))) for _ in range(3)]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2, [False] * 2, [True] * 2]
    assert not any(step.terminated.any() for step in steps)


def test_no_ids_no_rows():
    pool = make_pool("HalfCheetah-v3", 2, seed=0, simulation=ONE_THREAD, costs=["speed"])
    nobody = np.array([], int)
    assert pool.reset(nobody).shape == (0, 17)
    step = advance(pool, np.zeros((0, 6), np.float32), nobody)
    assert [part.shape for part in step] == [(0, 17), (0,), (0,), (0,), (0, 1), (0,)]


def test_the_adapter_is_chosen_for_the_ids_that_envpool_has():
    assert isinstance(make_pool("CartPole-v1", 1, seed=0), EnvPoolPool)
    assert not isinstance(make_pool("CartPole-v1", 1, seed=0, backend="gymnasium"), EnvPoolPool)
