"""Every setting of a run: one field is one default, one bound, one help text, one flag, one keyword of `kemeny.train`.

Settings are grouped by the part that uses them; outside, on the command line, in Python and in config.json, their
names are flat. Nothing here loads JAX or an environment.
"""

import dataclasses
import difflib
import itertools
import math
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import tyro

from kemeny.criterion import Average, Criterion, Discounted
from kemeny.envs.costs import FALL
from kemeny.envs.settings import Simulation
from kemeny.errors import UserError
from kemeny.experience.settings import BestBy, Deployment, EvaluationProtocol, Task
from kemeny.learning.rare_events import memory_for
from kemeny.learning.settings import (
    Clipping,
    CriticFit,
    Factors,
    Networks,
    Passes,
    Projection,
    StateWeight,
    StepName,
    TrustRegion,
)
from kemeny.naming import name_of
from kemeny.ranges import AtLeast, AtMost, Between, complaint
from kemeny.runs.algorithms import ALGORITHMS

AlgorithmName = Literal["atrpo", "trpo", "acpo", "cpo"]
assert set(get_args(AlgorithmName)) == set(ALGORITHMS)
DEFAULT_GAMMA = 0.99
CRITIC_LAMBDA = 0.95
"""Of the critics' targets, where λ of the advantages is chosen from the data."""
FEWEST_DEPLOYED_ENVS, DEPLOYED_SHARE = 4, 10
"""Environments in which the policy acts as deployed: one per ten of the others, but a few in any case, for of one or
two each would weigh too much."""
LONGER = 10
"""How many times as long their trajectories are: a slow start, such as standing still at first, then hardly counts, as
it hardly does where the policy is deployed."""
MOST_WEIGHTS = 2**26
"""Far beyond use: what a damaged or hostile config.json asks for must not fill the memory."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to learn, with what, and how it is watched."""

    algorithm: AlgorithmName = "atrpo"
    """atrpo: average reward; trpo: discounted; acpo and cpo: the same with cost limits."""
    gamma: float | None = None
    """Discount of trpo and cpo [0.99]; the average-reward algorithms have none."""
    step: StepName = "natural"
    """How the policy is improved: by the natural gradient within the trust region, found by conjugate gradient
    (natural) or by Kronecker factors (kfac); by PPO's clipped surrogate (clip), which keeps no limits; or toward the
    best of all policies within the trust region (project)."""
    steps: Annotated[int, AtLeast(1), AtMost(2**53)] = 10_000_000
    """Agent–environment interactions in all, rounded up to whole batches."""
    seed: Annotated[int, AtLeast(0), AtMost(2**63 - 1)] = 0
    """Everything random follows from it: the same seed gives the same run."""
    num_envs: Annotated[int, AtLeast(1), AtMost(2**16)] = 20
    """Environments stepped together; must divide the batch size."""
    collectors: Annotated[int, AtLeast(1), AtMost(2**12)] = 1
    """Processes among which the environments are divided, each with a policy of its own to act by (1: this process)."""
    batch_size: Annotated[int, AtLeast(2), AtMost(2**24)] = 5_000
    """Interactions between two updates."""
    gae_lambda: Annotated[float | Literal["auto"], Between(0, 1)] = "auto"
    """λ of the reward's advantage estimates: 0 is one-step, 1 is Monte Carlo; `auto`: chosen from the data, batch by
    batch."""
    cost_gae_lambda: Annotated[float | None, Between(0, 1)] = None
    """λ of the costs' advantage estimates [as the reward's, above which limits are broken]."""
    critic_gae_lambda: Annotated[float | None, Between(0, 1)] = None
    """λ of the targets that the critics are fitted to [as the advantages', or 0.95 with --gae-lambda auto]."""
    rate_by: Literal["reward", "td"] = "reward"
    """How the average criterion estimates ρ̂: the mean reward, or that corrected by v(s') − v(s)."""
    next_value: Literal["sampled", "expected"] = "sampled"
    """The value after a step: of the state that came, or its mean over all that might have come, for environments that
    know this (Kemeny's own tasks do): the same on average, with less noise."""
    gauge: Literal["centred", "free"] = "centred"
    """Keep the average criterion's critic centred, or let its free constant drift."""
    state_weight: StateWeight = "equal"
    """How much each state counts: all the same (equal), or less the farther its value is from the usual, so that a few
    long queues do not outweigh all other states. That is so in the critics' errors and in the policy step (relative),
    or in the critics' errors alone (critics). The advantages of costs, by which limits are kept, are not weighted."""
    reuse: Annotated[int, AtLeast(1), AtMost(2**6)] = 1
    """Batches that each update learns from: the newest and those before it, corrected for the policies that acted in
    them (1: the newest alone)."""
    reuse_region: Literal["whole", "shared"] = "whole"
    """The trust region of a policy step with --reuse M: δ, or δ·(2/(M+1))², as far as theory allows for M batches."""
    pipeline: bool = False
    """Collect each batch while the one before it is learned from: by the policy before the newest, which is corrected
    for. Both take place at the same time, if there are cores for both."""
    cost: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A cost to limit: `fall`, `speed`, `jerk` (how much the action changes from step to step), `cost`, or any key of
    the environment's info (in Python also a function); repeatable, one --limit each."""
    limit: Annotated[tuple[float, ...], tyro.conf.UseAppendAction] = ()
    """Upper limit of the cost, kept by the policy as deployed: per step for acpo, discounted sum for cpo;
    repeatable."""
    cost_memory: Annotated[int | Literal["auto"], AtLeast(1), AtMost(10_000)] = "auto"
    """Batches over which a cost is averaged before it is compared with its limit, for costs that are rare; `auto`: 1,
    and for `fall` as many as make 10 falls at the limit."""
    max_skipped: Annotated[int, AtLeast(1)] = 50
    """Policy steps that may fail in a row before the run ends."""
    eval_every: Annotated[int, AtLeast(1)] = 100_000
    """Interactions between two evaluations."""
    eval_exploring: bool = False
    """Evaluate the policy as it explores, too: how often it falls. With limits this is done in any case."""
    best_by: BestBy = "return"
    """What the best policy is chosen by, among those that keep the limits: the return at the longest horizon; the
    average reward per step, less the reset cost of each fall; the fewest falls; or `limits`, kept strictly as deployed
    and, with --deployed-envs 0, exploring."""
    checkpoint_every: Annotated[int, AtLeast(1)] = 100_000
    """Interactions between two checkpoints."""
    keep_checkpoints: Annotated[int, AtLeast(1)] = 3
    """Newest checkpoints kept."""
    task: Task = dataclasses.field(default_factory=Task)
    deployment: Deployment = dataclasses.field(default_factory=Deployment)
    protocol: EvaluationProtocol = dataclasses.field(default_factory=EvaluationProtocol)
    simulation: Simulation = dataclasses.field(default_factory=Simulation)
    networks: Networks = dataclasses.field(default_factory=Networks)
    region: TrustRegion = dataclasses.field(default_factory=TrustRegion)
    factors: Factors = dataclasses.field(default_factory=Factors)
    passes: Passes = dataclasses.field(default_factory=Passes)
    clipping: Clipping = dataclasses.field(default_factory=Clipping)
    projection: Projection = dataclasses.field(default_factory=Projection)
    critic: CriticFit = dataclasses.field(default_factory=CriticFit)

    @property
    def iterations(self) -> int:
        """Batches in the whole run."""
        return -(-self.steps // self.batch_size)

    @property
    def batch_length(self) -> int:
        """Steps of each environment in a batch."""
        return self.batch_size // self.num_envs

    @property
    def criterion(self) -> Criterion:
        """What a policy is worth, or a `UserError`."""
        row = ALGORITHMS[self.algorithm]
        if row.criterion is Discounted:
            return Discounted(DEFAULT_GAMMA if self.gamma is None else self.gamma)
        if self.gamma is not None:
            raise UserError(
                f"{self.algorithm} maximises the average and has no discount; for one, use --algorithm {row.twin} "
                f"--gamma {self.gamma:g}."
            )
        if self.task.episodic:
            raise UserError(
                f"{self.algorithm} maximises the long-run average, which an episodic task does not have. Leave out "
                "--episodic to make the task continuing (a fall costs --reset-cost and restarts), or use "
                f"--algorithm {row.twin}."
            )
        return Average(rate_by=self.rate_by, gauge=self.gauge)

    @property
    def given_gae_lambda(self) -> float | None:
        """λ of the reward's advantage estimates; None if it is chosen from the data."""
        return None if isinstance(self.gae_lambda, str) else self.gae_lambda

    @property
    def meant_critic_gae_lambda(self) -> float | None:
        """λ of the critics' targets where it is given or λ is chosen from the data; None: that of the advantages.

        A critic whose targets look one step ahead learns one step per batch: the shortest λ may serve the advantages,
        but not the critic.
        """
        if self.critic_gae_lambda is None and self.gae_lambda == "auto":
            return CRITIC_LAMBDA
        return self.critic_gae_lambda

    @property
    def meant_cost_gae_lambda(self) -> float | str:
        """λ of the costs' advantage estimates where it is given, the reward's otherwise."""
        return self.gae_lambda if self.cost_gae_lambda is None else self.cost_gae_lambda

    @property
    def meant_cost_memory(self) -> tuple[int, ...]:
        """Batches over which each cost is averaged."""
        if not isinstance(self.cost_memory, str):
            return (self.cost_memory,) * len(self.cost)
        per_step = [limit / self.criterion.slope for limit in self.limit]
        return tuple(
            memory_for(rate, self.batch_size) if cost == FALL else 1
            for cost, rate in zip(self.cost, per_step, strict=True)
        )

    @property
    def meant_networks(self) -> Networks:
        """The networks, with the paper's deviation where none is given."""
        log_std = ALGORITHMS[self.algorithm].log_std if self.networks.log_std is None else self.networks.log_std
        return dataclasses.replace(self.networks, log_std=log_std)

    @property
    def meant_region(self) -> TrustRegion:
        """The trust region of one step.

        GeTRPO's is as much narrower as keeps the average total variation from the policies of M batches, if each step
        takes as much of it, where TRPO has it for one (Queeney et al. 2022); the divergence is its square.
        """
        share = 2 / (self.reuse + 1) if self.reuse_region == "shared" else 1.0
        return dataclasses.replace(self.region, delta=self.region.delta * share**2)

    @property
    def meant_last_delta_share(self) -> float | None:
        """The share of δ that is left at the end of the run; None: all of it."""
        return None if self.region.delta_end is None else self.region.delta_end / self.region.delta

    @property
    def meant_deployed_envs(self) -> int:
        """Environments in which the policy acts as deployed, for limits to be kept there."""
        if self.deployment.deployed_envs is not None:
            return self.deployment.deployed_envs
        if not self.limit or self.task.episodic or self.deployment.deploy == "explore":
            return 0
        return max(FEWEST_DEPLOYED_ENVS, self.num_envs // DEPLOYED_SHARE)

    @property
    def meant_deployed_cut(self) -> int:
        """Steps after which a trajectory in those environments is cut."""
        given = self.deployment.deployed_cut
        return LONGER * max(self.task.cut, self.task.long_cut or 0) if given is None else given

    def check(self) -> None:
        """Refuse what no run can be made of, with a `UserError`."""
        self._check_numbers()
        self._check_cuts()
        self._check_limits(ALGORITHMS[self.algorithm].constrained)
        self._check_reuse()
        self._check_bellman()
        self._check_best_by()
        self._check_falls()
        self._check_deployed()
        _ = self.criterion

    def _check_reuse(self) -> None:
        if self.reuse > 1 and self.next_value == "expected":
            raise UserError(
                "--reuse is for --next-value sampled: what might have come in earlier batches is not kept. "
                "Leave out one of the two."
            )

    def _check_bellman(self) -> None:
        if self.critic.quadratic_fit == "targets":
            return
        if self.critic.critic_form != "quadratic":
            raise UserError("--quadratic-fit bellman is for --critic-form quadratic: with a network, use targets.")
        if self.next_value == "sampled":
            raise UserError(
                "--quadratic-fit bellman is for --next-value expected: it needs to know what may come of an action. "
                "Use --quadratic-fit targets where the environment does not know it."
            )

    def _check_falls(self) -> None:
        task = self.task
        if task.episodic and FALL in self.cost:
            raise UserError(
                "The cost fall is for tasks that go on: an episodic task ends at a fall. Leave out --episodic, or "
                "limit another cost."
            )
        if task.episodic and task.reset_cost == "auto":
            raise UserError(
                "--reset-cost auto is for tasks that go on: an episodic task ends at a fall, which has no cost. Leave "
                "out one of --episodic and --reset-cost auto."
            )
        if task.fall_target is not None and task.reset_cost != "auto":
            raise UserError("--fall-target is what --reset-cost auto aims at: give --reset-cost auto, or leave it out.")

    def _check_deployed(self) -> None:
        deployment = self.deployment
        if deployment.deployed_envs and not self.limit:
            raise UserError("--deployed-envs is for limits: give --cost NAME and --limit L, or leave it out.")
        if deployment.deployed_envs and self.task.episodic:
            raise UserError(
                "--deployed-envs measures the cost per step in the long run, which an episodic task does not have: "
                "leave it out."
            )
        if deployment.deployed_cut is not None and not self.meant_deployed_envs:
            raise UserError(
                "--deployed-cut is for environments in which the policy acts as deployed, of which there are none: "
                "leave it out, or give --deployed-envs N, with limits."
            )

    def _check_best_by(self) -> None:
        if self.best_by == "limits" and not self.limit:
            raise UserError("--best-by limits needs a limit: give --cost NAME and --limit L, or leave it out.")
        if self.best_by in ("falls", "average") and self.task.episodic:
            raise UserError(
                f"--best-by {self.best_by} is for tasks that go on: an episodic task ends at a fall. Choose by return."
            )

    def _check_limits(self, constrained: bool) -> None:
        costs, limits = len(self.cost), len(self.limit)
        if constrained and not costs:
            raise UserError(f"{self.algorithm} needs a cost to limit: give both --cost NAME and --limit L.")
        if not constrained and (costs or limits):
            other = {"atrpo": "acpo", "trpo": "cpo"}[self.algorithm]
            raise UserError(f"{self.algorithm} has no cost limits; use --algorithm {other}.")
        if costs != limits:
            raise UserError(f"Each cost needs one limit: there are {costs} --cost and {limits} --limit.")
        for name, limit in zip(cost_names(self), self.limit, strict=True):
            if not math.isfinite(limit):
                raise UserError(f"The limit of {name} is {limit}; it must be a finite number.")
            if name == FALL and limit < 0:
                raise UserError(f"The limit of {name} is {limit:g}, but there are never fewer than 0 falls per step.")

    def _check_cuts(self) -> None:
        task, late = self.task, self.task.long_envs(self.num_envs)
        if task.long_cut is None:
            return
        if task.long_cut <= task.cut:
            raise UserError(f"Long trajectories must be the longer ones: --long-cut {task.long_cut}, --cut {task.cut}.")
        if not 0 < late < self.num_envs:
            raise UserError(
                f"Of {self.num_envs} environments, {late} would have long trajectories (--long-share "
                f"{task.long_share:g}): with --long-cut there must be some of either length."
            )

    def _check_numbers(self) -> None:
        for name, (hint, value) in _annotated(self).items():
            if name != "limit" and (must_be := complaint(hint, value)):
                raise UserError(f"--{name.replace('_', '-')} is {value}; it must be {must_be}.")
        delta, end = self.region.delta, self.region.delta_end
        if end is not None and end > delta:
            raise UserError(f"--delta-end is {end:g}; it must be at most --delta, {delta:g}.")
        hidden = self.networks.hidden
        if sum(a * b for a, b in itertools.pairwise((1, *hidden))) > MOST_WEIGHTS:
            raise UserError(f"--hidden is {hidden}; it must have at most {MOST_WEIGHTS:,} weights in all.")
        if self.collectors > self.num_envs:
            raise UserError(
                f"{self.collectors} collectors (--collectors) cannot share {self.num_envs} environments (--num-envs): "
                "each needs one."
            )
        if self.batch_size % self.num_envs:
            near = [n for n in range(1, self.batch_size + 1) if self.batch_size % n == 0]
            near = sorted(near, key=lambda n: abs(n - self.num_envs))[:2]
            raise UserError(
                f"A batch of {self.batch_size} cannot be shared by {self.num_envs} environments evenly; "
                f"--num-envs {near[0]} or {near[-1]} can."
            )


def cost_names(settings: Settings) -> list[str]:
    """What each cost is called in messages and in config.json."""
    return [cost_name(cost) for cost in settings.cost]


def cost_name(cost: Any) -> str:
    """What a cost is called in messages and in config.json; a function's name ends in ()."""
    return cost if isinstance(cost, str) else f"{name_of(cost)}()"


def to_flat(settings: Any) -> dict[str, Any]:
    """Every setting by its flat name."""
    return {name: value for name, (_, value) in _annotated(settings).items()}


def _annotated(settings: Any) -> dict[str, tuple[Any, Any]]:
    """Annotation and value of every setting by its flat name."""
    hints, flat = get_type_hints(type(settings), include_extras=True), {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        flat |= _annotated(value) if dataclasses.is_dataclass(value) else {field.name: (hints[field.name], value)}
    return flat


RENAMED = {"rate": "rate_by", "critic_rate": "critic_step_size"}
"""Settings of runs that an older Kemeny began, by their old names."""


GONE = {"critic_loss": "values", "critic_input": "normalized"}
"""Settings of runs that an older Kemeny began and that are no more, with the value that all runs have now."""


def with_new_names(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from a config.json that an older Kemeny may have written."""
    for name, value in GONE.items():
        if flat.get(name, value) != value:
            raise UserError(
                f"An older Kemeny trained this with the setting {name} {flat[name]}, which is no more. Its policy can "
                "still be loaded (kemeny.load_policy), but the run cannot go on."
            )
    return {RENAMED.get(name, name): value for name, value in flat.items() if name not in GONE}


def as_it_was(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from the config.json of a run that may be older than a setting whose default would change it.

    Once, limits were kept for the policy as it explores, and no environments were apart for what is deployed.
    """
    return {**({"deployed_envs": 0} if flat.get("limit") else {}), **with_new_names(flat)}


def from_flat(flat: Mapping[str, Any], default: Settings | None = None) -> Settings:
    """Settings from flat names, as in config.json or in a call of `kemeny.train`; what is left out is the default."""
    default = Settings() if default is None else default
    names = to_flat(default).keys()
    for name in flat.keys() - names:
        close = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise UserError(f"There is no setting named {name}{hint}")
    return _build(default, flat)


def _build(default: Any, flat: Mapping[str, Any]) -> Any:
    changes = {}
    hints = get_type_hints(type(default))
    for field in dataclasses.fields(default):
        value = getattr(default, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = _build(value, flat)
        elif field.name in flat:
            changes[field.name] = _typed(field.name, hints[field.name], flat[field.name])
    return dataclasses.replace(default, **changes)


def _typed(name: str, hint: Any, given: Any, words: Sequence[str] = ()) -> Any:
    """The value as its setting's type, or a `UserError`; 1e6 is a whole number, a single value a list of one."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _typed(name, inner[0], given)
    if kind in (Union, types.UnionType):
        words = [word for part in inner if get_origin(part) is Literal for word in get_args(part)]
        return given if given is None or given in words else _typed(name, inner[0], given, words)
    if kind is tuple:
        return tuple(_typed(name, inner[0], one) for one in (given if isinstance(given, list | tuple) else (given,)))
    if kind is Literal:
        what, sound = f"one of {', '.join(inner)}", isinstance(given, str) and given in inner
    elif hint is bool:
        what, sound = "true or false", isinstance(given, bool)
    elif hint is str:  # the costs, which may be functions
        what, sound = "a text", isinstance(given, str) or (name == "cost" and callable(given))
    else:
        what, sound = "a whole number" if hint is int else "a number", _is_number(hint, given)
        given = hint(given) if sound else given
    if not sound:
        raise UserError(f"The setting {name} is {str(given)[:50]!r}; it must be {' or '.join([what, *words])}.")
    return given


def _is_number(kind: type, given: Any) -> bool:
    if isinstance(given, bool) or not isinstance(given, int | float | np.integer | np.floating):
        return False
    if isinstance(given, int | np.integer):
        return abs(int(given)) < 2**1000  # beyond, it is no floating-point number
    return kind is float or (math.isfinite(given) and given == int(given))
