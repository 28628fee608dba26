"""Adam over minibatches of a batch until the policy has gone far enough: what the clipped and projected steps share."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from kemeny.learning.minibatches import minibatches
from kemeny.learning.networks import PolicyNetwork
from kemeny.learning.samples import Samples
from kemeny.learning.settings import Passes
from kemeny.learning.steps.protocol import unless

LARGEST_GRADIENT = 0.5
"""A longer gradient of a minibatch is shortened to this, as in the common implementations of PPO."""

Objective = Callable[[PolicyNetwork, Samples, Float[Array, " sample"]], Float[Array, ""]]
"""What a candidate is worth on some samples with these advantages."""


class Ascent(NamedTuple):
    """Where the passes ended."""

    policy: PolicyNetwork
    moments: optax.OptState
    taken: Int[Array, ""]
    """Minibatches used before the end or the stop."""


def init_moments(passes: Passes, policy: PolicyNetwork) -> optax.OptState:
    """Adam's moments before the first batch; they go on from batch to batch."""
    return _optimizer(passes).init(eqx.filter(policy, eqx.is_array))


def ascend(
    passes: Passes,
    objective: Objective,
    policy: PolicyNetwork,
    samples: Samples,
    advantage: Float[Array, " sample"],
    delta: float | Float[Array, ""],
    moments: optax.OptState,
    key: PRNGKeyArray,
) -> Ascent:
    """Maximise the objective; stop as soon as a minibatch finds the policy farther than δ from where it began."""

    def consider(carry, part):
        current, moments, stopped, taken = carry
        some, some_advantage = part

        def loss(candidate):
            return -objective(candidate, some, some_advantage)

        change, new_moments = _optimizer(passes).update(jax.grad(loss)(current), moments)
        stopped = stopped | (some.average(current(some.x).kl(policy(some.x))) > delta)
        moved = unless(stopped, (current, moments), (optax.apply_updates(current, change), new_moments))
        return (*moved, stopped, taken + ~stopped), None

    def go_over(carry, epoch_key):
        return jax.lax.scan(consider, carry, minibatches(epoch_key, (samples, advantage), passes.policy_minibatch))

    start = (policy, moments, jnp.array(False), jnp.array(0))
    epochs = jax.random.split(key, passes.policy_epochs)
    (moved, moments, _, taken), _ = jax.lax.scan(go_over, start, epochs)
    return Ascent(moved, moments, taken)


def _optimizer(passes: Passes) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(LARGEST_GRADIENT), optax.adam(passes.policy_step_size))
