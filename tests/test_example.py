"""The one-file tutorial and the library compute the same numbers, by different routes.

The tutorial has its own networks, Adam, normaliser (a sum of squares in NumPy), advantage loop (Python), Fisher
product (jvp of the gradient of the KL, where the library has the Gauss–Newton form) and line search (Python).
"""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from kemeny.criterion import Average
from kemeny.learning.estimates import estimate
from kemeny.learning.first_batch import prepare
from kemeny.learning.learner import Learner, init
from kemeny.learning.networks import CRITIC_HEAD_GAIN, HIDDEN_GAIN, POLICY_HEAD_GAIN, Perceptron
from kemeny.learning.settings import CriticFit, Networks, TrustRegion
from kemeny.learning.steps.natural import Natural
from kemeny.learning.steps.protocol import Outcome
from kemeny.learning.update import update
from kemeny.rollout import Rollout
from kemeny.spec import Continuous, Spec, vector

TIME, ENVS, OBSERVATION, ACTION = 40, 6, 5, 3
UPDATES = 4


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[1] / "examples" / "atrpo_in_one_file.py"
    spec = importlib.util.spec_from_file_location("atrpo_in_one_file", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def config(example):
    return example.Config(
        steps=UPDATES * TIME * ENVS,
        batch_size=TIME * ENVS,
        num_envs=ENVS,
        hidden=(16, 8),
        critic_epochs=3,
        critic_minibatch=50,  # does not divide the batch: both leave out what is left over
        critic_step_size=3e-3,
        clip=2.0,  # low enough to matter
        cg_iterations=5,  # each iteration multiplies rounding errors: after 10 the two would agree to 1e-3 only
    )


def library_of(config) -> Learner:
    return Learner(
        criterion=Average(),
        iterations=config.iterations,
        gae_lambda=config.lam,
        networks=Networks(hidden=config.hidden, log_std=config.log_std, observation_clip=config.clip),
        step=Natural(
            TrustRegion(config.delta, config.damping, config.cg_iterations, config.backtrack, config.backtrack_tries)
        ),
        critic=CriticFit(config.critic_step_size, config.critic_l2, config.critic_epochs, config.critic_minibatch),
    )


def library_state(learner):
    bound = np.ones(ACTION, np.float32)
    return init(learner, Spec(vector(OBSERVATION), Continuous(-bound, bound), None), jax.random.key(3))


def layers(network):
    return list(zip(network.weights, network.biases, strict=True))


def example_state(example, config, state):
    """The library's first state in the tutorial's terms."""
    fresh = example.make_state(config, OBSERVATION, ACTION)
    policy = {"mean": layers(state.policy.network), "log_std": state.policy.log_std}
    return fresh._replace(policy=policy, critic=layers(state.critics[0].network), key=state.key)


def random_rollout(rng, state) -> Rollout:
    """Random data of uneven scale, with falls (large negative rewards) and cuts, actions near the policy's."""
    shape = (TIME, ENVS)
    scale = np.array([1, 10, 0.1, 3, 1e-4], np.float32)  # the last hardly varies: its deviation is floored
    observation = (rng.normal(size=(*shape, OBSERVATION)) * scale + 2 * scale).astype(np.float32)
    next_observation = np.roll(observation, -1, 0)
    cut = rng.random(shape) < 0.05
    cut[0, 0] = cut[-1, 1] = True
    next_observation[cut] = (rng.normal(size=(cut.sum(), OBSERVATION)) * scale).astype(np.float32)
    fell = rng.random(shape) < 0.03
    reward = np.sin(observation[..., 0]) + 0.3 * rng.normal(size=shape) - 10.0 * fell
    mean = np.asarray(state.policy(state.normalizer(jnp.asarray(observation))).mean)
    noise = rng.normal(size=(*shape, ACTION))
    reward = reward + noise[..., 0]  # so that there is something to learn
    action = (mean + np.exp(np.asarray(state.policy.log_std)) * noise).astype(np.float32)
    return Rollout(
        observation=observation,
        action=action,
        signals=(reward.astype(np.float32),),
        next_observation=next_observation,
        terminal=np.zeros(shape, bool),
        cut=cut,
        start_observation=observation[0],
    )


def example_rollout(example, rollout):
    return example.Rollout(
        rollout.observation, rollout.action, rollout.signals[0], rollout.next_observation, rollout.cut
    )


@pytest.fixture(scope="module")
def side_by_side(example, config):
    """(library's state before, its rollout, state after and metrics; the tutorial's state after and info), in order."""
    learner, rng = library_of(config), np.random.default_rng(1)
    theirs = library_state(learner)
    ours = example_state(example, config, theirs)
    history = []
    for _ in range(UPDATES):
        rollout = random_rollout(rng, theirs)
        before = theirs
        theirs, metrics = update(learner, theirs, rollout)
        ours, info = example.update(config, ours, example_rollout(example, rollout))
        history.append((before, rollout, theirs, metrics, ours, info))
    return history


def flat(tree) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0])


def relative_error(ours, theirs, origin=0.0) -> float:
    """‖ours − theirs‖ over how far `theirs` is from `origin`."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs - origin))


def test_the_rollouts_exercise_what_they_should(side_by_side):
    """Falls, cuts and clipping occur, every policy step is taken, and some are shortened."""
    for before, rollout, _, metrics, _, _ in side_by_side:
        assert rollout.cut.any()
        assert (rollout.signals[0] < -5).any()
        assert metrics.step.outcome == Outcome.ACCEPTED
        assert (np.abs(before.normalizer(jnp.asarray(rollout.observation))) == 2.0).any()
    assert len({int(metrics.step.details.tries) for *_, metrics, _, _ in side_by_side}) > 1


def test_same_initial_networks(example):
    for gain, sizes in ((POLICY_HEAD_GAIN, (5, 16, 8, 3)), (CRITIC_HEAD_GAIN, (3, 16, 16, 1))):
        key = jax.random.key(7)
        inputs, *hidden, outputs = sizes
        theirs = Perceptron.init(Networks(hidden=tuple(hidden)), key, inputs, outputs, gain)
        for (weight, bias), w, b in zip(
            example.make_network(key, sizes, gain), theirs.weights, theirs.biases, strict=True
        ):
            np.testing.assert_allclose(weight, w, rtol=0, atol=1e-6 * HIDDEN_GAIN)
            np.testing.assert_array_equal(bias, b)


def test_same_rate_advantages_and_targets(side_by_side, config):
    compiled = jax.jit(lambda learner, state, rollout: estimate(learner, prepare(learner, state, rollout), rollout))
    for before, rollout, _, metrics, _, info in side_by_side:
        theirs, _ = compiled(library_of(config), before, rollout)
        np.testing.assert_allclose(info["rho"], metrics.rate, rtol=1e-5)
        np.testing.assert_allclose(info["advantage"].ravel(), theirs.advantage[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(info["target"].ravel(), theirs.target[0], rtol=1e-4, atol=1e-4)


def test_same_policy_step(side_by_side):
    for before, _, theirs, metrics, ours, info in side_by_side:
        origin = flat((layers(before.policy.network), before.policy.log_std))
        after = flat((layers(theirs.policy.network), theirs.policy.log_std))
        mine = flat((ours.policy["mean"], ours.policy["log_std"]))
        assert relative_error(mine, after, origin) < 1e-4
        assert info["tries"] == metrics.step.details.tries
        np.testing.assert_allclose(info["kl"], metrics.step.kl, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(info["gain"] * metrics.advantage_std, metrics.step.improvement, rtol=1e-4)


def test_same_critic_and_optimiser(side_by_side):
    for before, _, theirs, _, ours, _ in side_by_side:
        origin, after = flat(layers(before.critics[0].network)), flat(layers(theirs.critics[0].network))
        assert relative_error(flat(ours.critic), after, origin) < 1e-4
        adam = theirs.optimizers[0]
        assert int(ours.adam.steps) == int(adam.count)
        assert relative_error(flat(ours.adam.mean), flat(layers(adam.mu))) < 1e-4
        assert relative_error(flat(ours.adam.square), flat(layers(adam.nu))) < 1e-4


def test_same_normaliser(side_by_side, example, config):
    for _, rollout, theirs, _, ours, _ in side_by_side:
        np.testing.assert_allclose(ours.normalizer.mean, theirs.normalizer.mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(
            ours.normalizer.squares / ours.normalizer.seen, theirs.normalizer.variance, rtol=1e-4, atol=1e-9
        )
        np.testing.assert_allclose(
            example.normalize(config, ours.normalizer, rollout.observation),
            theirs.normalizer(jnp.asarray(rollout.observation)),
            rtol=1e-4,
            atol=1e-4,
        )
        assert ours.normalizer.seen == theirs.normalizer.count


def test_neither_takes_a_step_that_fails(example, config):
    """With no length allowed to be short enough, both keep the old policy bit for bit, and still refit the critic."""
    config = dataclasses.replace(config, backtrack=1.0, backtrack_tries=2, delta=10.0)
    learner = library_of(config)
    before = library_state(learner)
    rollout = random_rollout(np.random.default_rng(1), before)
    after, metrics = update(learner, before, rollout)
    ours, info = example.update(config, example_state(example, config, before), example_rollout(example, rollout))
    assert metrics.step.outcome == Outcome.LINE_SEARCH
    np.testing.assert_array_equal(flat(after.policy), flat(before.policy))
    np.testing.assert_array_equal(flat(ours.policy["mean"]), flat(layers(before.policy.network)))
    assert info["tries"] == metrics.step.details.tries == 2
    assert relative_error(flat(ours.critic), flat(layers(after.critics[0].network))) < 1e-4


def test_it_runs(example, capsys):
    """End to end on a pendulum that falls, is cut, and is evaluated."""
    config = example.Config(
        env="InvertedPendulum-v5", steps=200, batch_size=100, num_envs=4, cut=30, critic_epochs=1, reset_cost=5.0
    )
    state = example.main(config)
    lines = capsys.readouterr().out.splitlines()
    assert state.iteration == 2
    assert len(lines) == 3
    assert lines[-1].startswith("return of the mean action")


def test_continuing_task(example):
    """A fall costs and leads to a start state; a cut hides the true next state but does not replace it."""
    config = example.Config(env="InvertedPendulum-v5", steps=1, batch_size=240, num_envs=4, cut=37, reset_cost=5.0)
    actors = example.Actors(config)
    assert actors.clock.tolist() == [0, 60 % 37, 120 % 37, 180 % 37]
    state = example.make_state(config, 4, 1)
    rollout = example.collect(config, state, actors)
    fell = rollout.reward < 0
    assert fell.any()
    assert set(rollout.reward[fell]) == {-5.0}  # InvertedPendulum-v5 gives 0 for the step that falls
    starts = 0.0101  # start states are within ±0.01 of 0
    assert (np.abs(rollout.next_observation[fell]) <= starts).all()
    rows, columns = np.nonzero(~rollout.cut[:-1])
    np.testing.assert_array_equal(rollout.next_observation[rows, columns], rollout.observation[rows + 1, columns])
    rows, columns = np.nonzero(rollout.cut[:-1])
    assert rows.size
    assert (np.abs(rollout.observation[rows + 1, columns]) <= starts).all()
    hidden = rollout.cut[:-1] & ~fell[:-1]
    assert (np.abs(rollout.next_observation[:-1][hidden]) > starts).any()
    for j, phase in enumerate([0, 60 % 37, 120 % 37, 180 % 37]):
        assert np.flatnonzero(rollout.cut[:, j])[0] == 37 - phase - 1
