"""Whole runs with every kind of space: in this process and in workers, resumed bit for bit, learned with masks."""

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

import kemeny
from kemeny.errors import UserError
from kemeny.runs import checkpoint
from kemeny.runs.interrupts import Interrupted
from tests.conftest import TINY
from tests.envs.locks import KINDS, Locks, sizes
from tests.test_training import Interrupt, same_numbers

SETTINGS = {**TINY, "eval_every": 400, "eval_trajectories": 2, "eval_max_steps": 10}


def mask_for(kind):
    """Everything is allowed but the first option of the first choice."""
    mask = np.ones(sum(sizes(KINDS[kind])), bool)
    mask[0] = False
    return mask


@pytest.mark.parametrize("kind", ["one", "several"])
def test_a_run_with_masks_is_the_same_in_parts_and_its_policy_honours_them(kind, tmp_path):
    """The environment throws out whoever takes an option that is locked, in training and in evaluation."""
    env = partial(Locks, kind)
    whole = kemeny.train(env, out=tmp_path / "whole", **SETTINGS)
    with pytest.raises(Interrupted):
        kemeny.train(env, out=tmp_path / "parts", observers=[Interrupt(200)], **SETTINGS)
    assert same_numbers(whole, kemeny.resume(tmp_path / "parts", env=env))
    policy = kemeny.load_policy(whole.path)
    example, mask = Locks(kind), mask_for(kind)
    observation, _ = example.reset(seed=0)
    assert example.action_space.contains(policy(observation, mask=mask))
    first = policy.probabilities(observation, mask=mask)
    assert (first if kind == "one" else first[0])[0] == 0
    with pytest.raises(UserError, match="trained with action masks"):
        policy(observation)
    assert checkpoint.latest(whole.path).facts["spaces"]["mask"] is True


def test_workers_give_the_same_run(tmp_path):
    env = partial(Locks, "bits")
    settings = {**SETTINGS, "steps": 400}
    here = kemeny.train(env, out=tmp_path / "here", **settings)
    there = kemeny.train(env, out=tmp_path / "there", workers=2, **settings)
    assert same_numbers(here, there)


def test_masks_are_learned_with(tmp_path):
    """The best of the options that are open: 7/3 where two of four are open (a random choice is worth 3/2)."""
    run = kemeny.train(
        TwoOfFour, out=tmp_path / "run", steps=6_000, num_envs=4, batch_size=600, hidden=(8,), cut=100, delta=0.1,
        eval_every=6_000, eval_trajectories=4, eval_max_steps=250,
    )  # fmt: skip
    assert np.mean(run.evaluations[-1]["returns_250"]) / 250 == pytest.approx(7 / 3, abs=0.1)
    policy = run.policy
    for i in range(4):
        for j in range(i):
            mask = np.zeros(4)
            mask[[i, j]] = 1
            assert policy(np.ones(1), mask=mask) == i


class TwoOfFour(Locks):
    """Two options are open at random; those that are locked pay more, but throw out whoever takes them."""

    def __init__(self):
        super().__init__("one", observation_space=spaces.Box(-1.0, 1.0, (1,)))
        self.action_space = spaces.Discrete(4)

    def observe(self):
        self.open = np.zeros(4, bool)
        self.open[self.np_random.choice(4, 2, replace=False)] = True
        return np.ones(1, np.float32)


def test_a_task_of_dm_control(tmp_path):
    run = kemeny.train("CheetahRun-v1", out=tmp_path / "run", **{**SETTINGS, "steps": 400})
    assert len(run.metrics) == 2
    policy = kemeny.load_policy(run.path)
    assert policy({"position": np.zeros(8), "velocity": np.zeros(9)}).shape == (6,)
    assert policy({"position": np.zeros((3, 8)), "velocity": np.zeros((3, 9))}).shape == (3, 6)
    assert checkpoint.latest(run.path).facts["spaces"]["observation"]["names"] == ["position", "velocity"]
