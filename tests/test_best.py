"""How often a policy falls in an evaluation, and what the best policy is chosen by."""

import functools
import json

import numpy as np
import pytest
from scipy import stats

import kemeny
from kemeny.errors import UserError
from kemeny.experience.evaluate import evaluate
from kemeny.experience.evaluation import Evaluation, Falls
from kemeny.experience.settings import EvaluationProtocol, LongRunProtocol
from kemeny.runs import checkpoint
from kemeny.runs.settings import from_flat
from tests.conftest import TINY
from tests.probes import Walk, policy_for
from tests.test_ends import Corridor

POLICY = policy_for(2, 1)


@pytest.mark.parametrize(("count", "steps"), [(0, 100_000), (1, 100_000), (7, 53_123), (3, 3)])
def test_the_interval_of_falls_is_exact(count, steps):
    """Each bound is the rate at which so many falls or more, or so many or fewer, have a chance of 2.5 %."""
    found = Falls(count, steps, 0.5).per_million
    assert found.average == pytest.approx(1e6 * count / steps)
    if found.high < 1e6:
        assert stats.poisson.cdf(count, found.high * steps / 1e6) == pytest.approx(0.025)
    if count:
        assert stats.poisson.sf(count - 1, found.low * steps / 1e6) == pytest.approx(0.025)
    else:
        assert found.low == 0


def test_zero_falls_are_a_bound_from_above():
    """As docs/evaluation.md says."""
    assert round(Falls(0, 100_000, 1.0).per_million.high) == 37
    assert Falls(0, 500_000, 1.0).per_million.high < 8


@pytest.mark.parametrize("long_run", [None, LongRunProtocol()])
@pytest.mark.parametrize(
    ("env", "falls"),
    [
        (functools.partial(Walk, falls_at=8), Falls(4, 32, 0.0)),
        (functools.partial(Walk, falls_at=20), Falls(4, 80, 1.0)),  # at the very last step
        (functools.partial(Walk, times_out_at=8), Falls(0, 32, 0.0)),
        (Walk, Falls(0, 80, 1.0)),
    ],
)
def test_falls_are_counted_until_the_first(env, falls, long_run):
    """A trajectory that its environment cuts has not fallen; the long run changes nothing."""
    assert evaluate(POLICY, env, EvaluationProtocol(4, 20), seed=0, long_run=long_run).falls == falls


@pytest.mark.parametrize("long_run", [None, LongRunProtocol()])
def test_a_goal_is_no_fall_unless_it_costs(long_run):
    def count(**more):
        found = evaluate(goes_right, Corridor, EvaluationProtocol(3, 50), seed=0, long_run=long_run, **more)
        assert found.falls is not None
        return found.falls.count

    assert count() == 0
    assert count(reset_cost=5.0) == 3


def goes_right(observation):
    return 1


def found(returns, falls=0, steps=1_000, cost=(), exploring=()):
    costs = np.array([cost] * 2, float)
    return Evaluation(
        {1_000: np.array(returns, float)}, np.full(2, steps // 2), costs, 0,
        np.array([exploring] * 2, float) if exploring else None, falls=Falls(falls, steps, 0.5),
    )  # fmt: skip


def test_each_choice_prefers_what_it_names():
    rich, steady = found([900, 900], falls=2, steps=1_000), found([850, 850], falls=0, steps=1_000)
    poor = found([100, 100], falls=0, steps=1_000)
    assert rich.score() > steady.score() > poor.score()
    assert steady.score(by="falls") > poor.score(by="falls") > rich.score(by="falls")
    assert rich.score(by="average", reset_cost=1.0) == [0, 1.798]
    assert rich.score(by="average") < steady.score(by="average")  # a fall costs 100
    assert rich.score(by="average", reset_cost=1.0) > steady.score(by="average", reset_cost=1.0)


def test_limits_are_kept_by_the_mean_action_too_if_chosen_by_limits():
    fast, slow = found([900, 900], cost=[2.3], exploring=[1.9]), found([500, 500], cost=[1.9], exploring=[1.8])
    assert fast.score((2.0,)) > slow.score((2.0,))
    assert fast.score((2.0,), by="limits") < slow.score((2.0,), by="limits")
    assert fast.score((2.0,), by="limits") == [pytest.approx(-0.3), 900]
    assert fast.score((23.0,), slope=10, by="limits") == [0, 900]
    noisy = Evaluation({1_000: np.zeros(2)}, np.full(2, 500), np.array([[1.0], [3.2]]), 0, np.array([[1.0], [3.2]]))
    assert noisy.score((2.0,))[0] == 0 > noisy.score((2.0,), by="limits")[0]


def test_a_record_is_read_as_it_was_written():
    one = found([1, 2], falls=1)
    both = one.with_exploring(found([3, 4], falls=2))
    read = Evaluation.from_record(json.loads(json.dumps(both.record())))
    assert (read.falls, read.exploring_falls) == (one.falls, Falls(2, 1_000, 0.5))
    assert read.exploring_costs is None
    assert one.record()["exploring_falls"] is None
    assert read.falls is not None
    low, high = read.falls.per_million.low, read.falls.per_million.high
    assert both.record()["falls_per_million"] == [1_000, low, high]


@pytest.mark.parametrize("prefix", ["", "exploring_"])
@pytest.mark.parametrize(
    "damage",
    [
        {"falls": -1}, {"falls": 1.5}, {"falls": [1]}, {"falls": 10**9}, {"falls_steps": 0}, {"falls_steps": None},
        {"falls_steps": "many"}, {"falls_steps": 2**62}, {"reached_end": 2}, {"reached_end": None},
    ],
)  # fmt: skip
def test_a_damaged_record_is_refused(damage, prefix):
    record = found([1, 2]).with_exploring(found([3, 4])).record()
    with pytest.raises(ValueError, match=f"{prefix}(falls|reached_end)"):
        Evaluation.from_record({**record, **{f"{prefix}{name}": value for name, value in damage.items()}})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"best_by": "limits"}, "--best-by limits needs a limit"),
        ({"best_by": "falls", "algorithm": "trpo", "episodic": True}, "--best-by falls is for tasks that go on"),
        ({"best_by": "average", "algorithm": "trpo", "episodic": True}, "--best-by average is for tasks that go on"),
        ({"best_by": "luck"}, "best_by is 'luck'; it must be one of return, average, falls, limits"),
    ],
)
def test_bad_input_gets_a_sentence(given, sentence):
    with pytest.raises(UserError, match=sentence):
        from_flat(given).check()


def test_a_run_keeps_the_policy_that_fell_least_and_tells_how_it_explores(tmp_path):
    settings = {**TINY, "eval_every": 200, "eval_trajectories": 4, "eval_max_steps": 200}
    settings |= {"eval_exploring": True, "best_by": "falls"}
    run = kemeny.train("InvertedPendulum-v5", out=tmp_path / "run", **settings)
    records = [Evaluation.from_record(record) for record in run.evaluations]
    scores = [one.score(by="falls") for one in records]
    assert checkpoint.best(run.path).facts["best_score"] == max(scores)
    assert any(record["falls"] for record in run.evaluations)
    assert [one.falls for one in records] != [one.exploring_falls for one in records]
    assert all(record["exploring_costs"] is None for record in run.evaluations)
