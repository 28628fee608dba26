"""The training loop: collect, update, log, evaluate, checkpoint; and the same again after a stop."""

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import xla_bridge

from kemeny import checkpoint, learner
from kemeny.acting import Policy
from kemeny.collect import Collector
from kemeny.direction import Case
from kemeny.envs.pool import EnvLike, inspect
from kemeny.errors import RunError, UserError
from kemeny.evaluation import evaluate, evaluation_seed
from kemeny.progress import Progress, silent
from kemeny.run import Logs, Run, differences, plain, surroundings, xla_cores
from kemeny.settings import Settings, cost_name, from_flat, to_flat
from kemeny.signals import StopSignals
from kemeny.state_arrays import acting_arrays, bounds, from_arrays, to_arrays
from kemeny.trust_region import Outcome

RECOVERIES_BEFORE_A_WORD = 50
"""Steps in a row that only reduced cost, after which the user is told."""


class Interrupted(RunError):
    """Training was asked to stop, finished its iteration and wrote a checkpoint."""


def train(env: EnvLike, *, out: str | Path | None = None, progress: Progress = silent, **settings: Any) -> Run:
    """Train a policy and leave a run directory.

    `env` is the id of an environment or a function that makes one; `settings` are the fields of `kemeny.Settings` and
    of the groups in it, by their flat names (`steps=1_000_000, delta=0.02, reset_cost=10`).
    """
    return start(env, from_flat(settings), out, progress)


def start(env: EnvLike, settings: Settings, out: str | Path | None, progress: Progress) -> Run:
    """`train`, with settings already made."""
    settings.learner()
    inspect(env, costs=settings.cost)
    name = env if isinstance(env, str) else f"{env.__module__}:{getattr(env, '__qualname__', type(env).__name__)}"
    if out is None:
        out = Path("runs") / f"{name.replace('/', '-').replace(':', '-')}-{settings.algorithm}-seed{settings.seed}"
    config = {"format": checkpoint.FORMAT, "env": name, "env_is_id": isinstance(env, str)}
    named = {**to_flat(settings), "cost": [cost_name(cost) for cost in settings.cost]}
    run = Run.create(Path(out), {**config, "settings": named, **surroundings()})
    with run.locked():
        return _train(run, env, settings, None, progress)


def resume(
    path: str | Path,
    *,
    env: EnvLike | None = None,
    cost: Any = None,
    inexact: bool = False,
    progress: Progress = silent,
) -> Run:
    """Go on with a stopped or killed run exactly where its newest sound checkpoint left it.

    A run whose environment came from a function needs that function again as `env`; one with costs that are functions
    needs its costs again as `cost`. Where environments cannot be brought back to where they were, the run is refused,
    or with `inexact` goes on from start states.
    """
    run = Run.open(path)
    config = run.config
    if env is None:
        if not config["env_is_id"]:
            raise UserError(f"{path} was trained on the function {config['env']}: pass it as kemeny.resume(…, env=…).")
        env = config["env"]
    assert env is not None
    settings = from_flat(config["settings"] if cost is None else {**config["settings"], "cost": cost})
    names = [cost_name(given) for given in settings.cost]
    if names != config["settings"]["cost"]:
        raise UserError(f"{path} was trained with the costs {config['settings']['cost']}, not {names}.")
    if any(isinstance(given, str) and given.endswith("()") for given in settings.cost):
        raise UserError(f"{path} was trained with the costs {names}: pass them as kemeny.resume(…, cost=…).")
    with run.locked():
        for difference in differences(config):
            progress.say(f"{difference} The run goes on, but perhaps not bit for bit as if it had never stopped.")
        _keep_cores(config.get("cores"), progress)
        saved = None
        if checkpoint.any_in(run.path):
            saved = checkpoint.latest(run.path, progress.say)
            if saved.facts["iteration"] >= settings.iterations:
                progress.say(f"{path} is finished already: {saved.facts['steps']:,} steps.")
                return run
        else:
            progress.say(f"{path} has no checkpoint yet: starting from the beginning.")
        return _train(run, env, settings, saved, progress, inexact)


def _keep_cores(cores: Any, progress: Progress) -> None:
    """Let XLA divide its work among as many threads as when the run began, for its last digits depend on it."""
    if type(cores) is not int or not 0 < cores <= 2**12 or cores == xla_cores():
        return
    before = os.environ.get("NPROC")
    if xla_bridge.backends_are_initialized():
        progress.say(
            f"The run began with {cores} threads for XLA, and this process has {xla_cores()} already: its last digits "
            "may differ from those of a run that was never stopped. In a new process they would not."
        )
        return
    os.environ["NPROC"] = str(cores)
    jax.devices()
    del os.environ["NPROC"]
    if before is not None:
        os.environ["NPROC"] = before


def _train(
    run: Run,
    env: EnvLike,
    settings: Settings,
    saved: checkpoint.Checkpoint | None,
    progress: Progress,
    inexact: bool = False,
) -> Run:
    learning = settings.learner()
    if saved is not None:
        _check_counts(saved, settings)
    collector = Collector(
        env,
        settings.task,
        num_envs=settings.num_envs,
        horizon=settings.horizon,
        seed=settings.seed,
        costs=settings.cost,
        threads=settings.threads,
        workers=settings.workers,
        step_timeout=settings.step_timeout,
        restart_faulty=settings.restart_faulty,
        snapshot=None if saved is None else saved.under("collector"),
        inexact=inexact,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(collector.close)
        state = learner.init(learning, collector.spec, jax.random.key(settings.seed))
        facts = {"iteration": 0, "seconds": 0.0, "log_sizes": {}, "best_score": None}
        if saved is not None:
            state, facts = from_arrays(state, saved), saved.facts
        if collector.lost:
            progress.say(f"{collector.lost} environments did not come back to where they were and begin anew.")
        iteration, best = facts["iteration"], facts["best_score"]
        began = time.monotonic() - facts["seconds"]
        logs = Logs(run, facts["log_sizes"], iteration * settings.batch_size)
        stack.callback(logs.close)
        limits = _LimitsOutOfReach(settings, run.metrics if settings.limit else [])
        stop = stack.enter_context(StopSignals())
        shown = stack.enter_context(progress.of(settings.steps, run.path, iteration * settings.batch_size))

        def counters() -> dict[str, Any]:
            return {
                "iteration": iteration,
                "seconds": time.monotonic() - began,
                "log_sizes": logs.flush(),
                "best_score": best,
            }

        while iteration < settings.iterations:
            falls, faults = collector.falls, collector.faults
            rollout = collector.collect(Policy(acting_arrays(state, collector.spec)), iteration)
            state, metrics = learner.update(learning, state, rollout)
            iteration += 1
            steps = iteration * settings.batch_size
            falls, faults = collector.falls - falls, collector.faults - faults
            record = {"steps": steps, "iteration": iteration, **_flat_metrics(metrics), "falls": falls}
            logs.metrics({**record, "faults": faults, "seconds": time.monotonic() - began})
            shown.iteration(steps, record)
            if faults:
                progress.say(f"Environments restarted after a fault: {faults}, such as: {collector.last_fault}.")
            _give_up_if_stuck(settings, record, run)
            if limits.see(record):
                progress.say(limits.message)
            last = iteration == settings.iterations
            if last or _due(steps, settings.eval_every, settings.batch_size):
                result = evaluate(
                    Policy(acting_arrays(state, collector.spec)),
                    env,
                    settings.protocol,
                    seed=evaluation_seed(settings.seed, steps),
                    costs=settings.cost,
                    threads=settings.threads,
                    workers=settings.workers,
                    step_timeout=settings.step_timeout,
                    restart_faulty=settings.restart_faulty,
                )
                logs.evaluation({"steps": steps, **result.record()})
                shown.evaluation(result.record())
                score = result.score(settings.limit, float(learning.criterion.slope))
                if np.isfinite(score).all() and (best is None or score > best):
                    best = score
                    arrays = {**to_arrays(state), **bounds(collector.spec)}
                    checkpoint.save_best(run.path, steps, arrays, counters())
            if last or stop.asked or _due(steps, settings.checkpoint_every, settings.batch_size):
                arrays = {
                    **to_arrays(state),
                    **bounds(collector.spec),
                    **{f"collector/{name}": array for name, array in collector.snapshot().items()},
                }
                checkpoint.save(run.path, steps, arrays, counters(), settings.keep_checkpoints)
            if stop.asked and not last:
                raise Interrupted(f"Stopped after {steps:,} steps. Go on with: kemeny resume {run.path}")
    return run


def _check_counts(saved: checkpoint.Checkpoint, settings: Settings) -> None:
    """Refuse counters that disagree with each other, before anything is replayed as often as they say."""
    iteration = saved.facts["iteration"]
    collected = saved.arrays.get("collector/steps")
    if saved.facts["steps"] != iteration * settings.batch_size or collected != iteration * settings.horizon:
        raise checkpoint.Damaged(f"The checkpoint {saved.path} does not fit its run: its counters disagree.")


def _due(steps: int, every: int, batch: int) -> bool:
    """Whether this batch crossed a multiple of `every`."""
    return steps // every > (steps - batch) // every


def _give_up_if_stuck(settings: Settings, record: dict[str, Any], run: Run) -> None:
    if record["skipped_in_a_row"] >= settings.max_skipped:
        outcome = Outcome(record["outcome"])
        raise RunError(
            f"The policy step was skipped {record['skipped_in_a_row']} times in a row: {outcome.advice}. "
            f"The last good checkpoint is in {run.path / checkpoint.FOLDER}."
        )


class _LimitsOutOfReach:
    """Notices when step after step can only reduce cost: perhaps no policy keeps the limits."""

    def __init__(self, settings: Settings, past: list[dict[str, Any]]) -> None:
        self.names = [cost_name(cost) for cost in settings.cost]
        self.limits = settings.limit
        self.in_a_row = 0
        self.lowest = np.full(len(self.limits), np.inf)
        for record in past:
            self.see(record)

    def see(self, record: dict[str, Any]) -> bool:
        """Whether this iteration is the one to say something at."""
        if not self.names:
            return False
        self.lowest = np.fmin(self.lowest, np.array(record["cost"], float))
        self.in_a_row = self.in_a_row + 1 if record["case"] == Case.RECOVERY else 0
        return self.in_a_row == RECOVERIES_BEFORE_A_WORD

    @property
    def message(self) -> str:
        """One sentence, and what to do."""
        reached = ", ".join(
            f"{name} {low:.4g} (limit {limit:g})"
            for name, low, limit in zip(self.names, self.lowest, self.limits, strict=True)
        )
        return (
            f"For {self.in_a_row} iterations no step could keep the limits, only reduce cost; the lowest so far: "
            f"{reached}. Training goes on; if cost no longer falls, perhaps no policy can keep the limit: raise it."
        )


def _flat_metrics(metrics: learner.Metrics) -> dict[str, Any]:
    """Plain numbers by name; those of the limits only where there are limits."""
    fields = metrics._asdict()
    constraint = fields.pop("constraint")
    return plain({**fields, **(constraint._asdict() if constraint is not None else {})})
