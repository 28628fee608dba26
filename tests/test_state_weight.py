"""How much a state counts: sizes of values, and what they do to advantages and critics."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from kemeny.learning.critic import refit
from kemeny.learning.estimates import estimate
from kemeny.learning.learner import Learner, init
from kemeny.learning.networks import build_critic
from kemeny.learning.settings import CriticFit, Networks
from kemeny.learning.state_weight import value_size
from kemeny.rollout import Rollout
from kemeny.spaces import Discrete
from kemeny.spec import Spec, vector

SPEC = Spec(vector(3), Discrete(2), None)
RNG = np.random.default_rng(0)


def rollout(time: int = 20, copies: int = 10) -> Rollout:
    """Rewards of one signal; cut after the seventh step."""
    observation = RNG.exponential(size=(time + 1, copies, 3)).astype(np.float32)
    never = np.zeros((time, copies), bool)
    cut = never.copy()
    cut[6] = True
    batch = Rollout(
        observation=observation[:-1],
        action=RNG.integers(2, size=(time, copies)),
        signals=(RNG.normal(size=(time, copies)).astype(np.float32),),
        next_observation=observation[1:],
        terminal=never,
        cut=cut,
        start_observation=observation[0],
    )
    return jax.tree.map(jnp.asarray, batch)


def test_the_size_of_a_value_is_its_distance_from_the_median():
    value = np.concatenate([RNG.normal(size=999), [1e6]]).astype(np.float32)
    low, middle, high = np.quantile(value, [0.25, 0.5, 0.75])
    expected = np.sqrt(1 + ((value - middle) / (high - low)) ** 2)
    np.testing.assert_allclose(value_size(jnp.asarray(value)), expected, rtol=1e-3)


def test_sizes_have_no_unit_and_are_1_where_most_values_are_equal():
    value = jnp.asarray(RNG.normal(size=200), jnp.float32)
    np.testing.assert_allclose(value_size(1e3 * value + 5), value_size(value), rtol=1e-3)
    np.testing.assert_array_equal(value_size(jnp.zeros(10).at[3].set(7.0)), jnp.ones(10))


def test_advantages_are_divided_by_sizes_and_those_of_costs_are_not():
    batch = rollout()
    batch = batch._replace(signals=(*batch.signals, jnp.abs(batch.signals[0])))
    learner = Learner(limits=(1.0,))
    state = init(learner, SPEC, jax.random.key(0))
    equal, _ = estimate(learner, state, batch)
    relative, _ = estimate(dataclasses.replace(learner, state_weight="relative"), state, batch)
    assert equal.value_size is None
    assert relative.value_size is not None
    value = state.critics[0](equal.x)
    np.testing.assert_allclose(relative.value_size[0], value_size(value), rtol=1e-5)
    middle = equal.advantage[0].mean()
    expected = middle + (equal.advantage[0] - middle) / value_size(value)
    np.testing.assert_allclose(relative.advantage[0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(relative.advantage[1], equal.advantage[1])
    for signal in (0, 1):
        np.testing.assert_array_equal(relative.target[signal], equal.target[signal])
        np.testing.assert_allclose(relative.goals(signal)[1], 1 / relative.value_size[signal] ** 2, rtol=1e-6)


def test_critics_alone_are_weighted_where_it_says_so():
    batch, learner = rollout(), Learner(gae_lambda=None)
    state = init(learner, SPEC, jax.random.key(0))
    (equal, (unchanged,)), (relative, _), (critics, (reward,)) = (
        estimate(dataclasses.replace(learner, state_weight=weight), state, batch)
        for weight in ("equal", "relative", "critics")
    )
    np.testing.assert_array_equal(critics.advantage[0], equal.advantage[0])
    np.testing.assert_array_equal(reward.candidates, unchanged.candidates)
    np.testing.assert_array_equal(critics.goals(0)[1], relative.goals(0)[1])


def test_every_lambda_is_judged_by_the_same_weights():
    learner = Learner(gae_lambda=None, state_weight="relative")
    state, batch = init(learner, SPEC, jax.random.key(0)), rollout()
    samples, (reward,) = estimate(learner, state, batch)
    assert reward.candidates is not None
    assert state.lambda_choice is not None
    chosen = reward.candidates[int(state.lambda_choice.index)]
    np.testing.assert_allclose(chosen, samples.advantage[0], rtol=1e-4, atol=1e-5)


def test_a_critic_of_usual_states_is_not_spoilt_by_a_few_far_ones():
    """Two of 500 states have values that the network cannot reach; with weights, the others are fitted as if alone."""
    x = jnp.asarray(RNG.normal(size=(500, 3)), jnp.float32)
    target = jnp.sin(2 * x[:, 0]).at[:2].set(jnp.array([300.0, -300.0]))
    weights = {"equal": jnp.ones(500), "relative": 1 / value_size(target) ** 2}
    errors = {}
    for name, weight in weights.items():
        critic = build_critic(Networks(hidden=(32,)), SPEC, jax.random.key(1))
        moments = init(Learner(networks=Networks(hidden=(32,))), SPEC, jax.random.key(0)).optimizers[0]
        for batch in range(20):
            critic, moments, _, _ = refit(
                CriticFit(), critic, moments, x, target, weight, jnp.array(3e-3), jax.random.key(batch)
            )
        errors[name] = float(jnp.sqrt(jnp.mean((critic(x) - target)[2:] ** 2)))
    assert errors["relative"] < 0.2
    assert errors["equal"] > 5 * errors["relative"]
