"""The race is fair and is not run twice: its clock, evaluations, file and table. No contestant is run here."""

import importlib
import itertools
import math
import sys
import types
from pathlib import Path

import envpool
import gymnasium
import numpy as np
import pytest

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
sys.path.insert(0, BENCHMARKS)  # as it is for a script in that folder
race = importlib.import_module("race")
sys.path.remove(BENCHMARKS)

CURVE = [
    {"due": 1.0, "minutes": 1.1, "steps": 10, "returns": [0.0, 200.0], "lengths": [5, 9]},
    {"due": 2.0, "minutes": 2.2, "steps": 20, "returns": [3000.0, 5000.0], "lengths": [5, 9]},
    {"due": 3.0, "minutes": 3.3, "steps": 30, "returns": [1000.0, 1400.0], "lengths": [5, 9]},
]


def test_the_return_at_a_time_is_of_the_last_evaluation_due_by_then():
    assert [race.at(CURVE, minutes) for minutes in (0.5, 1, 1.5, 2, 30)] == [None, 100, 100, 4000, 1200]


def test_the_time_to_a_return_is_when_an_evaluation_first_reached_it():
    assert [race.time_to(CURVE, goal) for goal in (100, 101, 4000, 4001)] == [1.1, 2.2, 2.2, math.inf]


def test_the_spread_over_seeds():
    assert race.spread([None, None], ".0f") == "–"
    assert race.spread([math.inf, math.inf], ".1f") == "–"
    assert race.spread([3.0], ".1f") == "3.0"
    assert race.spread([3.0, 1.0, math.inf], ".1f") == "3.0 (1.0 to –)"


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self):
        self.now = race.BEGAN

    def perf_counter(self):
        return self.now

    def pass_minutes(self, minutes):
        self.now += 60 * minutes


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(race, "time", clock)
    return clock


def test_the_clock_stands_still_in_evaluations_and_runs_while_the_policy_is_made(clock, monkeypatch):
    def trajectories(policy, env, seed):
        seeds.append(seed)
        clock.pass_minutes(50)
        return [1.0], [1]

    def policy():
        clock.pass_minutes(0.25)
        return "policy"

    seeds = []
    monkeypatch.setattr(race, "trajectories", trajectories)
    keeper = race.Timekeeper(race.Job("Ant-v3", "Kemeny ATRPO", 0, minutes=4, every=1))

    def train():
        for steps in itertools.count(10, 10):
            clock.pass_minutes(0.5)
            keeper.mark(steps, policy)

    with pytest.raises(race.Enough):
        train()
    assert [point["due"] for point in keeper.curve] == [1, 2, 3, 4]
    assert [point["minutes"] for point in keeper.curve] == [1.25, 2.5, 3.25, 4.5]
    assert [point["steps"] for point in keeper.curve] == [20, 40, 50, 70]
    assert seeds == [1, 2, 3, 4]  # the same start states for all contestants, others each time


def test_a_trial_is_not_evaluated_and_has_a_speed(clock):
    keeper = race.Timekeeper(race.Job("Ant-v3", "tianshou PPO", 0, minutes=2, every=0.1, trial=True))

    def train():
        for steps in itertools.count(0, 100):
            keeper.mark(steps, lambda: pytest.fail("evaluated"))
            clock.pass_minutes(0.5)

    with pytest.raises(race.Enough):
        train()
    assert keeper.speed == pytest.approx(100 / 30)
    assert not keeper.curve


class Pool:
    """Environment i falls after its step i + 1, and then gives rewards that are none of the trajectory's."""

    action_space = gymnasium.spaces.Box(-0.4, 0.4, (2,))

    def __init__(self, env, num_envs, seed, max_episode_steps, num_threads):
        assert (num_envs, max_episode_steps) == (10, 1000)
        self.steps, self.falls = 0, np.arange(num_envs) + 1
        self.falls[-1] = 2 * max_episode_steps
        self.limit = max_episode_steps

    def reset(self):
        return np.zeros((10, 3)), {}

    def step(self, action):
        assert action.dtype == np.float32
        assert (np.abs(action) == np.float32(0.4)).all()
        self.steps += 1
        reward = np.where(self.steps <= self.falls, 2.0, 1e6)
        cut = np.full(10, self.steps % self.limit == 0)
        return np.zeros((10, 3)), reward, self.steps == self.falls, cut, {}

    def close(self): ...


def test_a_trajectory_ends_at_a_fall_or_after_a_thousand_steps(monkeypatch):
    monkeypatch.setattr(envpool, "make_gymnasium", Pool)
    returns, lengths = race.trajectories(lambda observation: np.full((10, 2), 7.0), "Ant-v3", 1)
    assert lengths == [1, 2, 3, 4, 5, 6, 7, 8, 9, 1000]
    assert returns == [2.0 * length for length in lengths]


def line_of(job, **more):
    fields = {**vars(job), "cores": 2, "load": 0.5, "curve": CURVE, "speed": 5.0, "versions": {"envpool": "1"}}
    return {**fields, **more}


@pytest.fixture
def executed(monkeypatch):
    jobs = []

    def execute(job, python):
        jobs.append(job)
        return None if job.contestant in broken else line_of(job, speed=10.0 * job.threads)

    broken = set()
    monkeypatch.setattr(race, "execute", execute)
    monkeypatch.setattr(race.os, "cpu_count", lambda: 2)
    return types.SimpleNamespace(jobs=jobs, broken=broken)


def start(folder, minutes=5.0, **more):
    race.main(race.Race(Path("python"), minutes=minutes, out=folder, **more))


def test_what_is_there_is_not_run_again(executed, tmp_path):
    start(tmp_path)
    ran = [job for job in executed.jobs if not job.trial]
    assert {(job.env, job.contestant) for job in ran} == {
        (env, name) for env in race.TASKS for name in race.CONTESTANTS
    }
    assert len(ran) == 18
    assert {job.threads for job in ran if not job.contestant.startswith("Kemeny")} == {2}  # which was faster
    trials = [job for job in executed.jobs if job.trial]
    assert len(trials) == 2 * 15
    (tmp_path / "race.md").unlink()
    for minutes in (5.0, 3.0, 0.0):
        start(tmp_path, minutes)
    assert len(executed.jobs) == 18 + 30
    assert (tmp_path / "race.md").exists()
    start(tmp_path, 10.0)
    assert len(executed.jobs) == 2 * 18 + 30  # longer runs, but no more trials
    assert {run["minutes"] for run in race.Results(tmp_path / "race.jsonl").runs()} == {10.0}


def test_who_fails_is_tried_again(executed, tmp_path):
    executed.broken.add("tianshou TRPO")
    with pytest.raises(SystemExit, match="3 runs failed"):
        start(tmp_path, trial_seconds=0)
    executed.broken.clear()
    executed.jobs.clear()
    start(tmp_path, trial_seconds=0)
    assert [job.contestant for job in executed.jobs] == ["tianshou TRPO"] * 3


def test_a_trial_is_no_run(tmp_path):
    results = race.Results(tmp_path / "race.jsonl")
    results.add(line_of(race.Job("Ant-v3", "tianshou PPO", 0, 5.0, 1.0, trial=True)))
    again = race.Results(tmp_path / "race.jsonl")
    assert results.runs() == again.runs() == []
    assert results.speeds("Ant-v3", "tianshou PPO") == again.speeds("Ant-v3", "tianshou PPO") == {1: 5.0}


def test_contestants_take_turns():
    jobs = list(race.jobs(race.Race(Path("python"), seeds=2)))
    firsts = [jobs[place].contestant for place in range(0, len(jobs), 6)]
    assert firsts == [list(race.CONTESTANTS)[number] for number in (0, 1, 2, 1, 2, 3)]
    assert [job.env for job in jobs[::6]] == [*race.TASKS, *race.TASKS]


def test_the_table_and_the_picture(tmp_path):
    runs = [line_of(race.Job("Ant-v3", name, seed, 3.0, 1.0)) for name in race.CONTESTANTS for seed in (0, 1)]
    runs[0]["curve"] = [{**point, "returns": [10.0]} for point in CURVE]
    rows = [line.strip("| ").split(" | ") for line in race.table(runs).splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[1:]] == list(race.CONTESTANTS)
    assert rows[0] == ["1 min", "2 min", "5 min", "10 min", "30 min", "min to 2,000", "min to 3,000", "min to 4,000",
                       "steps", "torch threads"]  # fmt: skip
    assert rows[1][1:6] == ["55 (10 to 100)", "2,005 (10 to 4,000)", "–", "–", "–"]
    assert rows[2][6:9] == ["2.2 (2.2 to 2.2)"] * 3
    race.draw(runs, tmp_path / "race.png")
    assert (tmp_path / "race.png").stat().st_size > 1000


def test_everybody_has_settings_for_every_task():
    assert {name: set(tasks) for name, tasks in race.ZOO.items()} == {name: set(race.TASKS) for name in race.ZOO}
    assert set(race.GOALS) == set(race.TASKS)
    assert len(race.MARKERS) == len(race.CONTESTANTS)
