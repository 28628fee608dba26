"""Which environments are supported, and the error for each of the others."""

import importlib.util
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from kemeny.envs.pool import inspect, make_pool
from kemeny.envs.settings import Simulation
from kemeny.envs.spaces import understand_actions
from kemeny.errors import UserError
from kemeny.spec import Continuous, vector
from tests.envs.toys import Counter, Spaces

BOX = spaces.Box(-1, 1, (3,))


@pytest.mark.parametrize(
    ("space", "what"),
    [
        (spaces.Dict(a=BOX), "Dict observations"),
        (spaces.Tuple((BOX, BOX)), "Tuple observations"),
        (spaces.MultiDiscrete([2, 3]), "MultiDiscrete observations"),
        (spaces.MultiBinary(4), "MultiBinary observations"),
        (spaces.Text(5), "Text observations"),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), r"observations of shape \(8, 8, 3\) \(images\?\)"),
        (spaces.Box(0, 1, (2, 2)), r"observations of shape \(2, 2\)"),
    ],
)
def test_observations_that_are_refused(space, what):
    with pytest.raises(UserError, match=f"has {what}.*gymnasium.wrappers.FlattenObservation"):
        inspect(partial(Spaces, space, BOX))


@pytest.mark.parametrize(
    ("space", "what"),
    [
        (spaces.Box(-np.inf, np.inf, (2,)), "actions without bounds.*finite bounds"),
        (spaces.Box(np.array([-1, -np.inf], np.float32), np.ones(2, np.float32)), "actions without bounds"),
        (spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (2,)), "actions without bounds"),
        (spaces.Box(-1, 1, (2, 2)), r"actions of shape \(2, 2\).*TransformAction"),
        (spaces.Box(0, 5, (2,), np.int64), r"vectors of integers \(int64\).*so that they are Discrete"),
        (spaces.MultiDiscrete([2, 3]), "MultiDiscrete actions.*one bounded vector or one number"),
        (spaces.MultiBinary(2), "MultiBinary actions"),
        (spaces.Dict(a=BOX), "Dict actions"),
        (spaces.Tuple((BOX, BOX)), "Tuple actions"),
    ],
)
def test_actions_that_are_refused(space, what):
    with pytest.raises(UserError, match=f"has {what}"):
        inspect(partial(Spaces, BOX, space))


def test_what_envpool_has_is_refused_in_the_same_words():
    for env, what in (
        ("Pong-v5", r"observations of shape \(4, 84, 84\)"),
        ("AcrobotSwingup-v1", "Dict observations"),
    ):
        with pytest.raises(UserError, match=f"{env} has {what}"):
            inspect(env)


def test_integer_observations_become_floats():
    spec = inspect(partial(Spaces, spaces.Box(0, 9, (2,), np.int16), spaces.Discrete(3)))
    assert spec.observation == vector(2)


def test_bounds_are_kept_in_the_type_of_the_environment():
    """0.4 in float32 is more than 0.4 in float64, which an environment may refuse."""
    space = spaces.Box(-0.4, 0.4, (1,), np.float64)
    actions = understand_actions(space, "toy")
    clipped = actions.batch(np.array([[5.0], [-5.0]], np.float32))
    assert clipped.tolist() == [[0.4], [-0.4]]
    assert all(space.contains(action) for action in clipped)


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
        ("nosuchmodule:Foo-v0", "No module named 'nosuchmodule'"),
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
