"""The best of all policies within the trust region, then the network nearest to it.

(SPU: Vuong et al. 2019; V-MPO: Song et al. 2020; with limits FOCOPS: Zhang et al. 2020.)

Over all policies, E[Ā] subject to E KL(π‖π_k) ≤ δ is maximised by π* ∝ π_k·exp(Ā/β), where β is the price of the trust
region. One action per state does not tell Z(s) of π*, so β is V-MPO's: the weights exp(Ā/β)/E exp(Ā/β) of the samples
have relative entropy δ. They tilt states together with actions, and the entropy of the two together bounds that of the
actions.

The network is then moved toward π*. Since KL(π‖π*) = KL(π‖π_k) − E_π[Ā]/β + log Z(s), minimising its mean over the
states is maximising E[π/π_k·Ā] − β·E KL(π‖π_k), in which Z does not occur; its gradient is FOCOPS's.

With limits Ā is replaced by Ā − Σ νᵢ Ā_cᵢ, where νᵢ ≥ 0 is the price of limit i. It follows the excess of its cost from
batch to batch. What is promised is KL ≤ δ and a better surrogate of reward less priced costs: a step may break a limit
that was kept, and only later, dearer steps mend it.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from kemeny.learning.networks import PolicyNetwork
from kemeny.learning.samples import Samples
from kemeny.learning.settings import Passes, Projection, TrustRegion
from kemeny.learning.steps import trust_region
from kemeny.learning.steps.direction import Case
from kemeny.learning.steps.passes import ascend, init_moments
from kemeny.learning.steps.protocol import Limits, Outcome, Report, unless
from kemeny.learning.steps.surrogate import centred, policy_gradient, standardized, surrogate
from kemeny.learning.steps.trust_region import Candidate

LARGEST_EXPONENT = 80.0
"""Of a weight before it is normalised: exp(−80) is still a number in float32."""
HALVINGS = 40
"""Of the interval in which log β lies: more than float32 can tell apart."""

Scalar = Float[Array, ""]
Column = Float[Array, " sample"]
PerCost = Float[Array, " cost"]


class Memory(NamedTuple):
    """What goes on from batch to batch."""

    moments: optax.OptState
    price: PerCost
    """ν of each limit, in reward per unit of cost, without the part that answers the last excess alone."""


class Details(NamedTuple):
    """What a projected step alone can say."""

    minibatches: Int[Array, ""]
    tries: Int[Array, ""]
    multiplier_kl: Scalar
    limited: "Limited | None"


class Limited(NamedTuple):
    """What it says of limits, in the units of reward and cost."""

    surrogate_cost_change: PerCost
    case: Int[Array, ""]
    multiplier_cost: PerCost


def weights(samples: Samples, advantage: Column, beta: Scalar) -> tuple[Column, Column]:
    """w = exp(Ā/β)/E exp(Ā/β), and log w: how much likelier each sample is under the target than under π_k."""
    exponent = (advantage - jnp.max(advantage)) / beta
    log_weight = exponent - jnp.log(samples.average_over_actions(jnp.exp(exponent)))
    return jnp.exp(log_weight), log_weight


def relative_entropy(samples: Samples, advantage: Column, beta: Scalar) -> Scalar:
    """E[w log w], the KL divergence of the target's samples from those of π_k; it falls as β rises."""
    weight, log_weight = weights(samples, advantage, beta)
    return samples.average_over_actions(weight * log_weight)


def price_of_region(samples: Samples, advantage: Column, delta: float | Scalar) -> Scalar:
    """The least β at which the relative entropy is at most δ, for advantages of mean 0, by bisection of log β.

    It is at most max Ā/β, which gives the upper end. Where even the best samples alone are within δ, β is so small that
    nothing else counts.
    """
    span = jnp.max(advantage) - jnp.min(advantage)
    varies = ~(span <= 0)
    low = jnp.where(varies, span / LARGEST_EXPONENT, 1)
    high = jnp.maximum(low, jnp.max(advantage) / delta)

    def halve(_, ends):
        low, high = ends
        middle = jnp.sqrt(low) * jnp.sqrt(high)
        far = relative_entropy(samples, advantage, middle) > delta
        return jnp.where(far, middle, low), jnp.where(far, high, middle)

    return jax.lax.fori_loop(0, HALVINGS, halve, (low, high))[1]


@dataclasses.dataclass(frozen=True)
class Project:
    """Solve over all policies, then move the network there, as far as the trust region allows."""

    passes: Passes = dataclasses.field(default_factory=Passes)
    projection: Projection = dataclasses.field(default_factory=Projection)
    region: TrustRegion = dataclasses.field(default_factory=TrustRegion)
    supports_limits = True

    def init(self, policy: PolicyNetwork, costs: int = 0) -> Memory:
        """No moments yet, and limits that cost nothing."""
        return Memory(init_moments(self.passes, policy), jnp.zeros(costs))

    def __call__(
        self, policy: PolicyNetwork, samples: Samples, limits: Limits, state: Memory, key: PRNGKeyArray
    ) -> tuple[PolicyNetwork, Memory, Report]:
        """One step."""
        delta, slope = self.region.delta * limits.delta_share, limits.slope
        theta, unravel = ravel_pytree(policy)
        here = policy(samples.x)
        kept_price, price = self._prices(samples, limits, state.price)
        priced = samples.advantage[0]
        for nu, of_cost in zip(price, samples.advantage[1:], strict=True):
            priced = priced - nu * of_cost
        advantage, spread = standardized(samples._replace(advantage=(priced,)))
        beta = price_of_region(samples, advantage, delta)

        def objective(candidate: PolicyNetwork, some: Samples, some_advantage: Column) -> Scalar:
            there: Any = candidate(some.x)
            return surrogate(there, some, some_advantage) - beta * some.average(there.kl(policy(some.x)))

        ascent = ascend(self.passes, objective, policy, samples, advantage, delta, state.moments, key)

        def change(candidate: Any, of: Column) -> Scalar:
            return surrogate(candidate, samples, of) - surrogate(here, samples, of)

        def judge(point: Float[Array, " parameter"]) -> Candidate:
            candidate = unravel(point)(samples.x)
            improvement, kl = change(candidate, advantage), samples.average(candidate.kl(here))
            return Candidate(improvement, kl, (improvement > 0) & (kl <= delta))

        search = trust_region.backtrack(judge, theta, ravel_pytree(ascent.policy)[0] - theta, self.region)
        gradient = ravel_pytree(policy_gradient(policy, samples, advantage))[0]
        numbers = ravel_pytree((gradient, beta, ascent.policy, ascent.moments))[0]
        outcome = jnp.select(
            [~jnp.isfinite(numbers).all(), ~jnp.any(gradient != 0), ~search.accepted],
            [Outcome.NON_FINITE, Outcome.FLAT, Outcome.LINE_SEARCH],
            Outcome.ACCEPTED,
        )
        accepted = outcome == Outcome.ACCEPTED
        after = unravel(jnp.where(accepted, search.theta, theta))
        there = after(samples.x)
        memory = Memory(
            unless(~accepted, state.moments, ascent.moments),
            jnp.where(outcome == Outcome.NON_FINITE, state.price, kept_price),
        )
        limited = None
        if len(price):
            cost_changes = [slope * change(there, centred(samples, of)) for of in samples.advantage[1:]]
            limited = Limited(
                surrogate_cost_change=jnp.where(accepted, jnp.array(cost_changes), 0),
                case=jnp.where(jnp.any(price > 0), Case.ACTIVE, Case.INACTIVE),
                multiplier_cost=price,
            )
        report = Report(
            outcome=outcome,
            kl=jnp.where(accepted, search.candidate.kl, 0),
            improvement=jnp.where(accepted, slope * change(there, centred(samples, samples.advantage[0])), 0),
            gradient_norm=jnp.linalg.norm(gradient),
            entropy=there.entropy(),
            details=Details(ascent.taken, search.tries, beta * spread * slope, limited),
        )
        return after, memory, report

    def _prices(self, samples: Samples, limits: Limits, price: PerCost) -> tuple[PerCost, PerCost]:
        """The prices to remember, and those of this step.

        Projected ascent on the excess, as in FOCOPS. The excess is counted in steps, at most as one: a step can change
        J of the cost by slope·σ_c·√(2δ) to first order. The price is counted in σ_r/σ_c, at which reward and cost
        weigh alike. So the units of reward and cost do not matter. The excess is also added to the price of this step
        alone (the proportional part of Stooke et al. 2020): without it, prices and costs swing around each other.
        """
        if not len(price):
            return price, price
        sigma = [jnp.sqrt(samples.average_over_actions(centred(samples, of) ** 2)) for of in samples.advantage]
        sigma_c = jnp.array(sigma[1:])
        varies = ~(sigma_c <= 0)
        per_cost = jnp.where(varies, 1 / jnp.where(varies, sigma_c, 1), 0)
        radius = jnp.sqrt(2 * self.region.delta * limits.delta_share)
        steps = jnp.clip(limits.excess * per_cost / (limits.slope * radius), -1, 1)
        move = steps * sigma[0] * per_cost
        kept = jnp.maximum(price + self.projection.multiplier_step_size * move, 0)
        return kept, jnp.maximum(kept + move, 0)
