"""One update of policy and critics from one batch: the same lines for every algorithm.

    rollout → advantage of each signal → trust-region step → critics refitted → next state

`update` is pure. It does not know which criterion it serves, and an unconstrained algorithm is one with no limits.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from kemeny import direction, trust_region
from kemeny.advantages import gae
from kemeny.criterion import Array as AnyArray
from kemeny.criterion import Average, Criterion
from kemeny.normalizer import Normalizer
from kemeny.policy import (
    CRITIC_HEAD_GAIN,
    POLICY_HEAD_GAIN,
    CategoricalPolicy,
    Critic,
    Distribution,
    GaussianPolicy,
    Network,
    Policy,
)
from kemeny.rollout import Rollout, flatten
from kemeny.spec import Continuous, Discrete, Spec
from kemeny.trust_region import Candidate, Outcome, TrustRegion

Signals = tuple[Float[AnyArray, "time env"], ...]
SMALLEST_DEVIATION = 1e-8
"""Advantages that do not vary at all are left as they are (zero) rather than divided by zero."""


@dataclasses.dataclass(frozen=True)
class CriticFit:
    """How a critic is refitted to its targets after each batch (Appendix H)."""

    critic_rate: float = 3e-4
    """Adam's learning rate for the critics, annealed linearly to 0 over the run."""
    critic_l2: float = 3e-3
    """Weight of Σw² in the critics' loss (weights, not biases)."""
    critic_epochs: int = 10
    """Passes over the batch for each critic."""
    critic_minibatch: int = 100
    """Samples in a critic's minibatch; what is left over after the last whole one is skipped in that pass."""


@dataclasses.dataclass(frozen=True)
class Networks:
    """Size and start of the networks (Appendix H)."""

    hidden: tuple[int, ...] = (64, 64)
    """Units in each hidden layer of policy and critics."""
    log_std: float | None = -1.0
    """Initial log standard deviation of a Gaussian policy; None: the paper's, −0.5 for atrpo and trpo, −1 for acpo and
    cpo."""
    observation_clip: float = 10.0
    """Normalised observations are clipped to ± this."""


@dataclasses.dataclass(frozen=True)
class Learner:
    """Everything that an update depends on but does not change."""

    criterion: Criterion = dataclasses.field(default_factory=Average)
    limits: tuple[float, ...] = ()
    """Upper limit of each cost, in the criterion's units."""
    iterations: int = dataclasses.field(default=200, compare=False)
    """Updates in the whole run, over which the critics' rate is annealed; the compiled code does not depend on it."""
    gae_lambda: float = 0.8
    cost_gae_lambda: float = 0.8
    networks: Networks = dataclasses.field(default_factory=Networks)
    region: TrustRegion = dataclasses.field(default_factory=TrustRegion)
    critic: CriticFit = dataclasses.field(default_factory=CriticFit)


class State(eqx.Module):
    """Everything that an update changes."""

    policy: Policy
    critics: tuple[Critic, ...]
    """Reward first, then each cost."""
    optimizers: tuple[optax.OptState, ...]
    normalizer: Normalizer
    key: PRNGKeyArray
    iteration: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    """Updates without a policy step since the last one with it."""
    objective: Float[Array, " signal"]
    """J of each signal in the last batch, NaN before the first: realised changes are counted from it."""


class Metrics(NamedTuple):
    """What one update saw and did; `docs/metrics.md` explains each field."""

    rate: Float[Array, ""]
    objective: Float[Array, ""]
    outcome: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    tries: Int[Array, ""]
    kl: Float[Array, ""]
    improvement: Float[Array, ""]
    predicted_improvement: Float[Array, ""]
    realised_improvement: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    entropy: Float[Array, ""]
    advantage_std: Float[Array, ""]
    value_mean: Float[Array, ""]
    explained_variance: Float[Array, ""]
    critic_loss: Float[Array, " signal"]
    critic_skipped: Bool[Array, ""]
    constraint: "ConstraintMetrics | None"


class ConstraintMetrics(NamedTuple):
    """The whole diagnosis of a constrained step."""

    cost: Float[Array, " cost"]
    violation: Float[Array, " cost"]
    predicted_cost_change: Float[Array, " cost"]
    surrogate_cost_change: Float[Array, " cost"]
    realised_cost_change: Float[Array, " cost"]
    case: Int[Array, ""]
    q: Float[Array, ""]
    r: Float[Array, " cost"]
    s: Float[Array, " cost"]
    multiplier_kl: Float[Array, ""]
    multiplier_cost: Float[Array, " cost"]


def init(learner: Learner, spec: Spec, key: PRNGKeyArray) -> State:
    """The state before the first batch."""
    policy_key, critic_key, key = jax.random.split(key, 3)
    inside = (spec.observation_size, *learner.networks.hidden)
    match spec.action:
        case Continuous():
            network = Network.init(policy_key, (*inside, spec.action.size), POLICY_HEAD_GAIN)
            log_std = learner.networks.log_std
            assert log_std is not None, "settings know which deviation the paper has"
            policy = GaussianPolicy(network, jnp.full(spec.action.size, log_std, jnp.float32))
        case Discrete():
            policy = CategoricalPolicy(Network.init(policy_key, (*inside, spec.action.n), POLICY_HEAD_GAIN))
    signals = range(1 + len(learner.limits))
    # Folding in the signal's number gives the reward critic the same start however many costs there are.
    critics = tuple(
        Critic(Network.init(jax.random.fold_in(critic_key, i), (*inside, 1), CRITIC_HEAD_GAIN)) for i in signals
    )
    return State(
        policy=policy,
        critics=critics,
        optimizers=tuple(optax.scale_by_adam().init(_arrays(critic)) for critic in critics),
        normalizer=Normalizer.init(spec.observation_size, learner.networks.observation_clip),
        key=key,
        iteration=jnp.zeros((), jnp.int32),
        skipped_in_a_row=jnp.zeros((), jnp.int32),
        objective=jnp.full(len(critics), jnp.nan, jnp.float32),
    )


def _arrays(module: eqx.Module) -> Any:
    return eqx.filter(module, eqx.is_array)


def update(learner: Learner, state: State, rollout: Rollout) -> tuple[State, Metrics]:
    """Algorithm 2 (and its discounted and constrained kin), lines 4 to 10, for one batch.

    JAX computes in the background, and the policy does not wait for the critics: the next batch can be collected while
    they are refitted, until somebody asks for a number of theirs.
    """
    # In arrays of their own, signals are summed in the same order however many there are: that is what makes a limit
    # that never binds change nothing, bit for bit.
    rate = jnp.float32(learner.critic.critic_rate * (1 - int(state.iteration) / learner.iterations))
    moved, targets, metrics = _move(learner, state, rollout, _apart(rollout))
    fits = [
        _refit(learner.critic, critic, optimizer, targets.x, target, rate, targets.shuffle)
        for critic, optimizer, target in zip(state.critics, state.optimizers, targets.value, strict=True)
    ]
    critics, optimizers, losses, broken = zip(*fits, strict=True)
    moved = dataclasses.replace(moved, critics=critics, optimizers=optimizers)
    return moved, metrics._replace(critic_loss=jnp.stack(losses), critic_skipped=jnp.stack(broken).any())


class _Targets(NamedTuple):
    """What the critics are refitted to."""

    x: Float[Array, "sample obs"]
    value: list[Float[Array, " sample"]]
    shuffle: PRNGKeyArray


@functools.partial(jax.jit, static_argnums=0)
def _move(learner: Learner, state: State, rollout: Rollout, signals: Signals) -> tuple[State, _Targets, Metrics]:
    """Everything but the critics (lines 4 to 8 and 10)."""
    x = flatten(state.normalizer(rollout.observation))
    estimates = _estimate(learner, state, rollout, signals)
    reward, costs = estimates[0], estimates[1:]

    policy, step = _improve(learner, state.policy, x, flatten(rollout.action), reward, costs)

    skipped = jnp.where(step.outcome == Outcome.ACCEPTED, 0, state.skipped_in_a_row + 1)
    key, shuffle = jax.random.split(state.key)
    objective = jnp.stack([signal.objective for signal in estimates])
    realised = objective - state.objective

    metrics = Metrics(
        rate=reward.rate,
        objective=reward.objective,
        outcome=step.outcome,
        skipped_in_a_row=skipped,
        tries=step.tries,
        kl=step.kl,
        improvement=step.improvement,
        predicted_improvement=step.predicted_improvement,
        realised_improvement=realised[0],
        gradient_norm=step.gradient_norm,
        entropy=step.entropy,
        advantage_std=reward.advantage.std(),
        value_mean=reward.value.mean(),
        explained_variance=1 - jnp.var(reward.target - reward.value) / jnp.var(reward.target),
        critic_loss=jnp.zeros(len(estimates)),
        critic_skipped=jnp.array(False),
        constraint=_diagnosis(step, costs, realised[1:]) if costs else None,
    )
    state = dataclasses.replace(
        state,
        policy=policy,
        normalizer=state.normalizer.update(flatten(rollout.observation)),
        key=key,
        iteration=state.iteration + 1,
        skipped_in_a_row=skipped,
        objective=objective,
    )
    return state, _Targets(x, [signal.target for signal in estimates], shuffle), metrics


class Estimate(NamedTuple):
    """What the batch and the critic say about one signal; one entry a sample."""

    rate: Float[Array, ""]
    objective: Float[Array, ""]
    value: Float[Array, " sample"]
    advantage: Float[Array, " sample"]
    target: Float[Array, " sample"]


def estimate(learner: Learner, state: State, rollout: Rollout) -> list[Estimate]:
    """ρ̂, J, advantages and critic targets of each signal (lines 4 to 8)."""
    return _estimate(learner, state, rollout, _apart(rollout))


def _apart(rollout: Rollout) -> Signals:
    return tuple(rollout.signal[..., i] for i in range(rollout.signal.shape[-1]))


def _estimate(learner: Learner, state: State, rollout: Rollout, signals: Signals) -> list[Estimate]:
    x = state.normalizer(rollout.observation)
    next_x = state.normalizer(rollout.next_observation)
    start_x = state.normalizer(rollout.start_observation)
    trace = jnp.where(jnp.logical_or(rollout.terminal, rollout.cut), 0.0, 1.0)
    estimates = []
    for signal, critic in enumerate(state.critics):
        observed, value = signals[signal], critic(x)
        next_value = jnp.where(rollout.terminal, 0, critic(next_x))
        rate = learner.criterion.estimate_rate(observed, value, next_value)
        lam = learner.gae_lambda if signal == 0 else learner.cost_gae_lambda
        advantage = gae(learner.criterion.bellman(rate), observed, value, next_value, trace, lam)
        target = learner.criterion.fix_gauge(advantage + value)
        objective = learner.criterion.objective(rate, critic(start_x).mean())
        estimates.append(Estimate(rate, objective, flatten(value), flatten(advantage), flatten(target)))
    return estimates


def surrogate(
    there: Distribution, action: Array, log_prob: Float[Array, " sample"], advantage: Float[Array, " sample"]
) -> Float[Array, ""]:
    """E[π(a|s)/π_k(a|s) · A], the first-order change of J; `log_prob` is that of the policy that acted."""
    return jnp.mean(jnp.exp(there.log_prob(action) - log_prob) * advantage)


def policy_gradient(
    policy: Policy, x: Float[Array, "sample obs"], action: Array, advantage: Float[Array, " sample"]
) -> Policy:
    """g of Appendix E: the gradient of the surrogate at the policy that acted, as a policy-shaped tree."""
    log_prob = jax.lax.stop_gradient(policy(x).log_prob(action))
    return jax.grad(lambda candidate: surrogate(candidate(x), action, log_prob, advantage))(policy)


class _Step(NamedTuple):
    """The policy step, in the units of the reward and of the costs."""

    outcome: Int[Array, ""]
    tries: Int[Array, ""]
    kl: Float[Array, ""]
    improvement: Float[Array, ""]
    predicted_improvement: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    entropy: Float[Array, ""]
    violation: Float[Array, " cost"]
    predicted_cost_change: Float[Array, " cost"]
    surrogate_cost_change: Float[Array, " cost"]
    gram: direction.Gram
    plan: direction.Plan
    unit: Float[Array, ""]
    """What 1 of the normalised advantage is worth in the units of J."""


def _improve(
    learner: Learner,
    policy: Policy,
    x: Float[Array, "sample obs"],
    action: Array,
    reward: Estimate,
    costs: list[Estimate],
) -> tuple[Policy, _Step]:
    """The trust-region step (§5.2 and Appendices E and F)."""
    region, slope = learner.region, learner.criterion.slope
    theta, unravel = ravel_pytree(policy)

    def distribution(point):
        return unravel(point)(x)

    here = distribution(theta)
    log_prob = here.log_prob(action)
    spread = jnp.maximum(reward.advantage.std(), SMALLEST_DEVIATION)
    advantage = (reward.advantage - reward.advantage.mean()) / spread
    # Cost advantages are centred and never scaled: a limit is written in the units of the cost.
    cost_advantages = [slope * (cost.advantage - cost.advantage.mean()) for cost in costs]
    violation = jnp.array([cost.objective - limit for cost, limit in zip(costs, learner.limits, strict=True)])

    def gradient(of):
        return ravel_pytree(policy_gradient(policy, x, action, of))[0]

    product = trust_region.fisher_product(distribution, theta, region.damping)

    def natural(direction_):
        return trust_region.conjugate_gradient(product, direction_, region.cg_iterations)

    g = gradient(advantage)
    b = jnp.array([gradient(of) for of in cost_advantages]).reshape(len(costs), theta.size)
    ng, least = natural(g)
    solved = [natural(b_i) for b_i in b]
    least = functools.reduce(jnp.minimum, [curvature for _, curvature in solved], least)
    nb = jnp.array([nb_i for nb_i, _ in solved]).reshape(b.shape)
    gram, nb = direction.gram(product, g, ng, b, nb, violation, region.delta)
    plan = direction.plan(gram)
    step = plan.along_g * ng + plan.along_b @ nb

    def cost_change(there):
        return jnp.array([surrogate(there, action, log_prob, of) for of in cost_advantages])

    def judge(point):
        there = distribution(point)
        improvement = surrogate(there, action, log_prob, advantage)
        kl = jnp.mean(there.kl(here))
        # A limit that is kept must stay kept; one that is broken must come nearer, whatever that costs in reward.
        change = cost_change(there)
        limits_respected = jnp.all(jnp.where(violation > 0, change < 0, violation + change <= 0))
        better = (improvement > 0) | jnp.any(violation > 0)
        return Candidate(improvement, kl, better & (kl <= region.delta) & limits_respected)

    search = trust_region.backtrack(judge, theta, step, region)
    finite = jnp.isfinite(g).all() & jnp.isfinite(step).all()
    outcome = jnp.select(
        [~finite, least <= 0, ~jnp.any(step != 0), ~search.accepted],
        [Outcome.NON_FINITE, Outcome.CURVATURE, Outcome.FLAT, Outcome.LINE_SEARCH],
        Outcome.ACCEPTED,
    )
    accepted = outcome == Outcome.ACCEPTED
    kept = jnp.where(accepted, search.theta, theta)
    after = distribution(kept)
    return unravel(kept), _Step(
        outcome=outcome,
        tries=search.tries,
        kl=jnp.where(accepted, search.candidate.kl, 0),
        improvement=jnp.where(accepted, search.candidate.improvement * spread * slope, 0),
        predicted_improvement=(g @ step) * spread * slope,
        gradient_norm=jnp.linalg.norm(g),
        entropy=after.entropy(),
        violation=violation,
        predicted_cost_change=b @ step,
        surrogate_cost_change=jnp.where(accepted, cost_change(after), 0),
        gram=gram,
        plan=plan,
        unit=spread * slope,
    )


@functools.partial(jax.jit, static_argnums=0)
def _refit(
    fit: CriticFit,
    critic: Critic,
    optimizer: optax.OptState,
    x: Float[Array, "sample obs"],
    target: Float[Array, " sample"],
    rate: Float[Array, ""],
    key: PRNGKeyArray,
) -> tuple[Critic, optax.OptState, Float[Array, ""], Bool[Array, ""]]:
    """Minimise the squared error to the targets by Adam over shuffled minibatches (line 9)."""
    samples = target.shape[0]
    minibatch = min(fit.critic_minibatch, samples)
    whole = samples - samples % minibatch
    adam = optax.scale_by_adam()

    def loss(critic, x, target):
        weight_norm = sum(jnp.sum(w**2) for w in critic.network.weights)
        return jnp.mean((critic(x) - target) ** 2) + fit.critic_l2 * weight_norm

    def descend(carry, batch):
        critic, optimizer = carry
        value, gradient = jax.value_and_grad(loss)(critic, *batch)
        change, optimizer = adam.update(gradient, optimizer)
        critic = jax.tree.map(lambda parameter, d: parameter - rate * d, critic, change)
        return (critic, optimizer), value

    def epoch(carry, key):
        order = jax.random.permutation(key, samples)[:whole]
        batches = (x[order].reshape(-1, minibatch, x.shape[1]), target[order].reshape(-1, minibatch))
        return jax.lax.scan(descend, carry, batches)

    (fitted, moved), losses = jax.lax.scan(epoch, (critic, optimizer), jax.random.split(key, fit.critic_epochs))
    flat, _ = ravel_pytree((fitted, moved))
    broken = ~jnp.isfinite(flat).all()
    keep = functools.partial(jax.tree.map, lambda old, new: jnp.where(broken, old, new))
    return keep(critic, fitted), keep(optimizer, moved), losses[-1].mean(), broken


def _diagnosis(step: _Step, costs: list[Estimate], realised: Float[Array, " cost"]) -> ConstraintMetrics:
    """In the units of reward and cost; the multipliers are NaN where recovery has none."""
    gram, plan, unit = step.gram, step.plan, step.unit
    return ConstraintMetrics(
        cost=jnp.array([cost.objective for cost in costs]),
        violation=step.violation,
        predicted_cost_change=step.predicted_cost_change,
        surrogate_cost_change=step.surrogate_cost_change,
        realised_cost_change=realised,
        case=plan.case,
        q=gram.q * unit**2,
        r=gram.r * unit,
        s=jnp.diag(gram.s),
        multiplier_kl=plan.lam * unit,
        multiplier_cost=plan.nu * unit,
    )
