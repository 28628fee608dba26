"""Critics that are fitted to how their targets change, and whose networks see observations compressed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file

import kemeny
from kemeny import UserError
from kemeny.learning.changes import Changes
from kemeny.learning.critic import refit
from kemeny.learning.estimates import estimate
from kemeny.learning.learner import Learner, init
from kemeny.learning.networks import build_critic
from kemeny.learning.quadratic import RIDGE, Quadratic
from kemeny.learning.settings import CriticFit, Networks
from kemeny.rollout import Rollout
from kemeny.runs import checkpoint
from tests.oracles import ridge_regression
from tests.tasks.test_luck import stop_after
from tests.test_state_weight import SPEC, rollout
from tests.test_training import same_numbers

RNG = np.random.default_rng(1)
X = jnp.asarray(RNG.exponential(size=(1_000, 3)) - 1, jnp.float32)
NEXT = X + jnp.asarray(0.1 * RNG.normal(size=(1_000, 3)), jnp.float32)
CHANGES = Learner(critic=CriticFit(critic_loss="changes"))


def test_the_step_after_each_is_the_next_row_of_the_same_copy():
    batch = rollout(time=20, copies=10)
    samples, _ = estimate(CHANGES, init(CHANGES, SPEC, jax.random.key(0)), batch)
    target, weight, changes = samples.goals(0)
    assert changes is not None
    rows = target.reshape(20, 10)
    np.testing.assert_allclose(changes.change.reshape(20, 10)[:-1], rows[1:] - rows[:-1], rtol=1e-6)
    np.testing.assert_array_equal(changes.next_x.reshape(20, 10, 3)[:-1], samples.x.reshape(20, 10, 3)[1:])
    goes_on = np.ones((20, 10))
    goes_on[6] = goes_on[-1] = 0  # a cut, and the end of the batch
    np.testing.assert_array_equal(changes.weight.reshape(20, 10), goes_on)
    np.testing.assert_array_equal(weight, 1)


def test_without_the_setting_there_are_none():
    samples, _ = estimate(Learner(), init(Learner(), SPEC, jax.random.key(0)), rollout())
    assert samples.goals(0)[2] is None


def test_changes_count_as_much_as_values():
    target, weight = 3 * X[:, 0] + 100, jnp.asarray(RNG.uniform(size=1_000), jnp.float32)
    balanced = Changes(NEXT, 0.01 * NEXT[:, 1], weight * (X[:, 2] > 0)).balanced(target, weight)
    middle = np.average(target, weights=weight)
    np.testing.assert_allclose(
        np.sum(balanced.weight * balanced.change**2), np.sum(weight * (target - middle) ** 2), rtol=1e-4
    )
    assert (Changes(NEXT, 0 * X[:, 0], weight).balanced(target, weight).weight == 0).all()


def test_the_quadratic_part_is_the_least_squares_of_values_and_changes():
    target = np.asarray(jnp.sin(3 * X[:, 0]) * X[:, 1])
    change = np.asarray(jnp.cos(2 * NEXT[:, 2]))
    weight, beside = RNG.uniform(size=1_000), RNG.uniform(size=1_000)
    start = Quadratic.init(SPEC)
    fitted = start.refitted(*map(jnp.float32, (X, target, weight)), Changes(NEXT, *map(jnp.float32, (change, beside))))
    here, there = np.asarray(start.features(X)), np.asarray(start.features(NEXT))
    features, goals = np.concatenate([here, there - here]), np.concatenate([target, change])
    weights, total = np.concatenate([weight, beside]), weight.sum() / (weight.sum() + beside.sum())
    # The oracle divides by the sum of all weights, and the fit by that of the values: so the ridge is a share of it.
    oracle = ridge_regression(features, goals, weights, RIDGE * total)
    np.testing.assert_allclose(fitted.weights, oracle, atol=2e-4)


def error_of_changes(loss: str) -> float:
    """After 30 batches of a value that is large and slow, with a small and quick part: how wrong the changes are."""

    def value(x):
        return 100 * x[:, 0] + jnp.sin(3 * x[:, 1])

    target, weight = value(X), jnp.ones(len(X))
    near = X + jnp.array([0.0, 0.3, 0.0])
    changes = Changes(near, value(near) - target, weight) if loss == "changes" else None
    critic = build_critic(Networks(hidden=(32,)), SPEC, jax.random.key(0))
    optimizer, fit = optax.scale_by_adam().init(critic.network), CriticFit(critic_unit="targets")
    for batch in range(30):
        critic, optimizer, _, _ = refit(
            fit, critic, optimizer, X, target, weight, jnp.array(1e-3), jax.random.key(batch), 1, changes
        )
    true = value(near) - target
    return float(jnp.sqrt(jnp.mean((critic(near) - critic(X) - true) ** 2)) / jnp.std(true))


def test_a_network_that_is_fitted_to_changes_knows_them():
    assert error_of_changes("changes") < 0.5 * error_of_changes("values")


def test_a_change_of_weight_0_is_not_learned_from():
    """What follows a cut belongs to another trajectory: whatever it is, the critic is the same."""
    critic = build_critic(Networks(hidden=(8,)), SPEC, jax.random.key(0), quadratic=True)
    start, weight = optax.scale_by_adam().init(critic.network), jnp.ones(len(X))
    goes_on = weight.at[::7].set(0.0)
    fitted = [
        refit(CriticFit(), critic, start, X, X[:, 0], weight, jnp.array(1e-3), jax.random.key(0), 1,
              Changes(NEXT, jnp.where(goes_on > 0, NEXT[:, 1], other), goes_on))[0]
        for other in (0.0, 1e6)
    ]  # fmt: skip
    np.testing.assert_array_equal(fitted[0](X), fitted[1](X))


def test_a_compressed_network_sees_the_arcsinh():
    plain, compressed = (build_critic(Networks(), SPEC, jax.random.key(0), compressed=c) for c in (False, True))
    np.testing.assert_array_equal(compressed(X), plain(jnp.arcsinh(X)))
    assert not jnp.allclose(compressed(X), plain(X), atol=1e-3)


def test_a_compressed_network_is_fitted_as_it_is_used():
    critic = build_critic(Networks(hidden=(8,)), SPEC, jax.random.key(0), compressed=True)
    same = dataclasses.replace(critic, compressed=False)
    start, far = optax.scale_by_adam().init(critic.network), 30 * X
    arguments = (X[:, 0], jnp.ones(len(X)), jnp.array(1e-3), jax.random.key(0))
    fitted, _, loss, _ = refit(CriticFit(), critic, start, far, *arguments)
    other, _, same_loss, _ = refit(CriticFit(), same, start, jnp.arcsinh(far), *arguments)
    np.testing.assert_allclose(fitted.network(jnp.arcsinh(far)), other.network(jnp.arcsinh(far)), rtol=1e-5, atol=1e-6)
    assert float(loss) == pytest.approx(float(same_loss), rel=1e-5)


def test_what_is_known_exactly_stays():
    """A round of three states without luck or choice: the changes of the targets are those of the exact values."""
    reward, state = np.array([3.0, -1.0, 4.0]), np.add.outer(np.arange(12), np.arange(6)) % 3
    value = np.array([0.0, reward.mean() - reward[0], reward[2] - reward.mean()])  # v(s') = v(s) − r + ρ
    seen = np.eye(3, dtype=np.float32)[np.concatenate([state, (state[-1:] + 1) % 3])]
    never = np.zeros(state.shape, bool)
    batch = Rollout(
        observation=seen[:-1], action=0 * state, signals=(reward[state].astype(np.float32),), next_observation=seen[1:],
        terminal=never, cut=never, start_observation=seen[0],
    )  # fmt: skip
    learner = Learner(critic=CriticFit(critic_loss="changes", critic_form="quadratic"), gae_lambda=0.9)
    begun = init(learner, SPEC, jax.random.key(0))
    (critic,) = begun.critics
    assert critic.quadratic is not None
    weights = critic.quadratic.weights.at[1:4].set(jnp.asarray(value, jnp.float32))
    nothing = jax.tree.map(jnp.zeros_like, critic.network)
    exact = dataclasses.replace(
        critic, network=nothing, quadratic=dataclasses.replace(critic.quadratic, weights=weights)
    )
    samples, _ = estimate(learner, dataclasses.replace(begun, critics=(exact,)), jax.tree.map(jnp.asarray, batch))
    _, _, changes = samples.goals(0)
    assert changes is not None
    change = (value[(state + 1) % 3] - value[state]).reshape(-1)
    np.testing.assert_allclose(np.where(changes.weight > 0, changes.change - change, 0), 0, atol=1e-5)
    assert changes.weight.sum() == 11 * 6


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"next_value": "sampled"}, "--critic-loss changes is for --next-value expected"),
        ({"num_envs": 500, "batch_size": 500}, "needs two steps of each environment in a batch"),
    ],
)
def test_where_changes_say_nothing_they_are_refused(settings, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        kemeny.train(
            "kemeny/CrissCross-v0", out=tmp_path / "run", preset="queues", critic_loss="changes", steps=500, **settings
        )
    assert not (tmp_path / "run").exists()


SETTINGS = {
    "env_kwargs": {"regime": "IL", "start": "shuffled", "largest": 40}, "preset": "queues", "steps": 2_000,
    "num_envs": 20, "batch_size": 400, "eval_every": 10**6, "eval_trajectories": 2, "eval_max_steps": 20,
    "checkpoint_every": 800, "hidden": (8,), "cut": 70, "critic_loss": "changes", "critic_input": "compressed",
    "state_weight": "relative",
}  # fmt: skip


def test_a_run_with_all_of_it_resumes_exactly_and_differs_without_changes(tmp_path):
    whole = kemeny.train("kemeny/CrissCross-v0", out=tmp_path / "whole", **SETTINGS)
    kemeny.train("kemeny/CrissCross-v0", out=tmp_path / "part", callback=stop_after(1_200), **SETTINGS)
    assert same_numbers(whole, kemeny.resume(tmp_path / "part"))
    values = kemeny.train("kemeny/CrissCross-v0", out=tmp_path / "values", **{**SETTINGS, "critic_loss": "values"})
    assert not same_numbers(whole, values)


@pytest.mark.parametrize("other", [{"critic_input": "normalized"}, {"critic_form": "network"}])
def test_a_run_that_begins_with_another_has_new_critics_if_their_form_differs(other, tmp_path):
    short = {**SETTINGS, "steps": 400}
    first = kemeny.train("kemeny/CrissCross-v0", out=tmp_path / "first", **short)
    theirs = load_file(checkpoint.latest(first.path).path / "arrays.safetensors")
    for name, settings, same in (("alike", short, True), ("other", {**short, **other}, False)):
        run = kemeny.train("kemeny/CrissCross-v0", out=tmp_path / name, init_from=first.path, **{**settings, "seed": 5})
        ours = load_file(run.path / "checkpoints" / "init-000000000000" / "arrays.safetensors")
        assert np.array_equal(ours["critics/0/network/weights/0"], theirs["critics/0/network/weights/0"]) == same
        assert np.array_equal(ours["policy/network/weights/0"], theirs["policy/network/weights/0"])
