"""The policy in NumPy is the policy in JAX."""

import dataclasses
import hashlib
import json
import subprocess
import sys
from typing import get_args

import jax
import numpy as np
import pytest
import safetensors.numpy
from gymnasium import spaces

import kemeny
from kemeny.envs.spaces import understand_actions
from kemeny.errors import Damaged, UserError
from kemeny.experience.acting import Policy, check_fits
from kemeny.experience.source import numpy_policy
from kemeny.learning.arrays import acting_arrays, bounds, from_arrays, to_arrays
from kemeny.learning.learner import Learner, init
from kemeny.learning.settings import Activation, Networks
from kemeny.runs.checkpoint import ARRAYS, FACTS, FORMAT, SUMS
from kemeny.spaces import Box, Discrete, Spaces
from kemeny.spec import Continuous, Spec, vector
from tests.probes import policy_for

NOTHING = object()
BOX = Continuous(np.full(3, -0.4, np.float32), np.full(3, 0.4, np.float32))


def both(action, size=11, activation="tanh"):
    """The same random policy, with a normaliser that has seen data, in JAX and in NumPy."""
    spec = Spec(vector(size), action, None)
    state = init(Learner(networks=Networks(activation=activation)), spec, jax.random.key(0))
    data = np.random.default_rng(0).normal(3, 5, size=(500, size)).astype(np.float32)
    state = dataclasses.replace(
        state,
        policy=jax.tree.map(lambda x: x * 3 + 0.1, state.policy),
        normalizer=state.normalizer.update(jax.numpy.asarray(data)),
    )
    return state, numpy_policy(state, spec), 2 * data[:50]


def head(state, observations):
    """Means or logits, by JAX."""
    distribution = state.policy(state.normalizer(jax.numpy.asarray(observations)))
    return distribution.mean if hasattr(distribution, "mean") else distribution.logits


@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("action", [BOX, Discrete(4)], ids=["box", "discrete"])
def test_numpy_equals_jax(action, activation):
    state, policy, observations = both(action, activation=activation)
    np.testing.assert_allclose(policy.head(observations), head(state, observations), rtol=2e-5, atol=2e-5)


@pytest.fixture
def save(tmp_path):
    """Saves a policy as a checkpoint, with other facts and arrays if asked to; facts that are NOTHING are left out."""

    def save(state, spec, arrays=None, **facts):
        counters = {"format": FORMAT, "steps": 0, "iteration": 0, "seconds": 0.0, "log_sizes": {}, "best_score": None}
        described = {"network": state.policy.network.description, "spaces": spec.spaces.description}
        facts = {name: fact for name, fact in {**counters, **described, **facts}.items() if fact is not NOTHING}
        content = {
            ARRAYS: safetensors.numpy.save({**to_arrays(state), **bounds(spec), **(arrays or {})}),
            FACTS: json.dumps(facts).encode(),
        }
        for name, bytes_ in content.items():
            (tmp_path / name).write_bytes(bytes_)
        sums = [f"{hashlib.sha256(bytes_).hexdigest()}  {name}\n" for name, bytes_ in content.items()]
        (tmp_path / SUMS).write_text("".join(sums))
        return tmp_path

    return save


@pytest.mark.parametrize("activation", get_args(Activation))
def test_a_checkpoint_says_which_network_it_has(activation, save):
    """The policy that was saved is the one that is loaded, whatever its units."""
    state, policy, observations = both(BOX, activation=activation)
    other = both(BOX, activation="relu" if activation == "tanh" else "tanh")[1]
    loaded = kemeny.load_policy(save(state, Spec(vector(11), BOX, None)))
    np.testing.assert_array_equal(loaded.head(observations), policy.head(observations))
    assert not np.allclose(other.head(observations), policy.head(observations), atol=0.1)


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
    state, policy, _ = both(Discrete(4))
    row = np.eye(11, dtype=np.float32)[7]
    spec = Spec(vector(11), Discrete(4), None, Discrete(11))
    assert numpy_policy(state, spec)(np.int64(7)) == policy(row)
    older = Policy(acting_arrays(state, spec))  # of a checkpoint that does not say which observations it has
    assert older(np.int64(7)) == older(row) == policy(row)


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


STATES = Spec(vector(5), Discrete(3, start=10), None, Discrete(5, start=1))


def random_policy(spec):
    """An untrained policy with weights that matter."""
    state = init(Learner(networks=Networks(hidden=(8,))), spec, jax.random.key(0))
    state = dataclasses.replace(state, policy=jax.tree.map(lambda x: x * 50, state.policy))
    return state, numpy_policy(state, spec)


def test_states_and_actions_that_do_not_start_at_zero(save):
    """As the environment gives and takes them; a batch of states is a batch, and not a vector."""
    state, policy = random_policy(STATES)
    likeliest = 10 + policy.head(np.eye(5, dtype=np.float32)).argmax(1)
    assert len(set(likeliest)) > 1
    for one in (policy, kemeny.load_policy(save(state, STATES))):
        states = np.arange(1, 6)
        for batch in (states, states.astype(np.uint8), states.tolist()):
            np.testing.assert_array_equal(one(batch), likeliest)
        assert [one(state) for state in states] == likeliest.tolist()
        assert one(3).shape == ()
        assert one(np.array([3])).shape == (1,)
        draws = [one.sample(states, np.random.default_rng(i)) for i in range(50)]
        assert set(np.unique(draws)) <= {10, 11, 12}
        assert one.sample(3, np.random.default_rng(0)) in {10, 11, 12}


@pytest.mark.parametrize(
    ("observation", "why"),
    [
        (0, "whole numbers from 1 to 5, not on 0"),
        (6, "whole numbers from 1 to 5, not on 6"),
        ([1, 2, 9], "not on 9"),
        (-(2**62), "not on -46"),
        (np.uint64(2**64 - 1), "not on 18446744073709551615"),
        (2.0, r"not on observations of shape \(\) and type float64"),
        (np.eye(5)[0], r"shape \(5,\) and type float64"),
        ([[1], [2]], r"shape \(2, 1\)"),
        (True, "type bool"),
        ("1", "type <U1"),
        (None, "type object"),
    ],
)
def test_what_is_no_state_gets_a_sentence(observation, why):
    _, policy = random_policy(STATES)
    with pytest.raises(UserError, match=why):
        policy(observation)


@pytest.mark.parametrize(
    ("observation", "why"),
    [
        ([0.0, np.nan, 0.0], "not a finite number"),
        ([0.0, np.inf, 0.0], "not a finite number"),
        ([[0.0, 0.0, 0.0], [0.0, -np.inf, 0.0]], "not a finite number"),
        ([0.0, 1e300, 0.0], "not a finite number"),
        (["1", "2", "3"], "length 3, not on observations of shape .* type <U1"),
        (["a", "b", "c"], "type <U1"),
        ([b"1", b"2", b"3"], r"type \|S1"),
        ([1 + 0j, 0, 0], "type complex128"),
        ([None, 1, 2], "type object"),
        ({"x": 1}, "type object"),
        ([[1, 2, 3], [1]], "must be an array of numbers"),
        ([[[0.0, 0.0, 0.0]]], r"shape \(1, 1, 3\)"),
        (np.zeros(4), r"length 3, not on observations of shape \(4,\)"),
        (0.0, r"shape \(\)"),
    ],
)
def test_what_is_no_observation_gets_a_sentence(observation, why):
    for spec in (Spec(vector(3), BOX, None), Spec(vector(3), Discrete(2), None)):
        _, policy = random_policy(spec)
        for use in (policy, lambda x, policy=policy: policy.sample(x, np.random.default_rng(0))):
            with pytest.raises(UserError, match=why):
                use(observation)
        old = Policy(acting_arrays(random_policy(spec)[0], spec))
        with pytest.raises(UserError, match=why):
            old(observation)


def test_numbers_of_any_type_are_observations():
    _, policy = random_policy(Spec(vector(3), BOX, None))
    expected = policy(np.array([1, 0, 1], np.float32))
    for observation in ([1, 0, 1], [True, False, True], np.array([1, 0, 1], np.uint8), np.array([1.0, 0, 1], ">f8")):
        np.testing.assert_array_equal(policy(observation), expected)


def test_single_numbers_as_observations_and_actions():
    """Boxes of rank zero: a vector is a batch."""
    scalar = Continuous(np.full(1, -2, np.float32), np.full(1, 2, np.float32), ())
    _, policy = random_policy(Spec(vector(1), scalar, None, Box(())))
    batch = policy(np.array([0.1, 0.2, 0.3]))
    assert batch.shape == (3,)
    assert policy(0.2).shape == ()
    assert policy(0.2) == pytest.approx(batch[1], rel=1e-6)  # one row is multiplied by another routine than three
    assert policy.sample([0.1, 0.2], np.random.default_rng(0)).shape == (2,)


MIXED = Continuous(np.array([10, -1, -1000], np.float32), np.array([20, 1, 1000], np.float32))
"""Of which the second component is of order one."""


def test_actions_are_in_the_units_of_the_environment(save):
    """What `policy(…)` returns is what a pool makes of what it is sent."""
    spec = Spec(vector(4), MIXED, None)
    state, policy = random_policy(spec)
    actions = understand_actions(spaces.Box(MIXED.low, MIXED.high), "toy")
    observations = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    sent = policy.mode(policy.head(observations))
    np.testing.assert_array_equal(sent, policy.head(observations))
    for one in (policy, kemeny.load_policy(save(state, spec))):
        np.testing.assert_allclose(one(observations), actions.batch(sent), rtol=1e-6)
        noise = one.noise(np.random.default_rng(3), 200)
        drawn = one.sample(observations, np.random.default_rng(3))
        np.testing.assert_allclose(drawn, actions.batch(one.explore(policy.head(observations), noise)), rtol=1e-6)
        assert all(spaces.Box(MIXED.low, MIXED.high).contains(action) for action in drawn)
        assert one(observations[0]).shape == (3,)
    inside = (sent > -1).all(1) & (sent < 1).all(1)
    assert inside.any()
    np.testing.assert_allclose(policy(observations)[inside], sent[inside] * [5, 1, 1000] + [15, 0, 0], rtol=1e-5)


def test_where_bounds_are_of_order_one_nothing_is_stored_and_nothing_mapped():
    spec = Spec(vector(4), BOX, None)
    _, policy = random_policy(spec)
    assert set(bounds(spec)) == {"action/low", "action/high"}
    assert set(bounds(Spec(vector(4), MIXED, None))) == {"action/low", "action/high", "action/shift", "action/scale"}
    observations = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    np.testing.assert_array_equal(policy(observations), np.clip(policy.head(observations), BOX.low, BOX.high))


def test_a_checkpoint_that_says_nothing_of_its_spaces_is_read_as_it_always_was(save):
    state, policy = random_policy(STATES)
    old = kemeny.load_policy(save(state, STATES, spaces=NOTHING))
    rows = np.eye(5, dtype=np.float32)
    np.testing.assert_array_equal(old(rows), policy.head(rows).argmax(1))
    assert [old(i) for i in range(5)] == old(rows).tolist()
    np.testing.assert_array_equal(old(np.arange(5)), old(np.arange(5.0)))


@pytest.mark.parametrize(
    ("described", "error", "why"),
    [
        ({"observation": {"kind": "graph"}, "action": {"kind": "box", "shape": [3]}}, UserError, "upgrade"),
        ({"observation": None, "action": None}, Damaged, "does not say which"),
        (Spaces(Box((10**6,)), Box((10**6,))).description, Damaged, "length 4 and actions of length 3, but .*1000000"),
        (Spaces(Box((4,)), Discrete(3)).description, Damaged, "but says that it has .* 3 actions to choose from"),
        (Spaces(Discrete(2**31 - 1), Box((3,))).description, Damaged, "says that it has"),
    ],
)
def test_hostile_spaces_are_refused(save, described, error, why):
    spec = Spec(vector(4), BOX, None)
    path = save(random_policy(spec)[0], spec, spaces=described)
    with pytest.raises(error, match=rf"The checkpoint {path} .*{why}"):
        kemeny.load_policy(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "name",
    [
        "normalizer/mean", "normalizer/scale", "normalizer/clip", "policy/network/weights/0", "policy/network/biases/1",
        "policy/log_std", "action/low", "action/high", "action/shift", "action/scale",
    ],
)  # fmt: skip
def test_a_policy_that_is_not_finite_is_refused(save, name, value):
    spec = Spec(vector(4), MIXED, None)
    state, _ = random_policy(spec)
    poisoned = np.array({**to_arrays(state), **bounds(spec)}[name])
    poisoned.flat[-1] = value
    with pytest.raises(Damaged, match=f"{name} has entries that are not finite numbers"):
        kemeny.load_policy(save(state, spec, {name: poisoned}))


@pytest.mark.parametrize("name", ["normalizer/variance", "critics/0/network/weights/0", "policy/log_std"])
def test_a_state_that_is_not_finite_is_not_gone_on_from(name):
    state, _ = random_policy(Spec(vector(4), BOX, None))
    arrays = to_arrays(state)
    from_arrays(state, arrays, "it")  # its objective is NaN before the first batch
    arrays[name] = np.full_like(arrays[name], np.inf)
    with pytest.raises(Damaged, match=f"^it does not hold what it must: {name} has entries that are not finite"):
        from_arrays(state, arrays, "it")


def test_half_of_a_unit_is_refused(save):
    spec = Spec(vector(4), BOX, None)
    with pytest.raises(Damaged, match="action/shift is missing"):
        kemeny.load_policy(save(random_policy(spec)[0], spec, {"action/scale": np.ones(3, np.float32)}))


def test_a_policy_is_for_environments_of_its_own_size():
    spec = Spec(vector(4), BOX, None)
    _, policy = random_policy(spec)
    check_fits(policy, spec, "toy")
    for other, why in (
        (Spec(vector(5), BOX, None), "length 4 and actions of length 3, but toy has observations of length 5"),
        (Spec(vector(4), Discrete(3), None), "length 3, but toy has .* 3 actions to choose from"),
        (Spec(vector(4), Continuous(BOX.low[:2], BOX.high[:2]), None), "but toy has .* actions of length 2"),
        (Spec(vector(4), MIXED, None), "between other bounds than those of toy"),
    ):
        with pytest.raises(UserError, match=why):
            check_fits(policy, other, "toy")
    twice = Continuous(2 * BOX.low, 2 * BOX.high)
    check_fits(policy, Spec(vector(4), twice, None), "toy")  # a stronger robot of the same kind
    _, choosing = random_policy(STATES)
    check_fits(choosing, Spec(vector(5), Discrete(3), None), "toy")
    with pytest.raises(UserError, match=r"3 actions to choose from, but toy has .* 4 actions"):
        check_fits(choosing, Spec(vector(5), Discrete(4), None), "toy")
    check_fits(policy_for(4, 3), Spec(vector(4), MIXED, None), "toy")  # it was not trained between any bounds
