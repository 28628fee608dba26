"""Costs by name and by function, on both adapters."""

from functools import partial

import numpy as np
import pytest

from kemeny.envs.costs import read_cost
from kemeny.envs.pool import inspect, make_pool
from kemeny.envs.settings import Simulation
from kemeny.errors import RunError, UserError
from tests.envs.toys import Counter, SixValues


def stepped(env, costs, steps=2, workers=0):
    pool = make_pool(env, 3, seed=0, costs=costs, simulation=Simulation(threads=1, workers=workers))
    try:
        pool.reset(np.arange(3))
        for _ in range(steps):
            pool.send(np.full((3, pool.spec.action.size), 9.0, np.float32))
            step = pool.recv()
        return step
    finally:
        pool.close()


def test_speed():
    assert read_cost("speed", {"x_velocity": -2.0}) == 2.0
    assert read_cost("speed", {"x_velocity": -3.0, "y_velocity": 4.0}) == 5.0
    assert read_cost("speed", {"speed": 7.0}) == 7.0
    both = {"x_velocity": np.array([3.0, 0.0]), "y_velocity": np.array([4.0, -1.0])}
    assert read_cost("speed", both).tolist() == [5.0, 1.0]


@pytest.mark.parametrize("env", ["Ant-v3", "Humanoid-v3"])
def test_speed_in_the_plane_on_envpool(env):
    costs = stepped(env, ["speed", "x_velocity", "y_velocity"]).costs
    assert np.array_equal(costs[:, 0], np.hypot(costs[:, 1], costs[:, 2]))
    assert (costs[:, 0] > 0).all()


def test_speed_on_a_line_on_envpool():
    costs = stepped("HalfCheetah-v3", ["x_velocity", "speed"]).costs
    assert np.array_equal(costs[:, 1], np.abs(costs[:, 0]))


@pytest.mark.parametrize(("env", "workers"), [("HalfCheetah-v3", 0), (Counter, 0), (Counter, 2)])
def test_jerk_is_the_mean_squared_change_of_what_the_environment_got(env, workers):
    """Actions are clipped first, and a restart forgets the action before; the other costs stay where they were."""
    other = "x_velocity" if env == "HalfCheetah-v3" else "steps"
    pool = make_pool(env, 3, seed=0, costs=[other, "jerk", other], simulation=Simulation(threads=1, workers=workers))
    size = pool.spec.action.size
    high, low = float(pool.spec.action.high[0]), float(pool.spec.action.low[0])
    weights = np.linspace(0.1, 0.9, size)

    def jerk(*parts, ids=None):
        pool.send(np.stack(parts).astype(np.float32), ids)
        costs = pool.recv().costs
        np.testing.assert_array_equal(costs[:, 0], costs[:, 2])
        assert costs.shape == (len(parts), 3)
        return costs[:, 1]

    try:
        pool.reset(np.arange(3))
        still = np.zeros(size)
        assert jerk(still, weights, still).tolist() == [0, 0, 0]  # there was none before
        moved = jerk(weights, weights, np.full(size, 99.0))
        np.testing.assert_allclose(moved, [np.mean(weights**2), 0, high**2], rtol=1e-6)
        pool.reset(np.array([1]))
        np.testing.assert_allclose(
            jerk(still, still, np.full(size, -99.0)), [moved[0], 0, (high - low) ** 2], rtol=1e-6
        )
        if env == "HalfCheetah-v3":  # some alone, in another order
            np.testing.assert_allclose(
                jerk(still, weights, ids=np.array([2, 1])), [low**2, np.mean(weights**2)], rtol=1e-6
            )
    finally:
        pool.close()


def test_jerk_is_for_numbers():
    with pytest.raises(
        UserError, match="CartPole-v1 has actions to choose from, and the cost 'jerk' is for actions of"
    ):
        inspect("CartPole-v1", costs=["jerk"])
    with pytest.raises(UserError, match="is for actions of numbers"):
        make_pool("CartPole-v1", 2, seed=0, costs=["jerk"])


@pytest.mark.parametrize("workers", [0, 2])
def test_names_functions_and_their_order(workers):
    def function(observation, action, reward, info):
        return observation[1] + 10 * action[0] + 0 * reward + 100 * info["steps"]

    costs = stepped(Counter, ["speed", function, "cost", "steps"], workers=workers).costs
    assert costs.tolist() == [[3.0, 2 + 20 + 200, 1.0, 2.0]] * 3
    assert costs.dtype == np.float64


def test_functions_on_envpool_see_one_environment():
    def function(observation, action, reward, info):
        assert observation.shape == (17,)
        assert action.tolist() == [1.0] * 6  # clipped
        return [info["x_velocity"], float(reward)][isinstance(reward, float)]

    step = stepped("HalfCheetah-v3", [function, "x_velocity", lambda o, a, r, info: info["x_velocity"]])
    assert np.array_equal(step.costs[:, 0], step.reward)
    assert np.array_equal(step.costs[:, 1], step.costs[:, 2])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_six_values_of_safety_gymnasium(workers):
    step = stepped(SixValues, ["cost"], steps=3, workers=workers)
    assert step.costs.tolist() == [[30.0]] * 3
    assert step.observation[:, 1].tolist() == [3.0] * 3


def test_the_error_for_an_unknown_name_lists_the_known_ones():
    for use in (inspect, partial(make_pool, num_envs=1, seed=0)):
        with pytest.raises(UserError, match=r"Hopper-v3 has no cost 'energy'; its info has: x_position, x_velocity\."):
            use("Hopper-v3", costs=["energy"])
    with pytest.raises(UserError, match=r"InvertedPendulum-v4 has no cost 'speed'; its info has: nothing"):
        inspect("InvertedPendulum-v4", costs=["speed"])
    with pytest.raises(UserError, match=r"Counter has no cost 'energy'; .*: cost, label, steps, x_velocity\."):
        inspect(Counter, costs=["cost", "energy"])
    for workers in (0, 2):
        with pytest.raises(UserError, match=r"Counter has no cost 'energy'"):
            stepped(Counter, ["energy"], workers=workers)


def test_costs_are_those_of_the_library_that_will_simulate():
    """With workers that is Gymnasium, whose `info` has other keys than EnvPool's."""
    env, workers = "InvertedPendulum-v5", Simulation(workers=1)
    with pytest.raises(UserError, match=r"has no cost 'reward_survive'; its info has: nothing"):
        inspect(env, costs=["reward_survive"])
    inspect(env, costs=["reward_survive"], simulation=workers)
    assert stepped(env, ["reward_survive"], workers=1).costs.tolist() == [[1.0]] * 3
    with pytest.raises(UserError, match=r"EnvPool has it: leave the backend at auto and workers at 0"):
        inspect("HalfCheetah-v3", costs=["speed"], simulation=workers)


def test_a_cost_that_is_not_a_number_is_refused():
    with pytest.raises(UserError, match=r"has a cost 'label' that is not a number: 'text'"):
        inspect(Counter, costs=["label"])


def broken(observation, action, reward, info):
    return info["nothing"]


@pytest.mark.parametrize("env", ["HalfCheetah-v3", Counter])
def test_a_function_that_raises_is_named(env):
    with pytest.raises(
        RunError, match=r"^The cost function tests\.envs\.test_costs:broken raised KeyError: 'nothing'\.$"
    ):
        stepped(env, [broken])
