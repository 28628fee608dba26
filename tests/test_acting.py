"""The policy in NumPy is the policy in JAX."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest

from kemeny.errors import UserError
from kemeny.experience.source import numpy_policy
from kemeny.learning.learner import Learner, init
from kemeny.spec import Continuous, Discrete, Spec, vector

BOX = Continuous(np.full(3, -0.4, np.float32), np.full(3, 0.4, np.float32))


def both(action, size=11):
    """The same random policy, with a normaliser that has seen data, in JAX and in NumPy."""
    spec = Spec(vector(size), action, None)
    state = init(Learner(), spec, jax.random.key(0))
    data = np.random.default_rng(0).normal(3, 5, size=(500, size)).astype(np.float32)
    state = dataclasses.replace(
        state,
        policy=jax.tree.map(lambda x: x * 3 + 0.1, state.policy),
        normalizer=state.normalizer.update(jax.numpy.asarray(data)),
    )
    return state, numpy_policy(state, spec), 2 * data[:50]


@pytest.mark.parametrize("action", [BOX, Discrete(4)])
def test_numpy_equals_jax(action):
    state, policy, observations = both(action)
    distribution = state.policy(state.normalizer(jax.numpy.asarray(observations)))
    expected = distribution.mean if isinstance(action, Continuous) else distribution.logits
    np.testing.assert_allclose(policy.head(observations), expected, rtol=2e-5, atol=2e-5)


def test_continuous_actions_are_within_the_bounds_and_distributed_as_they_should():
    state, policy, observations = both(BOX)
    rng = np.random.default_rng(1)
    mean = np.asarray(policy.head(observations[:1]))
    assert np.abs(policy(observations[0])).max() <= np.float32(0.4)
    np.testing.assert_array_equal(policy(observations)[0], np.clip(mean[0], -0.4, 0.4).astype(np.float32))
    draws = policy.explore(mean, policy.noise(rng, 100_000))
    np.testing.assert_allclose(draws.mean(0), mean[0], atol=0.02)
    np.testing.assert_allclose(draws.std(0), np.exp(np.asarray(state.policy.log_std)), rtol=0.02)
    assert policy.sample(observations[0], rng).shape == (3,)
    assert np.abs(policy.sample(observations, rng)).max() <= np.float32(0.4)


def test_discrete_actions_are_distributed_as_they_should():
    _, policy, observations = both(Discrete(4))
    logits = np.asarray(policy.head(observations[:1]))[0].astype(float)
    draws = policy.explore(logits[None].astype(np.float32), policy.noise(np.random.default_rng(2), 100_000))
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(draws, minlength=4) / 100_000, expected, atol=0.01)
    assert policy(observations[0]) == logits.argmax()


def test_a_discrete_observation_becomes_one_hot():
    _, policy, _ = both(Discrete(4))
    assert policy(np.int64(7)) == policy(np.eye(11, dtype=np.float32)[7])


def test_wrong_observation_gets_a_sentence():
    _, policy, _ = both(BOX)
    with pytest.raises(UserError, match="length 11"):
        policy(np.zeros(10))


def test_loading_a_policy_needs_no_jax(tiny_run):
    code = f"""
import sys
class Barred:
    def find_spec(self, name, path=None, target=None):
        assert name.split(".")[0] not in {{"jax", "jaxlib", "equinox", "optax", "envpool", "gymnasium", "torch"}}, name
sys.meta_path.insert(0, Barred())
import numpy as np, kemeny
policy = kemeny.load_policy({str(tiny_run.path)!r})
print(policy(np.zeros(4)), policy.sample(np.zeros((2, 4)), np.random.default_rng(0)).shape)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip().endswith("(2, 1)")
