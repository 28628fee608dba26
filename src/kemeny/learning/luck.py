"""What luck adds to a step, where the environment knows what might have come: it is subtracted, and noise goes with it.

What came differs from its mean by  lₜ = rₜ + discount·v(sₜ₊₁) − E[rₜ + discount·v(sₜ₊₁) | sₜ, aₜ],  a martingale
difference. Subtracting β·lₜ from every temporal difference changes no expectation, whatever v is. With an exact critic
and β = 1 it takes away all noise but that of the actions (the approximating martingale process of Henderson & Glynn
2002; Dai & Gluzman 2022 use it for queues). With a poor critic and β = 1 it adds noise, and a critic that is fitted to
that noise becomes worse. So β is the share that leaves the advantages of the batch the least variance.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kemeny.criterion import Bellman
from kemeny.learning.advantages import Lambda, Signal, gae
from kemeny.rollout import Outcomes


def mean_value(value: Callable[[Float[Array, "time env obs"]], Signal], outcomes: Outcomes) -> Signal:
    """E[v(sₜ₊₁) | sₜ, aₜ], one event after the other: all at once would take too much memory."""
    parts = jax.lax.map(lambda event: event[1] * value(event[0]), (outcomes.observation, outcomes.probability))
    return parts.sum(0)


def share_to_remove(
    bellman: Bellman,
    paid: Signal,
    mean_paid: Signal,
    value: Signal,
    came: Signal,
    mean_came: Signal,
    trace: Signal,
    lam: Lambda,
) -> Float[Array, ""]:
    """β = Cov(A, L)/Var(L), between 0 and 1; L is the λ-weighted sum of luck that is in the advantage A.

    `paid` and `came` are the signal and the next value as they came, the others their means.
    """
    luck = paid - mean_paid + bellman.discount * (came - mean_came)
    advantage = gae(bellman, paid, value, came, trace, lam)
    nothing = jnp.zeros_like(luck)
    in_advantage = gae(bellman._replace(offset=jnp.zeros(())), luck, nothing, nothing, trace, lam)
    share = jnp.mean((advantage - advantage.mean()) * in_advantage) / jnp.mean(in_advantage**2)
    return jnp.where(jnp.isfinite(share), jnp.clip(share, 0, 1), 0.0)
