"""Every setting of a run: one field is one default, one help text, one flag and one keyword of `kemeny.train`.

Settings are grouped by the part that uses them; outside, on the command line, in Python and in config.json, their
names are flat.
"""

import dataclasses
import difflib
import itertools
import math
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import tyro

from kemeny.algorithms import ALGORITHMS
from kemeny.collect import Task
from kemeny.criterion import Average, Criterion, Discounted
from kemeny.errors import UserError
from kemeny.evaluation import Protocol
from kemeny.learner import CriticFit, Learner, Networks
from kemeny.trust_region import TrustRegion

AlgorithmName = Literal["atrpo", "trpo", "acpo", "cpo"]
assert set(get_args(AlgorithmName)) == set(ALGORITHMS)
DEFAULT_GAMMA = 0.99


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to learn, with what, and how it is watched."""

    algorithm: AlgorithmName = "atrpo"
    """atrpo: average reward; trpo: discounted; acpo and cpo: the same with cost limits."""
    gamma: float | None = None
    """Discount of trpo and cpo [0.99]; the average-reward algorithms have none."""
    steps: int = 10_000_000
    """Agent–environment interactions in all, rounded up to whole batches."""
    seed: int = 0
    """Everything random follows from it: the same seed gives the same run."""
    num_envs: int = 20
    """Environments stepped together; must divide the batch size."""
    batch_size: int = 5_000
    """Interactions between two updates."""
    gae_lambda: float = 0.8
    """λ of the reward's advantage estimates: 0 is one-step, 1 is Monte Carlo."""
    cost_gae_lambda: float | None = None
    """λ of the costs' advantage estimates [as the reward's, above which limits are broken]."""
    rate: Literal["reward", "td"] = "reward"
    """How the average criterion estimates ρ̂: the mean reward, or that corrected by v(s') − v(s)."""
    gauge: Literal["centred", "free"] = "centred"
    """Keep the average criterion's critic centred, or let its free constant drift."""
    cost: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A cost to limit: `speed`, `cost`, or any key of the environment's info (in Python also a function);
    repeatable, one --limit each."""
    limit: Annotated[tuple[float, ...], tyro.conf.UseAppendAction] = ()
    """Upper limit of the cost: per step for acpo, discounted sum for cpo; repeatable."""
    max_skipped: int = 50
    """Policy steps that may fail in a row before the run ends."""
    eval_every: int = 100_000
    """Interactions between two evaluations."""
    checkpoint_every: int = 100_000
    """Interactions between two checkpoints."""
    keep_checkpoints: int = 3
    """Newest checkpoints kept."""
    threads: int = 0
    """Threads of each EnvPool pool (0: one a core)."""
    workers: int = 0
    """Processes for Gymnasium environments (0: all in this one); an environment with workers never uses EnvPool."""
    step_timeout: float | None = None
    """Seconds after which a worker's step counts as hung."""
    restart_faulty: bool = False
    """Restart an environment that raises, hangs, dies or gives a number that is not finite, count it, and go on."""
    task: Task = dataclasses.field(default_factory=Task)
    protocol: Protocol = dataclasses.field(default_factory=Protocol)
    networks: Networks = dataclasses.field(default_factory=Networks)
    region: TrustRegion = dataclasses.field(default_factory=TrustRegion)
    critic: CriticFit = dataclasses.field(default_factory=CriticFit)

    @property
    def iterations(self) -> int:
        """Batches in the whole run."""
        return -(-self.steps // self.batch_size)

    @property
    def horizon(self) -> int:
        """Steps of each environment in a batch."""
        return self.batch_size // self.num_envs

    def learner(self) -> Learner:
        """The learner that these settings describe, or a `UserError`."""
        self._check_numbers()
        row = ALGORITHMS[self.algorithm]
        self._check_limits(row.constrained)
        criterion = self._criterion()
        log_std = row.log_std if self.networks.log_std is None else self.networks.log_std
        return Learner(
            criterion=criterion,
            limits=self.limit,
            iterations=self.iterations,
            gae_lambda=self.gae_lambda,
            cost_gae_lambda=self.gae_lambda if self.cost_gae_lambda is None else self.cost_gae_lambda,
            networks=dataclasses.replace(self.networks, log_std=log_std),
            region=self.region,
            critic=self.critic,
        )

    def _criterion(self) -> Criterion:
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
        return Average(rate=self.rate, gauge=self.gauge)

    def _check_limits(self, constrained: bool) -> None:
        costs, limits = len(self.cost), len(self.limit)
        if constrained and not costs:
            raise UserError(f"{self.algorithm} needs a cost to limit: give both --cost NAME and --limit L.")
        if not constrained and (costs or limits):
            other = {"atrpo": "acpo", "trpo": "cpo"}[self.algorithm]
            raise UserError(f"{self.algorithm} has no cost limits; use --algorithm {other}.")
        if costs != limits:
            raise UserError(f"Each cost needs one limit: there are {costs} --cost and {limits} --limit.")
        for cost, limit in zip(self.cost, self.limit, strict=True):
            if not math.isfinite(limit):
                raise UserError(f"The limit of {cost_name(cost)} is {limit}; it must be a finite number.")

    def _check_numbers(self) -> None:
        flat: dict[str, Any] = to_flat(self)
        for name, value in flat.items():
            flag = f"--{name.replace('_', '-')}"
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"{flag} is {value}; it must be a finite number.")
            if name in LEAST and value is not None and not value >= LEAST[name]:
                raise UserError(f"{flag} is {value}; it must be at least {LEAST[name]}.")
            if type(value) is int and value > MOST.get(name, MOST_OTHERWISE):
                raise UserError(f"{flag} is {value}; it must be at most {MOST.get(name, MOST_OTHERWISE)}.")
            if name in ("gae_lambda", "cost_gae_lambda", "backtrack") and not 0 <= float(value or 0) <= 1:
                raise UserError(f"{flag} is {value}; it must be between 0 and 1.")
        hidden = self.networks.hidden
        if any(units < 1 for units in hidden) or sum(a * b for a, b in itertools.pairwise((1, *hidden))) > MOST_WEIGHTS:
            raise UserError(f"--hidden is {hidden}; layers have at least 1 unit, and {MOST_WEIGHTS:,} weights in all.")
        if self.batch_size % self.num_envs:
            near = [n for n in range(1, self.batch_size + 1) if self.batch_size % n == 0]
            near = sorted(near, key=lambda n: abs(n - self.num_envs))[:2]
            raise UserError(
                f"A batch of {self.batch_size} cannot be shared by {self.num_envs} environments evenly; "
                f"--num-envs {near[0]} or {near[-1]} can."
            )


LEAST: dict[str, float] = {
    "steps": 1,
    "seed": 0,
    "num_envs": 1,
    "batch_size": 2,
    "eval_every": 1,
    "checkpoint_every": 1,
    "keep_checkpoints": 1,
    "max_skipped": 1,
    "threads": 0,
    "workers": 0,
    "reset_cost": 0,
    "cut": 2,
    "eval_trajectories": 1,
    "eval_max_steps": 1,
    "delta": 0,
    "damping": 0,
    "cg_iterations": 1,
    "backtrack_tries": 1,
    "critic_rate": 0,
    "critic_l2": 0,
    "critic_epochs": 1,
    "critic_minibatch": 1,
    "observation_clip": 0,
}
MOST: dict[str, int] = {"steps": 2**53, "seed": 2**63 - 1, "num_envs": 2**16, "batch_size": 2**24, "workers": 2**12}
MOST_OTHERWISE, MOST_WEIGHTS = 2**31 - 1, 2**26
"""Far beyond use: what a damaged or hostile config.json asks for must not fill the memory."""


def cost_name(cost: Any) -> str:
    """What a cost is called in messages and in config.json; a function's name ends in ()."""
    return (
        cost if isinstance(cost, str) else f"{cost.__module__}:{getattr(cost, '__qualname__', type(cost).__name__)}()"
    )


def to_flat(settings: Any) -> dict[str, Any]:
    """Every setting by its flat name."""
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        flat.update(to_flat(value) if dataclasses.is_dataclass(value) else {field.name: value})
    return flat


def from_flat(flat: dict[str, Any]) -> Settings:
    """Settings from flat names, as in config.json or in a call of `kemeny.train`; what is left out is the default."""
    names = to_flat(Settings()).keys()
    for name in flat.keys() - names:
        close = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise UserError(f"There is no setting named {name}{hint}")
    return _build(Settings(), flat)


def _build(default: Any, flat: dict[str, Any]) -> Any:
    changes = {}
    hints = get_type_hints(type(default))
    for field in dataclasses.fields(default):
        value = getattr(default, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = _build(value, flat)
        elif field.name in flat:
            changes[field.name] = _typed(field.name, hints[field.name], flat[field.name])
    return dataclasses.replace(default, **changes)


def _typed(name: str, hint: Any, given: Any) -> Any:
    """The value as its setting's type, or a `UserError`; 1e6 is a whole number, a single value a list of one."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return None if given is None else _typed(name, inner[0], given)
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
        raise UserError(f"The setting {name} is {str(given)[:50]!r}; it must be {what}.")
    return given


def _is_number(kind: type, given: Any) -> bool:
    if isinstance(given, bool) or not isinstance(given, int | float | np.integer | np.floating):
        return False
    if isinstance(given, int | np.integer):
        return abs(int(given)) < 2**1000  # beyond, it is no floating-point number
    return kind is float or (math.isfinite(given) and given == int(given))
