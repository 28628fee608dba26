"""What a policy step is: the one interface behind which every way of improving a policy stands."""

import enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from kemeny.learning.networks import PolicyNetwork
from kemeny.learning.samples import Samples


class Outcome(enum.IntEnum):
    """What became of a policy step; any but ACCEPTED keeps the old parameters bit for bit."""

    ACCEPTED = 0
    FLAT = 1
    NON_FINITE = 2
    CURVATURE = 3
    LINE_SEARCH = 4

    @property
    def advice(self) -> str:
        """What happened, and what usually helps."""
        return {
            Outcome.ACCEPTED: "the step was taken",
            Outcome.FLAT: "the gradient is zero: every action looked equally good",
            Outcome.NON_FINITE: "a gradient or step was not finite: look for huge rewards or observations",
            Outcome.CURVATURE: "the Fisher matrix was not positive: raise --damping",
            Outcome.LINE_SEARCH: "no step length improved within the trust region: lower --delta, raise --batch-size",
        }[self]


class Limits(NamedTuple):
    """What bounds a step, beside its settings."""

    excess: Float[Array, " cost"]
    """How far J of each cost lies above its limit, in the units of the limit (negative: slack)."""
    slope: float
    """J changes by slope · E[A] to first order: what an average advantage of 1 is worth in the units of J."""
    delta_share: float | Float[Array, ""] = 1.0
    """The share of δ that this step may use: trust regions may narrow over a run."""


class Report(NamedTuple):
    """What one policy step did; `docs/metrics.md` explains each field."""

    outcome: Int[Array, ""]
    kl: Float[Array, ""]
    improvement: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    entropy: Float[Array, ""]
    details: Any
    """What only this kind of step can say: a named tuple whose fields are logged beside the others."""


def unless(condition: Bool[Array, ""], old: Any, new: Any) -> Any:
    """The old tree if the condition holds, otherwise the new one."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), old, new)


@runtime_checkable
class PolicyStep(Protocol):
    """A way to improve a policy, as an immutable object of its settings; pure and traceable.

    A step that cannot keep limits says so in `supports_limits`.
    """

    @property
    def supports_limits(self) -> bool:
        """Whether the step keeps limits on costs."""
        ...

    def init(self, policy: PolicyNetwork, costs: int = 0) -> Any:
        """What it remembers before the first step with so many costs to limit, as a pytree; None if nothing."""
        ...

    def __call__(
        self, policy: PolicyNetwork, samples: Samples, limits: Limits, state: Any, key: PRNGKeyArray
    ) -> tuple[PolicyNetwork, Any, Report]:
        """The improved policy, what to remember, and what was done."""
        ...
