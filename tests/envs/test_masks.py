"""Masks and nested observations in pools: rows are what the environment gave, and a wrong mask is named."""

import warnings
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import flatten

from kemeny.envs.pool import inspect, make_pool, seed_of
from kemeny.envs.settings import Simulation
from kemeny.errors import RunError, UserError
from tests.envs import toys
from tests.envs.locks import KINDS, NESTED, Locks, sizes, wrapped


def first_open(mask, kind):
    """Of each choice the first option that is allowed."""
    parts = np.split(mask, np.cumsum(sizes(KINDS[kind]))[:-1])
    return np.array([part.argmax() for part in parts]).reshape(() if kind == "one" else (-1,))


def walk(pool, steps):
    """Take some steps, each by the first option that is open."""
    for _ in range(steps):
        pool.send(np.array([first_open(pool.env(i).unwrapped.open, "one") for i in range(pool.num_envs)]))
        pool.recv()


@pytest.mark.parametrize("make", [Locks, wrapped], ids=["info", "method"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_observations_and_masks(kind, make):
    """Against the environment itself, flattened by Gymnasium."""
    pool = make_pool(partial(make, kind), 2, seed=0)
    assert pool.spec.mask == sum(sizes(KINDS[kind]))
    assert pool.spec.features == 14
    assert inspect(partial(make, kind)).spaces == pool.spec.spaces
    assert pool.spec.spaces.mask
    rows = pool.reset(np.arange(2))
    for _ in range(4):
        for i in range(2):
            env = pool.env(i).unwrapped
            np.testing.assert_array_equal(rows[i, 14:], env.open)
        pool.send(np.stack([first_open(row[14:], kind) for row in rows]))
        step = pool.recv()
        rows = step.observation
        assert set(np.unique(rows[:, 14:])) <= {0, 1}
    pool.close()


def test_nested_observations_are_as_gymnasium_flattens_them():
    """The same numbers, whichever library puts them in a row; bits and vectors as they are, choices as one-hots."""

    class Remembers(Locks):
        def observe(self):
            self.gave = super().observe()
            return self.gave

    pool = make_pool(Remembers, 3, seed=0)
    rows = pool.reset(np.arange(3))
    for i in range(3):
        np.testing.assert_array_equal(rows[i, :14], flatten(NESTED, pool.env(i).gave))
    pool.close()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("missing", "it is missing, though one must come with every observation"),
        ("nothing", "it forbids every action, but one at least must be allowed"),
        ("shape", r"it has shape \(3,\) and type bool, but there must be 4 zeros and ones"),
        ("rows", r"it has shape \(1, 4\), but there must be one row of 4"),
        ("text", r"it has shape \(\) and type <U3, but there must be 4 zeros and ones"),
        ("two", "it has entries that are neither 0 nor 1"),
        ("late", "it did not come with its first observation, though one must come with every observation"),
    ],
)
@pytest.mark.parametrize("make", [Locks, wrapped], ids=["info", "method"])
def test_a_wrong_mask_is_named(make, wrong, why):
    env = partial(make, "one", wrong)
    if (wrong, make) == ("late", wrapped):
        pytest.skip("a method that exists must always answer")
    pool = make_pool(env, 2, seed=0)
    pool.reset(np.arange(2))
    with pytest.raises(RunError, match=rf"^Environment 0 \(.*\) has a wrong action mask: {why}, at step 3 after"):
        walk(pool, 3)
    pool.close()


@pytest.mark.parametrize("wrong", ["nothing", "shape"])
def test_a_mask_that_is_wrong_from_the_beginning_is_refused_before_the_run(wrong):
    with pytest.raises(UserError, match=r"failed its first step: Environment 0 .* has a wrong action mask"):
        inspect(partial(Locks, "one", wrong, 0))


def test_a_wrong_mask_is_a_fault_that_can_be_tolerated():
    pool = make_pool(partial(Locks, "one", "nothing", 1), 1, seed=0, simulation=Simulation(restart_faulty=True))
    rows = pool.reset(np.arange(1))
    assert np.isfinite(rows).all()
    pool.send(np.array([first_open(rows[0, 14:], "one")]))
    assert np.isnan(pool.recv().observation).all()
    assert "forbids every action" in pool.take_faults()[0]
    assert np.isfinite(pool.reset(np.arange(1))).all()
    pool.close()


@pytest.mark.parametrize("how", ["missing", "nothing"])
def test_where_a_trajectory_ends_nobody_acts(how):
    """A game that is over allows nothing."""
    pool = make_pool(partial(Locks, "several", how, at=2, falls_at=2), 1, seed=0)
    rows = pool.reset(np.arange(1))
    for _ in range(2):
        pool.send(first_open(rows[0, 14:], "several")[None])
        step = pool.recv()
        rows = step.observation
    assert step.terminated.all()
    assert (rows[0, 14:] == 1).all()
    pool.close()


def test_costs_see_neither_mask_nor_flat_actions():
    seen = []

    def cost(observation, action, reward, info):
        seen.append((observation.shape, action.tolist()))
        return 0.0

    pool = make_pool(partial(Locks, "several"), 1, seed=0, costs=[cost])
    rows = pool.reset(np.arange(1))
    options = first_open(rows[0, 14:], "several")
    pool.send(options[None])
    pool.recv()
    pool.close()
    assert seen == [((14,), (options + np.array([0, -1, 7])).tolist())]


def test_a_task_of_gymnasium_with_masks():
    pool = make_pool("Taxi-v4", 1, seed=0, backend="gymnasium")
    assert pool.spec.mask == 6
    rows = pool.reset(np.arange(1))
    np.testing.assert_array_equal(rows[0, 500:], pool.env(0).unwrapped.action_mask(rows[0, :500].argmax()))
    pool.close()


@pytest.mark.parametrize(
    "action",
    [
        spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, -1], [0, 5]]),
        spaces.MultiDiscrete([2, 3], dtype=np.int32),
        spaces.MultiBinary([2, 2]),
        spaces.Box(-20.0, 20.0, (2, 3)),
    ],
    ids=str,
)
def test_actions_of_any_shape_are_of_their_space(action):
    pool = make_pool(partial(toys.Spaces, spaces.Box(-1, 1, (2, 2)), action), 1, seed=0)
    pool.reset(np.arange(1))
    spec = pool.spec.action
    largest = np.array(getattr(spec, "choices", [2] * spec.outputs)) - 1
    for drawn in (np.zeros(len(largest)), largest):
        pool.send(drawn[None].astype(spec.array.dtype))
        pool.recv()
        assert action.contains(pool.env(0).took), pool.env(0).took
    assert pool.env(0).took.reshape(-1).tolist() == (largest * 20).tolist() if isinstance(action, spaces.Box) else True
    pool.close()


def test_an_observation_that_is_not_of_its_space_is_named():
    class Wrong(Locks):
        def observe(self):
            return {**super().observe(), "bits": np.array([0, 3])}

    with pytest.raises(
        UserError, match=r"returned 3 instead of zeros and ones of shape \(2,\) as the part bits of its"
    ):
        inspect(Wrong)


@pytest.mark.parametrize(("env", "steps"), [("CheetahRun-v1", 3), ("HumanoidRun-v1", 3), ("CVRP-v1", 1)])
def test_observations_of_envpool_that_have_parts(env, steps):
    """In the order of its space, against its own interface and Gymnasium's way to flatten."""
    import envpool

    pool = make_pool(env, 3, seed=0)
    own = envpool.make_gymnasium(env, num_envs=3, seed=[seed_of(0, j) for j in range(3)], num_threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's about EnvPool's own bounds
        space = own.observation_space
    assert pool.spec.features == spaces.flatdim(space)
    rows, (raw, _) = pool.reset(np.arange(3)), own.reset()
    for _ in range(steps):
        flat = [flatten(space, {name: np.asarray(raw[name][i]) for name in space.spaces}) for i in range(3)]
        np.testing.assert_array_equal(rows, np.array(flat).astype(np.float32))
        action = np.zeros((3, *pool.spec.action.array.shape))
        pool.send(action)
        rows, raw = pool.recv().observation, own.step(action.astype(own.action_space.dtype))[0]
    pool.close()
