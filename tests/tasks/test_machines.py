"""Machines that wear out: the models against the zoo and against loops over machines."""

import itertools

import numpy as np
import pytest

from kemeny import tasks
from kemeny.errors import UserError
from kemeny.tabular import solve, zoo
from tests.tasks.agreement import assert_agrees


@pytest.mark.parametrize("arguments", [{}, {"n": 2, "wear": 0.9, "price": 0.3}, {"n": 5, "wear": 1.0}])
def test_machine_replacement_is_that_of_the_zoo(arguments):
    model, expected = tasks.machine_replacement(**arguments).model(), zoo.machine_replacement(**arguments)
    np.testing.assert_allclose(model.transitions, expected.transitions, atol=1e-15)
    np.testing.assert_allclose(model.rewards, expected.rewards, atol=1e-14)


def slow_maintenance(wear, levels, repair, replacement, repaired):
    """(state, action) → probabilities of next states, and the reward: one machine after another."""
    for state in itertools.product(range(levels), repeat=len(wear)):
        for action in range(1 + 2 * len(wear)):
            at = None if action == 0 else (action - 1) // 2
            is_repair = action % 2 == 1
            reward, ways = 0.0, [((), 1.0)]
            for i, level in enumerate(state):
                if i == at:
                    reward -= repair if is_repair else replacement
                    following = [(max(level - repaired, 0) if is_repair else 0, 1.0)]
                else:
                    reward += 1 - level / (levels - 1)
                    following = [(min(level + 1, levels - 1), wear[i]), (level, 1 - wear[i])]
                ways = [((*before, now), p * q) for before, p in ways for now, q in following]
            likely = {}
            for after, p in ways:
                likely[after] = likely.get(after, 0.0) + p
            yield state, action, likely, reward


def test_maintenance_against_loops():
    arguments = {"wear": (0.3, 0.1), "levels": 4, "repair": 0.2, "replacement": 0.7, "repaired": 2}
    model = tasks.maintenance(**arguments).model()
    seen = 0
    for state, action, likely, reward in slow_maintenance(**arguments):
        number = np.ravel_multi_index(state, (4, 4))
        row = np.zeros(16)
        for after, p in likely.items():
            row[np.ravel_multi_index(after, (4, 4))] += p
        np.testing.assert_allclose(model.by_action[action][[number]].toarray().ravel(), row, atol=1e-15)
        assert model.rewards[number, action] == pytest.approx(reward)
        seen += 1
    assert seen == model.n_states * model.n_actions


def test_one_machine_that_is_renewed():
    """Two levels, a repair makes it new: it earns 1 in 1/w steps, then costs a step and the cheaper price."""
    w = 0.2
    best = solve.solve(tasks.maintenance((w,), levels=2, repair=0.4, replacement=0.9).model())
    assert best.gain == pytest.approx((1 / w - 0.4) / (1 / w + 1))


@pytest.mark.parametrize(
    "process", [tasks.machine_replacement(4), tasks.maintenance((0.3, 0.5), levels=3, repaired=1)], ids=repr
)
def test_the_environment_agrees_with_the_model(process):
    assert_agrees(process)


BAD = [
    (lambda: tasks.machine_replacement(n=1), "the number of states, is 1; it must be at least 2"),
    (lambda: tasks.machine_replacement(wear=1.2), "the wear is 1.2; it must be between 0 and 1"),
    (lambda: tasks.machine_replacement(price="5"), "the price is '5'; it must be a finite number"),
    (lambda: tasks.maintenance(()), "0 numbers in wear, one per machine; 1 to 10 work"),
    (lambda: tasks.maintenance((0.1,) * 11), "11 numbers"),
    (lambda: tasks.maintenance((0.1, 2.0)), "the wear of machine 2 is 2.0"),
    (lambda: tasks.maintenance(levels=1), "the number of levels is 1"),
    (lambda: tasks.maintenance(repaired=0), "at least 1"),
]


@pytest.mark.parametrize(("mistake", "sentence"), BAD)
def test_mistakes_get_a_sentence(mistake, sentence):
    with pytest.raises(UserError, match=sentence):
        mistake()
