"""Falls cost, goals do not; start states and phases are sampled fairly."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import kemeny
from kemeny.errors import RunError
from kemeny.experience.collect import Collector
from kemeny.experience.ends import charge, find_goals
from kemeny.experience.part import first_phases
from kemeny.experience.settings import Task
from tests.probes import Walk, policy_for
from tests.test_training import Listener


def rewards(*rows):
    return np.array(rows, np.float32)


def test_an_end_that_pays_far_more_than_usual_is_a_goal():
    reward = rewards([0, 0, 1], [0, 0, 0], [0, 0, 0])
    ended = np.array([[False, False, True], [False, True, False], [False, False, False]])
    np.testing.assert_array_equal(find_goals(reward, ended), [[0, 0, 1], [0, 0, 0], [0, 0, 0]])
    goals = charge(reward, ended, None)
    assert goals.sum() == 1
    np.testing.assert_array_equal(reward, rewards([0, 0, 1], [0, -100, 0], [0, 0, 0]))


def test_a_fall_that_pays_a_little_more_than_usual_is_a_fall():
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(50, 4)).astype(np.float32)
    ended = np.zeros((50, 4), bool)
    ended[10, 2] = True
    reward[10, 2] = 1.5 * reward.max()
    assert not find_goals(reward, ended).any()


def test_a_reset_cost_that_is_given_is_for_every_end():
    reward, ended = rewards([0, 1]), np.array([[False, True]])
    assert not charge(reward, ended, 7.0).any()
    np.testing.assert_array_equal(reward, rewards([0, -6]))


def test_a_batch_of_nothing_but_ends_has_only_falls():
    reward, ended = rewards([1, 1]), np.ones((1, 2), bool)
    assert not charge(reward, ended, None).any()
    np.testing.assert_array_equal(reward, rewards([-99, -99]))


class Corridor(gymnasium.Env):
    """Five states in a row; the right end is a goal that pays 1, nothing else pays."""

    def __init__(self):
        self.observation_space, self.action_space = spaces.Discrete(5), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 1
        return self.state, {}

    def step(self, action):
        self.state = max(self.state + (1 if action == 1 else -1), 0)
        goal = self.state == 4
        return self.state, float(goal), goal, False, {}


def test_a_goal_is_learned_and_said(tmp_path):
    """Before, reaching it cost 99 net: the best policy never did."""
    listener = Listener()
    run = kemeny.train(
        Corridor, out=tmp_path / "run", steps=20_000, num_envs=5, batch_size=500, hidden=(16,), cut=100,
        eval_every=10**6, eval_max_steps=10, observers=[listener],
    )  # fmt: skip
    rates = sorted(record["rate"] for record in run.metrics[-11:])  # a single policy step may go astray
    assert rates[5] > 0.3  # one goal in three steps
    assert run.metrics[-1]["falls"] == 0
    (said,) = [message for message in listener.said if "goal" in message]
    assert "--reset-cost" in said


def test_the_given_cost_still_punishes_a_goal(tmp_path):
    run = kemeny.train(
        Corridor, out=tmp_path / "run", steps=10_000, num_envs=5, batch_size=500, hidden=(16,), cut=100,
        eval_every=10**6, eval_max_steps=10, reset_cost=100.0,
    )  # fmt: skip
    assert run.metrics[0]["falls"] > 0
    assert run.metrics[-1]["falls"] <= 2


class Coin(gymnasium.Env):
    """The start state is a fair coin; heads falls after 2 steps, tails after 20."""

    def __init__(self):
        self.observation_space, self.action_space = spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tails, self.t = bool(self.np_random.random() < 0.5), 0
        return np.array([self.tails], np.float32), {}

    def step(self, action):
        self.t += 1
        return np.array([self.tails], np.float32), 0.0, self.t == (20 if self.tails else 2), False, {}


def test_start_states_are_sampled_as_they_occur():
    """The latest start of each environment would be tails in ten of eleven."""
    collector = Collector(Coin, Task(cut=1_000), num_envs=20, batch_length=100, seed=0)
    shares = [collector.roll_out(policy_for(1, 1), i).start_observation.mean() for i in range(10)]
    assert np.mean(shares[2:]) == pytest.approx(0.5, abs=0.05)


def test_the_latest_starts_are_part_of_a_snapshot():
    def make(snapshot=None):
        return Collector("InvertedPendulum-v5", Task(cut=50), num_envs=4, batch_length=60, seed=0, snapshot=snapshot)

    policy, original = policy_for(4, 1), make()
    for iteration in range(3):
        original.roll_out(policy, iteration)
    snapshot = original.snapshot()
    expected = original.roll_out(policy, 3)
    np.testing.assert_array_equal(make(snapshot).roll_out(policy, 3).start_observation, expected.start_observation)
    del snapshot["starts"]  # as an older Kemeny wrote it
    assert make(snapshot).roll_out(policy, 3).start_observation.shape == expected.start_observation.shape


@pytest.mark.parametrize(
    ("num_envs", "batch_length", "longest"), [(20, 250, 1_000), (20, 250, 5_000), (20, 250, 10_000), (4, 10, 1_000)]
)
def test_phases_are_spread_evenly_over_the_longest_trajectory(num_envs, batch_length, longest):
    phases = np.sort(np.unique(first_phases(np.full(num_envs, longest), batch_length)))
    gaps = np.diff([*phases, longest])
    assert gaps.max() == gaps.min()


def test_episodic_tasks_do_not_run_in_lockstep():
    """Each batch holds every phase of an episode; before, all environments were in the same one for ever."""
    collector = Collector("Pendulum-v1", Task(episodic=True), num_envs=4, batch_length=50, seed=0)
    policy = policy_for(3, 1)
    for iteration in range(8):
        batch = collector.roll_out(policy, iteration)
        assert batch.cut.sum() == 1  # 200 steps per episode, 200 per batch
        assert not batch.terminal.any()


def test_a_cut_longer_than_a_batch_is_staggered_over_all_of_it():
    collector = Collector(lambda: Walk(), Task(cut=40), num_envs=4, batch_length=5, seed=0)
    policy = policy_for(2, 1)
    cuts = [int(collector.roll_out(policy, iteration).cut.sum()) for iteration in range(16)]
    assert cuts == [0, 1] * 8  # one cut of the four environments in every ten steps


class Wrapped(Walk):
    """A task whose rewards depend on all that it has seen, as those of gymnasium.wrappers.NormalizeReward do."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def reset(self, **more):
        self.starts = 0  # the start state is the same each time
        return super().reset(**more)

    def step(self, action):
        self.seen += 1
        observation, reward, *rest = super().step(action)
        return observation, reward / self.seen, *rest


def test_rewards_that_do_not_come_back_are_noticed():
    def make(snapshot=None):
        return Collector(Wrapped, Task(cut=7), num_envs=2, batch_length=5, seed=0, snapshot=snapshot)

    original = make()
    for iteration in range(3):
        original.roll_out(policy_for(2, 1), iteration)
    with pytest.raises(RunError, match="cannot be resumed exactly"):
        make(original.snapshot())
