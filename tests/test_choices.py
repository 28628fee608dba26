"""Actions of every kind, with and without masks: the distributions in JAX, and the policy in NumPy that equals them."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from kemeny.errors import UserError
from kemeny.experience.acting import Chosen, Normal, Policy, check_fits, check_policy
from kemeny.experience.source import numpy_policy
from kemeny.learning.arrays import acting_arrays
from kemeny.learning.learner import Learner, init
from kemeny.learning.networks import Categorical, Categoricals
from kemeny.learning.samples import Samples
from kemeny.learning.settings import Networks
from kemeny.learning.steps.natural import Natural
from kemeny.learning.steps.protocol import Limits, Outcome
from kemeny.learning.steps.trust_region import fisher_product
from kemeny.spaces import FORBIDDEN, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, first_of_each
from kemeny.spec import Continuous, Spec, vector
from kemeny.stored_spaces import read_spaces

NESTED = Dict(
    ("joint", "states", "flags"),
    (
        Box((2, 2)),
        Tuple((Discrete(3, start=5), MultiDiscrete((2, 3), (0, -1), (2,)), Box(()))),
        Dict(("bits",), (MultiBinary((2, 2)),)),
    ),
)
"""Sixteen numbers: 4 + (3 + 5 + 1) + 4 − 1."""
BOX = Continuous(np.full(6, -20, np.float32), np.full(6, 20, np.float32), (2, 3))
SEVERAL = MultiDiscrete((3, 2, 4), (0, -1, 7), (3,))
BITS = MultiBinary((3,))
CHOICES = [Discrete(4, start=10), SEVERAL, BITS]
ACTIONS = [BOX, *CHOICES, MultiDiscrete((2, 3, 2, 2), (1, 1, 0, 0), (2, 2))]


def some_mask(rng, action, count):
    """Random masks that leave an option of each choice."""
    mask = rng.random((count, action.outputs)) < 0.5
    for first, n in zip(first_of_each(action.choices), action.choices, strict=True):
        mask[np.arange(count), first + rng.integers(n, size=count)] = True
    return mask


def made(action, masked=False, observation=NESTED):
    """The same random policy, with a normaliser that has seen data, in JAX and in NumPy; and its spec."""
    mask = action.outputs if masked else 0
    spec = Spec(vector(observation.size + mask), action, None, observation, mask)
    state = init(Learner(networks=Networks(hidden=(8,))), spec, jax.random.key(0))
    rng = np.random.default_rng(0)
    data = rng.normal(3, 5, size=(500, spec.observation.size)).astype(np.float32)
    state = dataclasses.replace(
        state,
        policy=jax.tree.map(lambda x: x * 10 + 0.1, state.policy),
        normalizer=state.normalizer.update(jnp.asarray(data)),
    )
    return state, numpy_policy(state, spec), spec


def observations(count, rng=0):
    """A batch as a vector environment gives it."""
    rng = np.random.default_rng(rng)
    return {
        "joint": rng.normal(size=(count, 2, 2)),
        "states": (
            rng.integers(5, 8, size=count),
            np.stack([rng.integers(2, size=count), rng.integers(-1, 2, size=count)], 1),
            rng.normal(size=count),
        ),
        "flags": {"bits": rng.integers(2, size=(count, 2, 2), dtype=np.int8)},
    }


def one_of(batch, i):
    """An observation of a batch."""
    return jax.tree.map(lambda leaf: leaf[i], batch)


def distribution(state, rows):
    return state.policy(state.normalizer(jnp.asarray(rows)))


def by_hand(batch):
    """The row that the policy sees, written out."""
    first, (state, several, number), flags = batch["joint"], batch["states"], batch["flags"]["bits"]
    rows = []
    for i in range(len(state)):
        row = [*first[i].reshape(-1)]
        row += [float(state[i] == value) for value in (5, 6, 7)]
        row += [float(several[i, 0] == value) for value in (0, 1)] + [float(several[i, 1] == v) for v in (-1, 0, 1)]
        row += [number[i], *flags[i].reshape(-1)]
        rows.append(row)
    return np.array(rows, np.float32)


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_numpy_equals_jax_for_nested_observations_and_every_action(action, masked):
    if masked and isinstance(action, Continuous):
        pytest.skip("what is not chosen cannot be masked")
    state, policy, spec = made(action, masked)
    batch, rng = observations(40), np.random.default_rng(1)
    rows = by_hand(batch)
    assert rows.shape[1] == NESTED.size == spec.features
    given = {}
    if masked:
        given["mask"] = some_mask(rng, action, 40)
        rows = np.concatenate([rows, given["mask"]], 1, dtype=np.float32)
    there = distribution(state, rows)
    if isinstance(action, Continuous):
        np.testing.assert_allclose(policy.head(rows), there.mean, rtol=2e-5, atol=2e-5)
        mean, std = policy.distribution(batch)
        assert mean.shape == std.shape == (40, 2, 3)
        np.testing.assert_allclose(mean.reshape(40, 6), 20 * there.mean, rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(std.reshape(40, 6), np.tile(20 * np.exp(state.policy.log_std), (40, 1)), rtol=1e-5)
        np.testing.assert_array_equal(policy(batch), np.clip(mean, -20, 20))
    else:
        found = policy.probabilities(batch, **given)
        expected = np.asarray(jax.nn.softmax(there.logits)).reshape(40, len(action.choices), -1)
        parts = [found] if isinstance(action, Discrete) else found
        for choice, (part, n) in enumerate(zip(parts, action.choices, strict=True)):
            assert part.shape == (40, n)
            np.testing.assert_allclose(part, expected[:, choice, :n], rtol=1e-4, atol=1e-6)
        likeliest = np.stack([part.argmax(1) for part in parts], 1)
        drawn = likeliest.reshape(40, *action.array.shape)
        np.testing.assert_array_equal(policy(batch, **given), action.actions(drawn))
    for i in range(5):
        single = {name: value[i] for name, value in given.items()}
        one, of_many = policy(one_of(batch, i), **single), policy(batch, **given)[i]
        if isinstance(action, Continuous):  # one row is multiplied by another routine than many: last digits may differ
            np.testing.assert_allclose(one, of_many, rtol=1e-6)
        else:
            np.testing.assert_array_equal(one, of_many)


def test_actions_are_as_the_environment_takes_them():
    for action, low, high, shape in (
        (SEVERAL, [0, -1, 7], [2, 0, 10], (3,)),
        (BITS, 0, 1, (3,)),
        (ACTIONS[-1], [[1, 1], [0, 0]], [[2, 3], [1, 1]], (2, 2)),
        (Discrete(4, start=10), 10, 13, ()),
    ):
        _, policy, _ = made(action)
        drawn = policy.sample(observations(500), np.random.default_rng(0))
        assert drawn.shape == (500, *shape)
        assert (drawn.min(0) == low).all()
        assert (drawn.max(0) == high).all()
        assert policy.sample(one_of(observations(1), 0), np.random.default_rng(0)).shape == shape


def joint(log_p, choices):
    """Log probabilities of all combinations of options, one after the other: slow and obvious."""
    return np.array(
        [
            sum(log_p[choice][option] for choice, option in enumerate(options))
            for options in itertools.product(*(range(n) for n in choices))
        ]
    )


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("action", CHOICES, ids=str)
def test_divergence_entropy_and_likelihood_by_enumeration(action, masked):
    """Against the sum over all joint actions, in float64."""
    state, _, _ = made(action, masked, Box((4,)))
    other = jax.tree.map(lambda x: 0.7 * x + 0.05, state.policy)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 4)).astype(np.float32)
    if masked:
        rows = np.concatenate([rows, some_mask(rng, action, 6)], 1, dtype=np.float32)
    p, q = distribution(state, rows), distribution(dataclasses.replace(state, policy=other), rows)
    combinations = list(itertools.product(*(range(n) for n in action.choices)))

    def by_choice(logits):
        logits = np.asarray(logits, np.float64).reshape(6, len(action.choices), -1)
        for row in logits:
            parts = [row[choice, :n] for choice, n in enumerate(action.choices)]
            parts = [np.where(part <= FORBIDDEN, -np.inf, part) for part in parts]
            yield [part - np.log(np.exp(part).sum()) for part in parts]

    logs = [[joint(parts, action.choices) for parts in by_choice(d.logits)] for d in (p, q)]
    entropies = []
    for i, (log_p, log_q) in enumerate(zip(*logs, strict=True)):
        possible = np.isfinite(log_p)
        if masked:
            allowed = np.split(rows[i, 4:], first_of_each(action.choices)[1:])
            assert possible.sum() == np.prod([options.sum() for options in allowed])
        assert np.exp(log_p[possible]).sum() == pytest.approx(1)
        kl = (np.exp(log_p) * np.where(possible, log_p - np.where(possible, log_q, 0), 0)).sum()
        entropies.append(-(np.exp(log_p) * np.where(possible, log_p, 0)).sum())
        assert float(p.kl(q)[i]) == pytest.approx(kl, rel=1e-3, abs=1e-5)
        for options, log in zip(combinations, log_p, strict=True):
            taken = jnp.array(options, jnp.int32).reshape(action.array.shape)
            one = type(p)(p.logits[i]).log_prob(taken)
            assert float(one) == pytest.approx(log, rel=1e-4, abs=1e-4) if np.isfinite(log) else float(one) < -1e29
    assert float(p.entropy()) == pytest.approx(np.mean(entropies), rel=1e-4)
    np.testing.assert_allclose(p.kl(p), 0, atol=1e-6)


@pytest.mark.exact
def test_one_choice_among_several_is_a_choice():
    """A reduction: the sum over one choice is the choice."""
    logits, other = jax.random.normal(jax.random.key(0), (2, 5, 3))
    one, several = Categorical(logits), Categoricals(logits[:, None])
    action = jnp.array([0, 1, 2, 1, 0])
    np.testing.assert_array_equal(several.log_prob(action[:, None]), one.log_prob(action))
    np.testing.assert_array_equal(several.kl(Categoricals(other[:, None])), one.kl(Categorical(other)))
    assert several.entropy() == one.entropy()


@pytest.mark.parametrize("action", CHOICES, ids=str)
def test_what_is_masked_is_never_drawn_and_has_probability_zero_and_no_gradient(action):
    state, policy, _ = made(action, True, Box((4,)))
    rng = np.random.default_rng(0)
    mask = some_mask(rng, action, 1)
    row = np.concatenate([rng.normal(size=(1, 4)), mask], 1, dtype=np.float32)
    draws = policy.explore(policy.head(row), policy.noise(rng, 100_000)).reshape(100_000, -1)
    taken = np.zeros(action.outputs, bool)
    taken[np.unique(draws + first_of_each(action.choices))] = True
    np.testing.assert_array_equal(taken, mask[0])
    found = policy.probabilities(row[0, :4], mask=mask[0])
    flat = found if isinstance(action, Discrete) else np.concatenate(found)
    assert ((flat == 0) == ~mask[0]).all()
    there = distribution(state, row)
    exact = np.exp(np.asarray(jax.nn.log_softmax(there.logits)))
    assert exact.sum() == pytest.approx(len(action.choices), rel=1e-5)
    assert (exact == 0).sum() == exact.size - mask.sum()

    def score(bias, of):
        network = dataclasses.replace(state.policy.network, biases=(*state.policy.network.biases[:-1], bias))
        moved = dataclasses.replace(state.policy, network=network)(state.normalizer(jnp.asarray(row)))
        return of(moved)

    bias = state.policy.network.biases[-1]
    action_taken = jnp.asarray(draws[:1].reshape(1, *action.array.shape), jnp.int32)
    for of in (
        lambda d: d.log_prob(action_taken).sum(),
        lambda d: d.entropy(),
        lambda d: d.kl(type(d)(0.9 * there.logits)).sum(),
    ):
        gradient = np.asarray(jax.grad(score)(bias, of))
        assert np.isfinite(gradient).all()
        assert (gradient[~mask[0]] == 0).all()
        assert np.abs(gradient[mask[0]]).max() > 0 or mask.sum() == len(action.choices)


@pytest.mark.parametrize("action", CHOICES, ids=str)
def test_fisher_products_with_masks_are_those_of_the_hessian(action):
    """Finite, and equal to H x formed from the definition."""
    state, _, _ = made(action, True, Box((4,)))
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(8, 4)), some_mask(rng, action, 8)], 1, dtype=np.float32)
    x = state.normalizer(jnp.asarray(rows))
    theta, unravel = ravel_pytree(state.policy)

    def of(point):
        return unravel(point)(x)

    here = of(theta)
    hessian = jax.jit(jax.hessian(lambda point: jnp.mean(of(point).kl(here))))(theta)
    direction = jax.random.normal(jax.random.key(1), theta.shape)
    product = jax.jit(fisher_product(of, theta, 0.0))(direction)
    assert jnp.isfinite(product).all()
    np.testing.assert_allclose(product, hessian @ direction, rtol=2e-2, atol=2e-4)


@pytest.mark.parametrize("action", CHOICES, ids=str)
def test_a_natural_step_with_masks_is_taken(action):
    state, policy, _ = made(action, True, Box((4,)))
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(200, 4)), some_mask(rng, action, 200)], 1, dtype=np.float32)
    x = state.normalizer(jnp.asarray(rows))
    drawn = policy.explore(policy.head(rows), policy.noise(rng, 200)).astype(np.int32)
    advantage = jnp.asarray(drawn.reshape(200, -1)[:, 0] + rng.normal(size=200), jnp.float32)
    log_prob = state.policy(x).log_prob(jnp.asarray(drawn))
    samples = Samples(x, jnp.asarray(drawn), log_prob, (advantage,), (advantage,), jnp.ones(200))
    _, _, report = Natural()(state.policy, samples, Limits(jnp.zeros(0), jnp.ones(())), None, jax.random.key(0))
    assert report.outcome == Outcome.ACCEPTED
    assert 0 < report.kl <= 0.02
    assert report.improvement > 0


def test_the_normaliser_leaves_masks_alone():
    state, _, spec = made(SEVERAL, True)
    for _ in range(3):
        state = dataclasses.replace(
            state, normalizer=state.normalizer.update(5 * jnp.ones((10, spec.observation.size), jnp.float32))
        )
    normalizer = state.normalizer
    np.testing.assert_array_equal(normalizer.mean[-9:], 0)
    np.testing.assert_array_equal(normalizer.scale[-9:], 1)
    assert (np.asarray(normalizer.mean[:-9]) != 0).all()


def test_policies_with_masks_and_nested_spaces_are_read_from_their_description():
    for action in CHOICES:
        state, policy, spec = made(action, True)
        described = json.loads(json.dumps(spec.spaces.description))
        read = read_spaces(described, "it")
        assert read == spec.spaces
        arrays, network = acting_arrays(state, spec), state.policy.network.description
        check_policy(arrays, network, read, "it")
        mask = some_mask(np.random.default_rng(0), action, 7)
        batch = observations(7)
        np.testing.assert_array_equal(Policy(arrays, network, read)(batch, mask=mask), policy(batch, mask=mask))


GOOD = np.array([1, 0, 1, 1, 0, 0, 0, 1, 0])


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (None, "trained with action masks: give it one"),
        (GOOD[:8], r"The mask has shape \(8,\) and type int64, but there must be 9 zeros and ones"),
        (np.zeros(9), r"The mask forbids every action of choice 0 \(counted from 0\), but one"),
        ([1, 0, 1, 0, 0, 0, 0, 1, 0], "forbids every action of choice 1"),
        (2 * GOOD, "neither 0 nor 1"),
        (GOOD * np.nan, "neither 0 nor 1"),
        (GOOD[None], r"has shape \(1, 9\), but there must be one row per observation"),
        (np.zeros((1, 1, 9)), r"shape \(1, 1, 9\)"),
        ("all", "type <U3"),
        ([[1], [1, 2]], "must be an array of zeros and ones"),
    ],
)
def test_a_wrong_mask_gets_a_sentence(mask, why):
    _, policy, _ = made(SEVERAL, True)
    observation = one_of(observations(1), 0)
    policy(observation, mask=GOOD)
    for use in (
        lambda: policy(observation, mask=mask),
        lambda: policy.sample(observation, np.random.default_rng(0), mask=mask),
        lambda: policy.probabilities(observation, mask=mask),
        lambda: policy.predict(observation, action_masks=mask),
    ):
        with pytest.raises(UserError, match=why):
            use()
    with pytest.raises(UserError, match=r"has shape \(3, 9\), but there must be one row per observation"):
        policy(observations(2), mask=np.tile(GOOD, (3, 1)))


def test_a_mask_for_a_policy_without_gets_a_sentence():
    for action in (BOX, SEVERAL):
        _, policy, _ = made(action)
        with pytest.raises(UserError, match="trained without action masks: leave out the mask"):
            policy(one_of(observations(1), 0), mask=GOOD)
    with pytest.raises(UserError, match="forbids every action, but one at least must be allowed"):
        made(CHOICES[0], True)[1](one_of(observations(1), 0), mask=np.zeros(4))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda o: [1, 2], "trained on dictionaries with the keys joint, states, flags, not on an object of type list"),
        (lambda o: {"joint": o["joint"]}, "with the keys joint, states, flags, not on the keys joint"),
        (lambda o: {**o, "more": 1}, "not on the keys .*more"),
        (lambda o: {**o, "states": o["states"][:2]}, "As the part states .* tuples of length 3, not on 2 parts"),
        (lambda o: {**o, "states": 3}, "tuples of length 3, not on an object of type int"),
        (lambda o: {**o, "joint": np.zeros(3)}, r"joint .* of shape \(2, 2\), not on observations of shape \(3,\)"),
        (lambda o: {**o, "flags": {"bits": np.full((2, 2), 2)}}, r"flags.bits .* zeros and ones .*not on 2\."),
        (lambda o: {**o, "states": (9, *o["states"][1:])}, r"part states.0 .* whole numbers from 5 to 7, not on 9\."),
        (lambda o: {**o, "states": (5, [0, 2], 0.0)}, r"states.1 .* from \[0, -1\] to \[1, 1\], not on 2\."),
        (lambda o: {**o, "states": (5, [0.0, 1.0], 0.0)}, r"shape \(2,\) and type float64"),
        (lambda o: {**o, "states": (5, [0, 1], np.nan)}, "not a finite number"),
        (lambda o: {**o, "joint": np.zeros((4, 2, 2))}, "one observation or one batch, not on joint and .*different"),
        (lambda o: {**o, "joint": [[1, 2], [3]]}, "must be an array of numbers"),
    ],
)
def test_what_is_no_observation_of_a_nested_space_gets_a_sentence(change, why):
    _, policy, _ = made(SEVERAL)
    observation = one_of(observations(1), 0)
    policy(observation)
    with pytest.raises(UserError, match=why):
        policy(change(observation))


def test_batches_of_different_lengths_are_no_batch():
    batch = observations(4)
    with pytest.raises(UserError, match="one observation or one batch"):
        made(SEVERAL)[1]({**batch, "joint": batch["joint"][:3]})


def test_predict_is_as_in_stable_baselines():
    _, policy, _ = made(SEVERAL)
    batch = observations(200)
    action, state = policy.predict(batch, state=None, episode_start=np.zeros(200, bool), deterministic=True)
    assert state is None
    np.testing.assert_array_equal(action, policy(batch))
    explored, _ = policy.predict(batch, deterministic=False)
    assert explored.shape == action.shape
    assert (explored != policy.predict(batch, deterministic=False)[0]).any()
    with pytest.raises(UserError, match="has no memory"):
        policy.predict(batch, state=(np.zeros(3),))


def test_probabilities_and_distributions():
    _, policy, _ = made(BOX)
    one = one_of(observations(1), 0)
    with pytest.raises(UserError, match=r"normal distributions: use policy.distribution"):
        policy.probabilities(one)
    normal = policy.distribution(one)
    assert isinstance(normal, Normal)
    draws = np.array([policy.sample(one, np.random.default_rng(i)) for i in range(2000)])
    inside = np.abs(normal.mean) + 4 * normal.std < 20
    np.testing.assert_allclose(draws.mean(0)[inside], normal.mean[inside], atol=1.0)
    np.testing.assert_allclose(draws.std(0)[inside], normal.std[inside], rtol=0.1)
    _, policy, _ = made(CHOICES[0])
    chosen = policy.distribution(one)
    assert isinstance(chosen, Chosen)
    assert chosen.probabilities.shape == (4,)
    assert chosen.probabilities.sum() == pytest.approx(1)


def test_a_policy_says_what_it_is():
    assert repr(made(BOX)[1]) == "<Policy: observations of length 17 and actions of length 6; layers 17–8–6>"
    assert "4 actions to choose from; layers 17–8–4>" in repr(made(CHOICES[0])[1])
    assert "actions of 3 choices (3, 2, 4 options), with masks; layers 17–8–9>" in repr(made(SEVERAL, True)[1])


@pytest.mark.parametrize(
    ("other", "masked", "why"),
    [
        (MultiDiscrete((2, 3, 4), (0, 0, 0), (3,)), False, r"\(3, 2, 4 options\), but toy has .*\(2, 3, 4 options\)"),
        (Discrete(9), False, "but toy has .* 9 actions to choose from"),
        (SEVERAL, True, r"\(3, 2, 4 options\), with masks: it needs a policy of its own"),
        (BITS, False, r"but toy has .* actions of 3 choices \(2, 2, 2 options\)"),
    ],
)
def test_a_policy_fits_only_the_same_choices(other, masked, why):
    _, policy, spec = made(SEVERAL)
    check_fits(policy, spec, "toy")
    with pytest.raises(UserError, match=why):
        check_fits(policy, made(other, masked)[2], "toy")
