"""What the first batch fixes: the trust region holds from the first step on, and the reward's scale changes nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kemeny
from kemeny.criterion import Average, Discounted
from kemeny.learning.learner import Learner, init
from kemeny.learning.normalizer import Normalizer
from kemeny.learning.settings import CriticFit, Networks
from kemeny.learning.steps.natural import Natural
from kemeny.learning.update import update
from tests.probes import Patience, Target
from tests.test_learner import BOX, random_batch

SMALL = Learner(networks=Networks(hidden=(16, 16)), critic=CriticFit(critic_epochs=2), iterations=10)


@pytest.mark.parametrize("seed", range(3))
def test_the_policy_that_is_deployed_stays_in_the_trust_region_from_the_first_update_on(seed):
    """Observations far from standard: the normaliser goes from the identity to the statistics of the first batch."""
    state = init(SMALL, BOX, jax.random.key(seed))
    delta = Natural().region.delta
    for iteration in range(3):
        batch = random_batch(BOX, 10 * seed + iteration, time=50, envs=20)
        batch = batch._replace(
            observation=50 * batch.observation + 100, next_observation=50 * batch.next_observation + 100
        )
        acted = state.policy(state.normalizer(batch.observation))
        state, metrics = update(SMALL, state, batch)
        deployed = state.policy(state.normalizer(batch.observation))
        if iteration == 0:
            assert 0 < float(metrics.step.kl) <= delta
            assert float(jnp.mean(deployed.kl(acted))) <= 1.1 * delta


def test_a_normaliser_is_filled_once():
    batch = jnp.array(np.random.default_rng(0).normal(3, 2, (100, 2)), jnp.float32)
    fresh = Normalizer.init(2, 10.0)
    filled = fresh.filled(batch)
    np.testing.assert_allclose(filled.mean, batch.mean(0), rtol=1e-6)
    np.testing.assert_array_equal(filled.mean, fresh.update(batch).mean)
    np.testing.assert_array_equal(filled.filled(batch + 1).mean, filled.mean)


@pytest.mark.parametrize("spike", [3e38, 1e25])
def test_statistics_that_are_not_finite_are_not_taken(spike):
    batch = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    before = Normalizer.init(2, 10.0).update(jnp.array(batch))
    batch += 1
    batch[7, 0] = spike
    after = before.update(jnp.array(batch))
    assert np.isfinite(jax.tree.leaves(after)[0]).all()
    np.testing.assert_array_equal(after.mean[0], before.mean[0])
    np.testing.assert_array_equal(after.scale[0], before.scale[0])
    assert after.mean[1] != before.mean[1]


SCALES = [("atrpo", scale) for scale in (1e-6, 1.0, 1e2, 1e4, 1e6)] + [("trpo", scale) for scale in (1e-6, 20.0, 1e6)]


class Scaled(Patience):
    """The same task in other units."""

    def __init__(self, scale, offset=0.0):
        super().__init__()
        self.scale, self.offset = scale, offset

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, self.scale * reward + self.offset, *rest


@pytest.mark.parametrize(("algorithm", "scale"), SCALES)
def test_a_task_is_solved_whatever_the_unit_of_its_reward(algorithm, scale, tmp_path):
    run = solve(lambda: Scaled(scale), tmp_path, algorithm=algorithm, gamma=0.95 if algorithm == "trpo" else None)
    assert run.metrics[-1]["rate"] / scale == pytest.approx(4 / 6, abs=0.03)
    assert run.metrics[-1]["explained_variance"] > 0.5


@pytest.mark.parametrize("offset", [-1e3, 1e3])
@pytest.mark.parametrize("settings", [{"algorithm": "atrpo"}, {"algorithm": "trpo", "gamma": 0.95}], ids=str)
def test_a_task_is_solved_whatever_is_added_to_its_reward(offset, settings, tmp_path):
    run = solve(lambda: Scaled(1.0, offset), tmp_path, **settings)
    assert run.metrics[-1]["rate"] - offset == pytest.approx(4 / 6, abs=0.03)


def solve(env, folder, **settings):
    return kemeny.train(
        env, out=folder / "run", steps=40_000, num_envs=10, batch_size=1_000, hidden=(16,), cut=200, delta=0.05,
        critic_step_size=3e-3, eval_every=10**6, eval_max_steps=12, critic_minibatch=100, gae_lambda=0.9, **settings,
    )  # fmt: skip


@pytest.mark.exact
@pytest.mark.parametrize("criterion", [Average(), Discounted(0.9)], ids=["average", "discounted"])
def test_learning_in_another_unit_is_the_same_bit_for_bit(criterion):
    """A power of two rounds nothing: policy and normalised critic are equal, values are that many times as large."""
    learner = dataclasses.replace(SMALL, criterion=criterion)
    states = [init(learner, BOX, jax.random.key(0)) for _ in range(2)]
    for seed in range(3):
        batch = random_batch(BOX, seed)
        for i, factor in enumerate((2.0**10, 2.0**20)):
            states[i], _ = update(learner, states[i], batch._replace(signals=(batch.signals[0] * factor,)))
    first, second = states
    for a, b in zip(jax.tree.leaves(first.policy), jax.tree.leaves(second.policy), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(*(jax.tree.leaves(state.critics[0].network) for state in states), strict=True):
        np.testing.assert_array_equal(a, b)
    x = jnp.ones((1, 3))
    np.testing.assert_array_equal(second.critics[0](x), first.critics[0](x) * 2.0**10)


def test_a_signal_of_order_one_keeps_its_unit():
    state, _ = update(SMALL, init(SMALL, BOX, jax.random.key(0)), random_batch(BOX))
    assert state.critics[0].unit == 1
    assert state.critics[0].mean == 0


def test_a_signal_that_is_zero_at_first_gets_its_unit_later():
    state = init(SMALL, BOX, jax.random.key(0))
    batch = random_batch(BOX)
    state, metrics = update(SMALL, state, batch._replace(signals=(jnp.zeros((20, 5)),)))
    assert not state.critics[0].settled
    assert not metrics.critics.critic_skipped
    state, _ = update(SMALL, state, batch._replace(signals=(1e5 * batch.signals[0],)))
    assert state.critics[0].unit > 1e4


def test_continuous_targets_too(tmp_path):
    class Big(Target):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, 1e5 * reward, *rest

    run = kemeny.train(
        Big, out=tmp_path / "run", steps=20_000, num_envs=10, batch_size=500, hidden=(8,), cut=100, eval_every=10**6,
        eval_max_steps=10,
    )  # fmt: skip
    assert run.policy(np.ones(1))[0] == pytest.approx(0.5, abs=0.05)
