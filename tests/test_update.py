"""An update under JAX's transformations is the same update."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kemeny.learning.critic import annealed
from kemeny.learning.settings import CriticFit, Passes
from kemeny.learning.steps.clip import Clip
from kemeny.learning.steps.kronecker import KroneckerFactors
from kemeny.learning.steps.natural import Natural
from kemeny.learning.steps.project import Project
from kemeny.learning.update import plain_fields, update
from tests.test_learner import BOX, CHOICE, SMALL, begin, flat, random_batch

LIMITED = dataclasses.replace(SMALL, limits=(0.0,))
CLIPPED = dataclasses.replace(SMALL, step=Clip(Passes(policy_epochs=2, policy_minibatch=20)))
KFAC = dataclasses.replace(SMALL, step=Natural(solver=KroneckerFactors()))
PROJECTED = dataclasses.replace(LIMITED, step=Project(Passes(policy_epochs=2, policy_minibatch=20)))
LEARNERS = {
    "atrpo": (SMALL, BOX),
    "acpo": (LIMITED, CHOICE),
    "clip": (CLIPPED, BOX),
    "kfac": (KFAC, BOX),
    "project": (PROJECTED, CHOICE),
}
CORRECTED = {
    "acpo with reuse": (dataclasses.replace(LIMITED, reuse=3), BOX),
    "clip with reuse": (dataclasses.replace(CLIPPED, reuse=2), CHOICE),
    "pipeline": (dataclasses.replace(SMALL, pipeline=True), BOX),
    "pipeline with reuse": (dataclasses.replace(SMALL, pipeline=True, reuse=2), CHOICE),
}


ROUNDED = {"kfac": 1e-4}
"""XLA rounds what leads to the inverse of a factor differently in two programs: so far apart they may be, of size 1."""


def assert_same(one, other, tolerance=0.0):
    """Every array of two trees, bit for bit unless there is a tolerance; keys and what is not a number included."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, a), (_, b) in zip(named_leaves(one), named_leaves(other), strict=True):
        np.testing.assert_allclose(raw(a), raw(b), tolerance, tolerance, err_msg=jax.tree_util.keystr(path))


def named_leaves(tree):
    return jax.tree_util.tree_flatten_with_path(tree)[0]


def raw(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def batches_for(learner, spec, count=4):
    return [random_batch(spec, seed, signals=1 + len(learner.limits)) for seed in range(count)]


def stacked(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@pytest.mark.exact
@pytest.mark.parametrize("name", LEARNERS)
def test_scan_equals_the_loop(name):
    """Bit for bit, states and metrics, although a loop runs policy and critics as separate programs (but `ROUNDED`)."""
    learner, spec = LEARNERS[name]
    looped, scanned = both_ways(learner, spec)
    assert not np.array_equal(flat(scanned[0].policy), flat(begin(learner, spec).policy))
    assert_same(scanned, looped, ROUNDED.get(name, 0.0))


def both_ways(learner, spec):
    """The last state and all metrics, from a loop and from a scan."""
    batches = batches_for(learner, spec)
    state, history = begin(learner, spec), []
    for batch in batches:
        state, metrics = update(learner, state, batch)
        history.append(metrics)
    scanned = jax.lax.scan(lambda state, batch: update(learner, state, batch), begin(learner, spec), stacked(batches))
    return (state, stacked(history)), scanned


@pytest.mark.parametrize("name", CORRECTED)
def test_scan_equals_the_loop_but_for_rounding(name):
    """With weights XLA joins the two programs otherwise than it compiles them one by one."""
    learner, spec = CORRECTED[name]
    start, (looped, scanned) = begin(learner, spec), both_ways(learner, spec)
    for part in ("policy", "critics"):
        one, other, origin = (flat(getattr(state, part)) for state in (looped[0], scanned[0], start))
        assert np.linalg.norm(one - origin) > 0
        assert np.linalg.norm(one - other) < 1e-2 * np.linalg.norm(one - origin), part
    if learner.reuse > 1:
        np.testing.assert_array_equal(looped[0].memory.rollout.action, scanned[0].memory.rollout.action)
    np.testing.assert_allclose(looped[1].importance, scanned[1].importance, rtol=1e-2)


ONE_STEP = dataclasses.replace(SMALL, critic=CriticFit(critic_epochs=1, critic_minibatch=100, critic_l2=0.0))
"""The critics take a single step of Adam per update: from moments of 0 its length is in proportion to the step size."""


def later(learner, iteration):
    """A state in which so many updates have been done."""
    return dataclasses.replace(begin(learner), iteration=jnp.array(iteration, jnp.int32))


def critics_move(before, after):
    return flat([critic.network for critic in after.critics]) - flat([critic.network for critic in before.critics])


@pytest.mark.exact
def test_a_compiled_update_anneals_by_the_iterations_that_it_is_given():
    """Without being compiled again, and not by those of the learner for which it was compiled first."""
    compiled, state, batch = jax.jit(update), later(ONE_STEP, 1), random_batch(BOX)
    moves = []
    for iterations in (2, 5):
        learner = dataclasses.replace(ONE_STEP, iterations=iterations)
        after, metrics = compiled(learner, state, batch)
        assert_same((after, metrics), update(learner, state, batch))
        moves.append(critics_move(state, after))
    np.testing.assert_allclose(moves[0] / (1 - 1 / 2), moves[1] / (1 - 1 / 5), rtol=1e-3)
    assert compiled._cache_size() == 1


def test_vmap_over_iterations():
    """Runs of several lengths side by side are those runs one by one."""
    state, batch, lengths = later(ONE_STEP, 1), random_batch(BOX), jnp.array([2, 3, 5])
    many, _ = jax.vmap(lambda n: update(dataclasses.replace(ONE_STEP, iterations=n), state, batch))(lengths)
    moves = []
    for number, iterations in enumerate(lengths):
        alone, _ = update(dataclasses.replace(ONE_STEP, iterations=iterations), state, batch)
        one_of_many = jax.tree.map(lambda leaf, number=number: leaf[number], many)
        np.testing.assert_allclose(flat(one_of_many.policy), flat(alone.policy), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(flat(one_of_many.critics), flat(alone.critics), rtol=1e-5, atol=1e-7)
        moves.append(critics_move(state, one_of_many) / (1 - 1 / float(iterations)))
    np.testing.assert_allclose(moves[1:], [moves[0]] * 2, rtol=1e-3)


@pytest.mark.exact
@pytest.mark.parametrize("iterations", [1, 3, 200, 3_333])
def test_the_annealed_step_size_is_rounded_once(iterations):
    """As Python computes it in double precision, also where it is compiled."""
    compiled = jax.jit(annealed, static_argnums=0)
    for iteration in range(0, iterations + 1, max(1, iterations // 10)):
        expected = np.float32(3e-4 * (1 - iteration / iterations))
        assert annealed(3e-4, jnp.array(iteration, jnp.int32), iterations) == expected
        assert compiled(3e-4, jnp.array(iteration, jnp.int32), iterations) == expected


@pytest.mark.parametrize("name", LEARNERS | CORRECTED)
def test_no_metric_hides_another_of_the_same_name(name):
    learner, spec = (LEARNERS | CORRECTED)[name]
    _, metrics = update(learner, begin(learner, spec), batches_for(learner, spec, 1)[0])
    fields = plain_fields(metrics)
    assert len(fields) == len(jax.tree.leaves(metrics))
    assert ("violation" in fields) == bool(learner.limits)
