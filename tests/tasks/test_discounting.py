"""The N-model shows what a discount costs: the best policy for a small one lets a queue grow without end."""

import numpy as np
import pytest

from kemeny.tabular.solve import discounted_policy_iteration, policy_iteration
from kemeny.tasks import n_model

ARRIVALS = (1.3 * 0.95, 0.4 * 0.95)


def grid_of(policy, truncation):
    return policy.reshape(truncation + 1, truncation + 1)


@pytest.fixture(scope="module")
def short_sighted():
    """By the truncation: the model, and the best policy for γ = 0.9."""
    models = {truncation: n_model().model(truncation) for truncation in (20, 40, 80)}
    return {truncation: (model, discounted_policy_iteration(model, 0.9).policy) for truncation, model in models.items()}


def test_a_discount_of_a_tenth_helps_the_dear_class_whenever_it_can(short_sighted):
    """Class 1 costs 3 per job and is helped at rate ½, class 2 costs 1 and is served at rate 1: the cμ rule."""
    _, policy = short_sighted[80]
    far_from_the_cut = grid_of(policy, 80)[:40, 1:40]
    assert (far_from_the_cut == (np.arange(40)[:, None] >= 2)).all()


def test_then_class_2_is_served_less_often_than_it_arrives(short_sighted):
    """The birth–death chain of x₁ (up at rate λ₁; down at rate 1, from 2 on at rate 1.5) says how often x₁ < 2.

    What gets in at the cut is what is served: P(x₂ is at the cut) = 1 − share/λ₂, but for the rare times with x₂ = 0.
    """
    up, ratio = ARRIVALS[0], ARRIVALS[0] / 1.5
    share = (1 + up) / (1 + up + up * ratio / (1 - ratio))
    assert share < ARRIVALS[1]
    model, policy = short_sighted[80]
    law = model.evaluate(policy).stationary.reshape(81, 81)
    assert law[:2].sum() == pytest.approx(share, abs=2e-4)
    assert law[:, -1].sum() == pytest.approx(1 - share / ARRIVALS[1], abs=2e-3)


def test_so_the_average_grows_with_the_truncation_without_end_and_the_best_one_does_not(short_sighted):
    costs = [-model.evaluate(policy).rho for model, policy in short_sighted.values()]
    assert costs[1] / costs[0] > 1.6
    assert costs[2] / costs[1] > 1.8
    best = [-policy_iteration(model).gain for model, _ in short_sighted.values()]
    assert best[2] < 42
    assert best[2] - best[1] < 0.5 * (costs[2] - costs[1])
