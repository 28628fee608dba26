"""The algorithms, as rows of a table: a criterion, and whether there are cost limits."""

import dataclasses

from kemeny.criterion import Average, Discounted


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One row."""

    criterion: type[Average] | type[Discounted]
    constrained: bool
    log_std: float
    """Initial log standard deviation, the paper's (Appendix H)."""
    twin: str
    """The same algorithm under the other criterion."""


ALGORITHMS = {
    "atrpo": Algorithm(Average, constrained=False, log_std=-0.5, twin="trpo"),
    "trpo": Algorithm(Discounted, constrained=False, log_std=-0.5, twin="atrpo"),
    "acpo": Algorithm(Average, constrained=True, log_std=-1.0, twin="cpo"),
    "cpo": Algorithm(Discounted, constrained=True, log_std=-1.0, twin="acpo"),
}
