"""Q-learning on a table, against exact values of the same truncated models."""

import numpy as np
import pytest

import kemeny
from kemeny import tasks
from kemeny.errors import UserError
from kemeny.tabular import solve
from kemeny.tasks import learners

METHODS = {
    "differential": learners.differential(),
    "relative": learners.relative(),
    "R-learning": learners.r_learning(),
}


class Admission(tasks.Process):
    """One queue. An arriving job is admitted for a fee or refused; each job that waits costs something."""

    name, parts, start, choices, events = "admission", ("jobs",), (0,), (2,), 3
    lowest, highest = (0,), (8,)
    ARRIVES, FEE, WAITING = 0.45, 6.0, 1.0

    def probabilities(self, states, actions):
        """An arrival, the end of a service, or nothing."""
        busy = (states[:, 0] > 0) * 0.5
        return np.stack([np.full(len(states), self.ARRIVES), busy, 1 - self.ARRIVES - busy], axis=1)

    def outcome(self, states, actions, events):
        """Whoever is not admitted, or finds the queue full, is lost."""
        admitted = (events == 0) & (actions[:, 0] == 1) & (states[:, 0] < 8)
        after = states[:, 0] + admitted - (events == 1)
        return tasks.Outcome(
            after[:, None], self.FEE * admitted - self.WAITING * states[:, 0], np.empty((len(states), 0))
        )


PROCESSES = {
    "admission": (Admission(), None),
    "server allocation": (tasks.server_allocation((0.2, 0.15), (1.0, 0.5), (1.0, 4.0)), 8),
    "criss-cross": (tasks.criss_cross("IL"), 6),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("process", PROCESSES)
def test_the_greedy_policy_is_nearly_optimal(process, method):
    """Its exact gain is within 1 % of the best; the uniform policy is not. R-learning's rate is known to be too low."""
    process, truncation = PROCESSES[process]
    model = process.model(truncation)
    best, uniform = solve.solve(model).gain, model.evaluate(model.uniform_policy).rho
    learned = learners.learn(process, METHODS[method], truncation, seed=0)
    assert uniform < best - 0.01 * abs(best)
    assert best - 0.01 * abs(best) < model.evaluate(learned.policy).rho <= best + 1e-9
    assert learned.rate == pytest.approx(best, rel=0.25 if method == "R-learning" else 0.1)


def test_the_laws_of_the_reference_rates():
    """With one copy r̄ = η·ΣQ for differential Q-learning, since both begin at 0, and r̄ = Q(s₀) for RVI Q-learning.

    Both are linear, so they hold for the means too; the empty network allows one joint action.
    """
    process = tasks.criss_cross("IL")
    one = {"truncation": 3, "copies": 1, "steps": 500}
    found = learners.learn(process, learners.differential(0.3), **one)
    assert found.rate == pytest.approx(0.3 * found.table[np.isfinite(found.table)].sum())
    assert found.rate != 0
    found = learners.learn(process, learners.relative(), **one)
    assert found.rate == pytest.approx(found.table[0, 0])
    assert np.isfinite(found.table[0]).tolist() == [True, False]


def test_the_update_is_the_formula():
    """One copy, written out step by step with the random numbers in the same order."""
    process, steps = Admission(), 300
    found = learners.learn(process, learners.r_learning(0.5), copies=1, steps=steps, restart=0.1, explore=0.3, seed=4)
    rng = np.random.default_rng(4)
    table, visits, rate, state = np.zeros((9, 2)), np.zeros((9, 2)), 0.0, int(rng.integers([9], size=(1, 1))[0, 0])
    tables, rates = [], []
    for time in range(1, steps + 1):
        greedy = int(table[state].argmax())
        explores, random = rng.random(1)[0] < 0.3, int(rng.random((1, 2)).argmax())
        action = random if explores else greedy
        event = [rng.random((1, 1))[0, 0]]
        busy = 0.5 if state else 0.0
        event = 0 if event[0] < 0.45 else 1 if event[0] < 0.45 + busy else 2
        admitted = event == 0 and action == 1 and state < 8
        after = state + admitted - (event == 1)
        error = 6.0 * admitted - state - rate + table[after].max() - table[state, action]
        visits[state, action] += 1
        table[state, action] += error / (1 + visits[state, action] / 100)
        rate += 0.5 / time**0.5 * error * (action == greedy)
        again = rng.random((1, 1))[0, 0] < 0.1
        elsewhere = int(rng.integers([9], size=(1, 1))[0, 0])
        state = elsewhere if again else after
        if 2 * time > steps and time % 10 == 0:
            tables.append(table.copy())
            rates.append(rate)
    np.testing.assert_allclose(found.table, np.mean(tables, axis=0))
    assert found.rate == pytest.approx(np.mean(rates))


def test_what_was_learned_is_a_rule_that_keeps_to_the_masks():
    process = tasks.six_class(6)
    learned = learners.learn(process, learners.differential(), truncation=2, steps=50)
    assert (np.isfinite(learned.table) == process.model(2).allowed).all()
    states = np.random.default_rng(0).integers(0, 5, (100, 6)).astype(np.float32)
    actions = learned.rows(states)
    np.testing.assert_array_equal(actions, learned.rows(np.minimum(states, 2)))
    np.testing.assert_array_equal(actions, [learned(state) for state in states])
    found = kemeny.evaluate(learned, env="kemeny/SixClass-v0", trajectories=4, max_steps=200)
    assert found.long_run is not None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"truncation": None}, "its model needs a truncation"),
        ({"truncation": 2_000}, "would have 8,012,006,001 states"),
        ({"explore": 0.0}, "explore is 0.0; it is a probability above 0"),
        ({"restart": 1.5}, "restart is 1.5; it is a probability"),
        ({"power": 0.5}, "power is 0.5"),
        ({"copies": 0}, "0 copies"),
        ({"steps": 0}, "0 steps"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_get_a_sentence(arguments, why):
    with pytest.raises(UserError, match=why):
        learners.learn(tasks.criss_cross(), learners.relative(), **{"truncation": 3, **arguments})
