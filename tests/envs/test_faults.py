"""Faults of a pool: found, counted, restarted, and raised."""

from functools import partial

import numpy as np
import pytest

from kemeny.envs.faults import LARGEST, TRIES, Faults, usable
from kemeny.envs.pool import make_pool
from kemeny.envs.settings import Simulation
from kemeny.errors import RunError
from tests.envs.toys import Counter, Faulty

IDS = np.arange(3)
RESTARTS = Simulation(restart_faulty=True)


def stepped(pool, faults):
    faults.reset(IDS)
    pool.send(np.zeros((3, 1), np.float32))
    return faults.among(pool.recv(), IDS)


def test_sound_steps_have_no_faults():
    pool = make_pool(Counter, 3, seed=0)
    faults = Faults(pool, restart_faulty=False)
    assert stepped(pool, faults).size == 0
    assert (faults.count, faults.last) == (0, "")


def test_the_first_fault_is_raised_with_the_number_of_its_environment_in_the_run():
    pool = make_pool(partial(Faulty, "nan", at=1), 3, seed=0, first_env=10)
    with pytest.raises(RunError, match=r"^Environment 10 gave a number that is not finite\.$"):
        stepped(pool, Faults(pool, restart_faulty=False, first_env=10))


def test_faults_are_counted_until_there_are_too_many_in_a_row():
    pool = make_pool(partial(Faulty, "raise", at=1), 3, seed=0, first_env=10, simulation=RESTARTS)
    faults = Faults(pool, restart_faulty=True, first_env=10)
    for _ in range(2):
        for _ in range(TRIES):
            assert stepped(pool, faults).tolist() == [0, 1, 2]
        assert faults.last.startswith("Environment 12 (tests.envs.toys:Faulty) raised KeyError")
        assert faults.last.endswith(".")
        faults.clear()
    assert faults.count == 2 * TRIES * 3
    for _ in range(TRIES):
        stepped(pool, faults)
    with pytest.raises(RunError, match=rf"the wheel came off.*\. It has failed {TRIES + 1} times in a row\.$"):
        stepped(pool, faults)


def test_numbers_beyond_float32_are_faults():
    class Rich(Counter):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, 1e39, *rest

    pool = make_pool(Rich, 3, seed=0)
    assert stepped(pool, Faults(pool, restart_faulty=True)).tolist() == [0, 1, 2]


def test_numbers_that_would_ruin_the_statistics_are_faults():
    pool = make_pool(partial(Faulty, "huge", at=1), 3, seed=0, first_env=10)
    with pytest.raises(RunError, match=r"^Environment 10 gave a number that is beyond ±1e\+15\.$"):
        stepped(pool, Faults(pool, restart_faulty=False, first_env=10))
    tolerant = Faults(pool, restart_faulty=True)
    assert stepped(pool, tolerant).tolist() == [0, 1, 2]
    assert tolerant.count == 3


def test_which_numbers_are_usable():
    assert usable(np.array([0, -LARGEST, LARGEST, 1e-300])).all()
    assert not usable(np.array([2 * LARGEST, -2 * LARGEST, np.inf, -np.inf, np.nan, 3e38])).any()
    assert np.isfinite(np.full(10**8 // 1_000, np.float32(LARGEST) ** 2 * 1_000).sum())  # of 10⁸ squares, in float32
    assert usable(np.array([2**31, -(2**40)])).all()


class StartsFar(Counter):
    """Starts where nobody has been, if its seed is 2³⁰ or more."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return (observation if seed < 2**30 else np.full(3, 1e16)), info


def test_a_start_that_is_too_far_away_is_a_fault():
    pool = make_pool(StartsFar, 3, seed=0)
    rows, restarts = Faults(pool, restart_faulty=True).reset(IDS)
    assert usable(rows).all()
    assert restarts.max() > 1


class StartsSometimes(Counter):
    """Starts in a sound state only if its seed is below 2³⁰, half of all seeds."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return (observation if seed < 2**30 else np.full(3, np.nan)), info


def test_restarts_are_repeated_until_the_start_is_sound():
    pool = make_pool(StartsSometimes, 3, seed=0)
    rows, restarts = Faults(pool, restart_faulty=True).reset(IDS)
    assert np.isfinite(rows).all()
    assert restarts.max() > 1
    fresh = make_pool(StartsSometimes, 3, seed=0)
    fresh.fast_forward(restarts - 1)
    assert np.array_equal(fresh.reset(IDS), rows)
