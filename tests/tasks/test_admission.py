"""Access control and admission: the same models as those of the zoo, and environments that agree with them."""

import numpy as np
import pytest

from kemeny import tasks
from kemeny.errors import UserError
from kemeny.tabular import solve, zoo
from tests.tasks.agreement import assert_agrees

SAME = [
    (tasks.access_control, zoo.access_control, {}),
    (tasks.access_control, zoo.access_control, {"servers": 3, "free": 0.3, "payments": (1.0, 5.0)}),
    (tasks.access_control, zoo.access_control, {"servers": 2, "free": 1.0}),
    (tasks.admission, zoo.queue_admission, {}),
    (tasks.admission, zoo.queue_admission, {"capacity": 3, "arrival": 0.9, "service": 0.2, "fee": 2.0, "waiting": 0.5}),
]


@pytest.mark.parametrize(("make", "of_the_zoo", "arguments"), SAME)
def test_the_model_is_that_of_the_zoo(make, of_the_zoo, arguments):
    model, expected = make(**arguments).model(), of_the_zoo(**arguments)
    np.testing.assert_allclose(model.transitions, expected.transitions, atol=1e-14)
    np.testing.assert_allclose(model.rewards, expected.rewards, atol=1e-13)
    assert (model.costs is None) == (expected.costs is None)
    if expected.costs is not None:
        np.testing.assert_allclose(model.costs, expected.costs, atol=1e-13)


def test_admission_starts_as_the_zoo():
    np.testing.assert_array_equal(tasks.admission().model().start, zoo.queue_admission().start)


@pytest.mark.parametrize("process", [tasks.access_control(4, 0.2), tasks.admission(4, fee=2.0)], ids=repr)
def test_the_environment_agrees_with_the_model(process):
    assert_agrees(process)


def test_waiting_can_be_limited():
    """The best fees under a limit on the mean length, by the linear programme of the model with this cost."""
    model = tasks.admission().model(cost="waiting")
    free, limited = solve.linear_programme(model), solve.linear_programme(model, limit=2.0)
    assert limited.cost == pytest.approx(2.0)
    assert free.cost > 2.5
    assert limited.gain < free.gain - 0.01


def test_waiting_is_reported_at_each_step():
    env = tasks.ProcessEnv(tasks.admission(arrival=1.0, service=0.0))
    env.reset(seed=0)
    waited = [env.step(1)[4]["waiting"] for _ in range(4)]
    assert waited == [0.0, 1.0, 2.0, 3.0]


BAD = [
    (lambda: tasks.access_control(servers=0), "the number of servers is 0; it must be at least 1"),
    (lambda: tasks.access_control(servers=2.5), "must be a whole number"),
    (lambda: tasks.access_control(free=1.5), "between 0 and 1"),
    (lambda: tasks.access_control(payments=()), "one payment per priority"),
    (lambda: tasks.admission(capacity=0), "the capacity is 0"),
    (lambda: tasks.admission(service=-0.1), "the probability of a service is -0.1"),
    (lambda: tasks.admission(fee=float("nan")), "the fee is nan; it must be a finite number"),
    (lambda: tasks.admission().model(cost="length"), "no cost named 'length'; its costs are: waiting"),
]


@pytest.mark.parametrize(("mistake", "sentence"), BAD)
def test_mistakes_get_a_sentence(mistake, sentence):
    with pytest.raises(UserError, match=sentence):
        mistake()
