"""Critics whose quadratic part is fitted to Bellman's equation as well as to targets."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file

import kemeny
from kemeny import UserError
from kemeny.criterion import Average, Discounted
from kemeny.learning.critic import refit
from kemeny.learning.equations import PART, Equations, counted
from kemeny.learning.estimates import estimate
from kemeny.learning.learner import Learner, init
from kemeny.learning.quadratic import RIDGE, Quadratic
from kemeny.learning.settings import CriticFit
from kemeny.rollout import Outcomes, Rollout
from kemeny.runs import checkpoint
from tests.tasks.test_luck import stop_after
from tests.test_state_weight import SPEC, rollout
from tests.test_training import same_numbers

RNG = np.random.default_rng(1)
X = jnp.asarray(RNG.exponential(size=(1_000, 3)) - 1, jnp.float32)
BELLMAN = CriticFit(critic_form="quadratic", quadratic_fit="bellman")


def normalize(observation):
    return (observation - 2) / 3


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_rises_against_the_features_of_all_that_may_come(discount):
    start = Quadratic.init(SPEC)
    observation = jnp.asarray(RNG.integers(0, 50, (20, 10, 3)), jnp.float32)
    after = observation + jnp.asarray(RNG.integers(-1, 2, (4, 20, 10, 3)), jnp.float32)
    likely = RNG.dirichlet(np.ones(4), (20, 10)).astype(np.float32)
    outcomes = Outcomes(after, jnp.moveaxis(jnp.asarray(likely), 2, 0), observation[..., 0])
    found = start.rises(normalize(observation).reshape(-1, 3), normalize, outcomes, discount)

    def features(rows):
        rows, (i, j) = (np.asarray(rows, np.float64) - 2) / 3, np.triu_indices(3)
        return np.concatenate([np.ones_like(rows[..., :1]), rows, rows[..., i] * rows[..., j]], -1)

    mean = np.einsum("tce,etcf->tcf", likely.astype(np.float64), features(after))
    expected = (discount * mean - features(observation)).reshape(found.shape)
    np.testing.assert_allclose(found, expected, atol=2e-4)
    np.testing.assert_allclose(found[:, 0], discount - 1, rtol=1e-6)


@pytest.mark.parametrize("constant", [0.0, -0.1])
def test_the_fit_is_the_least_squares_of_targets_and_equations(constant):
    """Of all functions whose mean is that of the targets; the residuals are written down one by one."""
    target, goal = np.asarray(5 + jnp.sin(3 * X[:, 0]) * X[:, 1]), np.asarray(jnp.cos(2 * X[:, 2]))
    weight, beside, rise = RNG.uniform(size=1_000), RNG.uniform(size=1_000), 0.2 * RNG.normal(size=(1_000, 10))
    rise[:, 0] = constant
    equations = Equations(*map(jnp.float32, (rise, goal, beside)))
    x = X + 1  # features whose means are not 0
    fitted = Quadratic.init(SPEC).refitted(*map(jnp.float32, (x, target, weight)), equations)
    features, total = np.asarray(fitted.features(x), np.float64), weight.sum()

    def residuals(slopes):
        first = np.average(target - features[:, 1:] @ slopes, weights=weight)
        weights = np.append(first, slopes)
        of_targets, of_equations = features @ weights - target, rise @ weights - goal
        parts = [np.sqrt(weight / total) * of_targets, np.sqrt(beside / total) * of_equations, np.sqrt(RIDGE) * slopes]
        return np.concatenate(parts)

    at_0 = residuals(np.zeros(9))
    slopes = np.linalg.lstsq(np.stack([residuals(e) - at_0 for e in np.eye(9)], 1), -at_0, rcond=None)[0]
    np.testing.assert_allclose(fitted.weights[1:], slopes, atol=3e-4)
    np.testing.assert_allclose(fitted(x) @ (weight / total), np.average(target, weights=weight), atol=1e-4)


def test_rounding_does_not_reach_what_actions_change():
    """Values of a million, and equations that count a million times as much as targets but say nothing of most
    directions."""
    x = jnp.asarray(RNG.normal(size=(5_000, 3)), jnp.float32)
    weights = np.array([0.0, 1.0, -2.0, 3.0, 1.0, 0.5, -1.0, 2.0, 0.3, 1.5])
    start = Quadratic.init(SPEC)
    rise = (0.1 * RNG.normal(size=(5_000, 2)) @ RNG.normal(size=(2, 10))).astype(np.float32)
    rise[:, 0] = 0.0
    goal = jnp.asarray(rise.astype(np.float64) @ weights, jnp.float32)
    target = 1e6 + jnp.asarray(np.asarray(start.features(x), np.float64) @ weights, jnp.float32)
    fitted = start.refitted(x, target, jnp.ones(5_000), Equations(jnp.asarray(rise), goal, jnp.full(5_000, 1e6)))
    assert jnp.std(rise @ fitted.weights - goal) < 0.01 * jnp.std(goal)
    assert np.std(np.asarray(fitted.features(x)) @ (np.asarray(fitted.weights) - weights)) < 0.05 * np.std(target)


def test_together_they_count_a_part_of_what_targets_do():
    target, goal, share = jnp.asarray(RNG.normal(size=(3, 500)) ** [[1], [1], [2]], jnp.float32)
    weight = share * counted(1e3 * target + 7, goal - 5, share)
    of_goals, of_targets = (np.cov(values, aweights=share, ddof=0) for values in (goal, 1e3 * target))
    np.testing.assert_allclose(weight.sum() * of_goals, PART * of_targets * share.sum(), rtol=1e-3)


@pytest.mark.parametrize("same", [0.0, 0.001, 123.456])
def test_equal_goals_count_nothing(same):
    target, share = jnp.asarray(RNG.normal(size=(2, 25_000)) ** [[1], [2]], jnp.float32)
    assert (counted(target, jnp.full(25_000, same), share) == 0).all()


MATRIX = np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.0, 0.9, 0.1]])
REWARD = np.array([3.0, -1.0, 4.0])


def ring(costs=()):
    """A chain of three states without choice, each as an observation with a single 1: a batch that knows what may come.

    What was paid differs from its mean by chance. `costs` are the cost of each state.
    """
    state = RNG.integers(3, size=(40, 50))
    after = np.array([[RNG.choice(3, p=MATRIX[s]) for s in row] for row in state])
    seen, never = np.eye(3, dtype=np.float32), np.zeros(state.shape, bool)
    outcomes = Outcomes(
        np.broadcast_to(seen[:, None, None], (3, *state.shape, 3)),
        np.moveaxis(MATRIX[state], 2, 0).astype(np.float32),
        REWARD[state].astype(np.float32),
    )
    paid = REWARD[state] + RNG.normal(size=state.shape)
    signals = tuple(signal.astype(np.float32) for signal in (paid, *(np.array(cost)[state] for cost in costs)))
    batch = Rollout(
        observation=seen[state], action=0 * state, signals=signals,
        next_observation=seen[after], terminal=never, cut=~never, start_observation=seen[state[0]], outcomes=outcomes,
    )  # fmt: skip
    return jax.tree.map(jnp.asarray, batch), state.reshape(-1)


@pytest.mark.parametrize("criterion", [Average(), Discounted(0.9)], ids=["average", "discounted"])
def test_the_exact_value_fulfils_the_equations_and_is_kept(criterion):
    batch, state = ring()
    stationary = np.linalg.lstsq(
        np.vstack([MATRIX.T - np.eye(3), np.ones(3)]), np.array([0, 0, 0, 1.0]), rcond=None
    )[0]  # fmt: skip
    rate = stationary @ REWARD
    if isinstance(criterion, Discounted):
        value = np.linalg.solve(np.eye(3) - criterion.gamma * MATRIX, REWARD)
    else:
        value = np.linalg.lstsq(
            np.vstack([np.eye(3) - MATRIX, stationary]), np.append(REWARD - rate, 0.0), rcond=None
        )[0]  # fmt: skip
        criterion = Average(rate_by="td")  # the states of the batch are not drawn from the stationary distribution
    learner = Learner(critic=BELLMAN, criterion=criterion, gae_lambda=0.9)
    begun = init(learner, SPEC, jax.random.key(0))
    (critic,) = begun.critics
    assert critic.quadratic is not None
    weights = critic.quadratic.weights.at[1:4].set(jnp.asarray(value, jnp.float32))
    exact = dataclasses.replace(
        critic,
        network=jax.tree.map(jnp.zeros_like, critic.network),
        quadratic=dataclasses.replace(critic.quadratic, weights=weights),
    )
    known = dataclasses.replace(begun, critics=(exact,))
    samples, _ = estimate(learner, known, batch)
    target, weight, equations = samples.goals(0)
    assert equations is not None
    np.testing.assert_allclose(equations.rise @ weights, equations.goal, atol=1e-4)
    noisy = target + jnp.asarray(20 * RNG.normal(size=target.shape), jnp.float32)
    fitted = Quadratic.init(SPEC).refitted(samples.x, noisy, weight, equations._replace(weight=100 * weight))
    found = np.asarray(fitted(samples.x)) - value[state]
    assert found.std() < 0.05
    without = Quadratic.init(SPEC).refitted(samples.x, noisy, weight)
    assert (np.asarray(without(samples.x)) - value[state]).std() > 4 * found.std()


def test_equations_are_weighted_as_their_samples_are():
    batch, _ = ring()
    learner = Learner(critic=BELLMAN, state_weight="relative")
    samples, _ = estimate(learner, init(learner, SPEC, jax.random.key(0)), batch)
    _, weight, equations = samples.goals(0)
    assert equations is not None
    assert jnp.ptp(weight) > 0
    (target,) = samples.target
    np.testing.assert_allclose(equations.weight, weight * counted(target, equations.goal, weight), rtol=1e-5)


def test_each_critic_has_the_equations_of_its_own_signal():
    cost = np.array([0.5, 0.0, 2.0])
    batch, state = ring([cost])
    learner = Learner(critic=BELLMAN, criterion=Discounted(0.9), limits=(1.0,))
    samples, _ = estimate(learner, init(learner, SPEC, jax.random.key(0)), batch)
    for signal, mean in enumerate((REWARD, cost)):
        _, _, equations = samples.goals(signal)
        assert equations is not None
        np.testing.assert_allclose(equations.goal, -mean[state], rtol=1e-6)


def test_without_the_setting_there_are_none():
    samples, _ = estimate(Learner(), init(Learner(), SPEC, jax.random.key(0)), rollout())
    assert samples.goals(0)[2] is None


def test_the_constant_of_a_critic_changes_nothing_under_a_discount():
    """v = c + q: the equations are about v, and q is fitted."""
    batch, state = ring()
    learner = Learner(critic=BELLMAN, criterion=Discounted(0.9))
    begun = init(learner, SPEC, jax.random.key(0))
    value = np.linalg.solve(np.eye(3) - 0.9 * MATRIX, REWARD)
    samples, _ = estimate(learner, begun, batch)
    _, weight, equations = samples.goals(0)
    assert equations is not None
    target = jnp.asarray(value[state], jnp.float32)
    critic = dataclasses.replace(begun.critics[0], mean=jnp.array(7.0))
    critic = dataclasses.replace(critic, network=jax.tree.map(jnp.zeros_like, critic.network))
    fit = dataclasses.replace(BELLMAN, critic_step_size=0.0)
    optimizer = optax.scale_by_adam().init(critic.network)
    equations = equations._replace(weight=100 * weight)
    fitted, *_ = refit(
        fit, critic, optimizer, samples.x, target, weight, jnp.array(0.0), jax.random.key(0), 1, equations
    )
    np.testing.assert_allclose(fitted(samples.x), target, atol=0.05)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"next_value": "sampled"}, "--quadratic-fit bellman is for --next-value expected"),
        ({"critic_form": "network"}, "--quadratic-fit bellman is for --critic-form quadratic"),
    ],
)
def test_where_it_cannot_be_it_is_refused(settings, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        kemeny.train("kemeny/CrissCross-v0", out=tmp_path / "run", preset="queues", steps=500, **settings)
    assert not (tmp_path / "run").exists()


SETTINGS = {
    "env_kwargs": {"regime": "IL", "start": "shuffled", "largest": 40}, "preset": "queues", "steps": 2_000,
    "num_envs": 20, "batch_size": 400, "eval_every": 10**6, "eval_trajectories": 2, "eval_max_steps": 20,
    "checkpoint_every": 800, "hidden": (8,), "cut": 70,
}  # fmt: skip


def test_a_run_resumes_exactly_and_differs_without_equations(tmp_path):
    whole = kemeny.train("kemeny/CrissCross-v0", out=tmp_path / "whole", **SETTINGS)
    kemeny.train("kemeny/CrissCross-v0", out=tmp_path / "part", callback=stop_after(1_200), **SETTINGS)
    assert same_numbers(whole, kemeny.resume(tmp_path / "part"))
    targets = kemeny.train("kemeny/CrissCross-v0", out=tmp_path / "targets", quadratic_fit="targets", **SETTINGS)
    assert not same_numbers(whole, targets)


def test_a_run_that_begins_with_another_has_new_critics_if_their_form_differs(tmp_path):
    short = {**SETTINGS, "steps": 400}
    other = {**short, "critic_form": "network", "quadratic_fit": "targets"}
    first = kemeny.train("kemeny/CrissCross-v0", out=tmp_path / "first", **short)
    theirs = load_file(checkpoint.latest(first.path).path / "arrays.safetensors")
    for name, settings, same in (("alike", short, True), ("other", other, False)):
        run = kemeny.train("kemeny/CrissCross-v0", out=tmp_path / name, init_from=first.path, **{**settings, "seed": 5})
        ours = load_file(run.path / "checkpoints" / "init-000000000000" / "arrays.safetensors")
        assert np.array_equal(ours["critics/0/network/weights/0"], theirs["critics/0/network/weights/0"]) == same
        assert np.array_equal(ours["policy/network/weights/0"], theirs["policy/network/weights/0"])
