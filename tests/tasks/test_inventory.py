"""Stocks: the models against loops over units and demands, closed forms, published costs, and the rules."""

import itertools
import math

import gymnasium
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import poisson

from kemeny import tasks
from kemeny.errors import UserError
from kemeny.tabular import Chain, solve
from kemeny.tasks.demand import newsvendor_level, poisson_demand
from kemeny.tasks.inventory import DualSourcing
from kemeny.tasks.stock_rules import (
    BaseStock,
    DualIndex,
    average_cost,
    best_base_stock,
    best_capped_base_stock,
    best_dual_index,
    stationary,
)
from tests.tasks.agreement import assert_agrees

SMALL_LOST_SALES = {"penalty": 3.0, "holding": 1.5, "demand": 1.3, "largest_order": 3, "capacity": 5}
SMALL_DUAL_SOURCING = {"express_cost": 12.0, "regular_cost": 10.0, "holding": 1.0, "backlog": 20.0, "largest_demand": 2}
SMALL_PERISHABLE = {"demand": 1.7, "unit_cost": 2.0, "holding": 0.5, "penalty": 6.0, "waste": 4.0, "largest_order": 3}


def poisson_demands(mean):
    """Demands up to where the rest is too rare for a float."""
    return [(k, math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))) for k in range(60)]


# What follows from (state, action, demand), unit by unit and in words: the next state and the cost.


def slow_lost_sales(state, order, demand, *, penalty, holding, capacity, **_):
    stock, *due = state
    sold = min(stock, demand)
    cost = holding * (stock - sold) + penalty * (demand - sold)
    due = [*due, order]
    return (min(stock - sold + due[0], capacity), *due[1:]), cost


def slow_dual_sourcing(state, orders, demand, *, express_cost, regular_cost, holding, backlog, largest_demand):
    (net_stock, *due), (regular, express) = state, orders
    net_stock += express - demand
    cost = regular_cost * regular + express_cost * express
    cost += holding * net_stock if net_stock > 0 else -backlog * net_stock
    due = [*due, regular]
    return (min(max(net_stock + due[0], -largest_demand), 3 * largest_demand), *due[1:]), cost


def slow_perishable(state, order, demand, *, lifetime, unit_cost, holding, penalty, waste, **_):
    """Units are single things with a number of periods to live; the one with the fewest is sold first."""
    line = [*state, order]
    units = [life for life, count in enumerate(line[:lifetime], start=1) for _ in range(count)]
    sold = min(demand, len(units))
    units = sorted(units)[sold:]
    cost = unit_cost * order + penalty * (demand - sold)
    cost += waste * units.count(1) + holding * sum(life > 1 for life in units)
    return (*(units.count(life) for life in range(2, lifetime + 1)), *line[lifetime:]), cost


CASES = [
    (tasks.lost_sales, slow_lost_sales, {"lead_time": 1, **SMALL_LOST_SALES}, poisson_demands(1.3)),
    (tasks.lost_sales, slow_lost_sales, {"lead_time": 3, **SMALL_LOST_SALES}, poisson_demands(1.3)),
    (tasks.dual_sourcing, slow_dual_sourcing, {"lead_time": 1, **SMALL_DUAL_SOURCING}, [(d, 1 / 3) for d in range(3)]),
    (tasks.dual_sourcing, slow_dual_sourcing, {"lead_time": 2, **SMALL_DUAL_SOURCING}, [(d, 1 / 3) for d in range(3)]),
    (tasks.perishable, slow_perishable, {"lifetime": 2, "lead_time": 0, **SMALL_PERISHABLE}, poisson_demands(1.7)),
    (tasks.perishable, slow_perishable, {"lifetime": 3, "lead_time": 1, **SMALL_PERISHABLE}, poisson_demands(1.7)),
    (tasks.perishable, slow_perishable, {"lifetime": 2, "lead_time": 3, **SMALL_PERISHABLE}, poisson_demands(1.7)),
]


@pytest.mark.parametrize(("make", "slow", "arguments", "demands"), CASES)
def test_the_model_against_loops(make, slow, arguments, demands):
    process = make(**arguments)
    model, prices = process.model(), {name: arguments[name] for name in arguments.keys() - {"lead_time", "demand"}}
    ranges = [range(low, high + 1) for low, high in zip(process.lowest, process.highest, strict=True)]
    states = list(itertools.product(*ranges))
    number = {state: i for i, state in enumerate(states)}
    assert len(states) == model.n_states
    rng = np.random.default_rng(0)
    for i in rng.permutation(len(states))[:60]:
        for action, options in enumerate(itertools.product(*map(range, process.choices))):
            row, cost = np.zeros(len(states)), 0.0
            for demand, p in demands:
                after, paid = slow(states[i], options if len(options) > 1 else options[0], demand, **prices)
                row[number[after]] += p
                cost += p * paid
            np.testing.assert_allclose(model.by_action[action][[i]].toarray().ravel(), row, atol=1e-13)
            assert model.rewards[i, action] == pytest.approx(-cost, abs=1e-11)


AGREEING = [
    tasks.lost_sales(2, **SMALL_LOST_SALES),
    tasks.dual_sourcing(2, **SMALL_DUAL_SOURCING),
    tasks.perishable(2, 2, **SMALL_PERISHABLE),
]


@pytest.mark.parametrize("process", AGREEING, ids=repr)
def test_the_environment_agrees_with_the_model(process):
    assert_agrees(process)


# Demand


@pytest.mark.parametrize("most", [1, 2, 7, 40, 400])
def test_rare_demands_are_one_event_with_the_right_mean(most):
    demand = poisson_demand(5.0, most)
    assert demand.events == most + 1
    assert demand.likely.sum() == pytest.approx(1, abs=1e-15)
    assert demand.likely @ demand.asked == pytest.approx(5.0, abs=1e-13)
    np.testing.assert_allclose(demand.likely[:-1], poisson.pmf(np.arange(most), 5.0), rtol=1e-11)
    assert demand.asked[-1] >= most


@pytest.mark.parametrize("mean", [0.3, 5.0, 130.0])
@pytest.mark.parametrize("share", [0.2, 0.8, 0.99])
def test_the_newsvendor_level_is_a_quantile(mean, share):
    assert newsvendor_level(mean, share) == poisson.ppf(share, mean)


# The best costs


@pytest.mark.parametrize(("lead_time", "penalty", "published"), [(2, 4.0, 4.395), (2, 9.0, 6.094)])
def test_published_costs_of_lost_sales(lead_time, penalty, published):
    process = tasks.lost_sales(lead_time, penalty)
    cost = -solve.solve(process.model()).gain
    assert cost == pytest.approx(published, abs=5e-4)
    larger = tasks.lost_sales(lead_time, penalty, capacity=process.capacity + 7)
    assert -solve.solve(larger.model()).gain == pytest.approx(cost, abs=1e-10)


def test_wider_bounds_do_not_change_the_best_cost_of_dual_sourcing():
    process = tasks.dual_sourcing(2, 110.0)
    wider = DualSourcing(2, (100.0, 110.0), (5.0, 495.0), process.demand, 10, (-8, 16))
    cost = -solve.solve(process.model()).gain
    assert -solve.solve(wider.model()).gain == pytest.approx(cost, abs=1e-9)
    assert cost == pytest.approx(219.733333, abs=1e-6)  # published: 219.71, from a secondary source


def test_an_express_supplier_who_costs_no_more_makes_a_newsvendor():
    """Everything is ordered express, up to the largest demand: nothing ever waits, 4 − 2 units are left on average."""
    best = solve.solve(tasks.dual_sourcing(2, express_cost=100.0).model())
    assert -best.gain == pytest.approx(2 * 100 + 5 * 2)


def test_goods_of_one_period_make_a_newsvendor():
    """Nothing is left from one period to the next, so each order is for one demand."""
    best = solve.solve(tasks.perishable(1, 1, **SMALL_PERISHABLE).model())
    demands = poisson_demands(1.7)
    costs = [2.0 * z + sum(p * (6.0 * max(d - z, 0) + 4.0 * max(z - d, 0)) for d, p in demands) for z in range(4)]
    assert -best.gain == pytest.approx(min(costs))


# Rules


def test_base_stock_orders_up_to_the_level():
    rule = BaseStock(level=10, cap=4)
    observations = np.array([[3.0, 4.0], [0.0, 0.0], [9.0, 5.0], [10.0, 0.0]], np.float32)
    np.testing.assert_array_equal(rule.rows(observations), [3, 4, 0, 0])
    assert [rule(one) for one in observations] == [3, 4, 0, 0]
    assert rule(observations[0], mask=np.ones(16, np.int8)) == 3
    assert isinstance(rule(observations[0]), int)


def test_dual_index_orders_express_first():
    rule = DualIndex(express=4, regular=9, cap=5, largest_order=8)
    observations = np.array([[-2.0, 1.0], [5.0, 3.0], [4.0, 8.0], [-7.0, 4.0], [-7.0, 0.0]], np.float32)
    expected = [[4, 6], [1, 0], [0, 0], [4, 8], [5, 8]]
    np.testing.assert_array_equal(rule.rows(observations, masks=None), expected)
    for one, orders in zip(observations, expected, strict=True):
        np.testing.assert_array_equal(rule(one), orders)


def dense_cost(transitions, rewards, actions):
    """By the stationary equations of the whole chain, dense; its last equation is that the shares sum to 1."""
    n = len(actions)
    equations = transitions[np.arange(n), actions].T - np.eye(n)
    equations[-1] = 1.0
    return -np.linalg.solve(equations, np.eye(n)[-1]) @ rewards[np.arange(n), actions]


@pytest.mark.parametrize("flip", [0.1, 1.0], ids=["forgets", "periodic"])
def test_the_stationary_distribution_by_steps_or_by_a_solve(flip):
    """Two states that change places with probability `flip` (always: it never settles), and a transient one."""
    chain = Chain(sp.csr_array([[1 - flip, flip, 0], [flip, 1 - flip, 0], [0.5, 0.25, 0.25]]))
    np.testing.assert_allclose(stationary(chain), [0.5, 0.5, 0], atol=1e-12)


def test_a_rule_without_an_average_is_refused():
    with pytest.raises(UserError, match=r"no average cost.*2 recurrent classes"):
        stationary(Chain(sp.eye_array(2, format="csr")))


def test_the_best_base_stock_against_brute_force():
    process = tasks.lost_sales(2, **SMALL_LOST_SALES)
    model = process.model()
    states = [(stock, due) for stock in range(6) for due in range(4)]
    costs = {
        (level, cap): dense_cost(
            model.transitions, model.rewards, [min(max(level - sum(state), 0), cap) for state in states]
        )
        for level in range(9)
        for cap in range(1, 4)
    }
    plain, capped = best_base_stock(process), best_capped_base_stock(process, model)
    assert plain.cost == pytest.approx(min(cost for (_, cap), cost in costs.items() if cap == 3), abs=1e-10)
    assert capped.cost == pytest.approx(min(costs.values()), abs=1e-10)
    assert costs[capped.rule.level, capped.rule.cap] == pytest.approx(capped.cost, abs=1e-10)
    assert capped.cost < plain.cost - 1e-3


@pytest.mark.parametrize("express_cost", [10.5, 14.0])
def test_the_best_dual_index_against_brute_force(express_cost):
    process = tasks.dual_sourcing(2, **SMALL_DUAL_SOURCING | {"express_cost": express_cost})
    model = process.model()
    states = [(net_stock, due) for net_stock in range(-2, 7) for due in range(5)]
    costs, transitions = {}, model.transitions
    for express, regular, cap in itertools.product(range(-1, 5), range(-1, 12), range(1, 5)):
        actions = []
        for net_stock, due in states:
            fast = min(max(express - net_stock, 0), 4)
            slow = min(max(regular - net_stock - due - fast, 0), cap)
            actions.append(5 * slow + fast)
        costs[express, regular, cap] = dense_cost(transitions, model.rewards, actions)
    plain, capped = best_dual_index(process), best_dual_index(process, model, capped=True)
    assert plain.cost == pytest.approx(min(cost for (_, _, cap), cost in costs.items() if cap == 4), abs=1e-9)
    assert capped.cost == pytest.approx(min(costs.values()), abs=1e-9)
    assert capped.cost >= -solve.relative_value_iteration(model).gain - 1e-6


def test_a_rule_costs_in_the_environment_what_it_costs_in_the_model():
    process = tasks.lost_sales()
    rule = BaseStock(level=17, cap=5)
    env = gymnasium.make_vec("kemeny/LostSales-v0", num_envs=2000, vectorization_mode="vector_entry_point")
    observations, _ = env.reset(seed=0)
    means = []
    for step in range(150):
        observations, rewards, *_ = env.step(rule.rows(observations))
        if step >= 30:
            means.append(rewards)
    by_copy = -np.mean(means, axis=0)
    error = by_copy.std() / np.sqrt(len(by_copy))
    assert error < 0.02
    assert by_copy.mean() == pytest.approx(average_cost(process, rule), abs=4 * error)


IDS = {
    "LostSales-v0": tasks.lost_sales,
    "DualSourcing-v0": tasks.dual_sourcing,
    "PerishableStock-v0": tasks.perishable,
    "MachineReplacement-v0": tasks.machine_replacement,
    "Maintenance-v0": tasks.maintenance,
    "AccessControl-v0": tasks.access_control,
    "Admission-v0": tasks.admission,
}


@pytest.mark.parametrize("name", IDS)
def test_the_ids_make_the_processes(name):
    env = gymnasium.make(f"kemeny/{name}")
    assert type(env.unwrapped.process) is type(IDS[name]())
    observation, _ = env.reset(seed=3)
    for _ in range(20):
        assert env.observation_space.contains(observation)
        observation, reward, ended, cut, _ = env.step(env.action_space.sample())
        assert math.isfinite(reward)
        assert not ended
        assert not cut


BAD = [
    (lambda: tasks.lost_sales(lead_time=0), "the lead time is 0; it must be at least 1"),
    (lambda: tasks.lost_sales(lead_time=1.5), "the lead time is 1.5; it must be a whole number"),
    (lambda: tasks.lost_sales(penalty=0), "the penalty is 0; it must be above 0"),
    (lambda: tasks.lost_sales(demand=float("inf")), "the mean demand is inf; it must be a finite number"),
    (lambda: tasks.lost_sales(demand=1e7), "needs more than 100,000 units"),
    (lambda: tasks.lost_sales(capacity=0), "the capacity is 0"),
    (lambda: tasks.dual_sourcing(express_cost=99), "less than the regular cost, 100.*Raise express_cost"),
    (lambda: tasks.dual_sourcing(largest_demand=0), "the largest demand is 0"),
    (lambda: tasks.dual_sourcing(largest_order=0), "the largest order is 0"),
    (lambda: tasks.perishable(lifetime="3"), "the lifetime is '3'; it must be a whole number"),
    (lambda: tasks.perishable(lifetime=1, lead_time=0), "the lead time is 0; it must be at least 1"),
    (lambda: tasks.perishable(waste=-1), "the cost of waste is -1"),
]


@pytest.mark.parametrize(("mistake", "sentence"), BAD)
def test_mistakes_get_a_sentence(mistake, sentence):
    with pytest.raises(UserError, match=sentence):
        mistake()
