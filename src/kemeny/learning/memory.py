"""The last batches, kept to be learned from again together with the newest one."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kemeny.rollout import Rollout


class Memory(NamedTuple):
    """Batches and how likely their actions were, each array with the batch as its first axis, the newest first."""

    rollout: Rollout
    log_prob: Float[Array, "batch time env"]
    """Log-probability of each action under the policy that acted."""


def empty(room: Rollout, batches: int) -> Memory:
    """A memory of so many batches of this shape, before there is any."""

    def zeros(array: Any) -> Array:
        return jnp.zeros((batches, *array.shape), jax.dtypes.canonicalize_dtype(array.dtype))

    return Memory(jax.tree.map(zeros, room), jnp.zeros((batches, *room.cut.shape), jnp.float32))


def remember(memory: Memory, rollout: Rollout, log_prob: Float[Array, "time env"]) -> Memory:
    """With this batch, and without the oldest."""
    newest = Memory(rollout, log_prob)
    return jax.tree.map(lambda new, old: jnp.concatenate([new[None], old[:-1]]), newest, memory)


def recall(
    memory: Memory, rollout: Rollout, log_prob: Float[Array, "time env"], seen: Int[Array, ""]
) -> tuple[Memory, Float[Array, " batch"]]:
    """As many batches as can be remembered and the newest one, which is the first, and the weight of each.

    `seen` is the number of earlier batches. As long as there are too few, they stand in for those that do not exist,
    in turn; the weights are such that each batch counts once.
    """
    everything = jax.tree.map(
        lambda new, old: jnp.concatenate([new[None], old]), Memory(rollout, log_prob), memory
    )  # fmt: skip
    places = 1 + len(memory.log_prob)
    number = jnp.arange(places) % jnp.minimum(seen + 1, places)
    copies = jnp.sum(number[:, None] == number, 0)
    return jax.tree.map(lambda array: array[number], everything), 1 / copies.astype(jnp.float32)
