"""How much a state counts, where values differ by orders of magnitude.

In a queue the value grows like the square of the length, and so do the errors of a critic. A few copies with long
queues then outweigh all other states: in the squared errors that the critics are fitted by, and as noise in the policy
gradient. So errors and advantages are divided by the size of the value. This does not change which actions are better
in a state, for all of them are divided by the same number. It only says which states matter more, where one network
cannot serve all of them equally well.

Where states of unusual value are those in which an action matters most, as in a stock from two suppliers, the policy
needs their advantages whole: `critics` divides errors alone.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def relative(
    advantage: Float[Array, "*lambda sample"], size: Float[Array, " sample"]
) -> Float[Array, "*lambda sample"]:
    """Advantages whose distance from their mean is divided by the size of each state's value."""
    middle = advantage.mean(-1, keepdims=True)
    return middle + (advantage - middle) / size


def value_size(value: Float[Array, " *batch"]) -> Float[Array, " *batch"]:
    """√(1 + z²) for each state: about 1 for usual values, and |z| for those far from them.

    z is the distance from the median in units of the range that holds the middle half: a few extreme values do not
    change it. If all of the middle half are the same, all sizes are 1.
    """
    low, middle, high = jnp.quantile(value, jnp.array([0.25, 0.5, 0.75]))
    z = jnp.where(high > low, (value - middle) / (high - low), 0.0)
    return jnp.sqrt(1 + z**2)
