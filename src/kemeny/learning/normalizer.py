"""Running mean and deviation of the observations, by which every network's input is scaled.

The statistics are frozen while a batch is collected and while it is learnt from, are updated between batches, and
travel inside every checkpoint (Appendix H: "states are normalized by the running mean and the running standard
deviation before being fed to any network").
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

SMALLEST_VARIANCE = 1e-4
"""An observation that hardly varies must not be blown up by its own noise: below this it counts as constant."""


class Normalizer(eqx.Module):
    """x ↦ clip((x − mean) · scale, ±clip)."""

    mean: Float[Array, " obs"]
    variance: Float[Array, " obs"]
    scale: Float[Array, " obs"]
    """1/std, floored; kept so that the policy in NumPy scales by the very same numbers."""
    clip: Float[Array, ""]
    count: Float[Array, ""]
    """Observations seen; 0 leaves inputs unscaled. A float: the weights of old and new are all that matters."""
    mask: int = eqx.field(static=True, default=0)
    """How many components, the last ones, are left as they are: zeros and ones that say which actions are allowed."""

    @classmethod
    def init(cls, size: int, clip: float, mask: int = 0) -> "Normalizer":
        """The identity, but for clipping."""
        clipping = jnp.array(clip, jnp.float32)
        return cls(jnp.zeros(size), jnp.ones(size), jnp.ones(size), clipping, jnp.zeros(()), mask)

    def __call__(self, observation: Float[Array, "*batch obs"]) -> Float[Array, "*batch obs"]:
        """Scale and clip."""
        return jnp.clip((observation - self.mean) * self.scale, -self.clip, self.clip)

    def filled(self, batch: Float[Array, "sample obs"]) -> "Normalizer":
        """Before the first batch has been counted, its statistics; afterwards these.

        A policy must not step under one normaliser and act under another: that would leave the trust region.
        """
        first = self.update(batch)
        return jax.tree.map(lambda mine, other: jnp.where(self.count == 0, other, mine), self, first)

    def update(self, batch: Float[Array, "sample obs"]) -> "Normalizer":
        """Statistics of everything seen so far and the batch together (Chan et al.'s pairwise merge)."""
        share = batch.shape[0] / (self.count + batch.shape[0])
        shift = batch.mean(0) - self.mean
        variance = (1 - share) * self.variance + share * batch.var(0) + share * (1 - share) * shift**2
        mean = self.mean + share * shift
        sound = jnp.isfinite(mean) & jnp.isfinite(variance)  # else a component keeps its statistics
        if self.mask:
            sound = sound.at[-self.mask :].set(False)
        mean, variance = jnp.where(sound, mean, self.mean), jnp.where(sound, variance, self.variance)
        return Normalizer(
            mean=mean,
            variance=variance,
            scale=1 / jnp.sqrt(jnp.maximum(variance, SMALLEST_VARIANCE)),
            clip=self.clip,
            count=self.count + batch.shape[0],
            mask=self.mask,
        )
