"""Shuffled minibatches of a batch."""

from typing import Any

import jax
from jaxtyping import PRNGKeyArray


def minibatches(key: PRNGKeyArray, batch: Any, size: int) -> Any:
    """Every array of the batch, (sample, …), in a random order as (minibatch, size, …).

    What is left over after the last whole minibatch is dropped; a batch smaller than `size` is one minibatch.
    """
    samples = len(jax.tree.leaves(batch)[0])
    size = min(size, samples)
    order = jax.random.permutation(key, samples)[: samples - samples % size]
    return jax.tree.map(lambda column: column[order].reshape(-1, size, *column.shape[1:]), batch)
