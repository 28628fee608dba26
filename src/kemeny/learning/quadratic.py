"""A quadratic function of the observations, which a critic may have beside its network.

The value of a queue grows like the square of its length, and how much better one action is than another shows in
differences of values that are small beside them. A network of tanh units has neither the shape nor the precision, and
beyond what it has seen it is flat. So the squares and products of the observations are fitted to the targets by least
squares, in closed form, and the network learns what is left.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kemeny.errors import UserError
from kemeny.learning.equations import Equations
from kemeny.rollout import Outcomes
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
        return jnp.concatenate([jnp.ones_like(x[:, :1]), x, self.pairs(x)], 1)

    def rises(
        self,
        x: Float[Array, "sample obs"],
        normalize: Callable[[Array], Array],
        outcomes: Outcomes,
        discount: float,
    ) -> Float[Array, "sample feature"]:
        """discount · E φ(x') − φ(x): how the features rise in a step, on average over what may come.

        With d = x' − x, the mean of x'ᵢx'ⱼ − xᵢxⱼ is xᵢ·E dⱼ + xⱼ·E dᵢ + E dᵢdⱼ: no large numbers are subtracted
        from each other.
        """

        def add(total, event):
            after, likely = normalize(event[0]).reshape(x.shape), event[1].reshape(-1, 1)
            move, products = total
            return (move + likely * (after - x), products + likely * self.pairs(after - x)), None

        nothing = jnp.zeros_like(x), jnp.zeros_like(self.pairs(x))
        (move, products), _ = jax.lax.scan(add, nothing, (outcomes.observation, outcomes.probability))
        rows, columns = np.triu_indices(self.plain)
        products += x[:, rows] * move[:, columns] + x[:, columns] * move[:, rows]
        steps = jnp.concatenate([jnp.zeros_like(x[:, :1]), move, products], 1)
        return discount * steps - (1 - discount) * self.features(x)

    def pairs(self, x: Float[Array, "sample obs"]) -> Float[Array, "sample pair"]:
        """The products, in the order of their weights."""
        rows, columns = np.triu_indices(self.plain)
        return x[:, rows] * x[:, columns]

    def refitted(
        self,
        x: Float[Array, "sample obs"],
        target: Float[Array, " sample"],
        weight: Float[Array, " sample"],
        equations: Equations | None = None,
    ) -> "Quadratic":
        """Nearer to the least squares of a batch, in which each sample has a weight; the first batch counts whole.

        The constant follows from the others, which are found from features less their mean. Equations may count many
        times as much as targets and, without a discount, say nothing of the constant, which would be lost in rounding
        among the others.
        """
        features = self.features(x)[:, 1:]
        share = weight / jnp.sum(weight)
        middle, level = share @ features, share @ target
        centred = features - middle
        gram = centred.T @ (share[:, None] * centred) + RIDGE * jnp.eye(len(middle))
        moment = centred.T @ (share * (target - level))
        if equations is not None:
            constant = equations.rise[:, 0]
            rise = equations.rise[:, 1:] - constant[:, None] * middle
            share = equations.weight / jnp.sum(weight)
            gram += rise.T @ (share[:, None] * rise)
            moment += rise.T @ (share * (equations.goal - constant * level))
        found = jnp.linalg.solve(gram, moment)
        found = jnp.concatenate([(level - middle @ found)[None], found])
        newest = jnp.maximum(LEAST_SHARE, 1 / (self.fits + 1))
        weights = (1 - newest) * self.weights + newest * found
        sound = jnp.isfinite(weights).all()
        return Quadratic(
            jnp.where(sound, weights, self.weights), jnp.where(sound, self.fits + 1, self.fits), self.plain
        )
