"""Environments as they are, through the whole of training: their bounds, their numbers, their size, their library."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import kemeny
from kemeny.envs.faults import LARGEST
from kemeny.errors import RunError, UserError
from kemeny.runs import checkpoint
from tests.conftest import TINY
from tests.envs.toys import Aim, Counter
from tests.probes import policy_for

SHORT = {
    "steps": 20_000, "num_envs": 10, "batch_size": 500, "hidden": (8,), "cut": 100, "eval_every": 20_000,
    "eval_max_steps": 10, "critic_minibatch": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "target"),
    [(10.0, 20.0, 15.0), (10.0, 20.0, 17.0), (-1000.0, 1000.0, 400.0), (0.0, 1.0, 0.3), (-0.002, 0.001, 0.0)],
)
def test_the_best_action_is_found_between_bounds_of_any_size(low, high, target, tmp_path):
    run = kemeny.train(partial(Aim, low, high, target), out=tmp_path / "run", **SHORT)
    reach = (high - low) / 2
    assert run.policy(np.ones(1))[0] == pytest.approx(target, abs=0.06 * reach)
    assert np.mean(run.evaluations[-1]["returns_10"]) > -10 * 0.06**2
    assert "action/scale" in checkpoint.latest(run.path).arrays


class Lamps(gymnasium.Env):
    """Five lamps, numbered from 1, of which one is lit; switch 10 + (lamp modulo 3) pays 1, and the next is lit."""

    observation_space = spaces.Discrete(5, start=1)
    action_space = spaces.Discrete(3, start=10)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.lamp = int(self.np_random.integers(1, 6))
        return self.lamp, {}

    def step(self, action):
        assert self.action_space.contains(action)
        right = action == 10 + self.lamp % 3
        self.lamp = self.lamp % 5 + 1
        return self.lamp, float(right), False, False, {}


def test_a_loaded_policy_acts_in_the_environment_as_it_is(tmp_path):
    """Numbers that start at 1 and at 10 go from the environment to the policy and back without conversion."""
    run = kemeny.train(Lamps, out=tmp_path / "run", **{**SHORT, "hidden": (), "delta": 0.1, "eval_max_steps": 20})
    assert run.evaluations[-1]["returns_20"] == [20.0] * 10
    policy, env = kemeny.load_policy(run.path), Lamps()
    observation, _ = env.reset(seed=0)
    rewards = []
    for _ in range(20):
        observation, reward, *_ = env.step(policy(observation))
        rewards.append(reward)
    assert rewards == [1.0] * 20
    np.testing.assert_array_equal(policy(np.arange(1, 6)), 10 + np.arange(1, 6) % 3)


class Spike(Counter):
    """Gives one number that is far too large, once in each of its lives."""

    def observe(self):
        observation = super().observe()
        if self.steps == 7:
            observation[0] = self.size
        return observation

    def __init__(self, size):
        super().__init__()
        self.size = size


@pytest.mark.parametrize("size", [3e38, 1e25, -1e20, 2 * LARGEST])
def test_a_spike_is_a_fault_and_leaves_no_trace(size, tmp_path):
    run = kemeny.train(partial(Spike, size), out=tmp_path / "run", restart_faulty=True, **{**TINY, "eval_max_steps": 5})
    assert sum(record["faults"] for record in run.metrics) > 0
    arrays = checkpoint.latest(run.path).arrays
    assert np.abs(arrays["normalizer/mean"]).max() < 100
    assert arrays["normalizer/scale"].min() > 1e-3
    assert np.isfinite(run.policy(np.zeros(3))).all()


def test_without_tolerance_a_spike_ends_the_run(tmp_path):
    with pytest.raises(RunError, match=r"Environment \d gave an observation that is beyond ±1e\+15 at its step 6"):
        kemeny.train(partial(Spike, 1e20), out=tmp_path / "run", **{**TINY, "eval_max_steps": 5})


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1", partial(Aim, 10.0, 20.0, 15.0)])
def test_a_policy_is_not_evaluated_where_it_does_not_fit(env):
    """It has four observations and one continuous action."""
    with pytest.raises(UserError, match=r"^The policy was trained with observations of length 4 .*, but .* has "):
        kemeny.evaluate(policy_for(4, 1), env, kemeny.EvaluationProtocol(1, 5), seed=0)


def test_with_workers_costs_are_those_of_gymnasium(tmp_path):
    """EnvPool's pendulum has none."""
    settings = {"algorithm": "acpo", "cost": ("reward_survive",), "limit": (2.0,), "workers": 1, **TINY, "steps": 200}
    run = kemeny.train("InvertedPendulum-v5", out=tmp_path / "run", **settings)
    assert 0 < run.metrics[0]["cost"][0] <= 1
