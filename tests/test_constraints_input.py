"""Cost limits as users state them: what is refused, what is said, and what Python allows beyond the command line."""

import gymnasium
import numpy as np
import pytest

import kemeny
from kemeny.errors import RunError, UserError
from kemeny.runs import out_of_reach
from kemeny.runs.assembly import make_learner
from kemeny.runs.settings import from_flat

TINY = {
    "algorithm": "acpo",
    "steps": 80,
    "batch_size": 20,
    "num_envs": 2,
    "hidden": (4,),
    "critic_epochs": 1,
    "eval_max_steps": 5,
    "eval_trajectories": 1,
}


class Listener(kemeny.Observer):
    """Remembers what was said."""

    def __init__(self):
        self.sentences = []

    def say(self, message):
        self.sentences.append(message)


class Push(gymnasium.Env):
    """Costs at least 1 per step, and more the harder one pushes, which also pays."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    broken_at = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        cost = np.nan if self.steps == self.broken_at else 1 + float(action[0] ** 2)
        return np.zeros(1, np.float32), float(action[0]), False, False, {"energy": cost, "steps": self.steps}


class BrokenPush(Push):
    broken_at = 4


def effort(observation, action, reward, info):
    return float(np.abs(action).sum())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "acpo"}, "acpo needs a cost to limit: give both --cost NAME and --limit L."),
        ({"algorithm": "acpo", "limit": 2.0}, "acpo needs a cost to limit: give both --cost NAME and --limit L."),
        ({"algorithm": "cpo", "cost": "speed"}, "Each cost needs one limit: there are 1 --cost and 0 --limit."),
        (
            {"algorithm": "acpo", "cost": "speed", "limit": [1, 2]},
            "there are 1 --cost and 2 --limit.",
        ),
        ({"algorithm": "atrpo", "cost": "speed", "limit": 2.0}, "atrpo has no cost limits; use --algorithm acpo."),
        ({"algorithm": "trpo", "limit": 2.0}, "trpo has no cost limits; use --algorithm cpo."),
        (
            {"algorithm": "acpo", "cost": "speed", "limit": float("nan")},
            "The limit of speed is nan; it must be",
        ),
        (
            {"algorithm": "acpo", "cost": effort, "limit": float("inf")},
            r"effort\(\) is inf; it must be a finite",
        ),
    ],
)
def test_limits_and_costs_go_together(settings, message):
    with pytest.raises(UserError, match=message):
        make_learner(from_flat(settings))


def test_an_unknown_cost_is_refused_with_those_that_are_there(tmp_path):
    with pytest.raises(UserError, match=r"no cost 'fuel'.*its info has: energy, steps"):
        kemeny.train(Push, out=tmp_path / "run", cost="fuel", limit=2.0, **TINY)
    assert not (tmp_path / "run").exists()


def test_a_cost_that_is_no_number_is_named(tmp_path):
    with pytest.raises(RunError, match=r"Environment 0 .*cost.*step 3"):
        kemeny.train(BrokenPush, out=tmp_path / "run", cost="energy", limit=2.0, **TINY)


def test_a_limit_that_no_policy_keeps_is_said(tmp_path, monkeypatch):
    """Training goes on in recovery, and after a while says so, with the lowest cost so far; once."""
    monkeypatch.setattr(out_of_reach, "RECOVERIES_BEFORE_A_MESSAGE", 3)
    listener = Listener()
    run = kemeny.train(Push, out=tmp_path / "run", cost="energy", limit=0.5, observers=[listener], **TINY)
    records = run.metrics
    assert len(records) == 4
    assert all(record["case"] == 2 for record in records)
    assert all(record["outcome"] == 0 for record in records)
    lowest = min(record["cost"][0] for record in records[:3])
    assert [s for s in listener.sentences if "iterations" in s] == [
        f"For 3 iterations no step could keep the limits, only reduce cost; the lowest so far: energy {lowest:.4g} "
        "(limit 0.5). Training goes on; if cost no longer falls, perhaps no policy can keep the limit: raise it."
    ]
    assert records[0]["multiplier_cost"] == [None]


def test_a_cost_may_be_a_function(tmp_path):
    run = kemeny.train(Push, out=tmp_path / "run", cost=[effort, "energy"], limit=[10.0, 10.0], **TINY)
    assert run.config["settings"]["cost"] == [f"{effort.__module__}:effort()", "energy"]
    effort_cost, energy = run.metrics[-1]["cost"]
    assert 0 < effort_cost < 1 < energy
    (evaluation,) = run.evaluations
    assert np.shape(evaluation["average_costs"]) == (1, 2)
    with pytest.raises(UserError, match=r"pass them as kemeny.resume\(…, cost=…\)"):
        kemeny.resume(run.path, env=Push)
    with pytest.raises(UserError, match="was trained with the costs"):
        kemeny.resume(run.path, env=Push, cost="energy")
    assert kemeny.resume(run.path, env=Push, cost=[effort, "energy"]).path == run.path
