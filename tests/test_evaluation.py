"""The protocol of §6.1, on walks whose returns are known."""

import functools
import json

import numpy as np
import pytest

from kemeny.experience.evaluate import evaluate, evaluation_seed
from kemeny.experience.evaluation import Evaluation
from kemeny.experience.settings import EvaluationProtocol
from tests.probes import Walk, policy_for


def run(env, max_steps, trajectories=3, **more):
    return evaluate(policy_for(2, 1), env, EvaluationProtocol(trajectories, max_steps), seed=0, **more)


def test_a_trajectory_stops_at_a_fall_without_any_reset_cost():
    result = run(functools.partial(Walk, falls_at=7), 10_000)
    np.testing.assert_array_equal(result.lengths, [7, 7, 7])
    np.testing.assert_array_equal(result.returns[1_000], [7, 7, 7])
    np.testing.assert_array_equal(result.returns[10_000], [7, 7, 7])


def test_the_return_at_1000_is_a_prefix_of_that_at_10000():
    result = run(functools.partial(Walk, falls_at=1_500), 10_000, trajectories=2)
    np.testing.assert_array_equal(result.returns[1_000], [1_000, 1_000])
    np.testing.assert_array_equal(result.returns[10_000], [1_500, 1_500])
    np.testing.assert_array_equal(result.lengths, [1_500, 1_500])


def test_a_shorter_protocol_leaves_the_long_horizon_out():
    result = run(Walk, 1_000)
    assert result.record()["returns_10000"] is None
    assert result.record()["returns_1000"] == [1_000.0] * 3
    assert run(Walk, 20).record()["returns_20"] == [20.0] * 3


def test_the_longest_trajectory_is_reported_whatever_its_length():
    record = run(Walk, 1_200).record()
    assert record["returns_1000"] == [1_000.0] * 3
    assert record["returns_1200"] == [1_200.0] * 3
    assert record["returns_10000"] is None


def test_average_cost_is_total_over_length():
    result = run(functools.partial(Walk, falls_at=5), 100, costs=("cost",))
    np.testing.assert_array_equal(result.average_costs, np.full((3, 1), 3.0))
    assert run(Walk, 10).record()["average_costs"] is None


def test_trajectories_of_different_length():
    """EnvPool's pendulum falls at a time of its own in each trajectory; stepping goes on for the others alone."""
    policy = policy_for(4, 1, seed=3)
    result = evaluate(policy, "InvertedPendulum-v5", EvaluationProtocol(6, 200), seed=5)
    again = evaluate(policy, "InvertedPendulum-v5", EvaluationProtocol(6, 200), seed=5)
    assert len(set(result.lengths.tolist())) > 1
    np.testing.assert_array_equal(result.lengths, again.lengths)
    # one reward per step until the fall, which earns none
    np.testing.assert_array_equal(result.returns[200], result.lengths - 1)


def test_evaluation_seeds_differ_from_each_other():
    seeds = {evaluation_seed(seed, steps) for seed in range(5) for steps in (0, 5_000, 10_000)}
    assert len(seeds) == 15


def test_an_exploring_evaluation_acts_as_training_does():
    """The mean action of an untrained policy is near 0; exploring, it pays for its noise, the same each time."""
    policy = policy_for(4, 1, seed=3)
    still = evaluate(policy, "InvertedPendulum-v5", EvaluationProtocol(6, 200), seed=5)
    noisy, again = (
        evaluate(policy, "InvertedPendulum-v5", EvaluationProtocol(6, 200), seed=5, explore=True) for _ in range(2)
    )
    assert (noisy.lengths != still.lengths).any()
    np.testing.assert_array_equal(noisy.lengths, again.lengths)


@pytest.mark.parametrize("costs", [0, 2])
@pytest.mark.parametrize("horizons", [(1_000, 10_000), (20,), (1_000, 1_200)])
def test_a_record_is_read_as_the_evaluation_that_it_was(costs, horizons):
    rng = np.random.default_rng(0)
    returns = {horizon: rng.normal(size=3) for horizon in horizons}
    evaluation = Evaluation(returns, rng.integers(1, 100, 3), rng.random((3, costs)), faults=4)
    read = Evaluation.from_record(json.loads(json.dumps({"steps": 7, **evaluation.record()})))
    assert read.returns.keys() == evaluation.returns.keys()
    for horizon in horizons:
        np.testing.assert_array_equal(read.returns[horizon], evaluation.returns[horizon])
    np.testing.assert_array_equal(read.lengths, evaluation.lengths)
    np.testing.assert_array_equal(read.average_costs, evaluation.average_costs)
    assert read.faults == 4
    assert read.record() == evaluation.record()
    assert read.score((0.5,) * costs) == evaluation.score((0.5,) * costs)


SOUND = {"returns_1000": [1.0, 2.0], "lengths": [3, 4], "average_costs": [[0.5], [0.25]], "faults": 0}


@pytest.mark.parametrize(
    "damage",
    [
        {"returns_1000": None},
        {"returns_1000": "many"},
        {"returns_1000": []},
        {"returns_1000": 3},
        {"returns_1000": [[1.0], [2.0, 3.0]]},
        {"returns_1000": [None, 2.0]},
        {"returns_1000": ["1", "2"]},
        {"returns_1000": [float("nan"), 2.0]},
        {"returns_1000": [float("inf"), 2.0]},
        {"returns_1000": [10**400, 2.0]},
        {"returns_x": [1.0, 2.0]},
        {"returns_0": [1.0, 2.0]},
        {"lengths": "long"},
        {"lengths": [[3, 4]]},
        {"average_costs": [0.5, 0.25]},
        {"average_costs": [[0.5], [0.25, 1.0]]},
        {"faults": "some"},
        {"faults": [1]},
        {"faults": float("inf")},
    ],
    ids=lambda damage: str(damage)[:40],
)
def test_a_damaged_record_is_refused(damage):
    """With what is wrong."""
    Evaluation.from_record(SOUND)
    (name,) = damage
    with pytest.raises(ValueError, match=f"{name}|no returns"):
        Evaluation.from_record({**SOUND, **damage})


def test_an_old_record_may_lack_what_was_not_recorded_then():
    read = Evaluation.from_record({"returns_1000": [1.0, 2.0]})
    assert read.average_costs.shape == (2, 0)
    assert read.faults == 0
