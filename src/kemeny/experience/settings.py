"""Settings of tasks and evaluations. Nothing here loads an environment, so that a run can be read without one."""

import dataclasses
from typing import Annotated, Literal

from kemeny.ranges import Above, AtLeast, AtMost, Between

BestBy = Literal["return", "average", "falls", "limits"]
"""What the best policy of a run is chosen by."""
Deploy = Literal["mean", "explore"]
"""How a policy acts when it is deployed: by its mean (or likeliest) action, or drawing actions as in training."""
RESET_COST = 100.0
"""What a fall costs where nothing else is said (§6.2)."""
FALL_TARGET = 1e-4
"""Falls per step: one in the longest trajectory of an evaluation."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What a fall means, and how long a trajectory is (§6.2)."""

    episodic: bool = False
    """End an episode at a fall or at the environment's time limit, instead of restarting at a cost and going on."""
    reset_cost: Annotated[float | Literal["auto"] | None, AtLeast(0)] = None
    """Subtracted from the reward of a step that ends in a fall, on a continuing task [100 for a fall, nothing for a
    goal, which is an end whose reward is far above the usual ones]; `auto`: what makes falls as rare as
    --fall-target."""
    fall_target: Annotated[float | None, Above(0), AtMost(1)] = None
    """With --reset-cost auto: falls per step that are aimed at [0.0001, one in 10,000 steps]."""
    cut: Annotated[int, AtLeast(2)] = 1_000
    """Steps after which a continuing trajectory is cut, bootstrapped and restarted from a start state."""
    long_cut: Annotated[int | None, AtLeast(3)] = None
    """The same for a share of the environments, whose trajectories are longer [all are cut after --cut steps]."""
    long_share: Annotated[float, Between(0, 1)] = 0.5
    """Share of the environments that are cut after --long-cut steps, if that is given."""

    @property
    def given_reset_cost(self) -> float | None:
        """The reset cost as it was given; None if it was not."""
        return None if isinstance(self.reset_cost, str) else self.reset_cost

    @property
    def meant_fall_target(self) -> float | None:
        """Falls per step that the reset cost is to lead to; None if the reset cost does not depend on falls."""
        if self.reset_cost != "auto":
            return None
        return FALL_TARGET if self.fall_target is None else self.fall_target

    def long_envs(self, num_envs: int) -> int:
        """How many of the environments are cut after `long_cut` steps."""
        return 0 if self.long_cut is None else round(self.long_share * num_envs)


@dataclasses.dataclass(frozen=True)
class Deployment:
    """How the policy is meant to act, and where training measures what that costs."""

    deploy: Deploy = "mean"
    """How the policy acts when it is deployed or evaluated: by its mean (or likeliest) action, or drawing actions as it
    does in training (explore)."""
    deployed_envs: Annotated[int | None, AtLeast(0), AtMost(2**12)] = None
    """Environments beside --num-envs in which the policy acts as deployed: nothing is learned from them, but limits are
    kept for what they cost [with --deploy mean and limits on a continuing task, a tenth of --num-envs and at least 4;
    otherwise 0, and limits are kept for the policy as it explores]."""
    deployed_cut: Annotated[int | None, AtLeast(2)] = None
    """Steps after which a trajectory in those environments is cut [ten times --cut, so that starts hardly count]."""


@dataclasses.dataclass(frozen=True)
class EvaluationProtocol:
    """How a policy is evaluated (§6.1)."""

    eval_trajectories: Annotated[int, AtLeast(1)] = 10
    """Trajectories of each evaluation, each with a seed of its own."""
    eval_max_steps: Annotated[int, AtLeast(1)] = 10_000
    """Steps after which an evaluation trajectory stops, if the agent has not fallen; fewer are cheaper."""


@dataclasses.dataclass(frozen=True)
class LongRunProtocol:
    """How the long run is estimated."""

    reset_cost: Annotated[float | None, AtLeast(0)] = None
    """What a fall costs [100 for a fall, nothing for a goal, as in training]."""
    warm_up: Annotated[int | None, AtLeast(0)] = None
    """Steps of each trajectory that are left out [chosen by MSER-5]."""
    precision: Annotated[float | None, Above(0)] = None
    """Stop as soon as the interval of the reward is so narrow, relative to the average: 0.01 is ±1 %."""

    def is_met_by(self, precision: float) -> bool:
        """Whether an interval of this relative half-width is narrow enough."""
        return self.precision is None or precision <= self.precision
