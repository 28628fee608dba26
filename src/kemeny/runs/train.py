"""A run from Python: begun with `train`, gone on with by `resume`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kemeny.cluster import HERE, Backend, Place
from kemeny.envs.names import Environment, EnvLike, as_environment
from kemeny.envs.pool import inspect, why_not_envpool
from kemeny.envs.trust import remember
from kemeny.errors import UserError
from kemeny.experience.check import known_beforehand
from kemeny.experience.collect import make_outlook
from kemeny.learning.quadratic import refuse_too_many
from kemeny.machine import differences, keep_compiled, keep_cores, surroundings, xla_cores
from kemeny.observers import Observer, Observers
from kemeny.runs import checkpoint
from kemeny.runs.assembly import make_learner
from kemeny.runs.described import takes_every_setting
from kemeny.runs.directory import Exists, Run, refuse_existing
from kemeny.runs.disk import Disk
from kemeny.runs.ending import limits_in_last_evaluation
from kemeny.runs.environment import describe_environment, environment_of
from kemeny.runs.initial import take_over
from kemeny.runs.loop import Callback, go
from kemeny.runs.presets import Preset
from kemeny.runs.presets import preset as preset_settings
from kemeny.runs.progress import shown
from kemeny.runs.same import decided, refuse_another
from kemeny.runs.settings import Settings, cost_names, from_flat, to_flat


def train(
    env: EnvLike,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    preset: Preset = "default",
    init_from: str | Path | None = None,
    resume_if_exists: bool = False,
    backend: Backend = "local",
    ray_address: str | None = None,
    progress: bool | None = None,
    callback: Callback | None = None,
    observers: Sequence[Observer] = (),
    **settings: Any,
) -> Run:
    """Train a policy and leave a run directory.

    `env` is the name of an environment or a function or class that makes one, and `env_kwargs` are the arguments with
    which it is made. A name is an id of EnvPool or Gymnasium, `module:id`, `module:function`, `module:Class` or
    `path/to/file.py:function`; the working directory is on the path.

    `settings` are the fields of `kemeny.Settings` and of the groups in it, by their flat names (`steps=1_000_000,
    delta=0.01, reset_cost=10`). Those not given are the preset's: the default, or the paper's.

    With `init_from`, a run directory or one of its checkpoints, the run begins with that policy, its critics and its
    normaliser (`log_std` has no effect then), and with an evaluation of them. The environment must have the same
    spaces, and the networks the same sizes; all else may be another.

    With `resume_if_exists`, a run that is in `out` already is gone on with, if it has this environment and these
    settings, and one that is finished is returned as it is: the same call begins a run, resumes it and ends it.

    `backend` says where collectors are, if the setting `collectors` is above 1: in processes of this machine, or on the
    nodes of a Ray cluster (docs/ray.md), which is that of `kemeny.sweep`. No number depends on it.

    `progress` shows a bar, and at the end whether each limit was kept; in a notebook it is on unless it is False.

    `callback(record)` is called with each line of metrics.jsonl and of evaluations.jsonl as a dictionary, whose `log`
    is "metrics" or "evaluations". If it returns True or raises, the run stops after the iteration in progress, and what
    it raised goes on to the caller. Either way a checkpoint is written first, and `kemeny.resume` goes on from it.
    `observers` see more than a callback: see `kemeny.Observer`.
    """
    showing = shown(progress)
    chosen = from_flat(settings, preset_settings(preset))
    named = as_environment(env, env_kwargs)
    place = Place(backend, ray_address)
    run = start(named, chosen, out, [*showing, *observers], callback, init_from, resume_if_exists, place)
    _say_limits(run, showing)
    return run


takes_every_setting(train)


def start(
    env: EnvLike,
    settings: Settings,
    out: str | Path | None = None,
    observers: Sequence[Observer] = (),
    callback: Callback | None = None,
    init_from: str | Path | None = None,
    resume_if_exists: bool = False,
    place: Place = HERE,
) -> Run:
    """`train`, with settings already made."""
    make_learner(settings)
    place.check()
    env = as_environment(env)
    out = Path(out) if out is not None else Path("runs") / f"{env.short_name}-{settings.algorithm}-seed{settings.seed}"
    try:
        return _begin(env, settings, out, observers, callback, init_from, place)
    except Exists:
        if not resume_if_exists:
            raise
    run = Run(out)
    refuse_another(run, decided(env.name, env.kwargs, settings, init_from))
    return _resume(run, env, None, settings.cost, False, callback, observers, place)


def _begin(
    env: Environment,
    settings: Settings,
    out: Path,
    observers: Sequence[Observer],
    callback: Callback | None,
    init_from: str | Path | None,
    place: Place,
) -> Run:
    refuse_existing(out)
    spec = inspect(env, costs=settings.cost, simulation=settings.simulation)
    if settings.next_value == "expected":
        make_outlook(env).close()
    if settings.critic.critic_form == "quadratic":
        refuse_too_many(spec)
    keep_compiled(xla_cores())
    initial = None if init_from is None else take_over(init_from, settings, spec, env.name, Observers(observers).say)
    config = {
        "format": checkpoint.FORMAT,
        **describe_environment(env),
        "settings": {**to_flat(settings), "cost": cost_names(settings)},
        "extended": [],
        "init_from": None if initial is None else initial.source,
        **surroundings(),
    }
    run = Run.create(
        out, config, Disk(Observers(observers)), None if initial is None else (initial.arrays, initial.facts)
    )
    if config["env_is_id"]:
        remember(env)
    with run.locked():
        slower = why_not_envpool(env, settings.simulation.workers)
        for sentence in (*([slower] if slower else ()), *known_beforehand(spec, settings.task)):
            Observers(observers).say(sentence)
        return go(run, env, settings, None, observers, callback, False, place)


def resume(
    path: str | Path,
    *,
    env: EnvLike | None = None,
    steps: int | None = None,
    cost: Any = None,
    inexact: bool = False,
    trust: bool = False,
    backend: Backend = "local",
    ray_address: str | None = None,
    progress: bool | None = None,
    callback: Callback | None = None,
    observers: Sequence[Observer] = (),
) -> Run:
    """Go on with a stopped or killed run exactly where its newest sound checkpoint left it.

    With `steps`, the run has so many steps in all from here on, also if it was finished. The critics' step size, which
    falls to 0 at the end of a run, is then what it would be here in a run of that length: it jumps up once and falls
    again. A run that ended early because nothing was left to gain stays as it is.

    A run whose environment came from a function that no module has by name needs that function again as `env`; one with
    costs that are functions needs its costs again as `cost`. `trust` says that code which this user has not trained on
    before may run, where the run's environment needs such code. Where environments cannot be brought back to where they
    were, the run is refused, or with `inexact` goes on from start states. `backend` (which may be another than before),
    `progress`, `callback` and `observers` are those of `kemeny.train`.
    """
    showing = shown(progress)
    place = Place(backend, ray_address)
    place.check()
    opened = Run(path)
    named = environment_of(opened, env, trust=trust)
    run = _resume(opened, named, steps, cost, inexact, callback, [*showing, *observers], place)
    _say_limits(run, showing)
    return run


def _resume(
    run: Run,
    env: Environment,
    steps: int | None,
    cost: Any,
    inexact: bool,
    callback: Callback | None,
    observers: Sequence[Observer],
    place: Place,
) -> Run:
    path, config = run.path, run.config
    settings = from_flat(config["settings"] if cost is None else {**config["settings"], "cost": cost})
    names = cost_names(settings)
    if names != config["settings"]["cost"]:
        raise UserError(f"{path} was trained with the costs {config['settings']['cost']}, not {names}.")
    if any(isinstance(given, str) and given.endswith("()") for given in settings.cost):
        raise UserError(f"{path} was trained with the costs {names}: pass them as kemeny.resume(…, cost=…).")
    say = Observers(observers).say
    with run.locked():
        for difference in differences(config):
            say(f"{difference} The run goes on, but perhaps not bit for bit as if it had never stopped.")
        keep_compiled(keep_cores(config.get("cores"), say))
        saved = run.to_resume(say)
        if steps is not None:
            inspect(env, costs=settings.cost, simulation=settings.simulation)  # before config.json is changed
            settings = _extended(run, settings, saved, steps, observers)
        if saved is None:
            say(f"{path} has no checkpoint yet: starting from the beginning.")
        elif saved.facts["iteration"] >= settings.iterations or saved.facts.get("finished"):
            say(_finished(run, saved, steps))
            return run
        return go(run, env, settings, saved, observers, callback, inexact, place)


def _extended(
    run: Run, settings: Settings, saved: checkpoint.Checkpoint | None, steps: int, observers: Sequence[Observer]
) -> Settings:
    """The settings with so many steps in all, once config.json has them, too; those of a solved run as they are."""
    longer = from_flat({"steps": steps}, settings)
    longer.check()
    done = 0 if saved is None else saved.facts["steps"]
    if saved is not None and saved.facts.get("finished"):
        return settings
    if longer.steps < done or (longer.steps != settings.steps and longer.iterations * settings.batch_size <= done):
        raise UserError(
            f"{run.path} has done {done:,} of {settings.steps:,} steps; --steps {longer.steps} would shorten it. "
            "Give more steps in all than it has done, or none to go on as it is."
        )
    if longer.iterations == settings.iterations:
        return settings
    run.extend(done, longer.steps, Disk(Observers(observers)))
    before, now = (
        max(0.0, 1 - done / (batches * settings.batch_size)) for batches in (settings.iterations, longer.iterations)
    )
    Observers(observers).say(
        f"{run.path} has {longer.steps:,} steps in all from now on, instead of {settings.steps:,}. After {done:,} of "
        f"them the critics' step size is {now:.2g} of its first value, instead of {before:.2g}; at the end it is 0."
    )
    return longer


def _say_limits(run: Run, showing: Sequence[Observer]) -> None:
    for line in limits_in_last_evaluation(run) if showing else ():
        Observers(showing).say(line)


def _finished(run: Run, saved: checkpoint.Checkpoint, steps: int | None) -> str:
    done = saved.facts["steps"]
    if steps is None or not saved.facts.get("finished"):
        return f"{run.path} is finished already: {done:,} steps."
    return (
        f"{run.path} ended after {done:,} steps because nothing was left to gain, and stays as it is. To go on from "
        f"its policy, begin a new run with --init-from {run.path}"
    )
