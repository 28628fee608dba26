"""The clipped surrogate, maximised by Adam over minibatches (Schulman et al. 2017: PPO).

Under the average criterion this is average-reward PPO. It keeps no limits: a clipped ratio says nothing about how far a
cost has moved.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from kemeny.learning.networks import PolicyNetwork
from kemeny.learning.samples import Samples
from kemeny.learning.settings import Clipping, Passes
from kemeny.learning.steps.passes import ascend, init_moments
from kemeny.learning.steps.protocol import Limits, Outcome, Report, unless
from kemeny.learning.steps.surrogate import policy_gradient, standardized, surrogate


class Details(NamedTuple):
    """What a clipped step alone can say."""

    minibatches: Int[Array, ""]
    clipped_share: Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class Clip:
    """Passes over the batch that stop as soon as a minibatch finds the policy farther than δ from where it began.

    Unlike the natural step it promises no trust region: the last minibatch before the stop may go beyond δ a little.
    """

    passes: Passes = dataclasses.field(default_factory=Passes)
    clipping: Clipping = dataclasses.field(default_factory=Clipping)
    delta: float = 0.02
    supports_limits = False

    def init(self, policy: PolicyNetwork, costs: int = 0) -> optax.OptState:
        """Adam's moments, which go on from batch to batch."""
        del costs
        return init_moments(self.passes, policy)

    def __call__(
        self, policy: PolicyNetwork, samples: Samples, limits: Limits, state: optax.OptState, key: PRNGKeyArray
    ) -> tuple[PolicyNetwork, optax.OptState, Report]:
        """One step."""
        advantage, spread = standardized(samples)
        delta = self.delta * limits.delta_share
        moved, moments, taken = ascend(
            self.passes, self._clipped_surrogate, policy, samples, advantage, delta, state, key
        )
        gradient = ravel_pytree(policy_gradient(policy, samples, advantage))[0]
        finite = jnp.isfinite(gradient).all() & jnp.isfinite(ravel_pytree((moved, moments))[0]).all()
        outcome = jnp.select([~finite, ~jnp.any(gradient != 0)], [Outcome.NON_FINITE, Outcome.FLAT], Outcome.ACCEPTED)
        rejected = outcome != Outcome.ACCEPTED
        policy_after, moments = unless(rejected, (policy, state), (moved, moments))
        after = policy_after(samples.x)
        ratio = jnp.exp(after.log_prob(samples.action) - samples.log_prob)
        report = Report(
            outcome=outcome,
            kl=samples.average(after.kl(policy(samples.x))),
            improvement=jnp.where(rejected, 0, surrogate(after, samples, advantage) * spread * limits.slope),
            gradient_norm=jnp.linalg.norm(gradient),
            entropy=after.entropy(),
            details=Details(
                minibatches=jnp.where(rejected, 0, taken),
                clipped_share=samples.average((jnp.abs(ratio - 1) > self.clipping.clip_ratio).astype(ratio.dtype)),
            ),
        )
        return policy_after, moments, report

    def _clipped_surrogate(
        self, candidate: PolicyNetwork, samples: Samples, advantage: Float[Array, " sample"]
    ) -> Float[Array, ""]:
        """E[min(ratio · A, clip(ratio, 1 ± ε) · A)]."""
        ratio = jnp.exp(candidate(samples.x).log_prob(samples.action) - samples.log_prob)
        bounded = jnp.clip(ratio, 1 - self.clipping.clip_ratio, 1 + self.clipping.clip_ratio)
        return samples.average_over_actions(jnp.minimum(ratio * advantage, bounded * advantage))
