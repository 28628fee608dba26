"""Cost limits: reductions to what has none, laws of the constrained step, and optima that a linear programme knows."""

import dataclasses
import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kemeny.criterion import Average, Discounted
from kemeny.experience.collect import Collector
from kemeny.experience.settings import Task
from kemeny.experience.source import numpy_policy
from kemeny.learning.estimates import estimate
from kemeny.learning.learner import Learner, init
from kemeny.learning.settings import CriticFit, Networks, TrustRegion
from kemeny.learning.steps.direction import Case, gram, plan
from kemeny.learning.steps.natural import Natural
from kemeny.learning.steps.protocol import Outcome
from kemeny.learning.steps.surrogate import centred, policy_gradient
from kemeny.learning.update import update
from kemeny.tabular import bounds, zoo
from kemeny.tabular.linear_programme import linear_programme
from tests.model_source import ModelSource, constrained_optimum
from tests.test_learner import BOX, CHOICE, SMALL, begin, flat, random_batch


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


# Reductions


@pytest.mark.exact
@pytest.mark.parametrize(
    ("criterion", "spec"), [(Average(), BOX), (Discounted(0.9), CHOICE)], ids=["average", "discounted"]
)
def test_a_slack_limit_changes_nothing(spec, criterion):
    """ACPO with a limit beyond reach is ATRPO (and CPO is TRPO), bit for bit, update after update."""
    free = dataclasses.replace(SMALL, criterion=criterion)
    limited = dataclasses.replace(free, limits=(1e6,))
    a, b = (init(learner, spec, jax.random.key(0)) for learner in (free, limited))
    for seed in range(3):
        batch = random_batch(spec, seed, signals=2)
        a, _ = update(free, a, batch._replace(signals=batch.signals[:1]))
        b, metrics = update(limited, b, batch)
        diagnosis = metrics.step.details.diagnosis
        assert diagnosis.case == Case.INACTIVE
        assert np.all(diagnosis.multiplier_cost == 0)
        assert same(a.policy, b.policy)
        assert same(a.critics[0], b.critics[0])
        assert same(a.optimizers[0], b.optimizers[0])
        assert same(a.normalizer, b.normalizer)


def exact_plan(mdp, policy, criterion, limit):
    """The step of a table of logits, from exact advantages; and c in units of the average."""
    reward, cost = (mdp.evaluate(policy, criterion, signal) for signal in ("reward", "cost"))
    weight = reward.visitation[:, None] * policy
    gradients = [(weight * value.advantage * criterion.slope).ravel() for value in (reward, cost)]
    blocks = [d * (np.diag(p) - np.outer(p, p)) for d, p in zip(reward.visitation, policy, strict=True)]
    H = np.zeros((policy.size, policy.size))
    for s, block in enumerate(blocks):
        where = slice(s * mdp.n_actions, (s + 1) * mdp.n_actions)
        H[where, where] = block
    H += 1e-3 * np.eye(len(H))
    c = cost.rho - limit * criterion.slope
    (g, b), (ng, nb) = (list(map(jnp.asarray, x)) for x in (gradients, np.linalg.solve(H, np.stack(gradients, 1)).T))
    step, case = planned_step(jnp.asarray(H), g, ng, b[None], nb[None], jnp.array([c]))
    return np.asarray(step), int(case), c / criterion.slope


@jax.jit
def planned_step(H, g, ng, b, nb, c):
    problem, nb = gram(lambda x: H @ x, g, ng, b, nb, c, 0.01)
    found = plan(problem)
    return found.along_g * ng + found.along_b @ nb, found.case


@pytest.mark.parametrize(("limit", "case"), [(1.0, Case.ACTIVE), (5.0, Case.INACTIVE), (0.1, Case.RECOVERY)])
def test_cpo_tends_to_acpo(limit, case):
    """As γ → 1 the discounted step and (1−γ)·c tend to the average ones, with an error of order 1 − γ."""
    mdp = zoo.queue_admission(capacity=3)
    policy = mdp.uniform_policy
    with jax.enable_x64(True):
        step, which, c = exact_plan(mdp, policy, Average(), limit)
        assert which == case
        errors = []
        for gamma in (0.999, 0.9999):
            discounted, which, c_gamma = exact_plan(mdp, policy, Discounted(gamma), limit)
            assert which == case
            errors.append((np.linalg.norm(discounted - step) / np.linalg.norm(step), abs(c_gamma - c)))
    (far, far_c), (near, near_c) = errors
    assert near < 0.01
    assert near_c < 0.01
    assert 0.9 < np.log10(far / near) < 1.1
    assert 0.9 < np.log10(far_c / near_c) < 1.1


# Laws of the constrained step


def limited(*limits, **changes):
    return dataclasses.replace(SMALL, limits=limits, **changes)


def step_with(learner, batch, spec=BOX):
    state = begin(learner, spec)
    after, metrics = update(learner, state, batch)
    return state, after, metrics


def with_mean_cost(batch, mean):
    """Costs moved so that each has this mean: a limit of 0 then stands at −mean, and need not be compiled anew."""
    reward, *costs = batch.signals
    return batch._replace(signals=(reward, *(cost + (mean - cost.mean()) for cost in costs)))


@pytest.mark.parametrize("offset", [-0.02, 0.0, 0.02, 4.0])
@pytest.mark.parametrize("costs", [1, 2])
def test_what_backtracking_accepts(offset, costs):
    """KL ≤ δ always; kept limits stay kept and the reward improves; broken ones come nearer."""
    seen = set()
    learner = limited(*[0.0] * costs)
    for seed in range(4):
        batch = random_batch(BOX, seed, signals=1 + costs)
        _, _, metrics = step_with(learner, with_mean_cost(batch, offset))
        diagnosis, violation = metrics.step.details.diagnosis, np.asarray(metrics.costs.violation)
        seen.add(int(diagnosis.case))
        if metrics.step.outcome != Outcome.ACCEPTED:
            continue
        assert metrics.step.kl <= learner.step.region.delta
        broken = violation > 0
        assert (np.asarray(diagnosis.surrogate_cost_change)[broken] < 0).all()
        assert ((violation + diagnosis.surrogate_cost_change)[~broken] <= 0).all()
        if not broken.any():
            assert metrics.step.improvement > 0
        if diagnosis.case != Case.RECOVERY:  # the plan itself ends on or within the limits
            assert (violation + diagnosis.predicted_cost_change <= 1e-4).all()
    assert seen == {Case.RECOVERY} if offset == 4.0 else Case.ACTIVE in seen


def test_units_of_cost_and_reward():
    """A cost and its limit in other units, or a constant added to both, or a reward in other units: the same step."""
    batch = with_mean_cost(random_batch(BOX, 0, signals=2), 0.01)

    def step(reward, scale, shift):
        learner = limited(shift)
        state = init(learner, BOX, jax.random.key(0))
        silent = jax.tree.map(jnp.zeros_like, state.critics)  # a critic that says 0 has no units of its own
        signals = (batch.signals[0] * reward, batch.signals[1] * scale + shift)
        after, metrics = update(learner, dataclasses.replace(state, critics=silent), batch._replace(signals=signals))
        return flat(after.policy), metrics.step.details.diagnosis

    policy, expected = step(1.0, 1.0, 0.0)
    assert expected.case == Case.ACTIVE
    for reward, scale, shift in ((8.0, 1.0, 0.0), (1.0, 8.0, 0.0), (1.0, 1.0, 3.0)):
        same_policy, found = step(reward, scale, shift)
        np.testing.assert_allclose(same_policy, policy, atol=2e-4)
        np.testing.assert_allclose(found.predicted_cost_change, scale * expected.predicted_cost_change, atol=1e-4)
        np.testing.assert_allclose(found.multiplier_cost, expected.multiplier_cost * reward / scale, rtol=1e-2)


def test_realised_changes_and_violation():
    learner = limited(0.0)
    state = begin(learner)
    means = []
    for seed in range(2):
        batch = random_batch(BOX, seed, signals=2)
        means.append(np.mean(batch.signals, (1, 2)))
        state, metrics = update(learner, state, batch)
        np.testing.assert_allclose(metrics.costs.cost, means[-1][1:], atol=1e-6)
        np.testing.assert_allclose(metrics.costs.violation, means[-1][1:], atol=1e-6)
        if seed == 0:
            assert np.isnan(metrics.realised_improvement)
    np.testing.assert_allclose(metrics.realised_improvement, means[1][0] - means[0][0], atol=1e-6)
    np.testing.assert_allclose(metrics.costs.realised_cost_change, means[1][1:] - means[0][1:], atol=1e-6)


def test_discounted_limit_is_about_the_start_states():
    """J_c = E v_c(s₀), and the cost's gradient is worth 1/(1−γ) of its advantage."""
    batch = random_batch(BOX, 2, signals=2)
    learner = limited(0.5, criterion=Discounted(0.9))
    state, after, metrics = step_with(learner, batch)
    start_value = np.mean(state.critics[1](state.normalizer(batch.start_observation)))
    np.testing.assert_allclose(metrics.costs.cost, start_value, rtol=1e-5)
    samples, _ = estimate(learner, state, batch)
    b = policy_gradient(state.policy, samples, centred(samples, samples.advantage[1]))
    assert metrics.step.details.tries == 1  # so the full step was taken, and what was predicted is slope · b·x
    slope_times_change = 10 * np.dot(flat(b), flat(after.policy) - flat(state.policy))
    np.testing.assert_allclose(metrics.step.details.diagnosis.predicted_cost_change, slope_times_change, rtol=1e-3)


# What a limit is counted in


class Faller(gymnasium.Env):
    """Every step costs 0.7 and every `life` steps the agent falls."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, life):
        self.life = life

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.age += 1
        return np.zeros(2, np.float32), 1.0, self.age >= self.life, False, {"cost": 0.7, "age": self.age}


def c_of(env, task, limit=0.5):
    collector = Collector(env, task, num_envs=4, batch_length=60, seed=0, costs=("cost",))
    learner = limited(limit)
    state = init(learner, collector.spec, jax.random.key(0))
    batch = collector.roll_out(numpy_policy(state, collector.spec), 0)
    collector.close()
    _, (reward, cost) = estimate(learner, state, jax.tree.map(jnp.asarray, batch))
    return float(cost.objective) - limit, float(reward.objective), collector.falls


def test_falls_and_lengths_do_not_change_the_units():
    """Twice the falls, or trajectories twice as long: c is the same; the reset cost is the reward's alone."""
    often, reward_often, falls = c_of(lambda: Faller(5), Task(reset_cost=100.0, cut=30))
    seldom, reward_seldom, fewer = c_of(lambda: Faller(10), Task(reset_cost=100.0, cut=60))
    dear, _, _ = c_of(lambda: Faller(5), Task(reset_cost=1000.0, cut=30))
    assert falls == 2 * fewer
    assert often == pytest.approx(0.2, abs=1e-5)
    assert seldom == often == dear
    assert reward_often == pytest.approx(1 - 100 / 5, rel=1e-5)
    assert reward_seldom == pytest.approx(1 - 100 / 10, rel=1e-5)


# Optima that a linear programme knows


def learner_of(*limits, iterations):
    return Learner(
        limits=limits,
        iterations=iterations,
        networks=Networks(hidden=(16,)),
        critic=CriticFit(critic_step_size=3e-3, critic_epochs=3),
        step=Natural(TrustRegion(delta=0.01)),
    )


@functools.cache
def queue():
    return zoo.queue_admission(capacity=4)


@pytest.mark.parametrize("limit", [1.5, 0.6])
def test_reaches_the_constrained_optimum(limit):
    """≥ 95 % of the best reward that keeps the limit, which the first policy keeps (1.5) or breaks (0.6)."""
    mdp, iterations = queue(), 60
    best = linear_programme(mdp, limit)
    assert best.gain < 0.95 * linear_programme(mdp).gain  # without the limit there is more to be had
    # The cost less its limit, limited to 0: the same problem, and the update is compiled once for both.
    source = ModelSource(mdp, [mdp.costs - limit], num_envs=40, batch_length=100)
    learner = learner_of(0.0, iterations=iterations)
    state, history = source.learn(learner, iterations)
    before = source.policy(state)
    state, _ = source.learn(learner, 1, state)
    policy = source.policy(state)

    assert (history[0].step.details.diagnosis.case == Case.RECOVERY) == (limit == 0.6)
    assert mdp.evaluate(policy).rho >= 0.95 * best.gain
    assert mdp.evaluate(policy, signal="cost").rho <= 1.05 * limit
    # Certified: the slack ξ_c·√(2·KL) of the last step, beyond its exact surrogate cost or the limit.
    pair = bounds.compare(mdp, before, policy, signal="cost")
    assert bounds.violation(mdp, before, policy, max(limit, pair.old.rho + pair.surrogate)).holds
    diagnoses = [metrics.step.details.diagnosis for metrics in history[-20:]]
    prices = [diagnosis.multiplier_cost[0] for diagnosis in diagnoses if diagnosis.case == Case.ACTIVE]
    assert np.median(prices) == pytest.approx(best.price, rel=0.5)


def test_two_limits_at_once():
    """Both bind at the optimum of a random model; both are kept, and the reward is within 5 % of the best."""
    rng = np.random.default_rng(5)
    mdp = zoo.garnet(states=5, actions=3, branches=3, seed=5)
    mdp.rewards[:] = rng.random((5, 3))
    costs, limits = [rng.random((5, 3)), rng.random((5, 3))], (0.4, 0.35)
    best, prices = constrained_optimum(mdp, costs, limits)
    assert (prices > 0.05).all()
    source = ModelSource(mdp, costs, num_envs=40, batch_length=100)
    state, history = source.learn(learner_of(*limits, iterations=60), 60)
    policy = source.policy(state)
    weight = mdp.evaluate(policy).stationary[:, None] * policy
    assert (weight * mdp.rewards).sum() >= 0.95 * best
    for cost, limit in zip(costs, limits, strict=True):
        assert (weight * cost).sum() <= 1.05 * limit
    cases = {int(metrics.step.details.diagnosis.case) for metrics in history}
    assert Case.RECOVERY in cases  # the first policies break both
