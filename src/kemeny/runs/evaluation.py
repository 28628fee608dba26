"""Evaluating what a run has learned, or any other policy or rule, by one function; no JAX."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from kemeny.envs.costs import Cost
from kemeny.envs.names import Environment, EnvLike, as_environment
from kemeny.envs.pool import DEFAULT_SIMULATION
from kemeny.envs.settings import Simulation
from kemeny.errors import UserError
from kemeny.experience.acting import Policy
from kemeny.experience.evaluate import evaluate as run_protocol
from kemeny.experience.evaluate import evaluation_seed
from kemeny.experience.evaluation import Evaluation
from kemeny.experience.rules import Rule
from kemeny.experience.settings import EvaluationProtocol, LongRunProtocol, Task
from kemeny.naming import name_of
from kemeny.ranges import complaint
from kemeny.runs.directory import Run, run_of
from kemeny.runs.environment import environment_of
from kemeny.runs.limits import EXPLORING, MEAN_ACTION, verdicts
from kemeny.runs.load import load_policy
from kemeny.runs.settings import cost_name, from_flat


def evaluate(
    policy: str | Path | Run | Policy | Rule,
    env: EnvLike | None = None,
    protocol: EvaluationProtocol | None = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    trajectories: int = 10,
    max_steps: int = 10_000,
    seed: int = 0,
    best: bool = False,
    explore: bool | None = None,
    trust: bool = False,
    costs: tuple[Cost, ...] = (),
    returns_only: bool = False,
    reset_cost: float | None = None,
    warm_up: int | None = None,
    precision: float | None = None,
    keep_trajectory: bool = False,
    simulation: Simulation = DEFAULT_SIMULATION,
) -> Evaluation:
    """Run a policy and report its returns and its long run. `print` shows the result as tables.

        kemeny.evaluate("runs/cheetah", trajectories=20, max_steps=1_000)
        kemeny.evaluate(lambda observation: 1, env="CartPole-v1")

    Args:
        policy: A run directory, one of its checkpoints, a `Run`, a `Policy`, or a rule: a function from an observation,
            as the environment gives it, to an action, as the environment takes it.
        env: The environment. A run has one; another of the same spaces may be given.
        env_kwargs: Arguments with which that environment is made [those of the run].
        protocol: `trajectories` and `max_steps` in one object; `seed` is then that of the environments as it is.
        trajectories: How many, each from a start state of its own.
        max_steps: Steps of each trajectory. Returns are until a fall; for the long run it goes on, by a restart.
        seed: Of the start states.
        best: Of a run, take the policy of the best evaluation instead of the newest.
        explore: Act as in training, with exploration (True), or by the mean (or likeliest) action (False) [as the run's
            --deploy says].
        trust: Run the code that the environment of a run needs, though you have not trained on it here before.
        costs: What to report beside the costs that the run was trained with: names, or functions. A run with costs
            that are functions needs them again here.
        returns_only: Stop each trajectory at a fall, and estimate no long run; an episodic run has none in any case.
        reset_cost: What a fall costs in the long run [that of the run].
        warm_up: Steps of each trajectory that the long run leaves out [chosen by MSER-5].
        precision: Stop before `max_steps` as soon as the interval of the long-run reward is so narrow, relative to the
            average: 0.01 is ±1 %.
        keep_trajectory: Keep the first trajectory step by step, as `trajectory` of the result.
        simulation: Who runs the environments, and what happens when one of them fails.
    """
    given = LongRunProtocol(reset_cost, warm_up, precision)
    chosen = EvaluationProtocol(trajectories, max_steps) if protocol is None else protocol
    _refuse_out_of_range(chosen, given)
    if returns_only:
        _refuse_long_run(given, "with returns_only")
    if env is None and env_kwargs is not None:
        raise UserError("env_kwargs are those of an environment that is given as env; a run has its own.")
    if env is not None and env_kwargs is not None:
        env = as_environment(env, env_kwargs)
    subject = (
        _of_run(policy, env, costs, best, trust)
        if isinstance(policy, str | Path | Run)
        else _of_rule(policy, env, costs, best, explore)
    )
    if subject.task.episodic:
        _refuse_long_run(given, "of an episodic run")
    if reset_cost is None:
        given = dataclasses.replace(given, reset_cost=subject.task.given_reset_cost)
    explores = isinstance(subject.policy, Policy) and subject.policy.explores(explore)
    result = run_protocol(
        subject.policy,
        subject.env,
        chosen,
        seed=evaluation_seed(seed, 0) if protocol is None else seed,
        costs=subject.costs,
        simulation=simulation,
        explore=explores,
        long_run=None if returns_only or subject.task.episodic else given,
        reset_cost=given.reset_cost,
        keep_trajectory=keep_trajectory,
    )
    return _explained(result, subject, EXPLORING if explores else MEAN_ACTION)


class _Subject(NamedTuple):
    """What is evaluated."""

    policy: Policy | Rule
    env: Environment
    task: Task
    costs: tuple[Cost, ...]
    """Those with which it was trained, then what else is to be reported."""
    run: Run | None = None


def _of_run(run: str | Path | Run, env: EnvLike | None, costs: tuple[Cost, ...], best: bool, trust: bool) -> _Subject:
    path, run = (run.path, run) if isinstance(run, Run) else (Path(run), run_of(run))
    policy = load_policy(path, best=best)
    task = from_flat(run.config["settings"]).task
    return _Subject(policy, environment_of(run, env, trust=trust), task, _with_functions(run, costs), run)


def _with_functions(run: Run, given: tuple[Cost, ...]) -> tuple[Cost, ...]:
    """The costs of a run, its functions from among those given, and then the others given."""
    costs, others = [], list(given)
    for name in run.config["settings"]["cost"]:
        if not name.endswith("()"):
            costs.append(name)
            continue
        function = next((cost for cost in others if callable(cost) and cost_name(cost) == name), None)
        if function is None:
            raise UserError(f"{run.path} was trained with the cost {name}: pass it as kemeny.evaluate(…, costs=(…,)).")
        others.remove(function)
        costs.append(function)
    return (*costs, *others)


def _of_rule(
    policy: Policy | Rule, env: EnvLike | None, costs: tuple[Cost, ...], best: bool, explore: bool | None
) -> _Subject:
    if not callable(policy):
        raise UserError(f"Evaluate a run, a policy or a function from observations to actions: {policy!r} is none.")
    if best:
        raise UserError("Only a run has a best policy: leave out best=True.")
    if env is None:
        raise UserError("Say on which environment: kemeny.evaluate(policy, env).")
    if explore and not isinstance(policy, Policy):
        raise UserError("A rule does not explore: leave out explore=True, or let the rule draw its actions itself.")
    return _Subject(policy, as_environment(env), Task(), costs)


def _explained(result: Evaluation, subject: _Subject, manner: str) -> Evaluation:
    """With a title, and with a verdict on each limit: by the long-run averages of the costs, if there are."""
    count, found = len(result.lengths), result.long_run
    acted = manner if isinstance(subject.policy, Policy) else f"rule {name_of(subject.policy)}"
    about = f"{subject.env.name}, {count} {'trajectory' if count == 1 else 'trajectories'}, {acted}"
    averages = result.average_costs.mean(0) if found is None else [cost.average for cost in found.costs]
    limits = () if subject.run is None else verdicts(subject.run.config, averages, manner)
    return dataclasses.replace(result, about=about, limits=tuple(limits))


def _refuse_long_run(given: LongRunProtocol, why: str) -> None:
    asked = [name for name, value in vars(given).items() if value is not None]
    if asked:
        names = "precision, warm_up and reset_cost"
        raise UserError(
            f"There is no long run {why}, and {names} are of the long run: leave out {' and '.join(asked)}."
        )


def _refuse_out_of_range(*protocols: EvaluationProtocol | LongRunProtocol) -> None:
    for protocol in protocols:
        hints = get_type_hints(type(protocol), include_extras=True)
        for name, value in vars(protocol).items():
            if needed := complaint(hints[name], value):
                raise UserError(f"{name.removeprefix('eval_')} is {value}; it must be {needed}.")
