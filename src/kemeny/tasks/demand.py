"""Demand per period: which amounts are asked for, and how likely each is.

Demands that a stock cannot tell apart, since each of them empties it, are one event. It asks for their mean, so that
the mean number of units that are lost is exact.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, pdtr, pdtrc, xlogy

from kemeny.errors import UserError


class Demand(NamedTuple):
    """What may be asked for in a period; the number of an event is the number of units, or the least number of them."""

    likely: np.ndarray
    """(events,): the probabilities; they sum to 1."""
    asked: np.ndarray
    """(events,): how many units are asked for; of the last event the mean, which need not be whole."""

    @property
    def events(self) -> int:
        """How many different demands there are."""
        return len(self.likely)


def poisson_demand(mean: float, most: int) -> Demand:
    """Poisson demand; demands of `most` or more are one event."""
    amounts = np.arange(most)
    tail = pdtrc(most - 1, mean)
    likely = np.append(np.exp(xlogy(amounts, mean) - mean - gammaln(amounts + 1)), tail)
    # E[D; D ≥ m] = mean · P(D ≥ m − 1). A tail that is too rare for a float has no effect, whatever its mean.
    beyond = mean * (pdtrc(most - 2, mean) if most > 1 else 1.0) / tail if tail > 0 else most
    return Demand(likely / likely.sum(), np.append(amounts, beyond))


def uniform_demand(largest: int) -> Demand:
    """Each whole number from 0 to the largest is equally likely."""
    return Demand(np.full(largest + 1, 1 / (largest + 1)), np.arange(largest + 1.0))


def newsvendor_level(mean: float, share: float, largest: int = 100_000) -> int:
    """The least stock that suffices for Poisson demand with at least this probability."""
    enough = pdtr(np.arange(largest + 1), mean) >= share
    if not enough.any():
        raise UserError(f"A stock for a mean demand of {mean:g} needs more than {largest:,} units: count by the dozen.")
    return int(np.argmax(enough))
