"""The adapters mean the same by fall, cut, time-out and restart."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from kemeny.envs.pool import make_pool
from kemeny.envs.settings import Simulation

ADAPTERS = {
    "envpool": {"backend": "envpool", "simulation": Simulation(threads=1)},
    "gymnasium": {"backend": "gymnasium"},
    "workers": {"backend": "gymnasium", "simulation": Simulation(workers=2)},
    **{mode: {} for mode in AutoresetMode},
}


@pytest.fixture(params=ADAPTERS)
def make(request):
    pools = []
    together = isinstance(request.param, AutoresetMode)

    def make(env, num_envs, **options):
        env = vectorised(env, request.param) if together else env
        pools.append(make_pool(env, num_envs, seed=0, **ADAPTERS[request.param], **options))
        return pools[-1]

    make.together = together
    yield make
    for pool in pools:
        pool.close()


def vectorised(env, mode):
    """A function that makes a vector environment of this one."""

    def make_one():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about an older version
            return gymnasium.make(env, disable_env_checker=True)

    return lambda num_envs: SyncVectorEnv([make_one] * num_envs, autoreset_mode=mode)


PUSH = {"CartPole-v1": np.array([1]), "InvertedPendulum-v5": np.array([[0.7]], np.float32)}
ANGLE = {"CartPole-v1": (2, 12 * np.pi / 180), "InvertedPendulum-v5": (1, 0.2)}
NOISE = {"CartPole-v1": 0.05, "InvertedPendulum-v5": 0.01}


def push(pool, env, ids):
    pool.send(np.repeat(PUSH[env], len(ids), 0), np.asarray(ids))
    return pool.recv()


def fall(pool, env, i):
    """Push until environment i ends; how many steps it took, and the last of them."""
    for t in range(1, 100):
        step = push(pool, env, [i])
        if step.terminated[0] or step.truncated[0]:
            return t, step
    raise AssertionError("it never fell")


@pytest.mark.parametrize("env", PUSH)
def test_a_fall(make, env):
    pool = make(env, 2)
    start = pool.reset(np.array([1, 0]))
    assert np.abs(start).max() <= NOISE[env]
    length, step = fall(pool, env, 1)
    component, limit = ANGLE[env]
    assert step.terminated.tolist() == [True]
    assert step.truncated.tolist() == [False]
    assert abs(step.observation[0, component]) > limit  # the state it fell into, not the next start
    with pytest.raises(RuntimeError, match=r"\[0, 1\] have ended" if make.together else r"\[1\] have ended"):
        push(pool, env, [0, 1])
    if make.together:  # the other has moved too
        pool.reset(np.array([0]))
    again = pool.reset(np.array([1]))
    assert np.abs(again).max() <= NOISE[env]
    assert not np.array_equal(again[0], start[0])
    other = push(pool, env, [0])  # it has not moved meanwhile: this is its first step
    assert np.abs(other.observation[0, component]) < limit
    if make.together:
        pool.reset(np.array([1]))
    assert fall(pool, env, 1)[0] == pytest.approx(length, abs=4)


@pytest.mark.parametrize("env", PUSH)
def test_a_time_out(make, env):
    pool = make(env, 2, time_limit=3)
    start = pool.reset(np.arange(2))
    flags = [push(pool, env, [0, 1])[2:4] for _ in range(2)]
    pool.reset(np.array([0]))
    flags.append(push(pool, env, [0, 1])[2:4])
    assert [f[1].tolist() for f in flags] == [[False, False], [False, False], [False, True]]
    assert not any(f[0].any() for f in flags)
    with pytest.raises(RuntimeError, match=r"\[1\] have ended"):
        push(pool, env, [0, 1])
    assert not np.array_equal(pool.reset(np.array([1]))[0], start[1])


@pytest.mark.parametrize("env", PUSH)
def test_a_fall_at_the_time_limit_is_both(make, env):
    pool = make(env, 1)
    pool.reset(np.array([0]))
    length, _ = fall(pool, env, 0)
    limited = make(env, 1, time_limit=length)
    limited.reset(np.array([0]))
    again, step = fall(limited, env, 0)
    assert again == length
    assert step.terminated.tolist() == step.truncated.tolist() == [True]


def test_without_a_time_limit_nothing_is_cut(make):
    pool = make("Pendulum-v1", 1)
    assert pool.spec.time_limit == 200
    pool.reset(np.array([0]))
    for _ in range(210):
        pool.send(np.zeros((1, 1), np.float32))
        step = pool.recv()
        assert not step.terminated[0]
        assert not step.truncated[0]


def test_bounds_and_sizes(make):
    for env, size, low, limit in (("Humanoid-v5", 348, -0.4, 1000), ("HalfCheetah-v4", 17, -1.0, 1000)):
        spec = make(env, 1).spec
        assert spec.observation.shape == (size,)
        assert spec.time_limit == limit
        assert spec.action.low.dtype == np.float32
        assert (spec.action.low == np.float32(low)).all()
        assert (spec.action.high == np.float32(-low)).all()


def test_speed_is_the_same_quantity(make):
    """It is the distance that the body moved per second."""
    pool = make("HalfCheetah-v5", 1, costs=["speed", "x_velocity", "x_position"])
    pool.reset(np.array([0]))
    before = None
    for _ in range(20):
        pool.send(np.ones((1, 6), np.float32))
        speed, velocity, position = pool.recv().costs[0]
        assert speed == abs(velocity)
        if before is not None:
            assert velocity == pytest.approx((position - before) / 0.05)
        before = position


def test_misuse_is_reported(make):
    pool = make("CartPole-v1", 2)
    with pytest.raises(RuntimeError, match=r"\[0, 1\] have ended: call reset"):
        pool.send(np.array([0, 0]))
    with pytest.raises(RuntimeError, match="No step is under way"):
        pool.recv()
    pool.reset(np.arange(2))
    pool.send(np.array([0, 0]))
    with pytest.raises(RuntimeError, match="A step is under way"):
        pool.send(np.array([0, 0]))
    with pytest.raises(RuntimeError, match="A step is under way"):
        pool.reset(np.array([0]))
    pool.recv()
