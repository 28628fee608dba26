"""Heating: the optimum is that of brute force, no rule near it is better, and the environments do what it assumes."""

import gymnasium
import numpy as np
import pytest
from scipy.optimize import minimize

from kemeny.envs import states
from kemeny.errors import UserError
from kemeny.tasks import Heating, HeatingEnv, HeatingVectorEnv
from kemeny.tasks.linear_quadratic import AffineRule, LinearSystem, best_rule, best_rule_within, measure

ROOMS = [
    Heating(),
    Heating(comfort=5.0, wanted=19.0, outdoors=-4.0, persistence=0.5, gains=1.0, gains_deviation=1.5, hours=0.5),
    Heating(comfort=0.2, room_capacity=2.0, wall_capacity=1.5, room_to_outdoors=0.0, persistence=-0.3),
]


def moved(rule, change):
    return AffineRule(rule.gain + change[:3], rule.offset + change[3:])


def averages_by_sums(heating, rule, steps=20_000):
    """Mean energy and discomfort by following mean and covariance from step to step, with the physics written out."""
    room, wall, hours = heating.room_capacity, heating.wall_capacity, heating.hours
    (k1, k2, k3), (offset,) = rule.gain[0], rule.offset
    mean = np.array([heating.wanted, heating.wanted, heating.outdoors])
    cov = np.zeros((3, 3))
    F = np.array([
        [
            1 - hours / room * (heating.room_to_wall + heating.room_to_outdoors + k1),
            hours / room * (heating.room_to_wall - k2),
            hours / room * (heating.room_to_outdoors - k3),
        ],
        [
            hours / wall * heating.room_to_wall,
            1 - hours / wall * (heating.room_to_wall + heating.wall_to_outdoors),
            hours / wall * heating.wall_to_outdoors,
        ],
        [0, 0, heating.persistence],
    ])  # fmt: skip
    c = np.array([hours / room * (heating.gains + offset), 0, (1 - heating.persistence) * heating.outdoors])
    noise = np.diag([
        (hours / room * heating.gains_deviation) ** 2, 0, heating.outdoors_deviation**2 * (1 - heating.persistence**2)
    ])  # fmt: skip
    for _ in range(steps):
        mean, cov = F @ mean + c, F @ cov @ F.T + noise
    power = offset - rule.gain[0] @ mean
    return power**2 + rule.gain[0] @ cov @ rule.gain[0], (mean[0] - heating.wanted) ** 2 + cov[0, 0]


@pytest.mark.parametrize("heating", ROOMS)
def test_the_cost_of_the_riccati_equation_is_that_of_the_steady_state(heating):
    best = heating.best()
    assert best.cost == pytest.approx(best.effort + heating.comfort * best.error, rel=1e-10)
    assert (best.effort, best.error) == pytest.approx(averages_by_sums(heating, best.rule), rel=1e-9)


@pytest.mark.parametrize("heating", ROOMS)
def test_no_rule_near_the_best_one_is_better(heating):
    """The loss grows with the square of the change, so a rule that is off by a little would show."""
    best, rng = heating.best(), np.random.default_rng(0)
    for _ in range(50):
        direction = rng.normal(size=4) * [1, 1, 1, 20]
        losses = []
        for size in (1e-3, 2e-3):
            found = heating.measure(moved(best.rule, size * direction))
            losses.append(found.effort + heating.comfort * found.error - best.cost)
        assert losses[0] > 0
        assert losses[1] / losses[0] == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("heating", ROOMS)
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_the_least_energy_within_a_limit_is_that_of_a_search_over_gains(heating, share):
    """SLSQP over the gains and the power at a usual state, from a rule that is far from the best."""
    usual = np.array([heating.wanted, 0.7 * heating.wanted, heating.outdoors])
    idle = heating.measure(AffineRule(np.zeros((1, 3)), np.zeros(1)))
    least = heating.system.noise[0, 0]
    limit = least + share**2 * (min(idle.error, 4.0) - least)
    best = heating.best_within(limit)
    assert best.error == pytest.approx(limit, rel=1e-8)

    def rule(x):
        return AffineRule(x[None, :3], 5 * x[3:] + x[:3] @ usual)

    found = minimize(
        lambda x: heating.measure(rule(x)).effort,
        np.array([0.3, 0.0, 0.0, 0.8]),
        constraints={"type": "ineq", "fun": lambda x: limit - heating.measure(rule(x)).error},
        method="SLSQP",
        options={"ftol": 1e-10, "maxiter": 500},
    )
    assert heating.measure(rule(found.x)).error <= limit * (1 + 1e-6)
    assert best.effort * (1 - 1e-6) < found.fun < best.effort * (1 + 1e-5)


def test_the_price_of_a_limit_is_the_slope_of_the_least_energy():
    below, at, above = (Heating().best_within(limit) for limit in (0.499, 0.5, 0.501))
    assert (below.effort - above.effort) / 0.002 == pytest.approx(at.weight, rel=1e-4)


def test_a_limit_that_binds_has_the_same_best_rule_whatever_comfort_is_worth():
    limit = 0.5 * Heating().best().error
    assert Heating(comfort=0).best_within(limit).effort == Heating().best_within(limit).effort


def test_a_limit_that_is_kept_without_heat_costs_nothing():
    heating = Heating()
    best = heating.best_within(1000.0)
    assert (best.effort, best.weight, best.cost) == (0, 0, 0)
    assert best.error == pytest.approx(averages_by_sums(heating, best.rule)[1])
    assert Heating(comfort=0).best().effort == pytest.approx(0, abs=1e-12)


def test_a_system_that_grows_on_its_own_is_held():
    """x' = 2x + u + w with effort u²: K = 3/2 whatever the weight tends to, for P = 3 (by hand), so u² is 9/4·4/3."""
    system = LinearSystem(
        A=np.array([[2.0]]), B=np.eye(1), c=np.zeros(1), noise=np.eye(1), error=np.eye(1), effort=np.eye(1),
        wanted=np.zeros(1),
    )  # fmt: skip
    best = best_rule(system, 1e-9)
    assert best.rule.gain == pytest.approx(1.5, rel=1e-6)
    assert best.effort == pytest.approx(3.0, rel=1e-6)
    with pytest.raises(UserError, match="does not keep the system stable: deviations grow by a factor of 2 per step"):
        measure(system, AffineRule(np.zeros((1, 1)), np.zeros(1)))
    assert best_rule_within(system, 1.1).error == pytest.approx(1.1)


def test_the_best_rule_earns_its_average_in_the_environment():
    heating = Heating()
    best, copies = heating.best(), HeatingVectorEnv(heating, 2000)
    observations, _ = copies.reset(seed=1)
    total, energy, discomfort = np.zeros((3, 2000))
    for step in range(800):
        action = best.rule.rows(observations)
        observations, reward, terminated, truncated, info = copies.step(action)
        assert not np.any([terminated, truncated])
        if step >= 300:
            total, energy, discomfort = total + reward, energy + info["energy"], discomfort + info["discomfort"]
    for sums, exact in ((total, -best.cost), (energy, best.effort), (discomfort, best.error)):
        error = sums.std(ddof=1) / 500 / np.sqrt(2000)
        assert abs(sums.mean() / 500 - exact) < 4 * error
        assert error < 0.1


@pytest.mark.parametrize("limit", [None, 0.5, 0.1])
def test_the_best_rules_hardly_ever_reach_the_limits_of_the_power(limit):
    heating = Heating()
    best = heating.best() if limit is None else heating.best_within(limit)
    assert heating.clipped(best.rule) < 1e-6


def test_how_often_power_is_clipped():
    heating = Heating(most_power=4.5)
    rule = heating.best().rule
    copies, clipped = HeatingVectorEnv(Heating(), 2000), 0
    observations, _ = copies.reset(seed=1)
    for step in range(400):
        action = rule.rows(observations)
        observations, *_ = copies.step(action)
        clipped += (step >= 300) * np.mean((action < 0) | (action > 4.5)) / 100
    assert heating.clipped(rule) == pytest.approx(clipped, abs=0.02)
    assert 0.2 < clipped < 0.6


def test_power_beyond_the_limits_is_power_at_the_limits():
    heating = Heating()
    for asked, got in ((-3.0, 0.0), (99.0, heating.most_power)):
        states_, energy, _ = heating.step(np.full((1, 3), 20.0), np.full((1, 1), asked), np.random.default_rng(0))
        same, *_ = heating.step(np.full((1, 3), 20.0), np.full((1, 1), got), np.random.default_rng(0))
        assert energy == got**2
        np.testing.assert_array_equal(states_, same)


def test_one_copy_and_many_agree():
    heating = Heating()
    one, many = HeatingEnv(heating), HeatingVectorEnv(heating, 1)
    (alone, _), (together, _) = one.reset(seed=5), many.reset(seed=5)
    rng = np.random.default_rng(0)
    for _ in range(20):
        np.testing.assert_array_equal(alone, together[0])
        power = rng.uniform(-1, 11, 1).astype(np.float32)
        alone, reward, terminated, truncated, info = one.step(power)
        together, rewards, _, _, infos = many.step(power[None])
        assert (reward, terminated, truncated) == (rewards[0], False, False)
        assert info == {name: values[0] for name, values in infos.items()}
        assert reward == pytest.approx(-(info["energy"] + info["discomfort"]))
    assert one.observation_space.contains(alone)


def test_copies_are_independent_and_a_restart_moves_only_its_own():
    copies = HeatingVectorEnv(Heating(), 4)
    copies.reset(seed=0)
    observations = copies.step(np.full((4, 1), 4.0, np.float32))[0]
    assert len(np.unique(observations[:, 2])) == 4
    mask = np.array([True, False, True, False])
    after, _ = copies.reset(options={"reset_mask": mask})
    np.testing.assert_array_equal(after[~mask], observations[~mask])
    assert (after[mask, 0] == 21.0).all()


def test_the_state_of_the_copies_is_all_that_the_next_steps_depend_on():
    copies, others = HeatingVectorEnv(Heating(), 5), HeatingVectorEnv(Heating(), 5)
    copies.reset(seed=0)
    others.reset(seed=1)
    power = np.full((5, 1), 4.0, np.float32)
    copies.step(power)
    others.set_state(states.from_arrays(states.to_arrays(copies.get_state(), "heating")))
    for _ in range(3):
        np.testing.assert_array_equal(copies.step(power)[0], others.step(power)[0])


def test_a_rule_for_one_is_the_rule_for_many():
    rule, rows = Heating().best().rule, np.random.default_rng(0).normal(15, 5, (7, 3)).astype(np.float32)
    np.testing.assert_allclose(rule.rows(rows), [rule(row) for row in rows])
    np.testing.assert_array_equal(rule.rows(rows, masks=np.ones((7, 1))), rule.rows(rows))
    assert rule(rows[0]).shape == (1,)


def test_the_task_has_an_id():
    env = gymnasium.make("kemeny/Heating-v0", wanted=19.0)
    assert env.unwrapped.heating == Heating(wanted=19.0)
    vector = gymnasium.make_vec("kemeny/Heating-v0", num_envs=3, vectorization_mode="vector_entry_point", comfort=2.0)
    assert vector.unwrapped.heating.comfort == 2.0
    assert vector.action_space.shape == (3, 1)
    with pytest.raises(UserError, match="kemeny/Heating-v0 has no argument 'temperature'; its arguments are comfort"):
        gymnasium.make("kemeny/Heating-v0", temperature=3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"gains_deviation": -1.0}, "gains_deviation is -1.0; it must be at least 0."),
        ({"outdoors_deviation": -1}, "outdoors_deviation is -1; it must be at least 0."),
        ({"comfort": -0.1}, "comfort is -0.1; it must be at least 0."),
        ({"room_capacity": 0}, "room_capacity is 0; it must be above 0."),
        ({"wanted": float("nan")}, "wanted is nan; it must be a finite number."),
        ({"wanted": "warm"}, "wanted is 'warm'; it must be a finite number."),
        ({"persistence": 1.0}, "persistence is 1.0; it must be between −1 and 1"),
        ({"persistence": -1.5}, "persistence is -1.5; it must be between −1 and 1"),
        ({"hours": 3.0}, "a step of 3.0 hours is too long for these capacities .* Choose a shorter step"),
    ],
)
def test_bad_numbers_are_refused_in_a_sentence(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        Heating(**arguments)


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        (0.0, "The limit on the discomfort is 0.0; it must be a positive number"),
        (0.06, "No rule keeps the limit of 0.06: the error is 0.0625 on average even if effort is free"),
    ],
)
def test_a_limit_that_nobody_keeps_is_refused(limit, sentence):
    with pytest.raises(UserError, match=sentence):
        Heating().best_within(limit)
