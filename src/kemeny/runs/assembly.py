"""From settings to the objects that they describe."""

from kemeny.errors import UserError
from kemeny.learning.learner import Learner
from kemeny.learning.steps.clip import Clip
from kemeny.learning.steps.natural import Natural
from kemeny.learning.steps.protocol import PolicyStep
from kemeny.runs.settings import Settings


def make_step(settings: Settings) -> PolicyStep:
    """The policy step."""
    match settings.step:
        case "natural":
            return Natural(settings.region)
        case "clip":
            return Clip(settings.clipping, settings.region.delta)


def make_learner(settings: Settings) -> Learner:
    """The learner, or a `UserError` where the settings do not fit each other."""
    settings.check()
    step = make_step(settings)
    if settings.limit and not step.supports_limits:
        raise UserError(
            f"--step {settings.step} keeps no limits on costs; leave it out for {settings.algorithm}, whose natural step "
            "does."
        )
    return Learner(
        iterations=settings.iterations,
        criterion=settings.criterion,
        limits=settings.limit,
        gae_lambda=settings.gae_lambda,
        cost_gae_lambda=settings.meant_cost_gae_lambda,
        networks=settings.meant_networks,
        step=step,
        critic=settings.critic,
    )
