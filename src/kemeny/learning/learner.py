"""What an update depends on (`Learner`) and what it changes (`State`)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from kemeny.criterion import Average, Criterion
from kemeny.learning import lambda_choice, networks
from kemeny.learning.lambda_choice import LambdaChoice
from kemeny.learning.memory import Memory, empty
from kemeny.learning.networks import Critic, PolicyNetwork
from kemeny.learning.normalizer import Normalizer
from kemeny.learning.reset_cost import FallTarget, ResetCost
from kemeny.learning.running_mean import RunningMean
from kemeny.learning.settings import CriticFit, Networks, StateWeight
from kemeny.learning.steps.natural import Natural
from kemeny.learning.steps.protocol import PolicyStep
from kemeny.rollout import Rollout
from kemeny.spec import Spec

GAP_MEMORY = 10
"""Batches over which it is averaged what a cost is more as deployed. The few environments in which the policy acts as
deployed give a tenth or a fifth of a batch's steps, so that together there are a batch's or two. Both costs are of the
same policy, so that their difference changes more slowly than the cost itself."""


class Learner(eqx.Module):
    """Everything that an update depends on but does not change.

    `iterations` is traced: compiled code serves runs of any length. All else is fixed when an update is compiled.
    """

    iterations: int | Int[Array, ""] = 200
    """Updates in the whole run, over which the critics' step size is annealed."""
    criterion: Criterion = eqx.field(static=True, default=Average())
    limits: tuple[float, ...] = eqx.field(static=True, default=())
    """Upper limit of each cost, in the criterion's units."""
    cost_memory: tuple[int, ...] = eqx.field(static=True, default=())
    """Batches over which each cost is averaged before it is compared with its limit; empty: 1 for all."""
    fall_target: FallTarget | None = eqx.field(static=True, default=None)
    """How rare falls are to be made by the reset cost; None: the reset cost is given, and subtracted already."""
    gae_lambda: float | None = eqx.field(static=True, default=0.8)
    """λ of the reward's advantages; None: chosen from the data (`lambda_choice.py`)."""
    cost_gae_lambda: float | None = eqx.field(static=True, default=0.8)
    """λ of the costs' advantages; None: the reward's."""
    critic_gae_lambda: float | None = eqx.field(static=True, default=None)
    """λ of the critics' targets; None: that of the advantages."""
    networks: Networks = eqx.field(static=True, default=Networks())
    step: PolicyStep = eqx.field(static=True, default=Natural())
    last_delta_share: float | None = eqx.field(static=True, default=None)
    """The share of δ that is left at the end of the run; None: all of it."""
    critic: CriticFit = eqx.field(static=True, default=CriticFit())
    state_weight: StateWeight = eqx.field(static=True, default="equal")
    """Whether states of unusual value count less, and where (`state_weight.py`)."""
    reuse: int = eqx.field(static=True, default=1)
    """Batches that are learned from, the newest included."""
    pipeline: bool = eqx.field(static=True, default=False)
    """Whether a batch is collected by the policy before the newest one, while that is computed."""
    deployed: bool = eqx.field(static=True, default=False)
    """Whether limits are kept for the policy as it is deployed, which is measured beside each batch."""

    @property
    def gap_memory(self) -> tuple[int, ...]:
        """Batches over which it is averaged what each cost is more as deployed: longer for rare costs."""
        return tuple(max(GAP_MEMORY, memory) for memory in self.cost_memory or (1,) * len(self.limits))


class Behaviour(eqx.Module):
    """What it takes to act: a policy, and the statistics by which it sees."""

    policy: PolicyNetwork
    normalizer: Normalizer

    def log_prob(self, rollout: Rollout) -> Float[Array, "time env"]:
        """Of the actions of a batch in which it acted."""
        return self.policy(self.normalizer(rollout.observation)).log_prob(rollout.action)


class State(eqx.Module):
    """Everything that an update changes."""

    policy: PolicyNetwork
    critics: tuple[Critic, ...]
    """Reward first, then each cost."""
    optimizers: tuple[optax.OptState, ...]
    """Of the critics."""
    step: Any
    """What the policy step remembers from one update to the next."""
    normalizer: Normalizer
    key: PRNGKeyArray
    iteration: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    """Updates without a policy step since the last one with it."""
    objective: Float[Array, " signal"]
    """J of each signal in the last batch, NaN before the first: realised changes are counted from it."""
    memory: Memory | None = None
    """The batches before the newest; None if they are not reused."""
    lambda_choice: LambdaChoice | None = None
    """What earlier batches say of each λ; None if λ is given."""
    running_costs: RunningMean | None = None
    """The costs of the last batches; None if the newest batch alone is compared with the limits."""
    reset_cost: ResetCost | None = None
    """What a fall costs; None if that is given."""
    behind: Behaviour | None = None
    """Who acts in the next batch, if not this state's policy but the one before it."""
    gap: RunningMean | None = None
    """What it costs more to act as deployed; None if that is not measured."""

    @property
    def behaviour(self) -> Behaviour:
        """This state's policy and normaliser."""
        return Behaviour(self.policy, self.normalizer)


def init(learner: Learner, spec: Spec, key: PRNGKeyArray, room: Rollout | None = None) -> State:
    """The state before the first batch; if batches are reused, `room` is one whose shapes all have."""
    policy_key, critic_key, key = jax.random.split(key, 3)
    policy = networks.build_policy(learner.networks, spec, policy_key)
    fit = learner.critic
    # Folding in the signal's number gives the reward's critic the same start however many costs there are.
    critics = tuple(
        networks.build_critic(
            learner.networks,
            spec,
            jax.random.fold_in(critic_key, signal),
            quadratic=fit.critic_form == "quadratic",
        )
        for signal in range(1 + len(learner.limits))
    )
    memory = None
    if learner.reuse > 1:
        assert room is not None, "a memory has the shape of batches"
        memory = empty(room, learner.reuse - 1)
    normalizer = Normalizer.init(spec.observation.size, learner.networks.observation_clip, spec.mask)
    return State(
        policy=policy,
        critics=critics,
        optimizers=tuple(optax.scale_by_adam().init(eqx.filter(critic.network, eqx.is_array)) for critic in critics),
        step=learner.step.init(policy, len(learner.limits)),
        normalizer=normalizer,
        key=key,
        iteration=jnp.zeros((), jnp.int32),
        skipped_in_a_row=jnp.zeros((), jnp.int32),
        objective=jnp.full(len(critics), jnp.nan, jnp.float32),
        memory=memory,
        lambda_choice=lambda_choice.init(policy) if learner.gae_lambda is None else None,
        running_costs=RunningMean.init(len(learner.limits)) if any(m > 1 for m in learner.cost_memory) else None,
        reset_cost=None if learner.fall_target is None else ResetCost.init(learner.fall_target),
        behind=Behaviour(policy, normalizer) if learner.pipeline else None,
        gap=RunningMean.init(len(learner.limits)) if learner.deployed else None,
    )
