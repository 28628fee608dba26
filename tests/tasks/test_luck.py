"""What luck adds to a step is subtracted: no expectation changes, and noise goes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kemeny
from kemeny import tasks
from kemeny.criterion import Average, Bellman
from kemeny.envs.names import as_environment
from kemeny.envs.pool import make_pool
from kemeny.errors import UserError
from kemeny.experience.collect import make_outlook, with_outcomes
from kemeny.learning import luck
from kemeny.learning.critic import in_unit_of
from kemeny.learning.estimates import estimate
from kemeny.learning.learner import Learner, init
from kemeny.learning.networks import build_critic
from kemeny.learning.settings import Networks
from kemeny.rollout import Outcomes, Rollout
from kemeny.spaces import Discrete
from kemeny.spec import Spec, vector
from tests.test_training import same_numbers

ENV, KWARGS = "kemeny/CrissCross-v0", {"regime": "IL"}
SMALL = {
    "env_kwargs": KWARGS, "steps": 2_000, "num_envs": 20, "batch_size": 400, "cut": 10**6, "eval_every": 10**6,
    "eval_trajectories": 2, "eval_max_steps": 20, "checkpoint_every": 800, "hidden": (8,), "critic_epochs": 10,
    "critic_step_size": 1e-2, "critic_unit": "targets", "critic_l2": 0.0, "critic_minibatch": 50,
}  # fmt: skip
CHAIN = np.array([[[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]], [[0.3, 0.3, 0.4], [0.0, 1.0, 0.0]], [[0.9, 0.0, 0.1]] * 2])
PAYS = np.array([[0.0, 1.0], [2.0, -1.0], [5.0, 4.0]])
POLICY = np.array([[0.3, 0.7], [0.5, 0.5], [0.9, 0.1]])


def exact(discount):
    """ρ, v and A of the policy on the chain of three states, by linear algebra."""
    P, r = np.einsum("sa,sat->st", POLICY, CHAIN), (POLICY * PAYS).sum(1)
    if discount < 1:
        value, rho = np.linalg.solve(np.eye(3) - discount * P, r), 0.0
    else:
        stationary = np.linalg.lstsq(np.vstack([P.T - np.eye(3), np.ones(3)]), [0, 0, 0, 1], rcond=None)[0]
        rho = stationary @ r
        value = np.linalg.solve(np.eye(3) - P + np.outer(np.ones(3), stationary), r - rho)
    return rho, value, PAYS - rho + discount * CHAIN @ value - value[:, None]


def walk(steps=400, copies=50, seed=0):
    """States, actions, next states of the chain, with a reward that has luck of its own."""
    rng = np.random.default_rng(seed)
    states, actions = np.zeros((steps + 1, copies), int), np.zeros((steps, copies), int)
    for t in range(steps):
        actions[t] = rng.random(copies) > POLICY[states[t], 0]
        ladder = CHAIN[states[t], actions[t]].cumsum(1)
        states[t + 1] = (rng.random((copies, 1)) > ladder[:, :-1]).sum(1)
    paid = PAYS[states[:-1], actions] + rng.choice([-3.0, 3.0], actions.shape)
    return states[:-1], actions, paid, states[1:]


def advantages(discount, lam, beta, error, seed=0):
    """Estimates on the chain with a critic that is wrong by `error`, and the exact ones."""
    rho, value, truth = exact(discount)
    states, actions, paid, after = walk(seed=seed)
    critic, trace = value + error, np.ones(paid.shape)
    means = PAYS[states, actions], (CHAIN @ critic)[states, actions]
    bellman = Bellman(jnp.array(rho), jnp.array(discount))
    arrays = [jnp.array(x) for x in (paid, means[0], critic[states], critic[after], means[1], trace)]
    share = luck.share_to_remove(bellman, *arrays, lam) if beta is None else beta
    paid, came = paid - share * (paid - means[0]), critic[after] - share * (critic[after] - means[1])
    found = luck.gae(bellman, jnp.array(paid), arrays[2], jnp.array(came), arrays[5], lam)
    return np.asarray(found), truth[states, actions], float(share), (states, actions)


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_an_exact_critic_leaves_no_noise_at_all_after_one_step(discount):
    found, truth, share, _ = advantages(discount, lam=0.0, beta=None, error=0.0)
    assert share == pytest.approx(1.0, abs=0.02)
    one, _, _, _ = advantages(discount, lam=0.0, beta=1.0, error=0.0)
    np.testing.assert_allclose(one, truth, atol=1e-4)
    assert np.abs(found - truth).mean() < 0.1


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_no_expectation_changes_whatever_the_critic_is(discount):
    """Means by state and action, with the luck removed and without: equal within their standard errors."""
    error = np.array([4.0, -3.0, 1.0])
    plain, _, _, (states, actions) = advantages(discount, 0.5, 0.0, error)
    without, _, _, _ = advantages(discount, 0.5, 1.0, error)
    for s in range(3):
        for a in range(2):
            here = (states == s) & (actions == a)
            difference = (plain - without)[here]
            assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(difference.size / 3)


@pytest.mark.parametrize("error", [np.zeros(3), np.array([1.0, -1.0, 0.5]), np.array([-60.0, 50.0, 9.0])])
def test_the_share_is_the_one_that_leaves_the_least_variance(error):
    """Against a search over a grid; a poor critic gets a share below 1, at which it would add noise."""
    _, _, share, _ = advantages(1.0, 0.9, None, error)
    grid = np.linspace(0, 1, 101)
    variances = [advantages(1.0, 0.9, beta, error)[0].var() for beta in grid]
    assert share == pytest.approx(grid[np.argmin(variances)], abs=0.011)


def test_the_noise_of_a_queue_goes():
    """Criss-cross, IL, with its exact critic: at least nine tenths of the variance of the advantages."""
    process = tasks.criss_cross("IL")
    model = process.model(truncation=14)
    value = model.evaluate(model.uniform_policy, Average()).value.reshape(model.grid)
    envs = tasks.ProcessVectorEnv(process, 200)
    envs.reset(seed=0)
    rng, rows = np.random.default_rng(0), []
    for _ in range(200):
        states, allowed = envs.states, process.allowed(envs.states)
        actions = np.where(allowed.all(1), rng.random(200) < 0.5, allowed[:, 1]).astype(int)
        _, reward, *_ = envs.step(actions)
        found = envs.outcomes(states, actions)
        seen = value[tuple(np.moveaxis(found["observation"].astype(int), 2, 0))]
        rows.append((reward, found["reward"], value[tuple(states.T)], value[tuple(envs.states.T)],
                     (found["probability"] * seen).sum(1)))  # fmt: skip
    columns = [jnp.array(column) for column in map(np.stack, zip(*rows, strict=True))]
    bellman, trace = Bellman(jnp.array(reward.mean()), jnp.ones(())), jnp.ones(columns[0].shape)
    share = luck.share_to_remove(bellman, *columns, trace, 0.99)
    paid, mean_paid, here, came, mean_came = columns
    plain = luck.gae(bellman, paid, here, came, trace, 0.99)
    left = luck.gae(bellman, paid - share * (paid - mean_paid), here, came - share * (came - mean_came), trace, 0.99)
    assert left.var() < 0.1 * plain.var()


def test_what_was_certain_has_no_luck():
    """With outcomes that are what came, the estimates are the same bit for bit."""
    learner = Learner(networks=Networks(hidden=(8,)))
    batch = collected()
    certain = Outcomes(batch.next_observation[None], np.ones((1, *batch.cut.shape), np.float32), batch.signals[0])
    state = init(learner, SPEC, jax.random.key(0))
    plain, _ = estimate(learner, state, jax.tree.map(jnp.asarray, batch._replace(outcomes=None)))
    same, (told,) = estimate(learner, state, jax.tree.map(jnp.asarray, batch._replace(outcomes=certain)))
    assert float(told.luck_removed) == 0.0
    np.testing.assert_array_equal(plain.advantage[0], same.advantage[0])
    np.testing.assert_array_equal(plain.target[0], same.target[0])


SPEC = Spec(vector(5), Discrete(2), None, mask=2)
"""Three queues, and a mask of two options."""


def collected():
    """A batch of the criss-cross network, with its outcomes."""
    env = as_environment(ENV, KWARGS)
    pool, rng = make_pool(env, 30, seed=0), np.random.default_rng(0)
    rows = [pool.reset(np.arange(30))]
    actions, rewards = [], []
    for _ in range(40):
        mask = rows[-1][:, 3:]
        actions.append(np.where(mask.all(1), rng.random(30) < 0.5, mask[:, 1] > 0).astype(np.int32))
        pool.send(actions[-1])
        step = pool.recv()
        rewards.append(step.reward.astype(np.float32))
        rows.append(step.observation)
    pool.close()
    observation = np.stack(rows)
    never = np.zeros((40, 30), bool)
    batch = Rollout(
        observation[:-1], np.stack(actions), (np.stack(rewards),), observation[1:], never, never, observation[0]
    )
    outlook = make_outlook(env)
    batch = with_outcomes(outlook, batch)
    outlook.close()
    return batch


def test_outcomes_are_those_of_the_model():
    """Every row of a batch against the model's row of that state and action, and its mask."""
    process = tasks.criss_cross("IL")
    model, batch = process.model(truncation=12), collected()
    observation, action = batch.observation.reshape(-1, 5), batch.action.reshape(-1)
    seen = batch.outcomes.observation.reshape(-1, len(action), 5)
    likely = batch.outcomes.probability.reshape(-1, len(action))
    assert observation[:, :3].max() < 12
    number = np.ravel_multi_index(np.moveaxis(seen[..., :3].astype(int), 2, 0), model.grid)
    for row in range(0, len(action), 7):
        state = np.ravel_multi_index(observation[row, :3].astype(int), model.grid)
        expected = model.by_action[action[row]][[state]].toarray()[0]
        found = np.zeros(model.n_states)
        np.add.at(found, number[:, row], likely[:, row])
        np.testing.assert_allclose(found, expected, atol=1e-6)
    masks = process.allowed(seen[..., :3].reshape(-1, 3)).reshape(*number.shape, 2)
    np.testing.assert_array_equal(seen[..., 3:], masks)


def test_a_run_with_expected_values_is_another_and_resumes_exactly(tmp_path):
    plain = kemeny.train(ENV, out=tmp_path / "plain", **SMALL)
    whole = kemeny.train(ENV, out=tmp_path / "whole", next_value="expected", **SMALL)
    assert not same_numbers(plain, whole)
    assert whole.metrics[-1]["luck_removed"] > 0.3  # the critic has learned enough
    assert not same_numbers_of("kl", plain, whole)
    assert not any("luck_removed" in record for record in plain.metrics)
    kemeny.train(ENV, out=tmp_path / "part", next_value="expected", callback=stop_after(1_200), **SMALL)
    assert same_numbers(whole, kemeny.resume(tmp_path / "part"))


def same_numbers_of(field, *runs):
    """Whether all records of the runs have the same numbers there."""
    first, second = ([record[field] for record in run.metrics] for run in runs)
    return first == second


def stop_after(steps):
    """A callback that stops a run."""
    return lambda record: record["steps"] >= steps


class Ending(kemeny.tasks.ProcessVectorEnv):
    """A network whose copies end when nobody is there."""

    def __init__(self, num_envs):
        super().__init__(kemeny.tasks.criss_cross("IL"), num_envs)

    def step(self, actions):
        observation, reward, _, truncated, info = super().step(actions)
        return observation, reward, observation.sum(axis=1) == 0, truncated, info


@pytest.mark.parametrize("episodic", [False, True])
def test_an_end_that_the_outcomes_do_not_know_of_is_refused(episodic, tmp_path):
    with pytest.raises(UserError, match="environments in which nothing ends"):
        kemeny.train(
            Ending, out=tmp_path / "run", preset="queues", algorithm="trpo", steps=5_000, batch_size=5_000,
            episodic=episodic,
        )  # fmt: skip


def test_an_environment_that_does_not_know_what_may_come_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(UserError, match=r"CartPole-v1 does not know what may come .* outcomes\(observations"):
        kemeny.train("CartPole-v1", next_value="expected", steps=100, out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_another_unit_is_the_same_function(size):
    critic = build_critic(Networks(hidden=(8,)), Spec(vector(3), Discrete(2), None), jax.random.key(0))
    critic = dataclasses.replace(critic, unit=jnp.array(3.0), mean=jnp.array(5.0))
    x = jnp.array(np.random.default_rng(0).normal(size=(50, 3)), jnp.float32)
    other = in_unit_of(critic, size * jnp.arange(50.0))
    assert float(other.unit) == pytest.approx(size * np.arange(50).std(), rel=1e-5)
    np.testing.assert_allclose(other(x), critic(x), rtol=1e-4, atol=1e-4)


def test_targets_that_are_all_alike_leave_the_unit():
    critic = build_critic(Networks(hidden=(8,)), Spec(vector(3), Discrete(2), None), jax.random.key(0))
    assert float(in_unit_of(critic, jnp.full(10, 7.0)).unit) == float(critic.unit)


def test_the_discounted_criterion_has_it_too(tmp_path):
    run = kemeny.train(ENV, out=tmp_path / "run", algorithm="trpo", gamma=0.9, next_value="expected", **SMALL)
    assert run.metrics[-1]["luck_removed"] > 0.3
