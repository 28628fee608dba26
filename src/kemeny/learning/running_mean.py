"""Means over the last batches, for what happens too rarely to be seen in one, with their errors.

With ρ̂ of a batch, and its share a = 1/M for a memory of M batches (1/k at the k-th batch, as long as there are fewer),
mean ← (1 − a) · mean + a · ρ̂. Older batches are of older policies, and nothing corrects for what policy steps promised
since then: a step keeps less than it promises, and in a memory such errors add up (`docs/constraints.md`).
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class RunningMean(eqx.Module):
    """Of several signals, each with a memory of its own."""

    mean: Float[Array, " signal"]
    variance: Float[Array, " signal"]
    """Of a single batch around the mean, with the weights of the mean."""
    weights: Float[Array, " signal"]
    """The sum of the squares of those weights."""
    batches: Int[Array, ""]

    @classmethod
    def init(cls, signals: int) -> "RunningMean":
        """Before the first batch."""
        zeros = jnp.zeros(signals)
        return cls(zeros, zeros, zeros, jnp.zeros((), jnp.int32))

    def add(self, batch: Float[Array, " signal"], memory: tuple[int, ...]) -> "RunningMean":
        """With one more batch."""
        share = jnp.maximum(1 / jnp.array(memory, jnp.float32), 1 / (self.batches + 1))
        surprise = batch - self.mean
        return RunningMean(
            # Written so that with a memory of one batch the mean is that batch's, bit for bit.
            mean=(1 - share) * self.mean + share * batch,
            variance=(1 - share) * (self.variance + share * surprise**2),
            weights=(1 - share) ** 2 * self.weights + share**2,
            batches=self.batches + 1,
        )

    @property
    def error(self) -> Float[Array, " signal"]:
        """The standard error of the mean; NaN if it is of a single batch."""
        several = self.weights < 1
        effective = jnp.where(several, self.weights / jnp.where(several, 1 - self.weights, 1), jnp.nan)
        return jnp.sqrt(self.variance * effective)
