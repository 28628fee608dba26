"""Batches collected by the policy before the newest one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import kemeny
from kemeny.learning.arrays import to_arrays
from kemeny.learning.update import update
from kemeny.observers import NOBODY
from kemeny.runs import checkpoint
from kemeny.runs.assembly import make_learner, make_source, make_state
from kemeny.runs.settings import from_flat
from tests.conftest import TINY
from tests.test_learner import BOX, SMALL, begin, flat, random_batch

LAGGING = dataclasses.replace(SMALL, pipeline=True)


def test_without_it_nobody_is_behind():
    after, metrics = update(SMALL, begin(), random_batch(BOX))
    assert after.behind is None
    assert metrics.importance is None


def test_the_weights_are_those_of_the_policy_before():
    """Each as it saw: the statistics of the observations change from batch to batch, too."""
    first, second = random_batch(BOX, 0), random_batch(BOX, 1)
    start = begin(LAGGING)
    middle, metrics = update(LAGGING, start, first)
    np.testing.assert_allclose(metrics.importance, [1, 100], rtol=1e-5)
    np.testing.assert_array_equal(flat(middle.behind.policy), flat(start.policy))
    np.testing.assert_array_equal(middle.behind.normalizer.count, start.normalizer.count)
    _, metrics = update(LAGGING, middle, second)
    now, then = (
        state.policy(state.normalizer(second.observation)).log_prob(second.action) for state in (middle, start)
    )
    weights = np.minimum(np.exp(np.asarray(now - then, np.float64)), 3)
    assert np.ptp(weights) > 0.1
    np.testing.assert_allclose(metrics.importance, [weights.mean(), weights.sum() ** 2 / (weights**2).sum()], rtol=1e-4)


def test_a_run_is_these_lines(tmp_path):
    """Bit for bit: batch k is collected by the state before update k - 1."""
    env, chosen = "InvertedPendulum-v5", {**TINY, "pipeline": True, "reuse": 2}
    run = kemeny.train(env, out=tmp_path / "run", **chosen)
    settings = from_flat(chosen)
    learner = make_learner(settings)
    source = make_source(env, settings, NOBODY, None, False)
    state = behind = make_state(learner, settings, source.spec)
    for iteration in range(3):
        batch = source.collect(behind, iteration)
        behind = state
        state, metrics = update(learner, state, jax.tree.map(jnp.array, batch.rollout))
    source.close()
    arrays = checkpoint.latest(run.path).arrays
    for name, array in to_arrays(state).items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)
    assert run.metrics[-1]["effective_samples"] == float(metrics.importance.effective_samples)
    assert 200 < run.metrics[-1]["effective_samples"] < 400
