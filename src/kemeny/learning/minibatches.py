"""Shuffled minibatches of a batch."""

from typing import Any

import jax
from jaxtyping import PRNGKeyArray


def minibatches(key: PRNGKeyArray, batch: Any, size: int, batches: int = 1) -> Any:
    """Every array of the batch, (sample, …), in a random order as (minibatch, size, …).

    What is left over after the last whole minibatch is dropped; a batch smaller than `size` is one minibatch. If there
    are several batches in one, only as many samples are drawn as one of them has.
    """
    samples = len(jax.tree.leaves(batch)[0])
    drawn = samples // batches
    size = min(size, drawn)
    order = jax.random.permutation(key, samples)[: drawn - drawn % size]
    return jax.tree.map(lambda column: column[order].reshape(-1, size, *column.shape[1:]), batch)
