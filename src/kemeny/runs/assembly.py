"""From settings to the objects that they describe."""

from collections.abc import Mapping

import numpy as np

from kemeny.cluster import HERE, Place
from kemeny.envs.names import EnvLike
from kemeny.errors import UserError
from kemeny.experience.collect import Collector
from kemeny.experience.source import Source
from kemeny.learning.learner import Learner
from kemeny.learning.steps.clip import Clip
from kemeny.learning.steps.kronecker import KroneckerFactors
from kemeny.learning.steps.natural import Natural
from kemeny.learning.steps.project import Project
from kemeny.learning.steps.protocol import PolicyStep
from kemeny.observers import Observer
from kemeny.runs.settings import Settings


def make_step(settings: Settings) -> PolicyStep:
    """The policy step."""
    match settings.step:
        case "natural":
            return Natural(settings.region)
        case "kfac":
            return Natural(settings.region, KroneckerFactors(settings.factors))
        case "clip":
            return Clip(settings.passes, settings.clipping, settings.region.delta)
        case "project":
            return Project(settings.passes, settings.projection, settings.region)


def make_learner(settings: Settings) -> Learner:
    """The learner, or a `UserError` where the settings do not fit each other."""
    settings.check()
    step = make_step(settings)
    if settings.limit and not step.supports_limits:
        raise UserError(
            f"The step {settings.step} keeps no limits on costs, and {settings.algorithm} is for limits: "
            f"leave out --step {settings.step}, or use an algorithm without limits."
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


def make_source(
    env: EnvLike,
    settings: Settings,
    observer: Observer,
    snapshot: Mapping[str, np.ndarray] | None,
    inexact: bool,
    place: Place = HERE,
) -> Source:
    """Where the experience of a run comes from; `snapshot` is where to go on, and `place` where collectors are."""
    return Collector(
        env,
        settings.task,
        num_envs=settings.num_envs,
        batch_length=settings.batch_length,
        seed=settings.seed,
        costs=settings.cost,
        simulation=settings.simulation,
        expected=settings.next_value == "expected",
        collectors=settings.collectors,
        place=place,
        observer=observer,
        snapshot=snapshot,
        inexact=inexact,
    )
