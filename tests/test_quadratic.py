"""The quadratic part of a critic: what it fits, and what is left to the network."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import kemeny
from kemeny import UserError
from kemeny.learning.critic import refit
from kemeny.learning.networks import build_critic
from kemeny.learning.normalizer import Normalizer
from kemeny.learning.quadratic import LEAST_SHARE, MOST_FEATURES, RIDGE, Quadratic
from kemeny.learning.settings import CriticFit, Networks
from kemeny.runs.presets import preset
from kemeny.spaces import Discrete
from kemeny.spec import Spec, vector
from tests.oracles import ridge_regression
from tests.tasks.test_luck import stop_after
from tests.test_training import same_numbers

RNG = np.random.default_rng(0)
SPEC = Spec(vector(3), Discrete(2), None)
MASKED = Spec(vector(5), Discrete(2), None, mask=2)
X = jnp.asarray(RNG.exponential(size=(2_000, 3)) - 1, jnp.float32)


def squares(x) -> jnp.ndarray:
    return 3 + 2 * x[:, 0] - x[:, 2] + 5 * x[:, 0] ** 2 - 4 * x[:, 0] * x[:, 1] + 0.5 * x[:, 2] ** 2


def test_it_is_its_weights_times_its_features():
    fitted = Quadratic.init(SPEC).refitted(X, squares(X), jnp.ones(len(X)))
    np.testing.assert_allclose(fitted(X), fitted.features(X) @ fitted.weights, rtol=1e-4, atol=1e-3)
    rows = X.reshape(20, 100, 3)
    np.testing.assert_allclose(fitted(rows), fitted(X).reshape(20, 100), rtol=1e-4, atol=1e-3)


def test_a_quadratic_function_is_found_at_once():
    fitted = Quadratic.init(SPEC).refitted(X, squares(X), jnp.ones(len(X)))
    far = 10 * X  # also where nothing was seen
    assert jnp.std(fitted(far) - squares(far)) < 0.03 * jnp.std(squares(far))


def test_it_is_the_least_squares_of_weighted_samples():
    target, weight = np.sin(3 * X[:, 0]) * X[:, 1], jnp.asarray(RNG.uniform(0, 2, len(X)), jnp.float32)
    fitted = Quadratic.init(SPEC).refitted(X, jnp.asarray(target), weight)
    features, level = np.asarray(fitted.features(X))[:, 1:], np.average(target, weights=weight)
    centred = features - np.average(features, axis=0, weights=weight)  # so that the constant is not drawn to 0
    oracle = ridge_regression(centred, np.asarray(target) - level, np.asarray(weight), RIDGE)
    np.testing.assert_allclose(fitted.weights[1:], oracle, atol=1e-4)
    assert float(np.average(fitted(X), weights=weight)) == pytest.approx(level, abs=1e-4)


def test_what_was_hardly_seen_weighs_little():
    """One job in a queue that all others found empty."""
    x = X.at[:, 2].set(0.0).at[0, 2].set(1.0)
    fitted = Quadratic.init(SPEC).refitted(x, squares(X).at[0].set(1e4), jnp.ones(len(x)))
    assert abs(fitted(jnp.array([[0.0, 0.0, 1.0]]))[0] - fitted(jnp.zeros((1, 3)))[0]) < 0.1 * 1e4


def test_a_mask_has_no_squares():
    quadratic = Quadratic.init(MASKED)
    assert quadratic.weights.size == 1 + 5 + 6
    x = jnp.ones((1, 5)).at[0, 3:].set(2.0)
    np.testing.assert_array_equal(quadratic.features(x)[0], [1, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1, 1])


def test_later_batches_change_it_by_a_share():
    once = Quadratic.init(SPEC).refitted(X, squares(X), jnp.ones(len(X)))
    often = once
    for _ in range(20):
        often = often.refitted(X, squares(X), jnp.ones(len(X)))
    after = often.refitted(X, 0 * squares(X), jnp.ones(len(X)))
    np.testing.assert_allclose(after.weights, (1 - LEAST_SHARE) * once.weights, rtol=1e-3, atol=1e-4)


def test_targets_that_are_no_numbers_leave_it_as_it_was():
    once = Quadratic.init(SPEC).refitted(X, squares(X), jnp.ones(len(X)))
    again = once.refitted(X, squares(X).at[7].set(jnp.nan), jnp.ones(len(X)))
    np.testing.assert_array_equal(once.weights, again.weights)
    assert once.fits == again.fits


def errors_of_differences(quadratic: bool) -> float:
    """After 20 batches: how wrong the change of the value along an observation is, beside that change."""
    critic = build_critic(Networks(hidden=(16, 16)), SPEC, jax.random.key(0), quadratic)
    optimizer, fit = optax.scale_by_adam().init(critic.network), CriticFit(critic_unit="targets")

    def value(x):
        return 100 * squares(x) + jnp.sin(4 * x[:, 1])

    for batch in range(20):
        critic, optimizer, _, broken = refit(
            fit, critic, optimizer, X, value(X), jnp.ones(len(X)), jnp.array(1e-3), jax.random.key(batch)
        )
        assert not broken
    step = jnp.array([0.1, 0.0, 0.0])
    true = value(X + step) - value(X)
    return float(jnp.std(critic(X + step) - critic(X) - true) / jnp.std(true))


def test_with_it_a_critic_knows_the_differences_of_large_values():
    with_it, without = errors_of_differences(True), errors_of_differences(False)
    assert with_it < 0.02
    assert without > 5 * with_it


def test_too_many_observations_are_refused():
    with pytest.raises(UserError, match=f"at most {MOST_FEATURES} observed numbers, and here there are 51"):
        build_critic(Networks(), Spec(vector(51), Discrete(2), None), jax.random.key(0), quadratic=True)


def test_a_run_with_too_many_observations_leaves_nothing_behind(tmp_path):
    with pytest.raises(UserError, match="and here there are 376: use --critic-form network"):
        kemeny.train("Humanoid-v3", critic_form="quadratic", out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_the_preset_for_queues_tells_long_queues_apart():
    """Ten deviations, where other tasks are clipped, are ten jobs in a queue that is nearly always empty."""
    lengths = jnp.zeros((1_000, 1)).at[0].set(12.0)
    clip = preset("queues").networks.observation_clip
    seen = Normalizer.init(1, clip).update(lengths)(jnp.array([[12.0], [13.0], [30.0]]))[:, 0]
    assert seen[0] > 10
    assert (jnp.diff(seen) > 0).all()


def test_a_run_with_it_and_a_narrowing_region_resumes_exactly(tmp_path):
    settings = {
        "env_kwargs": {"regime": "IL"}, "preset": "queues", "steps": 2_000, "num_envs": 20, "batch_size": 400,
        "eval_every": 10**6, "eval_trajectories": 2, "eval_max_steps": 20, "checkpoint_every": 800, "hidden": (8,),
    }  # fmt: skip
    whole = kemeny.train("kemeny/CrissCross-v0", out=tmp_path / "whole", **settings)
    kemeny.train("kemeny/CrissCross-v0", out=tmp_path / "part", callback=stop_after(1_200), **settings)
    assert same_numbers(whole, kemeny.resume(tmp_path / "part"))
