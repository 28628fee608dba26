"""Which environments are supported, and the error for each of the others."""

import contextlib
import functools
import importlib.util
import json
from collections import OrderedDict
from functools import partial

import hypothesis
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import strategies as st

from kemeny.envs.camera import FPS
from kemeny.envs.pool import inspect, make_pool
from kemeny.envs.settings import Simulation
from kemeny.envs.spaces import understand_actions
from kemeny.errors import Damaged, UserError
from kemeny.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Spaces, Tuple
from kemeny.spec import Continuous, vector
from kemeny.stored_spaces import read_spaces
from tests.envs import toys
from tests.envs.toys import Aim, Counter

BOX = spaces.Box(-1, 1, (3,))


@pytest.mark.parametrize(
    ("space", "what"),
    [
        (spaces.Text(5), "Text observations that are not supported"),
        (spaces.Dict(a=spaces.Tuple((BOX, spaces.Text(5)))), "Text observations that are not supported"),
        (spaces.Sequence(BOX), "Sequence observations"),
        (spaces.Dict(), "Dict observations.*not empty"),
        (spaces.Tuple(()), "Tuple observations.*not empty"),
        (functools.reduce(lambda inner, _: spaces.Dict(a=inner), range(17), BOX), "Dict observations.*at most 16 deep"),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), r"observations of shape \(8, 8, 3\) and type uint8 \(images\?\)"),
        (spaces.Dict(a=BOX, b=spaces.Box(0, 255, (8, 8, 3), np.uint8)), r"observations of shape \(8, 8, 3\)"),
        (spaces.Box(0, 1, (200, 200)), "observations of 40,000 numbers, but at most 20,000"),
        (spaces.Discrete(30_000), "observations of 30,000 numbers"),
    ],
)
def test_observations_that_are_refused(space, what):
    with pytest.raises(UserError, match=f"has {what}.*pass a function that returns it wrapped"):
        inspect(partial(toys.Spaces, space, BOX))


@pytest.mark.parametrize(
    ("space", "what"),
    [
        (spaces.Box(-np.inf, np.inf, (2,)), "actions without bounds.*finite bounds"),
        (spaces.Box(np.array([-1, -np.inf], np.float32), np.ones(2, np.float32)), "actions without bounds"),
        (spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (2,)), "actions without bounds"),
        (spaces.Box(-1e300, 1e300, (2,), np.float64), "actions without bounds"),
        (spaces.Box(0, 5, (2,), np.int64), r"arrays of integers \(int64\).*so that they are MultiDiscrete"),
        (spaces.Text(3), "Text actions.*wrapped so that they are one of these"),
        (spaces.Dict(a=BOX), "Dict actions"),
        (spaces.Tuple((BOX, BOX)), "Tuple actions"),
    ],
)
def test_actions_that_are_refused(space, what):
    with pytest.raises(UserError, match=f"has {what}"):
        inspect(partial(toys.Spaces, BOX, space))


def test_what_envpool_has_is_refused_in_the_same_words():
    for env, what in (("Pong-v5", r"observations of shape \(4, 84, 84\) and type uint8 \(images\?\)"),):
        with pytest.raises(UserError, match=f"{env} has {what}"):
            inspect(env)


def test_integer_observations_become_floats():
    spec = inspect(partial(toys.Spaces, spaces.Box(0, 9, (2,), np.int16), spaces.Discrete(3)))
    assert spec.observation == vector(2)


def test_bounds_are_kept_in_the_type_of_the_environment():
    """0.4 in float32 is more than 0.4 in float64, which an environment may refuse."""
    space = spaces.Box(-0.4, 0.4, (1,), np.float64)
    actions = understand_actions(space, "toy")
    clipped = actions.batch(np.array([[5.0], [-5.0]], np.float32))
    assert clipped.tolist() == [[0.4], [-0.4]]
    assert all(space.contains(action) for action in clipped)


@pytest.mark.parametrize(
    ("low", "high", "shift", "scale"),
    [
        (10, 20, 15, 5),
        (-1000, 1000, 0, 1000),
        (0, 1, 0.5, 0.5),
        (-1, 0, -0.5, 0.5),
        (-0.01, 0.01, 0, 0.01),
        (-0.09, 5, 2.455, 2.545),
        (-5, 10.5, 2.75, 7.75),
        (3, 3, 3, 0),
        (-3e37, 3e37, 0, 3e37),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounds_that_are_not_of_order_one_are_the_policys_unit(low, high, shift, scale, dtype):
    space = spaces.Box(low, high, (1,), dtype)
    actions = understand_actions(space, "toy")
    np.testing.assert_allclose(actions.spec.unit, [[shift], [scale]], rtol=1e-6)
    sent = actions.batch(np.array([[-7.0], [-1.0], [0.0], [0.5], [1.0], [7.0]], np.float32))
    assert sent.dtype == dtype
    np.testing.assert_allclose(sent[:, 0], [low, low, shift, shift + scale / 2, high, high], rtol=1e-6, atol=1e-7)
    assert all(space.contains(action) for action in sent)


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (-0.4, 0.4), (-2, 2), (-0.1, 0.1), (-10, 10), (-1, 2), (-0.1, 10)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounds_of_order_one_are_left_alone(low, high, dtype):
    actions = understand_actions(spaces.Box(low, high, (1,), dtype), "toy")
    assert actions.unit is actions.spec.unit is None
    sent = np.random.default_rng(0).normal(size=(100, 1)).astype(np.float32)
    np.testing.assert_array_equal(actions.batch(sent), np.clip(sent.astype(dtype), dtype(low), dtype(high)))


def test_each_component_has_a_unit_of_its_own():
    low, high = np.array([10, -1, -1000], np.float32), np.array([20, 1, 1000], np.float32)
    actions = understand_actions(spaces.Box(low, high), "toy")
    sent = np.array([[0.2, 0.3, 0.4]], np.float32)
    np.testing.assert_array_equal(actions.batch(sent), np.array([[16, 0.3, 400]], np.float32))
    np.testing.assert_array_equal(sent, np.array([[0.2, 0.3, 0.4]], np.float32))


@pytest.mark.parametrize("env", ["HalfCheetah-v3", "Ant-v3", "Humanoid-v3", *(f"{family}-v5" for family in FPS)])
def test_the_tasks_of_the_paper_and_of_mujoco_are_left_alone(env):
    assert inspect(env).action.unit is None
    assert inspect("Pendulum-v1").action.unit is None


def test_the_first_step_of_an_inspection_is_between_the_bounds():
    """At the middle of those that are mapped."""
    seen = []
    inspect(partial(Aim, 10.0, 20.0, 15.0), costs=[lambda o, action, r, info: seen.append(action.tolist()) or 0.0])
    assert seen == [[15.0]]


@pytest.mark.parametrize("workers", [0, 1])
def test_costs_see_the_action_as_the_environment_got_it(workers):
    """In its own unit, clipped."""
    pool = make_pool(
        partial(Aim, 10.0, 20.0, 15.0), 3, seed=0, costs=[lambda o, action, r, info: action[0]],
        simulation=Simulation(workers=workers),
    )  # fmt: skip
    pool.reset(np.arange(3))
    pool.send(np.array([[0.5], [-3.0], [0.0]], np.float32))
    step = pool.recv()
    pool.close()
    assert step.costs[:, 0].tolist() == [17.5, 10.0, 15.0]
    assert step.reward.tolist() == [-0.25, -1.0, 0.0]


SPACES = {
    "vector": (BOX, spaces.Box(10, 20, (3,)), Spaces(Box((3,)), Box((3,)))),
    "numbers": (spaces.Box(-1, 1, ()), spaces.Box(-1, 1, ()), Spaces(Box(()), Box(()))),
    "shapes": (spaces.Box(-1, 1, (2, 3, 4)), spaces.Box(-9, 20, (2, 2)), Spaces(Box((2, 3, 4)), Box((2, 2)))),
    "several": (
        spaces.MultiDiscrete([[2, 3]], start=[[1, -1]]),
        spaces.MultiDiscrete([4, 2]),
        Spaces(MultiDiscrete((2, 3), (1, -1), (1, 2)), MultiDiscrete((4, 2), (0, 0), (2,))),
    ),
    "nested": (
        spaces.Dict(OrderedDict(b=spaces.Tuple((BOX, spaces.Discrete(2))), a=spaces.MultiBinary([2, 2]))),
        spaces.MultiBinary(3),
        Spaces(Dict(("b", "a"), (Tuple((Box((3,)), Discrete(2))), MultiBinary((2, 2)))), MultiBinary((3,))),
    ),
    "states": (spaces.Discrete(5, start=1), spaces.Discrete(3, start=-2), Spaces(Discrete(5, 1), Discrete(3, -2))),
}


@pytest.mark.parametrize("name", SPACES)
def test_spaces_are_described_in_json_and_read_again(name):
    observation, action, expected = SPACES[name]
    spec = inspect(partial(toys.Spaces, observation, action))
    assert spec.spaces == expected
    assert read_spaces(json.loads(json.dumps(spec.spaces.description)), "it") == expected


def test_what_a_description_looks_like():
    assert Spaces(Discrete(5, 1), Box((2,))).description == {
        "observation": {"kind": "discrete", "n": 5, "start": 1},
        "action": {"kind": "box", "shape": (2,)},
    }
    assert inspect("CartPole-v1").spaces == Spaces(Box((4,)), Discrete(2))
    assert inspect("FrozenLake-v1").spaces == Spaces(Discrete(16), Discrete(4))


SOUND = {"kind": "box", "shape": [2]}


@pytest.mark.parametrize(
    "described",
    [
        None, 3, "box", [], {}, {"observation": SOUND}, {"observation": SOUND, "action": None},
        {"observation": SOUND, "action": SOUND, "mask": True}, {"observation": SOUND, "action": SOUND, "mask": 1},
        *({"observation": SOUND, "action": action} for action in (
            [], {}, "box", {"kind": None}, {"kind": 3}, {"kind": []}, {"kind": "box"}, {"kind": "box", "shape": 3},
            {"kind": "box", "shape": [-1]}, {"kind": "box", "shape": [2.0]}, {"kind": "box", "shape": [True]},
            {"kind": "box", "shape": [2**31]}, {"kind": "box", "shape": [1] * 33}, {"kind": "box", "shape": {"0": 1}},
            {"kind": "box", "n": 2, "start": 0}, {"kind": "discrete", "shape": [2]}, {"kind": "discrete", "n": 2},
            {"kind": "discrete", "n": 0, "start": 0}, {"kind": "discrete", "n": -1, "start": 0},
            {"kind": "discrete", "n": 2**40, "start": 0}, {"kind": "discrete", "n": 2, "start": 2**63},
            {"kind": "discrete", "n": 2, "start": 2**63 - 1}, {"kind": "discrete", "n": 2, "start": -(10**400)},
            {"kind": "discrete", "n": 2, "start": 0.5}, {"kind": "discrete", "n": "2", "start": 0},
            {"kind": "multidiscrete", "n": [2], "start": [0]},
            {"kind": "multidiscrete", "n": [], "start": [], "shape": []},
            {"kind": "multidiscrete", "n": [2, 2], "start": [0], "shape": [2]},
            {"kind": "multidiscrete", "n": [2, 2], "start": [0, 0], "shape": [3]},
            {"kind": "multidiscrete", "n": [2, 0], "start": [0, 0], "shape": [2]},
            {"kind": "multidiscrete", "n": [2**30] * 3, "start": [0] * 3, "shape": [3]},
            {"kind": "multidiscrete", "n": 2, "start": 0, "shape": []},
            {"kind": "multibinary", "shape": [2**16, 2**16]}, {"kind": "multibinary"},
            {"kind": "dict"}, {"kind": "dict", "names": ["a"], "parts": []}, {"kind": "dict", "parts": [SOUND]},
            {"kind": "dict", "names": ["a", "a"], "parts": [SOUND, SOUND]},
            {"kind": "dict", "names": [1], "parts": [SOUND]},
            {"kind": "dict", "names": ["a"], "parts": [None]}, {"kind": "tuple", "parts": []},
            {"kind": "tuple", "parts": 3},
            functools.reduce(lambda inner, _: {"kind": "tuple", "parts": [inner]}, range(17), SOUND),
            {"kind": "tuple", "parts": [{"kind": "box", "shape": [2**30]}] * 2},
        )),
    ],
    ids=str,
)  # fmt: skip
def test_a_description_of_nothing_is_refused(described):
    with pytest.raises(Damaged, match=r"^The file (does not say which|describes) observations .*\.$"):
        read_spaces(described, "The file")


KINDS = ["box", "discrete", "multidiscrete", "multibinary", "dict", "tuple"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([*KINDS, "kind", "n"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "shape", "n", "start", "names", "parts"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@hypothesis.settings(deadline=None, database=None, max_examples=300)
@hypothesis.given(observation=JSON, action=JSON)
def test_whatever_a_description_is_it_is_read_or_refused(observation, action):
    with contextlib.suppress(Damaged, UserError):
        read = read_spaces({"observation": observation, "action": action}, "The file")
        assert read_spaces(json.loads(json.dumps(read.description)), "it") == read


@pytest.mark.parametrize(
    "described",
    [
        {"observation": SOUND, "action": {"kind": "graph", "nodes": {}}},
        {"observation": SOUND, "action": {"kind": "tuple", "parts": [SOUND]}},
        {"observation": SOUND, "action": {**SOUND, "mask": True}},
        {"observation": {"kind": "discrete", "n": 2, "start": 0, "unit": "m"}, "action": SOUND},
        {"observation": {"kind": "discrete", "n": 2, "first": 0}, "action": SOUND},
        {"observation": SOUND, "action": SOUND, "memory": True},
    ],
)
def test_a_description_by_a_newer_kemeny_is_told_from_a_damaged_one(described):
    with pytest.raises(UserError, match=r"^The file holds a policy for spaces that this Kemeny does not know: upgrade"):
        read_spaces(described, "The file")


def test_inspection_gives_the_spec_of_a_pool():
    for env in ("Humanoid-v3", "CartPole-v1", "Pendulum-v1", Counter):
        spec, pool = inspect(env), make_pool(env, 1, seed=0)
        assert spec.observation == pool.spec.observation
        assert spec.time_limit == pool.spec.time_limit
        assert spec.action.array == pool.spec.action.array
        if isinstance(spec.action, Continuous):
            assert np.array_equal(spec.action.high, pool.spec.action.high)
    assert inspect("Humanoid-v3").observation == vector(376)
    assert inspect("Humanoid-v3").action.size == 17


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HalfCheeta-v3", "HalfCheetah-v3"),
        ("halfcheetah-v3", "did you mean HalfCheetah-v2 or HalfCheetah-v3 or HalfCheetah-v4 or HalfCheetah-v5"),
        ("Humanoid-v9", "Humanoid-v3 or Humanoid-v4 or Humanoid-v5"),
        ("HalfCheetah", "HalfCheetah-v3"),
        ("Zzyzx-v0", "is the package that registers it imported"),
        ("", "is the package that registers it imported"),
    ],
)
@pytest.mark.parametrize("backend", ["auto", "gymnasium"])
def test_an_unknown_name_gets_the_names_it_could_mean(name, meant, backend):
    for use in (lambda: inspect(name, backend=backend), lambda: make_pool(name, 1, seed=0, backend=backend)):
        with pytest.raises(UserError, match=f"^There is no environment '{name}': .*{meant}"):
            use()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nosuchmodule:Foo-v0", "needs the module nosuchmodule, which is neither installed nor in this directory"),
        ("tests.envs.toys:Foo-v0", "There is no environment 'tests.envs.toys:Foo-v0'"),
        ("LunarLander-v3", "Box2D is not installed"),
        ("HalfCheetah-v3", "cannot make HalfCheetah-v3: .*EnvPool has it: leave the backend at auto"),
    ],
)
def test_what_gymnasium_cannot_make(name, why):
    if name == "LunarLander-v3" and importlib.util.find_spec("Box2D"):
        pytest.skip("Box2D is installed")
    with pytest.raises(UserError, match=why):
        inspect(name, backend="gymnasium")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"num_envs": 0}, "num_envs is 0; it must be at least 1"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"seed": 2**63}, "seed is 9223372036854775808; it must be at most"),
        ({"first_env": -1}, "first_env is -1; it must be at least 0"),
        ({"time_limit": 0}, "time_limit is 0; it must be at least 1"),
        ({"simulation": Simulation(workers=-1)}, "workers is -1; it must be at least 0"),
        ({"simulation": Simulation(threads=-1)}, "threads is -1; it must be at least 0"),
        ({"simulation": Simulation(step_timeout=1.0)}, "step_timeout needs workers"),
        ({"simulation": Simulation(step_timeout=0.0, workers=1)}, "step_timeout is 0.0; it must be above 0"),
        ({"env": Counter, "backend": "envpool"}, "EnvPool runs ids, not functions"),
        ({"env": "Foo-v0", "backend": "envpool"}, "EnvPool has no environment 'Foo-v0'"),
        ({"backend": "envpool", "simulation": Simulation(workers=2)}, "threads instead of workers"),
        ({"env": "Ant-v3", "simulation": Simulation(workers=2)}, "EnvPool has it: leave .* auto and workers at 0"),
        ({"env": 3}, "An environment is an id or a function that makes one, not of type int"),
    ],
)
def test_options_that_are_refused(options, why):
    with pytest.raises(UserError, match=why):
        make_pool(**{"env": "CartPole-v1", "num_envs": 2, "seed": 0} | options)
