"""The linear programme: its policy has the best gain that is possible, and keeps the limit."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from scipy.stats import binom

from kemeny.errors import UserError
from kemeny.tabular import MDP, solve
from tests.tabular import oracles
from tests.tabular.strategies import SEEDS, models, repeatable


def server(states, arrival, slow, fast):
    """A queue whose server is slow, or at a cost of 1 per step fast; each customer present costs 1 of reward per step.

    Where the slow server loses to the arrivals, a wrong action in states that are almost never visited leads to a full
    queue, in which the chain stays for up to 10²⁰ steps. The model, and the same in 120 digits.
    """
    up, down = np.zeros((states, 2)), np.zeros((states, 2))
    for a, service in enumerate((slow, fast)):
        up[:-1, a], down[1:, a] = arrival * (1 - service), service * (1 - arrival)
    up[0] = arrival
    P, rows = np.zeros((states, 2, states)), np.arange(states)
    P[rows[:-1], :, rows[1:]], P[rows[1:], :, rows[:-1]] = up[:-1], down[1:]
    P[rows, :, rows] = 1 - up - down
    reward, cost = -rows[:, None] * np.ones(2), np.ones((states, 1)) * [0.0, 1.0]
    return MDP(P, reward, costs=cost), oracles.PreciseQueue(up, down, reward, cost)


def check(mdp, limit, best):
    """The policy has the gain and the cost that are reported; they are the best gain and within the limit."""
    found = solve.linear_programme(mdp, limit)
    assert mdp.evaluate(found.policy).rho == pytest.approx(found.gain, abs=1e-9)
    assert mdp.evaluate(found.policy, signal="cost").rho == pytest.approx(found.cost, abs=1e-12)
    assert found.cost <= limit + 1e-9
    assert found.gain == pytest.approx(best, abs=1e-7)
    assert ((found.policy > 1e-12).sum(axis=1) > 1).sum() <= 1


@pytest.mark.parametrize("rates", [(0.3, 0.2, 0.5), (0.3, 0.35, 0.6), (0.2, 0.1, 0.5), (0.25, 0.3, 0.9)])
@pytest.mark.parametrize("states", [20, 31, 61])
def test_a_queue_over_a_range_of_limits(states, rates):
    mdp, precise = server(states, *rates)
    for limit in (0.02, 0.1, 0.18, 0.28, 0.34, 0.9):
        check(mdp, limit, precise.limited_gain(limit))


@repeatable
@given(models(max_states=4), SEEDS)
def test_random_models_over_their_range_of_limits(problem, seed):
    P, r = problem
    c = np.random.default_rng(seed).random(r.shape)
    mdp = MDP(P, r, costs=c)
    least = -solve.policy_iteration(MDP(P, -c)).gain
    points = oracles.gains_and_costs(P, r, c)
    most = mdp.evaluate(solve.policy_iteration(mdp).policy, signal="cost").rho
    for share in (0.0, 1e-9, 0.01, 0.3, 0.9, 1.0, 1.1):
        limit = least + share * (most - least)
        check(mdp, limit, oracles.limited_gain(*points, limit + 1e-12))
    with pytest.raises(UserError, match="the least possible is"):
        solve.linear_programme(mdp, least - 1e-6)


def test_a_limit_between_two_classes_of_a_communicating_model():
    """Action 0 stays and action 1 moves. No stationary policy shares its time between two states that it must not leave
    for long; at either end of the range there is one."""
    P = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    mdp = MDP(P, [[1.0, 0.0], [2.0, 0.0]], costs=[0.0, 1.0])
    assert solve.linear_programme(mdp, 0.0).gain == pytest.approx(1, abs=1e-9)
    assert solve.linear_programme(mdp, 1.0).gain == pytest.approx(2, abs=1e-9)
    with pytest.raises(UserError, match="spread over 2 recurrent classes"):
        solve.linear_programme(mdp, 0.5)


@pytest.mark.parametrize("limit", [0.7, 1.0, 1.3, 1.7])
def test_a_limit_between_vertices_of_different_classes_that_one_policy_can_share(limit):
    """Deterministic moves, found at random: one vertex goes back and forth between states 0 and 1 (gain 1, cost 2), its
    neighbour between 2 and 3; the policy that is best at the limit visits all."""
    following = [[1, 3], [2, 0], [3, 0], [0, 2]]
    r, c = [[-1, 0], [-2, 3], [1, 1], [-3, -2]], [[2, 0], [2, 2], [0, 1], [1, 1]]
    found = solve.linear_programme(MDP(np.eye(4)[following], r, costs=c), limit)
    assert found.gain == pytest.approx(limit - 1, abs=1e-9)
    assert found.cost == pytest.approx(limit, abs=1e-9)


def water_tower(levels=13, income=1.8):
    """A tower that a pump fills and three streets empty, power being cheap at night; its cost is unmet demand."""
    hours = np.arange(24)
    price, use = np.where((hours >= 7) & (hours < 22), 2.0, 1.0), np.where((hours >= 6) & (hours < 23), 0.5, 0.1)
    P, r, short = np.zeros((levels, 24, 3, levels, 24)), np.zeros((levels, 24, 3)), np.zeros((levels, 24, 3))
    for level, hour, pump, demand in itertools.product(range(levels), range(24), range(3), range(4)):
        chance = binom.pmf(demand, 3, use[hour])
        filled = min(level + pump, levels - 1)
        sold = min(demand, filled)
        P[level, hour, pump, filled - sold, (hour + 1) % 24] += chance
        r[level, hour, pump] += chance * (income * sold - price[hour] * (0.0, 1.0, 2.5)[pump])
        short[level, hour, pump] += chance * (demand - sold)
    states = levels * 24
    return MDP(P.reshape(states, 3, states), r.reshape(states, 3), costs=short.reshape(states, 3))


def test_a_programme_on_which_the_presolve_of_highs_gives_up_is_solved():
    """The interior-point method, which is not used otherwise, finds 92.819420/312 (HiGHS ends with "Not Set")."""
    solution = solve.linear_programme(water_tower(), 0.1)
    assert solution.cost == pytest.approx(0.1)
    assert solution.gain == pytest.approx(92.819420 / 312, rel=1e-6)
