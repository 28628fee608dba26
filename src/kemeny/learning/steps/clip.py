"""The clipped surrogate, maximised by Adam over minibatches (Schulman et al. 2017: PPO).

Under the average criterion this is average-reward PPO. It keeps no limits: a clipped ratio says nothing about how far a
cost has moved.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from kemeny.learning.minibatches import minibatches
from kemeny.learning.networks import PolicyNetwork
from kemeny.learning.samples import Samples
from kemeny.learning.settings import Clipping
from kemeny.learning.steps.protocol import Limits, Outcome, Report
from kemeny.learning.steps.surrogate import policy_gradient, standardized, surrogate

LARGEST_GRADIENT = 0.5
"""A longer gradient of a minibatch is shortened to this, as in the common implementations of PPO."""


class Details(NamedTuple):
    """What a clipped step alone can say."""

    minibatches: Int[Array, ""]
    clipped_share: Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class Clip:
    """Passes over the batch that stop as soon as a minibatch finds the policy farther than δ from where it began.

    Unlike the natural step it promises no trust region: the last minibatch before the stop may go beyond δ a little.
    """

    clipping: Clipping = dataclasses.field(default_factory=Clipping)
    delta: float = 0.02
    supports_limits = False

    def init(self, policy: PolicyNetwork) -> optax.OptState:
        """Adam's moments, which go on from batch to batch."""
        return self._optimizer().init(eqx.filter(policy, eqx.is_array))

    def __call__(
        self, policy: PolicyNetwork, samples: Samples, limits: Limits, state: optax.OptState, key: PRNGKeyArray
    ) -> tuple[PolicyNetwork, optax.OptState, Report]:
        """One step."""
        advantage, spread = standardized(samples)

        def ascend(carry, part):
            current, moments, stopped, taken = carry
            some, some_advantage = part

            def loss(candidate):
                return -self._clipped_surrogate(candidate, some, some_advantage)

            change, new_moments = self._optimizer().update(jax.grad(loss)(current), moments)
            stopped = stopped | (some.average(current(some.x).kl(policy(some.x))) > self.delta)
            moved = _unless(stopped, (current, moments), (optax.apply_updates(current, change), new_moments))
            return (*moved, stopped, taken + ~stopped), None

        def go_over(carry, epoch_key):
            parts = minibatches(epoch_key, (samples, advantage), self.clipping.policy_minibatch)
            return jax.lax.scan(ascend, carry, parts)

        start = (policy, state, jnp.array(False), jnp.array(0))
        epochs = jax.random.split(key, self.clipping.policy_epochs)
        (moved, moments, _, taken), _ = jax.lax.scan(go_over, start, epochs)

        gradient = ravel_pytree(policy_gradient(policy, samples, advantage))[0]
        finite = jnp.isfinite(gradient).all() & jnp.isfinite(ravel_pytree((moved, moments))[0]).all()
        outcome = jnp.select([~finite, ~jnp.any(gradient != 0)], [Outcome.NON_FINITE, Outcome.FLAT], Outcome.ACCEPTED)
        rejected = outcome != Outcome.ACCEPTED
        policy_after, moments = _unless(rejected, (policy, state), (moved, moments))
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

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(LARGEST_GRADIENT), optax.adam(self.clipping.policy_step_size))


def _unless(condition, old, new):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), old, new)
