"""How a critic is refitted: what makes it learn, and what would stop it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kemeny.learning.critic import refit
from kemeny.learning.networks import build_critic
from kemeny.learning.settings import CriticFit, Networks
from kemeny.spec import Continuous, Spec, vector

SPEC = Spec(vector(3), Continuous(-np.ones(1, np.float32), np.ones(1, np.float32)), None)
X = jnp.asarray(np.random.default_rng(0).normal(size=(1_000, 3)), jnp.float32)


def explained_after_a_quiet_time(fit: CriticFit) -> float:
    """A solved task, whose values hardly differ, for 100 batches; then values that do, for 20."""
    critic = build_critic(Networks(hidden=(16, 16)), SPEC, jax.random.key(0))
    optimizer = optax.scale_by_adam().init(critic.network)
    target = 0.3 * jnp.sin(X[:, 0]) * X[:, 1]  # in units of the reward

    def learn(critic, optimizer, target, batch):
        weight, key = jnp.ones(len(X)), jax.random.key(batch)
        return refit(fit, critic, optimizer, X, target, weight, jnp.array(1e-3), key)[:2]

    for batch in range(100):
        critic, optimizer = learn(critic, optimizer, 0.01 * target, batch)
    for batch in range(20):
        critic, optimizer = learn(critic, optimizer, target, 100 + batch)
    return float(1 - jnp.var(target - critic(X)) / jnp.var(target))


def test_a_critic_learns_again_after_a_time_in_which_there_was_nothing_to_learn():
    assert explained_after_a_quiet_time(CriticFit()) > 0.9


def test_with_the_papers_weight_decay_it_does_not():
    """With all weights at 0 no weight has a gradient, and the decay keeps them there: why the default is none."""
    assert explained_after_a_quiet_time(CriticFit(critic_l2=3e-3)) == pytest.approx(0, abs=1e-3)
