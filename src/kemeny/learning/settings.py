"""Settings of the learner. Nothing here loads JAX, so that a run can be read without it."""

import dataclasses
from typing import Annotated, Literal

from kemeny.ranges import Above, AtLeast, Between

StepName = Literal["natural", "kfac", "clip", "project"]
Activation = Literal["tanh", "relu"]
StateWeight = Literal["equal", "critics", "relative"]


@dataclasses.dataclass(frozen=True)
class Networks:
    """Size and start of the networks (Appendix H)."""

    hidden: Annotated[tuple[int, ...], AtLeast(1)] = (64, 64)
    """Units in each hidden layer of policy and critics."""
    activation: Activation = "tanh"
    """Function of each hidden unit."""
    log_std: float | None = -1.0
    """Initial log standard deviation of a Gaussian policy; None: the paper's, −0.5 for atrpo and trpo, −1 for acpo and
    cpo."""
    observation_clip: Annotated[float, AtLeast(0)] = 10.0
    """Normalised observations are clipped to ± this."""


@dataclasses.dataclass(frozen=True)
class TrustRegion:
    """How far, and how carefully, one policy step goes (§5.2)."""

    delta: Annotated[float, Above(0)] = 0.02
    """Trust region δ: the most KL divergence a step may cause, averaged over the states of the batch. The clipped step
    stops where it is exceeded, and may go beyond it a little."""
    damping: Annotated[float, AtLeast(0)] = 0.3
    """Added to the diagonal of the Fisher matrix: it keeps noise out of directions that hardly change the policy."""
    cg_iterations: Annotated[int, AtLeast(1)] = 10
    """Conjugate-gradient iterations."""
    backtrack: Annotated[float, Between(0, 1)] = 0.8
    """Factor by which a rejected step is shortened."""
    backtrack_tries: Annotated[int, AtLeast(1)] = 10
    """Step lengths tried before the update is skipped."""
    delta_end: Annotated[float | None, Above(0)] = None
    """δ at the end of the run, reached along a line [δ throughout]: short steps keep what is nearly the best."""


@dataclasses.dataclass(frozen=True)
class Factors:
    """How the Kronecker factors of the Fisher matrix (--step kfac) are estimated (Martens & Grosse 2015)."""

    factor_decay: Annotated[float, Between(0, 0.999)] = 0.9
    """Share of the old in the running averages of the Kronecker factors after a batch; 0: each batch has its own."""


@dataclasses.dataclass(frozen=True)
class Passes:
    """How the clipped and the projected step (--step clip, --step project) go over a batch."""

    policy_step_size: Annotated[float, AtLeast(0)] = 3e-4
    """Adam's step size for the policy."""
    policy_epochs: Annotated[int, AtLeast(1)] = 10
    """Passes over the batch for the policy."""
    policy_minibatch: Annotated[int, AtLeast(1)] = 100
    """Samples in a minibatch of the policy; what is left over after the last whole one is skipped in that pass."""


@dataclasses.dataclass(frozen=True)
class Clipping:
    """What the clipped step (--step clip) calls far (Schulman et al. 2017)."""

    clip_ratio: Annotated[float, Above(0)] = 0.2
    """A probability ratio beyond 1 ± this gains nothing more."""


@dataclasses.dataclass(frozen=True)
class Projection:
    """How the projected step (--step project) prices limits (Zhang et al. 2020)."""

    multiplier_step_size: Annotated[float, AtLeast(0)] = 0.1
    """How fast the price of a limit follows its violation: the share of the price at which reward and cost weigh alike
    that a batch adds or takes off at most."""


@dataclasses.dataclass(frozen=True)
class CriticFit:
    """How a critic is refitted to its targets after each batch (Appendix H)."""

    critic_step_size: Annotated[float, AtLeast(0)] = 3e-4
    """Adam's step size for the critics, annealed linearly to 0 over the run."""
    critic_l2: Annotated[float, AtLeast(0)] = 0.0
    """Weight of Σw² in the critics' loss (weights, not biases). Above 0, a critic whose targets become small may
    lose all its weights, and then learns no more."""
    critic_epochs: Annotated[int, AtLeast(1)] = 10
    """Passes over the batch for each critic."""
    critic_minibatch: Annotated[int, AtLeast(1)] = 100
    """Samples in a minibatch of a critic; what is left over after the last whole one is skipped in that pass."""
    critic_unit: Literal["signal", "targets"] = "signal"
    """The unit in which a critic learns: of the reward or cost, or of the values that it is fitted to, which in a slow
    system are much larger."""
    critic_form: Literal["network", "quadratic"] = "network"
    """What a critic is: a network; or a quadratic function of the observations, fitted by least squares, and a network
    for the rest. Values of queues and stocks grow like squares."""
    quadratic_fit: Literal["targets", "bellman"] = "targets"
    """What the quadratic part of a critic is fitted to: its targets, or also Bellman's equation, which says how the
    value changes in a step. For --next-value expected."""
