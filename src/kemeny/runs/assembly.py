"""From settings to the objects that they describe."""

from collections.abc import Mapping
from dataclasses import replace

import jax
import numpy as np

from kemeny.cluster import HERE, Place
from kemeny.envs.names import EnvLike
from kemeny.errors import UserError
from kemeny.experience.collect import Collector
from kemeny.experience.part import allocate
from kemeny.experience.settings import RESET_COST, Deployment
from kemeny.experience.source import Source
from kemeny.learning.learner import Learner, State, init
from kemeny.learning.reset_cost import FallTarget
from kemeny.learning.steps.clip import Clip
from kemeny.learning.steps.kronecker import KroneckerFactors
from kemeny.learning.steps.natural import Natural
from kemeny.learning.steps.project import Project
from kemeny.learning.steps.protocol import PolicyStep
from kemeny.observers import Observer
from kemeny.runs.settings import Settings
from kemeny.spec import Spec


def make_step(settings: Settings) -> PolicyStep:
    """The policy step."""
    match settings.step:
        case "natural":
            return Natural(settings.meant_region)
        case "kfac":
            return Natural(settings.meant_region, KroneckerFactors(settings.factors))
        case "clip":
            return Clip(settings.passes, settings.clipping, settings.meant_region.delta)
        case "project":
            return Project(settings.passes, settings.projection, settings.meant_region)


def make_learner(settings: Settings) -> Learner:
    """The learner, or a `UserError` where the settings do not fit each other."""
    settings.check()
    step = make_step(settings)
    if settings.limit and not step.supports_limits:
        raise UserError(
            f"The step {settings.step} keeps no limits on costs, and {settings.algorithm} is for limits: "
            f"leave out --step {settings.step}, or use an algorithm without limits."
        )
    target = settings.task.meant_fall_target
    return Learner(
        iterations=settings.iterations,
        criterion=settings.criterion,
        limits=settings.limit,
        cost_memory=settings.meant_cost_memory,
        fall_target=None if target is None else FallTarget(target, RESET_COST),
        gae_lambda=settings.given_gae_lambda,
        cost_gae_lambda=settings.given_gae_lambda if settings.cost_gae_lambda is None else settings.cost_gae_lambda,
        critic_gae_lambda=settings.meant_critic_gae_lambda,
        networks=settings.meant_networks,
        step=step,
        last_delta_share=settings.meant_last_delta_share,
        critic=settings.critic,
        state_weight=settings.state_weight,
        reuse=settings.reuse,
        pipeline=settings.pipeline,
        deployed=settings.meant_deployed_envs > 0,
    )


def make_state(learner: Learner, settings: Settings, spec: Spec) -> State:
    """The state before the first batch."""
    room = allocate(spec, settings.batch_length, settings.num_envs, len(settings.cost)) if settings.reuse > 1 else None
    if room is not None and learner.fall_target is not None:
        room = room._replace(fall=np.zeros(room.cut.shape, bool))
    return init(learner, spec, jax.random.key(settings.seed), room)


def make_deployed(settings: Settings) -> Deployment | None:
    """In how many environments the policy acts as deployed, how, and for how long at a time; None if in none."""
    envs = settings.meant_deployed_envs
    return replace(settings.deployment, deployed_envs=envs, deployed_cut=settings.meant_deployed_cut) if envs else None


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
        deployed=make_deployed(settings),
        collectors=settings.collectors,
        place=place,
        observer=observer,
        snapshot=snapshot,
        inexact=inexact,
    )
