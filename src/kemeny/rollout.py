"""A batch of experience: what a source hands to the learner."""

from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Num, Shaped

Array = Any
"""NumPy while it is collected, JAX while the learner uses it."""


class Outcomes(NamedTuple):
    """All that might have been observed after each step, where the environment knows it."""

    observation: Float[Array, "event time env obs"]
    probability: Float[Array, "event time env"]
    reward: Float[Array, "time env"]
    """The mean reward of the step."""


class Rollout(NamedTuple):
    """`time` steps of `env` environments, time first; one policy acted throughout."""

    observation: Float[Array, "time env obs"]
    """sₜ."""
    action: Num[Array, "time env *act"]
    """aₜ as the policy drew it, before any clipping to the bounds of the environment."""
    signals: tuple[Float[Array, "time env"], ...]
    """Reward first (less the reset cost where the agent fell, unless `fall` is given), then each cost. Each in an array
    of its own, so that it is summed in the same order however many there are: a limit that never binds then changes
    nothing, bit for bit."""
    next_observation: Float[Array, "time env obs"]
    """sₜ₊₁: after a fall on a continuing task the fresh start state, after a cut the state that was cut off."""
    terminal: Bool[Array, "time env"]
    """The task ended with this step (episodic tasks only): the value after it is 0."""
    cut: Bool[Array, "time env"]
    """The trajectory was cut after this step: the next row belongs to another one, but the value goes on."""
    start_observation: Float[Array, "start obs"]
    """Start states of the latest restarts of all environments: a sample of μ, for J = E v(s₀). (The latest start of
    each environment would over-weight those from which the agent survives.)"""
    outcomes: Outcomes | None = None
    """If it is known and used."""
    fall: Bool[Array, "time env"] | None = None
    """Which steps ended in a fall, if the learner is to charge them (`--reset-cost auto`)."""

    @property
    def steps(self) -> int:
        """Agent–environment interactions in the batch."""
        return self.terminal.shape[0] * self.terminal.shape[1]


def flatten(x: Shaped[Array, "time env *rest"]) -> Shaped[Array, "sample *rest"]:
    """Time and environment as one axis of samples."""
    return x.reshape(-1, *x.shape[2:])
