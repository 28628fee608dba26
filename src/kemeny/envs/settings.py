"""How environments are simulated: speed and tolerance; none of it changes what is learned."""

import dataclasses
from typing import Annotated

from kemeny.ranges import Above, AtLeast, AtMost


@dataclasses.dataclass(frozen=True)
class Simulation:
    """Who runs the environments, and what happens when one of them fails."""

    threads: Annotated[int, AtLeast(0)] = 0
    """Threads of each EnvPool pool (0: one per core)."""
    workers: Annotated[int, AtLeast(0), AtMost(2**12)] = 0
    """Processes for Gymnasium environments (0: all in this process); with workers, EnvPool is never used."""
    step_timeout: Annotated[float | None, Above(0)] = None
    """Seconds after which a worker's step counts as hung."""
    restart_faulty: bool = False
    """Restart an environment that raises, hangs, dies or gives a number that is not finite or beyond 1e15; go on."""
