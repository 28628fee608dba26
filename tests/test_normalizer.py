"""Statistics of observations, batch by batch."""

import jax.numpy as jnp
import numpy as np
import pytest

from kemeny.learning.normalizer import SMALLEST_VARIANCE, Normalizer


def test_batches_merge_to_the_statistics_of_the_whole():
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(1_000, 3)) * [1, 10, 0.1] + [0, 100, -5]).astype(np.float32)
    normalizer = Normalizer.init(3, 10.0)
    for part in np.split(data, [10, 300, 650]):
        normalizer = normalizer.update(jnp.asarray(part))
    np.testing.assert_allclose(normalizer.mean, data.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normalizer.variance, data.var(0), rtol=1e-4)
    assert normalizer.count == 1_000
    scaled = np.asarray(normalizer(jnp.asarray(data)))
    np.testing.assert_allclose(scaled.std(0), 1, rtol=1e-3)


def test_starts_as_the_identity_and_clips():
    normalizer = Normalizer.init(2, 5.0)
    np.testing.assert_array_equal(normalizer(jnp.array([[1.5, 99.0]])), [[1.5, 5.0]])


def test_a_constant_observation_is_not_blown_up():
    normalizer = Normalizer.init(1, 10.0).update(jnp.full((50, 1), 3.0))
    assert normalizer.scale[0] == pytest.approx(SMALLEST_VARIANCE**-0.5)
    assert abs(float(normalizer(jnp.array([3.001]))[0])) < 0.2
