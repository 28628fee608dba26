"""How many batches it takes to tell the rate of a rare event. Nothing here loads JAX."""

import math

EVENTS = 10
"""Of so many expected events, half as many and twice as many can be told apart."""
LONGEST_MEMORY = 200
"""Batches: those before were by policies that say little of today's."""


def memory_for(rate: float, steps: int) -> int:
    """Batches of so many steps in which `EVENTS` events are expected at this rate per step."""
    if rate * steps * LONGEST_MEMORY <= EVENTS:
        return LONGEST_MEMORY
    return math.ceil(EVENTS / (rate * steps))
