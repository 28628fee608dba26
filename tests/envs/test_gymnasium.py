"""Gymnasium environments, in this process and in workers: seeds, limits, faults, and their messages."""

import concurrent.futures
import importlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from kemeny.envs.gymnasium import EnvironmentFault, GymnasiumPool
from kemeny.envs.pool import inspect, make_in_turn, make_pool
from kemeny.envs.settings import Simulation
from kemeny.errors import RunError, UserError
from kemeny.spaces import Discrete
from kemeny.spec import vector
from tests.envs.toys import Counter, FailsToRestart, Faulty, Grid, Sloppy, Spaces

EVERYONE = np.arange(5)


@pytest.fixture(params=[0, 2], ids=["here", "workers"])
def make(request):
    pools = []

    def make(env, num_envs=5, **options):
        pools.append(make_pool(env, num_envs, seed=11, simulation=Simulation(workers=request.param), **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def advance(pool, action, ids=None):
    pool.send(np.reshape(np.asarray(action, np.float32), (-1, 1)), None if ids is None else np.asarray(ids))
    return pool.recv()


def test_counting(make):
    pool = make(Counter)
    start = pool.reset(np.array([4, 0, 2, 1, 3]))
    assert start.dtype == np.float32
    assert len(np.unique(start[:, 0])) == 5
    step = advance(pool, [0.1, 0.2], [3, 0])
    action = np.array([[0.3], [9.0], [-9.0]], np.float32)
    step = advance(pool, action, [1, 3, 4])
    assert action[:, 0].tolist() == [np.float32(0.3), 9.0, -9.0]
    assert np.array_equal(step.observation[:, 0], start[[3, 4, 0], 0])
    assert step.observation[:, 1].tolist() == [1, 2, 1]
    assert np.allclose(step.observation[:, 2], [0.3, 2.0, -1.0])  # clipped
    assert [part.dtype for part in step] == [np.float32, np.float64, bool, bool, np.float64, bool]
    assert step.costs.shape == (3, 0)
    assert not step.terminated.any()
    assert not step.truncated.any()


def test_workers_change_nothing():
    """Three blocks of unequal size, partial steps, falls and restarts: the numbers are the same bit for bit."""
    pools = [
        make_pool("Hopper-v5", 5, seed=1, backend="gymnasium", costs=["speed"], simulation=Simulation(workers=workers))
        for workers in (0, 3)
    ]
    rng = np.random.default_rng(0)
    falls = 0
    try:
        a, b = (pool.reset(EVERYONE) for pool in pools)
        assert np.array_equal(a, b)
        for t in range(60):
            ids = rng.permutation(5)[: 1 + t % 5]
            action = rng.standard_normal((len(ids), 3)).astype(np.float32)
            for pool in pools:
                pool.send(action, ids)
            a, b = (pool.recv() for pool in pools)
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
            ended = ids[a.terminated]
            falls += len(ended)
            a, b = (pool.reset(ended) for pool in pools)
            assert np.array_equal(a, b)
    finally:
        for pool in pools:
            pool.close()
    assert falls > 0


def test_a_trajectory_is_a_function_of_its_restart_seed_and_actions(make):
    """Fast-forwarded, reset and replayed, also where the steps themselves draw random numbers."""
    pool = make(Counter)
    pool.reset(EVERYONE)
    for _ in range(3):
        pool.reset(np.array([0, 2]))
        advance(pool, np.zeros(5))
    rewards = [advance(pool, np.zeros(5)).reward for _ in range(2)]
    fresh = make(Counter)
    fresh.fast_forward(np.array([3, 0, 3, 0, 0]))
    fresh.reset(EVERYONE)
    advance(fresh, [0, 0], [0, 2])
    for _ in range(3):
        advance(fresh, [0, 0, 0], [1, 3, 4])
    for reward in rewards:
        assert np.array_equal(advance(fresh, np.zeros(5)).reward, reward)
    other = make(Counter)
    other.reset(EVERYONE)
    assert not np.array_equal(advance(other, np.zeros(5)).reward, rewards[0])


def test_a_run_can_be_divided_into_any_pools(make):
    whole = make(Counter).reset(EVERYONE)
    parts = [make(Counter, n, first_env=first).reset(np.arange(n)) for first, n in ((0, 2), (2, 3))]
    assert np.array_equal(whole, np.concatenate(parts))


@pytest.mark.parametrize("workers", [0, 3])
def test_pools_in_turn_share_the_environments_and_the_workers(workers):
    pools = list(make_in_turn(Counter, 5, seed=11, time_limit=1, simulation=Simulation(workers=workers)))
    whole = make_pool(Counter, 5, seed=11)
    assert [(first_env, pool.num_envs) for first_env, pool in pools] == [(0, 3), (3, 2)]
    starts = [pool.reset(np.arange(pool.num_envs)) for _, pool in pools]
    assert np.array_equal(np.concatenate(starts), whole.reset(EVERYONE))
    for _, pool in pools:
        assert advance(pool, np.zeros(pool.num_envs)).truncated.all()
        assert len(getattr(pool, "processes", list)()) == (2 if workers else 0)
        pool.close()
    [(first_env, single)] = make_in_turn(Counter, 1, seed=11)
    assert (first_env, single.num_envs) == (0, 1)


def test_falls_and_cuts_of_the_environment_itself(make):
    pool = make(partial(Counter, falls_at=2, cuts_at=3))
    pool.reset(EVERYONE)
    assert not advance(pool, np.zeros(5)).terminated.any()
    step = advance(pool, np.zeros(5))
    assert step.terminated.all()
    assert not step.truncated.any()
    assert (step.observation[:, 1] == 2).all()
    pool = make(partial(Counter, cuts_at=1))
    pool.reset(EVERYONE)
    step = advance(pool, np.zeros(5))
    assert step.truncated.all()
    assert not step.terminated.any()


def limited(inner, outer):
    env = gymnasium.wrappers.TimeLimit(Counter(), inner)
    return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.FlattenObservation(env), outer)


def test_the_time_limits_of_a_function_are_removed_wherever_they_stand(make):
    pool = make(partial(limited, 3, 2))
    assert pool.spec.time_limit == 2
    pool.reset(EVERYONE)
    for _ in range(5):
        assert not advance(pool, np.zeros(5)).truncated.any()
    pool = make(partial(limited, 3, 2), time_limit=4)
    pool.reset(EVERYONE)
    assert [advance(pool, np.zeros(5)).truncated.all() for _ in range(4)] == [False, False, False, True]
    assert make(Counter).spec.time_limit is None


def test_numbers_of_every_kind_are_understood(make):
    pool = make(partial(Sloppy, falls_at=1))
    pool.reset(EVERYONE)
    step = advance(pool, np.zeros(5))
    assert step.reward.tolist() == [2.0] * 5
    assert step.terminated.tolist() == [True] * 5
    assert step.observation.dtype == np.float32


def test_discrete_states_and_actions_that_do_not_start_at_zero(make):
    pool = make(Grid, 2)
    assert pool.spec.observation == vector(3)
    assert pool.spec.action == Discrete(2, start=3)
    assert pool.spec.observation_space == Discrete(3, start=5)
    assert pool.reset(np.arange(2)).tolist() == [[1, 0, 0]] * 2
    pool.send(np.array([0, 1]))
    assert pool.recv().observation.tolist() == [[1, 0, 0], [0, 1, 0]]
    pool.send(np.array([1, 1]))
    pool.recv()
    pool.send(np.array([0, 1]))
    with pytest.raises(
        EnvironmentFault, match=r"Environment 1 \(.*Grid\) returned 8 instead of whole numbers from 5 to 7"
    ):
        pool.recv()


def test_no_ids_no_rows(make):
    pool = make(Counter, costs=["cost"])
    nobody = np.array([], int)
    assert pool.reset(nobody).shape == (0, 3)
    pool.send(np.zeros((0, 1), np.float32), nobody)
    assert [part.shape for part in pool.recv()] == [(0, 3), (0,), (0,), (0,), (0, 1), (0,)]


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("raise", r"raised KeyError: 'the wheel came off'"),
        ("shape", r"returned an observation of shape \(4,\) and type float64 instead of observations of length 3"),
        ("reward", r"returned a reward of shape \(2,\) instead of one number"),
        ("four", r"returned 4 values from step\(\) instead of \(observation, reward, .*, info\)"),
    ],
)
def test_a_fault_is_named_with_environment_step_and_action(make, how, what):
    pool = make(partial(Faulty, how), first_env=20)
    pool.reset(EVERYONE)
    advance(pool, [0], [1])
    pool.reset(np.array([1]))
    for _ in range(2):
        advance(pool, np.zeros(2), [1, 4])
    where = r", at step 3 after its restart, with action \[1\.5\]\.$"
    with pytest.raises(
        EnvironmentFault, match=r"^Environment 21 \(tests\.envs\.toys:Faulty\) " + what + where
    ) as caught:
        advance(pool, [0, 1.5, 0], [3, 1, 0])
    assert caught.value.index == 21
    assert caught.value.__cause__ is not None
    # After a restart the pool can be used again; no answer to the failed step is taken for one to the next.
    with pytest.raises(RuntimeError, match=r"\[0, 3\] have ended"):
        advance(pool, np.zeros(3), [0, 3, 2])
    pool.reset(np.array([0, 1, 3]))
    assert advance(pool, np.zeros(4), [0, 3, 2, 1]).observation[:, 1].tolist() == [1, 1, 1, 1]


def test_the_traceback_of_a_worker_is_kept():
    pool = make_pool(partial(Faulty, "raise", at=1), 1, seed=0, simulation=Simulation(workers=1))
    pool.reset(np.array([0]))
    with pytest.raises(EnvironmentFault) as caught:
        advance(pool, [0])
    pool.close()
    assert 'raise KeyError("the wheel came off")' in str(caught.value.__cause__)


def test_a_restart_that_fails(make):
    with pytest.raises(EnvironmentFault, match=r"Environment 0 .* raised OSError: no such arena, when it was restart"):
        make(FailsToRestart).reset(EVERYONE)
    with pytest.raises(UserError, match=r"FailsToRestart failed its first step: .* no such arena.*\.$"):
        inspect(FailsToRestart)


def test_nan_is_passed_on_for_the_collector_to_report(make):
    pool = make(partial(Faulty, "nan", at=1), 2)
    pool.reset(np.arange(2))
    step = advance(pool, np.zeros(2))
    assert np.isnan(step.observation).all()
    assert np.isnan(step.reward).all()


def test_huge_numbers_become_infinite_without_a_warning():
    pool = make_pool(Counter, 1, seed=0)
    pool.env(0).reset = lambda seed: (np.array([1e300, 0, 0]), {})  # type: ignore[method-assign]
    assert pool.reset(np.array([0])).tolist() == [[np.inf, 0, 0]]


def test_a_worker_that_dies_is_reported_with_its_exit_code():
    pool = make_pool(partial(Faulty, "die"), 5, seed=0, first_env=10, simulation=Simulation(workers=2))
    pool.reset(EVERYONE)
    for _ in range(2):
        advance(pool, [0], [4])
    with pytest.raises(RunError, match=r"^Worker 1 \(environments 13–14\) died with exit code 7\.$"):
        advance(pool, np.zeros(5))
    with pytest.raises(RunError, match=r"Worker 1 .* died with exit code 7"):
        pool.reset(EVERYONE)
    pool.close()


def test_a_worker_that_is_killed_is_reported_with_the_signal():
    pool = make_pool(Counter, 1, seed=0, simulation=Simulation(workers=1))
    pool.reset(np.array([0]))
    os.kill(pool.processes()[0], signal.SIGKILL)
    with pytest.raises(RunError, match=r"Worker 0 \(environment 0\) died with exit code -9, SIGKILL"):
        advance(pool, [0])
    pool.close()


def test_a_worker_that_hangs_is_stopped():
    pool = make_pool(partial(Faulty, "hang", at=2), 2, seed=0, simulation=Simulation(workers=2, step_timeout=0.3))
    pool.reset(np.arange(2))
    advance(pool, [0, 0])
    pool.reset(np.array([1]))
    began = time.monotonic()
    with pytest.raises(RunError, match=r"Worker 0 \(environment 0\) has not answered within 0.3 seconds"):
        advance(pool, [0, 0])
    assert time.monotonic() - began < 10
    assert [gone(process) for process in pool.processes()] == [True, False]
    pool.close()


def test_workers_leave_interrupts_to_the_parent():
    pool = make_pool(Counter, 2, seed=0, simulation=Simulation(workers=2))
    pool.reset(np.arange(2))
    for process in pool.processes():
        for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(process, stop)
    assert advance(pool, [0, 0]).observation[:, 1].tolist() == [1, 1]
    pool.close()


def gone(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_workers_exit_when_a_pool_is_closed_or_dropped():
    pool = make_pool(Counter, 2, seed=0, simulation=Simulation(workers=2))
    processes = pool.processes()
    assert not any(map(gone, processes))
    pool.close()
    pool.close()
    assert all(map(gone, processes))
    pool = make_pool(Counter, 2, seed=0, simulation=Simulation(workers=2))
    processes = pool.processes()
    del pool
    assert all(map(gone, processes))


SCRIPT = """
    import gymnasium, numpy as np, os, signal, sys
    from kemeny.envs.pool import make_pool
    from kemeny.envs.settings import Simulation

    class Mine(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}
        def step(self, action):
            print("an environment may print")
            return np.ones(1, np.float32), 1.0, False, False, {}

    pool = make_pool(
        lambda: Mine(), 2, seed=0, costs=[lambda o, a, r, info: 3.0], simulation=Simulation(workers=2)
    )
    pool.reset(np.arange(2))
    pool.send(np.zeros(2, int))
    print(pool.recv().costs.tolist(), *pool.processes(), flush=True)
    if "kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_script_needs_no_guard_and_its_death_ends_the_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    output = tmp_path / "output"
    with output.open("w") as file:  # not a pipe, whose end would come only when the workers exit too
        ran = subprocess.run([sys.executable, script, "kill"], stdout=file, stderr=file, timeout=60)
    assert ran.returncode == -signal.SIGKILL, output.read_text()
    answer = next(line for line in output.read_text().splitlines() if line.startswith("["))
    costs, processes = answer.split("]] ")
    assert costs == "[[3.0], [3.0"
    deadline = time.monotonic() + 10
    while not all(gone(int(process)) for process in processes.split()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


HANGS = """
    import gymnasium, numpy as np, os, signal, time
    from kemeny.envs.pool import make_pool
    from kemeny.envs.settings import Simulation

    class Hangs(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}
        def step(self, action):
            time.sleep(1_000)

    pool = make_pool(Hangs, 1, seed=0, simulation=Simulation(workers=1))
    pool.reset(np.arange(1))
    pool.send(np.zeros(1, int))
    print(*pool.processes(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process that hangs when its parent dies")
def test_a_worker_that_hangs_dies_with_its_parent(tmp_path):
    script, output = tmp_path / "script.py", tmp_path / "output"
    script.write_text(textwrap.dedent(HANGS))
    with output.open("w") as file:
        ran = subprocess.run([sys.executable, script], stdout=file, stderr=file, timeout=60)
    assert ran.returncode == -signal.SIGKILL, output.read_text()
    worker, deadline = int(output.read_text()), time.monotonic() + 10
    try:
        while not gone(worker):
            assert time.monotonic() < deadline, "the worker outlives its parent"
            time.sleep(0.05)
    finally:
        if not gone(worker):
            os.kill(worker, signal.SIGKILL)


def test_a_pool_outlives_the_thread_that_made_it():
    """To Linux the end of that thread is the end of the workers' parent."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        pool = thread.submit(make_pool, Counter, 1, seed=0, simulation=Simulation(workers=1)).result()
    time.sleep(0.2)
    pool.reset(np.array([0]))
    assert advance(pool, [0]).observation[:, 1].tolist() == [1]
    pool.close()


def test_workers_find_the_modules_that_the_parent_finds(tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text("from tests.envs.toys import Counter\n\n\nclass Mine(Counter):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    pool = make_pool(importlib.import_module("elsewhere").Mine, 1, seed=0, simulation=Simulation(workers=1))
    assert pool.reset(np.array([0])).shape == (1, 3)
    pool.close()


def test_a_function_must_make_a_new_environment_each_time(make):
    one = Counter()
    for env, what in (
        (lambda: one, "the same environment twice"),
        (lambda: 3, "returned an object of type int, but it must return a"),
    ):
        with pytest.raises(UserError, match=what):
            make(env, 4)


def test_rank_zero_boxes(make):
    scalar = spaces.Box(-1, 1, ())
    pool = make(partial(Spaces, scalar, scalar), 2)
    assert pool.spec.observation.size == pool.spec.action.size == 1
    assert pool.reset(np.arange(2)).shape == (2, 1)
    assert advance(pool, [0.5, 7.0]).observation.shape == (2, 1)
    if hasattr(pool, "env"):
        assert pool.env(1).took == 1.0
        assert np.shape(pool.env(1).took) == ()


class CountsStarts(gymnasium.Env):
    """Its observation is the number of its restarts: state that outlives `reset`."""

    observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    starts = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.starts += 1
        return np.array([self.starts], np.float32), {}

    def step(self, action):
        return np.array([self.starts], np.float32), 0.0, False, False, {}


def test_looking_for_masks_leaves_no_trace_in_an_environment():
    pool = GymnasiumPool(CountsStarts, 3, seed=0)
    np.testing.assert_array_equal(pool.reset(np.arange(3))[:, 0], [1, 1, 1])


def test_a_function_that_returns_the_same_environment_again_is_named_even_for_one():
    same = CountsStarts()
    with pytest.raises(UserError, match="the same environment twice"):
        GymnasiumPool(lambda: same, 1, seed=0)


def test_an_id_of_envpool_alone_is_said_to_be_that():
    with pytest.raises(UserError, match="Gymnasium has no Taxi-v3, but EnvPool has"):
        GymnasiumPool("Taxi-v3", 1, seed=0)
