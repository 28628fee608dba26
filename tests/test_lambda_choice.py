"""λ from the data: the products against a slow oracle, the choice where the right one is known, and runs with it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kemeny
from kemeny.criterion import Average, Discounted
from kemeny.errors import UserError
from kemeny.learning import lambda_choice
from kemeny.learning.estimates import estimate, lambda_of
from kemeny.learning.lambda_choice import BATCHES_BEFORE_A_CHOICE, DAMPING, EVERY, FIRST, LAMBDAS
from kemeny.learning.networks import CategoricalPolicy, GaussianPolicy, Perceptron
from kemeny.learning.update import plain_fields, update
from kemeny.runs.assembly import make_learner
from kemeny.runs.presets import preset
from kemeny.runs.settings import from_flat
from tests.probes import Target
from tests.test_learner import BOX, CHOICE, SMALL, begin, flat, random_batch

CHOOSING = dataclasses.replace(SMALL, gae_lambda=None, cost_gae_lambda=None, critic_gae_lambda=0.95)
SIZE, ACTIONS = 4, 2
judge = jax.jit(lambda_choice.judge)


def linear_policy(rng):
    """a ~ N(Wᵀx, σ²), σ = e⁻¹: its scores and Fisher matrix can be written down."""
    weight = jnp.array(rng.normal(size=(SIZE, ACTIONS)) * 0.1, jnp.float32)
    network = Perceptron((weight,), (jnp.zeros(ACTIONS),))
    return GaussianPolicy(network, jnp.full(ACTIONS, -1.0))


def acted(rng, policy, samples):
    """States, actions, and the score of each sample as a flat vector: ∂ log π / ∂(weights, biases, log std)."""
    x = rng.normal(size=(samples, SIZE)).astype(np.float32)
    z = rng.normal(size=(samples, ACTIONS)).astype(np.float32)
    std = np.exp(np.asarray(policy.log_std))
    action = np.asarray(x @ np.asarray(policy.network.weights[0])) + std * z
    score = np.concatenate([np.einsum("ni,nj->nij", x, z / std).reshape(samples, -1), z / std, z**2 - 1], 1)
    return jnp.array(x), jnp.array(action), score


def oracle_fisher(x, std):
    """Of the linear policy: E[x̄x̄ᵀ] ⊗ 1/σ² for weights and biases, 2 for each log std."""
    rows = np.concatenate([np.repeat(x, ACTIONS, 1), np.ones((len(x), ACTIONS))], 1)
    same = np.tile(np.eye(ACTIONS), (SIZE + 1, SIZE + 1)) / np.tile(std, SIZE + 1) ** 2
    fisher = np.zeros((ACTIONS * (SIZE + 2),) * 2)
    fisher[: -ACTIONS or None, : -ACTIONS or None] = np.einsum("ni,nj->ij", rows, rows) / len(x) * same
    fisher[-ACTIONS:, -ACTIONS:] = 2 * np.eye(ACTIONS)
    return fisher


def test_products_are_those_of_plain_linear_algebra(monkeypatch):
    """Three batches: gradients, means, and products with the dense inverse of the damped Fisher matrix."""
    monkeypatch.setattr(lambda_choice, "ITERATIONS", 30)  # until nothing is left to solve
    rng = np.random.default_rng(0)
    policy = linear_policy(rng)
    choice = lambda_choice.init(policy)
    means, products, squares, lengths = np.zeros((len(LAMBDAS), SIZE * ACTIONS + 2 * ACTIONS)), [], [], []
    for batches in range(3):
        x, action, score = acted(rng, policy, 200)
        advantages = rng.normal(size=(len(LAMBDAS), 200)) * 3 + 1 + score[:, 0]
        choice = lambda_choice.judge(choice, policy, x, action, jnp.array(advantages, jnp.float32))
        scaled = (advantages - advantages.mean(1, keepdims=True)) / advantages.std(1, keepdims=True)
        gradients = scaled @ score / 200
        if batches:
            fisher = oracle_fisher(np.asarray(x)[::EVERY], np.exp(np.asarray(policy.log_std)))
            solved = np.linalg.solve(fisher + DAMPING * np.eye(len(fisher)), means.T).T
            product = solved @ gradients.T
            products.append(product)
            squares.append(np.diag(product) ** 2)
            lengths.append(np.sum(means * solved, 1))
        means = (batches * means + gradients) / (batches + 1)
    np.testing.assert_allclose(choice.gradient, means, atol=2e-5)
    np.testing.assert_allclose(choice.product, np.mean(products, 0), rtol=2e-3, atol=2e-5)
    np.testing.assert_allclose(choice.square, np.mean(squares, 0), rtol=2e-3, atol=2e-6)
    np.testing.assert_allclose(choice.length, np.mean(lengths, 0), rtol=2e-3, atol=2e-5)
    assert choice.batches == 3


def chosen_after(batches, signals, noises, seed=0):
    """The choice if the advantage with each λ is a sum of scores in some direction, and noise."""
    rng = np.random.default_rng(seed)
    policy = linear_policy(rng)
    choice = lambda_choice.init(policy)
    for _ in range(batches):
        x, action, score = acted(rng, policy, 500)
        shared = rng.normal(size=500)
        advantages = [score @ signal + noise * shared for signal, noise in zip(signals, noises, strict=True)]
        choice = judge(choice, policy, x, action, jnp.array(np.array(advantages), jnp.float32))
    return choice


DIRECTION = np.eye(ACTIONS * (SIZE + 2))
RIGHT, WRONG, NOWHERE = 0.1 * DIRECTION[0], 0.1 * DIRECTION[1], 0 * DIRECTION[0]
NOISIER = np.array([1.0, 1.5, 2.0, 3.0, 4.0, 5.0])


def test_the_shortest_is_chosen_where_all_point_the_same_way():
    """Then only the noise tells them apart."""
    choice = chosen_after(60, [RIGHT] * 6, NOISIER)
    assert choice.index == 0


def test_a_long_one_is_chosen_where_short_ones_point_elsewhere():
    choice = chosen_after(60, [WRONG, WRONG, WRONG, RIGHT, RIGHT, RIGHT], NOISIER)
    assert choice.index == 3


def test_lambdas_whose_advantages_are_noise_are_not_asked():
    """The long ones know nothing: the longest that does is the judge, and a short one that points elsewhere loses."""
    choice = chosen_after(60, [WRONG, RIGHT, RIGHT, NOWHERE, NOWHERE, NOWHERE], NOISIER)
    assert choice.index == 1


def test_a_gain_is_per_length_of_the_step():
    """All agree alike with the judge; one of them is twice as short as the others."""
    choice = chosen_after(BATCHES_BEFORE_A_CHOICE + 1, [RIGHT] * 6, NOISIER)
    length = jnp.ones(6).at[4].set(0.25)
    equal = dataclasses.replace(choice, product=jnp.ones((6, 6)), square=jnp.ones(6), length=length)
    assert lambda_choice._best(equal) == 4


def test_the_first_batches_choose_nothing():
    assert chosen_after(BATCHES_BEFORE_A_CHOICE, [RIGHT] * 6, NOISIER).index == FIRST
    assert LAMBDAS[FIRST] == 0.9
    assert chosen_after(BATCHES_BEFORE_A_CHOICE + 1, [RIGHT] * 6, 0.1 * NOISIER).index != FIRST


def test_advantages_that_are_not_finite_leave_no_trace():
    """But for the count of batches."""
    choice = chosen_after(5, [RIGHT] * 6, NOISIER)
    rng = np.random.default_rng(1)
    policy = linear_policy(rng)
    x, action, _ = acted(rng, policy, 500)
    after = judge(choice, policy, x, action, jnp.full((6, 500), jnp.nan))
    for name in ("gradient", "product", "square", "length"):
        np.testing.assert_array_equal(getattr(after, name), getattr(choice, name))


def test_equal_advantages_choose_no_lambda_by_a_division_by_zero():
    rng = np.random.default_rng(1)
    policy = CategoricalPolicy(Perceptron((jnp.zeros((SIZE, 3)),), (jnp.zeros(3),)))
    choice = lambda_choice.init(policy)
    x = jnp.array(rng.normal(size=(50, SIZE)), jnp.float32)
    for _ in range(12):
        choice = judge(choice, policy, x, jnp.zeros(50, jnp.int32), jnp.ones((6, 50)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(choice))


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
@pytest.mark.parametrize("criterion", [Average(), Discounted(0.9)], ids=["average", "discounted"])
def test_before_a_choice_it_is_the_given_lambda(spec, criterion):
    """An update that chooses is one with λ = 0.9, and critics with λ = 0.95."""
    choosing = dataclasses.replace(CHOOSING, criterion=criterion)
    given = dataclasses.replace(choosing, gae_lambda=0.9, cost_gae_lambda=0.9)
    batch = random_batch(spec)
    one, metrics = update(choosing, begin(choosing, spec), batch)
    other, _ = update(given, begin(given, spec), batch)
    np.testing.assert_allclose(flat(one.policy), flat(other.policy), atol=2e-5)
    np.testing.assert_allclose(flat(one.critics[0].network), flat(other.critics[0].network), atol=1e-4)
    assert plain_fields(metrics)["gae_lambda"] == pytest.approx(0.9)


def test_candidates_are_the_advantages_with_each_lambda():
    batch, state = random_batch(BOX), begin(CHOOSING)
    _, (reward,) = estimate(CHOOSING, state, batch)
    for lam, candidate in zip(LAMBDAS, reward.candidates, strict=True):
        given = dataclasses.replace(SMALL, gae_lambda=lam)
        samples, _ = estimate(given, begin(given), batch)
        np.testing.assert_allclose(candidate, samples.advantage[0], atol=1e-5)


def test_critics_have_a_lambda_of_their_own():
    """Their targets are those of a learner with that λ, the advantages those with the other."""
    batch = random_batch(BOX)
    both, long = (
        estimate(dataclasses.replace(SMALL, **lambdas), begin(), batch)[0]
        for lambdas in ({"gae_lambda": 0.5, "critic_gae_lambda": 0.95}, {"gae_lambda": 0.95})
    )
    short = estimate(dataclasses.replace(SMALL, gae_lambda=0.5), begin(), batch)[0]
    np.testing.assert_array_equal(both.target[0], long.target[0])
    np.testing.assert_array_equal(both.advantage[0], short.advantage[0])
    assert np.abs(long.target[0] - short.target[0]).max() > 0.1


def test_costs_have_the_chosen_lambda_unless_they_are_given_one():
    learner = dataclasses.replace(CHOOSING, limits=(1.0,))
    state = begin(learner)
    assert lambda_of(learner, state, 1) == lambda_of(learner, state, 0) == pytest.approx(0.9)
    assert lambda_of(dataclasses.replace(learner, cost_gae_lambda=0.6), state, 1) == 0.6


def test_a_scan_over_updates_is_the_loop():
    batches = [random_batch(BOX, seed) for seed in range(3)]
    state = begin(CHOOSING)
    for batch in batches:
        state, _ = update(CHOOSING, state, batch)
    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *batches)
    scanned, _ = jax.lax.scan(lambda state, batch: update(CHOOSING, state, batch), begin(CHOOSING), stacked)
    np.testing.assert_allclose(flat(scanned.policy), flat(state.policy), atol=1e-5)
    np.testing.assert_allclose(scanned.lambda_choice.product, state.lambda_choice.product, rtol=1e-3, atol=1e-5)


def test_a_run_says_which_lambda_it_used(tmp_path):
    """(That it resumes bit for bit after a choice: test_training.py.)"""
    run = kemeny.train(
        Target, steps=1_400, out=tmp_path / "run", num_envs=4, batch_size=100, gae_lambda="auto", hidden=(8,),
        critic_epochs=2, cut=50, eval_every=10**6, eval_max_steps=9,
    )  # fmt: skip
    lambdas = [record["gae_lambda"] for record in run.metrics]
    assert lambdas[: 1 + BATCHES_BEFORE_A_CHOICE] == pytest.approx([0.9] * (1 + BATCHES_BEFORE_A_CHOICE))
    assert set(np.round(lambdas, 2)) <= set(LAMBDAS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gae_lambda": "long"}, "gae_lambda is 'long'; it must be a number or auto"),
        ({"gae_lambda": 1.5}, "--gae-lambda is 1.5; it must be between 0 and 1"),
        ({"critic_gae_lambda": -1}, "--critic-gae-lambda is -1.0; it must be between 0 and 1"),
        ({"critic_gae_lambda": "auto"}, "critic_gae_lambda is 'auto'; it must be a number"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(settings, message):
    with pytest.raises(UserError, match=message):
        make_learner(from_flat(settings))


def test_what_is_meant_by_settings():
    auto = make_learner(from_flat({"gae_lambda": "auto"}))
    assert (auto.gae_lambda, auto.cost_gae_lambda, auto.critic_gae_lambda) == (None, None, 0.95)
    own = make_learner(from_flat({"gae_lambda": "auto", "critic_gae_lambda": 0.9, "cost_gae_lambda": 0.7}))
    assert (own.gae_lambda, own.cost_gae_lambda, own.critic_gae_lambda) == (None, 0.7, 0.9)
    paper = make_learner(preset("paper"))
    assert (paper.gae_lambda, paper.cost_gae_lambda, paper.critic_gae_lambda) == (0.95, 0.95, None)
