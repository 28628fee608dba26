"""`kemeny check`: each defect is found in a toy that has it, and nothing is found where nothing is wrong."""

import json
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import kemeny
from kemeny.envs.names import Environment
from kemeny.envs.pool import inspect
from kemeny.experience.check import check, known_beforehand
from kemeny.experience.collect import Collector
from kemeny.experience.settings import Task
from kemeny.experience.trial import draw_actions
from kemeny.observers import Observer
from kemeny.spaces import MultiDiscrete
from kemeny.spec import Spec, vector
from tests.envs.toys import Aim, Counter, Faulty, Grid, SixValues
from tests.test_cli import kemeny as command

QUICK = {"steps": 400, "seconds": 5.0}


class Walk(gymnasium.Env):
    """A number that goes up and down by the action and by chance; the subclasses do one thing wrong."""

    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Discrete(2)
        self.state, self.restarts = 0.0, 0

    def observe(self):
        return np.array([self.state, self.np_random.random()], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.restarts = 0.0, self.restarts + 1
        return self.observe(), {}

    def ended(self):
        return False

    def reward(self):
        return self.state

    def step(self, action):
        self.state += 2 * int(action) - 1 + self.np_random.normal()
        return self.observe(), self.reward(), self.ended(), False, {}


class Unseeded(Walk):
    def observe(self):
        return np.array([self.state, np.random.default_rng().random()], np.float32)


class Remembers(Walk):
    def observe(self):
        return np.array([self.state, self.restarts], np.float32)


class Outside(Walk):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(-1e-3, 1e-3, (2,))


class Blind(Walk):
    def observe(self):
        return np.ones(2, np.float32)


class HalfBlind(Walk):
    def observe(self):
        return np.array([self.state, 3.0], np.float32)


class Indifferent(Walk):
    def reward(self):
        return 2.0


class Goal(Walk):
    def ended(self):
        return self.state > 5

    def reward(self):
        return 1_000.0 if self.ended() else 0.01 * self.state


class Falls(Walk):
    def ended(self):
        return self.state > 5

    def reward(self):
        return 1e-3 * self.state


FOUND = {
    "unseeded": (Unseeded, "warnings", "The same seed and actions did not show the same again"),
    "remembers": (Remembers, "warnings", "some state outlives reset()"),
    "outside": (Outside, "warnings", "are outside its observation_space"),
    "blind": (Blind, "warnings", "Its observation never changed"),
    "half blind": (HalfBlind, "notes", "1 of the 2 numbers that the policy sees never changed"),
    "indifferent": (Indifferent, "warnings", "Its reward was always 2, and it never ended"),
    "goals": (Goal, "notes", "count as goals, which cost nothing"),
    "falls": (Falls, "notes", "A fall costs --reset-cost"),
    "bounds": (partial(Aim, 0.0, 1_000.0, 500.0), "notes", "from 0 to 1000): the policy acts between −1 and 1"),
    "own cuts": (partial(Counter, cuts_at=7), "notes", "It cuts trajectories itself"),
    "short": (partial(Counter, falls_at=5), "notes", "5 steps long on average"),
    "endless": (Counter, "notes", "It never ended under random actions"),
    "nan": (partial(Faulty, "nan"), "problems", "an observation that is not finite"),
    "huge": (partial(Faulty, "huge"), "problems", "beyond 1e+15"),
}


@pytest.mark.parametrize("case", FOUND)
def test_each_defect_is_found_where_it_is_and_nowhere_else(case):
    env, where, sentence = FOUND[case]
    found = check(env, **QUICK)
    assert any(sentence in line for line in getattr(found, where)), found
    assert found.trainable == (where != "problems")
    assert sentence in str(found)
    sound = check(Walk, **QUICK)
    assert sound.warnings == sound.problems == ()
    if case != "endless":
        assert not any(sentence in line for line in sound.notes)


def test_what_is_counted():
    facts = check(partial(Counter, falls_at=10), **QUICK).facts
    assert (facts["steps_tried"], facts["falls"], facts["goals"], facts["mean_length"]) == (400, 40, 0, 10)
    assert facts["costs"] == ["cost", "speed", "steps", "x_velocity"]
    assert 0 <= facts["reward_min"] <= facts["reward_mean"] <= facts["reward_max"] <= 1
    assert check(SixValues, **QUICK).facts["costs"] == ["cost"]


def test_suggestions(monkeypatch):
    monkeypatch.setattr("kemeny.experience.check.SLOW", 1.0)  # however busy this machine is
    assert check(Counter, **QUICK).suggestions == {"eval_max_steps": 1_000}
    falls = check(Falls, **QUICK)
    assert 0.1 <= falls.suggestions["reset_cost"] <= 2  # a hundred times what a step pays at most
    assert "reset_cost" not in check(Goal, **QUICK).suggestions
    limited = check(lambda: gymnasium.wrappers.TimeLimit(Walk(), 300), **QUICK)
    assert limited.suggestions == {"cut": 300, "eval_max_steps": 1_000}
    assert limited.facts["time_limit"] == 300
    monkeypatch.setattr("kemeny.experience.check.SLOW", 0.0)
    monkeypatch.setattr("kemeny.experience.check.available_cores", lambda: 7)
    assert check(Counter, **QUICK).suggestions["workers"] == 7
    assert "workers" not in check("HalfCheetah-v3", **QUICK).suggestions


def test_envpool_and_its_costs():
    found = check("HalfCheetah-v3", **QUICK)
    assert (found.backend, found.warnings, found.suggestions) == ("EnvPool", (), {})
    assert found.facts["repeats_from_the_seed"] is True
    assert {"speed", "x_velocity"} <= set(found.facts["costs"])


def test_the_same_seed_finds_the_same():
    timed = ("microseconds_per_step", "minutes_per_million_steps")
    first, second = ({k: v for k, v in check(Walk, **QUICK).facts.items() if k not in timed} for _ in range(2))
    assert first == second


def test_random_actions_are_allowed_and_reach_all_options():
    action = MultiDiscrete((2, 3), (0, 0), (2,))
    spec = Spec(vector(1 + 5), action, None, mask=5)
    rows = np.tile(np.float32([9, 0, 1, 1, 0, 1]), (500, 1))
    drawn = draw_actions(spec, np.random.default_rng(0), rows)
    assert np.unique(drawn[:, 0]).tolist() == [1]
    assert np.unique(drawn[:, 1]).tolist() == [0, 2]
    aimed = inspect(partial(Aim, 100.0, 300.0, 150.0))
    drawn = draw_actions(aimed, np.random.default_rng(0), np.zeros((500, 1), np.float32))
    assert -1 <= drawn.min() < -0.9 < 0.9 < drawn.max() <= 1  # which the pool maps to 100 and 300


def test_no_noise_about_the_papers_tasks():
    for env in ("HalfCheetah-v3", "Ant-v3", "Humanoid-v3", "Hopper-v5", "Walker2d-v5"):
        assert list(known_beforehand(inspect(env), Task())) == []
    (sentence,) = known_beforehand(inspect("CartPole-v1"), Task())
    assert "time limit of 500 steps is dropped" in sentence
    assert list(known_beforehand(inspect("CartPole-v1"), Task(episodic=True))) == []


class Hears(Observer):
    def __init__(self):
        self.said = []

    def say(self, message):
        self.said.append(message)


def test_training_says_at_its_start_what_matters(tmp_path, monkeypatch):
    hears = Hears()
    monkeypatch.setattr("kemeny.runs.train.go", lambda run, *_: run)
    limited = lambda: gymnasium.wrappers.TimeLimit(Aim(0.0, 1_000.0, 500.0), 50)  # noqa: E731
    kemeny.train(limited, out=tmp_path / "run", observers=[hears])
    assert "Its time limit of 50 steps is dropped" in hears.said[0]
    assert "bounds that are not of order one (from 0 to 1000)" in hears.said[1]


@pytest.mark.parametrize(("cost", "sentence"), [(None, "taken for a goal"), (5.0, "costs --reset-cost 5 like every")])
def test_goals_that_are_charged_are_told(cost, sentence):
    hears = Hears()
    collector = Collector(Environment(Goal), Task(reset_cost=cost), num_envs=2, batch_length=2, seed=0, observer=hears)
    collector.close()
    reward, ended = np.zeros((50, 2), np.float32), np.zeros((50, 2), bool)
    reward[10, 1], ended[10, 1] = 1_000.0, True
    batch = collector.allocate()._replace(signals=(reward,))
    for _ in range(2):
        collector._charge_ends(batch, ended)
    assert len(hears.said) == 1
    assert sentence in hears.said[0]


def test_on_the_command_line(capfd, monkeypatch, tmp_path):
    (tmp_path / "checked_envs.py").write_text(
        "from tests.test_check import Falls, Walk\nfrom tests.envs.toys import Faulty\n"
        "def nan(how='nan'): return Faulty(how)\nmake = Walk\n"
    )
    monkeypatch.chdir(tmp_path)
    code, out, err = command(capfd, monkeypatch, "check", "checked_envs:make", "--steps", "100")
    assert code == 0, err
    assert out.startswith("checked_envs:make (Gymnasium)\n")
    assert out.splitlines()[-1].startswith("It can be trained: kemeny train checked_envs:make --")
    assert len(out.splitlines()) < 50
    code, out, err = command(capfd, monkeypatch, "check", "checked_envs:nan", "--steps", "100", "--json")
    assert code == 2
    assert json.loads(out)["trainable"] is False
    assert err.startswith("kemeny: checked_envs:nan cannot be trained on: It gave an observation")
    raises = ["--env-kwargs", '{"how": "raise"}']
    code, out, err = command(capfd, monkeypatch, "check", "checked_envs:nan", *raises)
    assert (code, out) == (2, "")
    assert "the wheel came off" in err
    assert command(capfd, monkeypatch, "check", "checked_envs:make", "--steps", "0")[0] == 2
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ""] == ["checked_envs.py"]


def test_arguments_are_repeated_in_the_suggested_command():
    found = check(partial(Grid), env_kwargs={}, steps=1)
    assert found.facts["actions"] == "whole numbers from 3 to 4"
    with_kwargs = check(Counter, env_kwargs={"falls_at": 10}, **QUICK)
    assert "--env-kwargs '{\"falls_at\": 10}'" in str(with_kwargs)
