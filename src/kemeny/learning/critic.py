"""Critics refitted to their targets after each batch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from kemeny.learning.equations import Equations
from kemeny.learning.minibatches import minibatches
from kemeny.learning.networks import Critic
from kemeny.learning.settings import CriticFit


def annealed(step_size: float, iteration: Int[Array, ""], iterations: int | Int[Array, ""]) -> Float[Array, ""]:
    """A step size that falls linearly from its value at iteration 0 to 0 at the last one.

    In double precision, like the Python that computed it before: one rounding, whatever the length of the run.
    """
    with jax.enable_x64(True):
        share = jnp.asarray(iteration, jnp.float64) / jnp.asarray(iterations, jnp.float64)
        return jnp.maximum(step_size * (1 - share), 0.0).astype(jnp.float32)


def in_unit_of(critic: Critic, target: Float[Array, " sample"]) -> Critic:
    """The same function of the state, with the targets' deviation as its unit.

    In that unit a network learns values that are large beside the rewards, as in a queue that empties slowly, as fast
    as small ones.
    """
    spread = jnp.std(target)
    unit = jnp.where(jnp.isfinite(spread) & (spread > 0), spread, critic.unit)
    *weights, head = critic.network.weights
    *biases, offset = critic.network.biases
    network = dataclasses.replace(
        critic.network,
        weights=(*weights, head * (critic.unit / unit)),
        biases=(*biases, offset * (critic.unit / unit)),
    )
    return dataclasses.replace(critic, network=network, unit=unit)


@functools.partial(jax.jit, static_argnums=(0, 8))
def refit(
    fit: CriticFit,
    critic: Critic,
    optimizer: optax.OptState,
    x: Float[Array, "sample obs"],
    target: Float[Array, " sample"],
    weight: Float[Array, " sample"],
    step_size: Float[Array, ""],
    key: PRNGKeyArray,
    batches: int = 1,
    equations: Equations | None = None,
) -> tuple[Critic, optax.OptState, Float[Array, ""], Bool[Array, ""]]:
    """Minimise the squared error to the targets by Adam over shuffled minibatches (Algorithm 2, line 9).

    A quadratic part is fitted first, by least squares, to the `equations` as well if they are given, and the network to
    what it leaves of the targets.
    If the samples are those of several batches, a pass is as long as one of them, over samples drawn from all.
    Returns the critic, Adam's moments, the mean loss of the last pass, and whether a number was not finite: then critic
    and moments are the old ones.
    """
    adam = optax.scale_by_adam()
    if critic.quadratic is not None:
        mine = None if equations is None else equations.less(critic.mean)
        quadratic = critic.quadratic.refitted(x, target - critic.mean, weight, mine)
        critic, target = dataclasses.replace(critic, quadratic=quadratic), target - quadratic(x)
    if fit.critic_unit == "targets":
        critic = in_unit_of(critic, target)
    goal = (target - critic.mean) / critic.unit
    per_weight = len(weight) / jnp.sum(weight)  # shares are of mean 1, so that the mean of a minibatch is unbiased
    columns = (x, goal, weight * per_weight)

    def loss(network, x, goal, share):
        weight_norm = sum(jnp.sum(w**2) for w in network.weights)
        return jnp.mean(share * (network(x)[..., 0] - goal) ** 2) + fit.critic_l2 * weight_norm

    def descend(carry, part):
        network, optimizer = carry
        value, gradient = jax.value_and_grad(loss)(network, *part)
        change, optimizer = adam.update(gradient, optimizer)
        network = jax.tree.map(lambda parameter, d: parameter - step_size * d, network, change)
        return (network, optimizer), value

    def go_over(carry, key):
        return jax.lax.scan(descend, carry, minibatches(key, columns, fit.critic_minibatch, batches))

    start = (critic.network, optimizer)
    fitted, losses = jax.lax.scan(go_over, start, jax.random.split(key, fit.critic_epochs))
    flat, _ = ravel_pytree(fitted)
    broken = ~jnp.isfinite(flat).all()
    network, moments = jax.tree.map(lambda old, new: jnp.where(broken, old, new), start, fitted)
    loss_of_last_pass = critic.unit**2 * losses[-1].mean()
    return dataclasses.replace(critic, network=network), moments, loss_of_last_pass, broken
