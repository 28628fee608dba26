"""Where experience comes from: the one interface behind which pools here, or on other machines, stand."""

from typing import NamedTuple, Protocol

import numpy as np

from kemeny.experience.acting import Policy
from kemeny.learning.arrays import acting_arrays
from kemeny.learning.learner import Behaviour, State
from kemeny.rollout import Rollout
from kemeny.spec import Spec


class Batch(NamedTuple):
    """What one collection gave."""

    rollout: Rollout
    falls: int
    """Falls in it."""
    faults: int
    """Restarts of environments that failed."""
    fault: str
    """What the latest failure was; empty if there was none."""
    deployed: np.ndarray | None = None
    """Each cost per step of the same policy as it is deployed; None if that is not measured."""


class Source(Protocol):
    """Experience by step count, as a function of the policy and the iteration alone."""

    spec: Spec
    """What a policy must know of the environment."""

    def collect(self, behaviour: Behaviour | State, iteration: int) -> Batch:
        """The batch of an iteration, by this policy. It may be overwritten two iterations later."""
        ...

    def snapshot(self) -> dict[str, np.ndarray]:
        """What it takes to go on from here in another process."""
        ...

    def close(self) -> None:
        """Give back threads and processes."""
        ...


def numpy_policy(behaviour: Behaviour | State, spec: Spec) -> Policy:
    """The policy in NumPy; waits until JAX has computed it."""
    return Policy(acting_arrays(behaviour, spec), behaviour.policy.network.description, spec.spaces)
