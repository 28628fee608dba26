"""A quadratic function of the observations, which a critic may have beside its network.

The value of a queue grows like the square of its length, and how much better one action is than another shows in
differences of values that are small beside them. A network of tanh units has neither the shape nor the precision, and
beyond what it has seen it is flat. So the squares and products of the observations are fitted to the targets by least
squares, in closed form, and the network learns what is left.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kemeny.errors import UserError
from kemeny.learning.changes import Changes
from kemeny.spec import Spec

LEAST_SHARE = 0.2
"""Of the newest batch in the weights, which makes them a mean over about nine batches: the copies of a queue that are
in a batch are few beside the products of many observations."""
RIDGE = 1e-2
"""Added to the diagonal of the least squares. Observations are normalised, so that most features have a mean square of
about 1. One that is nearly always 0, as of a queue that no job has reached yet, gets a weight of nearly 0: a few jobs
must not say what many are worth."""
MOST_FEATURES = 50
"""Observations of which all products are taken: 50 numbers have 1,275."""


def refuse_too_many(spec: Spec) -> None:
    """A `UserError` where there would be too many products."""
    if spec.features > MOST_FEATURES:
        raise UserError(
            f"A quadratic part of the critics (--critic-form quadratic) is for at most {MOST_FEATURES} observed "
            f"numbers, and here there are {spec.features}: use --critic-form network."
        )


class Quadratic(eqx.Module):
    """q(x) = a + b·x + Σ cᵢⱼ xᵢ xⱼ; the products are those of the first `plain` components, i ≤ j."""

    weights: Float[Array, " feature"]
    """a, then b, then c row by row."""
    fits: Float[Array, ""]
    """How often it has been fitted."""
    plain: int = eqx.field(static=True)
    """Components that are not a mask: a mask is linear, for 0 and 1 are their own squares."""

    @classmethod
    def init(cls, spec: Spec) -> "Quadratic":
        """0 everywhere."""
        refuse_too_many(spec)
        size = 1 + spec.observation.size + spec.features * (spec.features + 1) // 2
        return cls(jnp.zeros(size), jnp.zeros(()), spec.features)

    def __call__(self, x: Float[Array, "*batch obs"]) -> Float[Array, "*batch"]:
        """Its value in each (normalised) state."""
        linear, plain = 1 + x.shape[-1], x[..., : self.plain]
        products = jnp.zeros((self.plain, self.plain)).at[np.triu_indices(self.plain)].set(self.weights[linear:])
        return self.weights[0] + x @ self.weights[1:linear] + jnp.sum(plain @ products * plain, -1)

    def features(self, x: Float[Array, "sample obs"]) -> Float[Array, "sample feature"]:
        """What the weights are for."""
        rows, columns = np.triu_indices(self.plain)
        return jnp.concatenate([jnp.ones_like(x[:, :1]), x, x[:, rows] * x[:, columns]], 1)

    def refitted(
        self,
        x: Float[Array, "sample obs"],
        target: Float[Array, " sample"],
        weight: Float[Array, " sample"],
        changes: Changes | None = None,
    ) -> "Quadratic":
        """Nearer to the least squares of a batch, in which each sample has a weight; the first batch counts whole.

        Each change, if they are given, is one more equation.
        """
        features = self.features(x)
        share = weight / jnp.sum(weight)
        gram = features.T @ (share[:, None] * features) + RIDGE * jnp.eye(features.shape[1])
        moment = features.T @ (share * target)
        if changes is not None:
            steps, share = self.features(changes.next_x) - features, changes.weight / jnp.sum(weight)
            gram += steps.T @ (share[:, None] * steps)
            moment += steps.T @ (share * changes.change)
        found = jnp.linalg.solve(gram, moment)
        newest = jnp.maximum(LEAST_SHARE, 1 / (self.fits + 1))
        weights = (1 - newest) * self.weights + newest * found
        sound = jnp.isfinite(weights).all()
        return Quadratic(
            jnp.where(sound, weights, self.weights), jnp.where(sound, self.fits + 1, self.fits), self.plain
        )
