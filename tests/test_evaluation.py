"""The protocol of §6.1, on walks whose returns are known."""

import functools

import numpy as np

from kemeny.experience.evaluate import evaluate, evaluation_seed
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
