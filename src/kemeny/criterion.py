"""What a policy is worth: the only module that knows whether reward is discounted.

Both criteria evaluate a policy by one affine equation,

    v = r − offset + discount · P v,

with (offset, discount) = (ρ̂, 1) for the average criterion and (0, γ) for the discounted one. Everything else
(advantages, critic targets, the trust-region step) is written against a `Criterion` and needs no branch.

The functions here use arithmetic and methods that NumPy and JAX arrays share, so the exact theory in
`kemeny.tabular` and the deep learner evaluate policies by the same code.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

from kemeny.errors import UserError

Array = Any
"""A NumPy or JAX array, or a number."""


class Bellman(NamedTuple):
    """Coefficients of the evaluation equation  v = r − offset + discount · P v."""

    offset: Array
    discount: Array


@dataclasses.dataclass(frozen=True)
class Average:
    """J = ρ, the signal per step in the long run (§2, eq. 1)."""

    rate_by: Literal["reward", "td"] = "reward"
    """How ρ̂ is estimated: `reward` is the batch mean of r (Algorithm 2, line 4); `td` is the mean of
    r + v(s') − v(s), which corrects for a batch that does not start in the stationary distribution."""

    gauge: Literal["centred", "free"] = "centred"
    """v̄ is unique only up to a constant. `centred` keeps the batch mean of the critic's targets at 0, so that
    it cannot drift; `free` leaves it where bootstrapping takes it."""

    def estimate_rate(self, signal: Array, value: Array, next_value: Array) -> Array:
        """ρ̂ of the policy that produced the batch."""
        if self.rate_by == "reward":
            return signal.mean()
        return (signal + next_value - value).mean()

    def bellman(self, rate: Array) -> Bellman:
        """(ρ̂, 1): Appendix A, eq. (bellman_vv)."""
        return Bellman(offset=rate, discount=1.0)

    def objective(self, rate: Array, start_value: Array) -> Array:
        """J in the units of a limit: ρ, a signal per step, wherever the task starts."""
        del start_value
        return rate

    @property
    def slope(self) -> float:
        """J(π') − J(π) = slope · E[A] to first order (Lemma 1)."""
        return 1.0

    def value_of_constant(self, signal: Array) -> Array:
        """v of a signal that is the same at every step: nothing is left of it."""
        return 0 * signal

    def fix_gauge(self, targets: Array, mean: Array) -> Array:
        """Critic targets with the free constant of v̄ chosen, given their mean over the newest batch."""
        return targets if self.gauge == "free" else targets - mean


@dataclasses.dataclass(frozen=True)
class Discounted:
    """J = E[Σ γᵗ rₜ] from a start state (§2, eq. 2)."""

    gamma: float = 0.99
    """The discount γ, below 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < 1:
            raise UserError(
                f"The discount must be at least 0 and below 1, not {self.gamma:g}. "
                "For a task judged by its long-run average use algorithm atrpo or acpo, which have no discount."
            )

    def estimate_rate(self, signal: Array, value: Array, next_value: Array) -> Array:
        """The signal per step: reported, but no part of the discounted equation."""
        del value, next_value
        return signal.mean()

    def bellman(self, rate: Array) -> Bellman:
        """(0, γ)."""
        del rate
        return Bellman(offset=0.0, discount=self.gamma)

    def objective(self, rate: Array, start_value: Array) -> Array:
        """J in the units of a limit: E v(s₀)."""
        del rate
        return start_value

    @property
    def slope(self) -> float:
        """J(π') − J(π) = slope · E[A] to first order, E over the discounted visitation."""
        return 1 / (1 - self.gamma)

    def value_of_constant(self, signal: Array) -> Array:
        """v of a signal that is the same at every step, for ever."""
        return self.slope * signal

    def fix_gauge(self, targets: Array, mean: Array) -> Array:
        """The discounted value is unique: nothing to choose."""
        del mean
        return targets


Criterion = Average | Discounted
