"""The natural-gradient step within a trust region, cut by the limits where there are any (§5.2, Appendices E and F).

Without limits this is TRPO's step, with them CPO's; under the average criterion, ATRPO's and ACPO's. With Kronecker
factors as the solver in place of conjugate gradient it is ACKTR's, under either criterion and with limits too.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from kemeny.learning.networks import Distribution, PolicyNetwork
from kemeny.learning.samples import Samples
from kemeny.learning.settings import TrustRegion
from kemeny.learning.steps import direction, trust_region
from kemeny.learning.steps.protocol import Limits, Outcome, Report, unless
from kemeny.learning.steps.solver import ConjugateGradient, Solver
from kemeny.learning.steps.surrogate import centred, policy_gradient, standardized, surrogate
from kemeny.learning.steps.trust_region import Candidate


class Details(NamedTuple):
    """What a natural step alone can say."""

    tries: Int[Array, ""]
    predicted_improvement: Float[Array, ""]
    diagnosis: "Diagnosis | None"


class Diagnosis(NamedTuple):
    """The whole diagnosis of a step with limits, in the units of reward and cost."""

    predicted_cost_change: Float[Array, " cost"]
    surrogate_cost_change: Float[Array, " cost"]
    case: Int[Array, ""]
    q: Float[Array, ""]
    r: Float[Array, " cost"]
    s: Float[Array, " cost"]
    multiplier_kl: Float[Array, ""]
    multiplier_cost: Float[Array, " cost"]


@dataclasses.dataclass(frozen=True)
class Natural:
    """Maximise the surrogate to first order, the KL divergence to second order, then backtrack."""

    region: TrustRegion = dataclasses.field(default_factory=TrustRegion)
    solver: Solver = dataclasses.field(default_factory=ConjugateGradient)
    supports_limits = True

    def init(self, policy: PolicyNetwork, costs: int = 0) -> Any:
        """What the solver remembers."""
        del costs
        return self.solver.init(policy)

    def __call__(
        self, policy: PolicyNetwork, samples: Samples, limits: Limits, state: Any, key: PRNGKeyArray
    ) -> tuple[PolicyNetwork, Any, Report]:
        """One step."""
        del key
        region, slope, excess = self.region, limits.slope, limits.excess
        delta = region.delta * limits.delta_share
        theta, unravel = ravel_pytree(policy)

        def distribution(point: Array) -> Any:
            return unravel(point)(samples.x)

        here = distribution(theta)
        advantage, spread = standardized(samples)
        # Cost advantages are centred and never scaled: a limit is written in the units of the cost.
        cost_advantages = [slope * centred(samples, cost) for cost in samples.advantage[1:]]

        def gradient(of: Array) -> Array:
            return ravel_pytree(policy_gradient(policy, samples, of))[0]

        product = trust_region.fisher_product(distribution, theta, region.damping, samples.average)
        natural, remembered = self.solver.prepare(policy, samples, product, region, state)
        g = gradient(advantage)
        b = jnp.array([gradient(of) for of in cost_advantages]).reshape(len(cost_advantages), theta.size)
        ng, least = natural(g)
        solved = [natural(b_i) for b_i in b]
        least = functools.reduce(jnp.minimum, [curvature for _, curvature in solved], least)
        nb = jnp.array([nb_i for nb_i, _ in solved]).reshape(b.shape)
        gram, nb = direction.gram(product, g, ng, b, nb, excess, delta)
        plan = direction.plan(gram)
        step = plan.along_g * ng + plan.along_b @ nb

        def cost_change(candidate: Distribution) -> Array:
            return jnp.array([surrogate(candidate, samples, of) for of in cost_advantages])

        def judge(point: Array) -> Candidate:
            candidate = distribution(point)
            improvement = surrogate(candidate, samples, advantage)
            kl = samples.average(candidate.kl(here))
            # A limit that is kept must stay kept; one that is broken must come nearer, whatever that costs in reward.
            change = cost_change(candidate)
            limits_respected = jnp.all(jnp.where(excess > 0, change < 0, excess + change <= 0))
            better = (improvement > 0) | jnp.any(excess > 0)
            return Candidate(improvement, kl, better & (kl <= delta) & limits_respected)

        search = trust_region.backtrack(judge, theta, step, region)
        finite = jnp.isfinite(g).all() & jnp.isfinite(step).all()
        outcome = jnp.select(
            [~finite, least <= 0, ~jnp.any(step != 0), ~search.accepted],
            [Outcome.NON_FINITE, Outcome.CURVATURE, Outcome.FLAT, Outcome.LINE_SEARCH],
            Outcome.ACCEPTED,
        )
        accepted = outcome == Outcome.ACCEPTED
        kept = jnp.where(accepted, search.theta, theta)
        after, unit = distribution(kept), spread * slope  # what 1 of the standardised advantage is worth in J
        diagnosis = None
        if cost_advantages:  # the multipliers are NaN where recovery has none
            diagnosis = Diagnosis(
                predicted_cost_change=b @ step,
                surrogate_cost_change=jnp.where(accepted, cost_change(after), 0),
                case=plan.case,
                q=gram.q * unit**2,
                r=gram.r * unit,
                s=jnp.diag(gram.s),
                multiplier_kl=plan.lam * unit,
                multiplier_cost=plan.nu * unit,
            )
        report = Report(
            outcome=outcome,
            kl=jnp.where(accepted, search.candidate.kl, 0),
            improvement=jnp.where(accepted, search.candidate.improvement * spread * slope, 0),
            gradient_norm=jnp.linalg.norm(g),
            entropy=after.entropy(),
            details=Details(search.tries, (g @ step) * spread * slope, diagnosis),
        )
        return unravel(kept), unless(outcome == Outcome.NON_FINITE, state, remembered), report
