"""How H x = g is solved for the Fisher matrix H of a policy: the swappable part of the natural step."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float

from kemeny.learning.networks import PolicyNetwork
from kemeny.learning.samples import Samples
from kemeny.learning.settings import TrustRegion
from kemeny.learning.steps import trust_region

Vector = Float[Array, " parameter"]
Product = Callable[[Vector], Vector]
"""x ↦ H x, damped, without forming H."""
Solve = Callable[[Vector], tuple[Vector, Float[Array, ""]]]
"""g ↦ x, approximately H⁻¹g with xᵀHx = g·x, and the least curvature met on the way (≤ 0: H is not positive)."""


@runtime_checkable
class Solver(Protocol):
    """A way to solve H x = g, as an immutable object of its settings; pure and traceable."""

    def init(self, policy: PolicyNetwork) -> Any:
        """What it remembers before the first batch, as a pytree; None if nothing."""
        ...

    def prepare(
        self, policy: PolicyNetwork, samples: Samples, product: Product, region: TrustRegion, state: Any
    ) -> tuple[Solve, Any]:
        """How to solve for any gradient of this batch, and what to remember."""
        ...


@dataclasses.dataclass(frozen=True)
class ConjugateGradient:
    """A few iterations of conjugate gradient on products with H (Appendix E)."""

    def init(self, policy: PolicyNetwork) -> None:
        """Nothing is remembered."""
        del policy

    def prepare(
        self, policy: PolicyNetwork, samples: Samples, product: Product, region: TrustRegion, state: None
    ) -> tuple[Solve, None]:
        """Every gradient is solved for on its own."""
        del policy, samples, state
        return lambda g: trust_region.conjugate_gradient(product, g, region.cg_iterations), None
