"""The training loop: collect, update, log, evaluate, checkpoint; and the same again after a stop."""

import concurrent.futures
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import xla_bridge

from kemeny import checkpoint, learner
from kemeny.acting import Policy
from kemeny.collect import Collector
from kemeny.compilation import keep_compiled
from kemeny.direction import Case
from kemeny.envs.pool import EnvLike, inspect
from kemeny.errors import RunError, UserError
from kemeny.evaluation import evaluate, evaluation_seed
from kemeny.presets import Preset
from kemeny.presets import preset as preset_of
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


def train(
    env: EnvLike,
    *,
    out: str | Path | None = None,
    preset: Preset = "default",
    progress: Progress = silent,
    **settings: Any,
) -> Run:
    """Train a policy and leave a run directory.

    `env` is the id of an environment or a function that makes one; `settings` are the fields of `kemeny.Settings` and
    of the groups in it, by their flat names (`steps=1_000_000, delta=0.01, reset_cost=10`). Those not given are the
    preset's: the default, or the paper's.
    """
    return start(env, from_flat({**preset_of(preset), **settings}), out, progress)


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
    keep_compiled(xla_cores())
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
        keep_compiled(_keep_cores(config.get("cores"), progress))
        saved = None
        if checkpoint.any_in(run.path):
            saved = checkpoint.latest(run.path, progress.say)
            if saved.facts["iteration"] >= settings.iterations:
                progress.say(f"{path} is finished already: {saved.facts['steps']:,} steps.")
                return run
        else:
            progress.say(f"{path} has no checkpoint yet: starting from the beginning.")
        return _train(run, env, settings, saved, progress, inexact)


def _keep_cores(cores: Any, progress: Progress) -> int:
    """Let XLA divide its work among as many threads as when the run began, for its last digits depend on it.

    Returns how many they are now.
    """
    if type(cores) is not int or not 0 < cores <= 2**12 or cores == xla_cores():
        return xla_cores()
    before = os.environ.get("NPROC")
    if xla_bridge.backends_are_initialized():
        progress.say(
            f"The run began with {cores} threads for XLA, and this process has {xla_cores()} already: its last digits "
            "may differ from those of a run that was never stopped. In a new process they would not."
        )
        return xla_cores()
    os.environ["NPROC"] = str(cores)
    jax.devices()
    del os.environ["NPROC"]
    if before is not None:
        os.environ["NPROC"] = before
    return cores


def _train(
    run: Run,
    env: EnvLike,
    settings: Settings,
    saved: checkpoint.Checkpoint | None,
    progress: Progress,
    inexact: bool = False,
) -> Run:
    if saved is not None:
        _check_counts(saved, settings)
    with contextlib.ExitStack() as stack:
        loop = _Loop(run, env, settings, saved, progress, inexact, stack)
        stop = stack.enter_context(StopSignals())
        while loop.iteration < settings.iterations:
            loop.iterate()
            last = loop.iteration == settings.iterations
            if last or loop.due(settings.eval_every):
                loop.evaluate()
            if last or stop.asked or loop.due(settings.checkpoint_every):
                loop.checkpoint()
            if stop.asked and not last:
                raise Interrupted(f"Stopped after {loop.steps:,} steps. Go on with: kemeny resume {run.path}")
    return run


class _Loop:
    """A run under way."""

    def __init__(
        self,
        run: Run,
        env: EnvLike,
        settings: Settings,
        saved: checkpoint.Checkpoint | None,
        progress: Progress,
        inexact: bool,
        stack: contextlib.ExitStack,
    ) -> None:
        self.run, self.env, self.settings, self.progress = run, env, settings, progress
        self.learning = settings.learner()
        self.collector = Collector(
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
        stack.callback(self.collector.close)
        self.batches = (self.collector.allocate(), self.collector.allocate())
        if self.collector.lost:
            progress.say(f"{self.collector.lost} environments did not come back to where they were and begin anew.")
        self.state = learner.init(self.learning, self.collector.spec, jax.random.key(settings.seed))
        facts = {"iteration": 0, "seconds": 0.0, "log_sizes": {}, "best_score": None}
        if saved is not None:
            self.state, facts = from_arrays(self.state, saved), saved.facts
        self.iteration: int = facts["iteration"]
        self.best = facts["best_score"]
        self.began = time.monotonic() - facts["seconds"]
        self.logs = Logs(run, facts["log_sizes"], self.steps)
        stack.callback(self.logs.close)
        self.writer = _Writer()
        stack.callback(self.writer.finish)
        self.limits = _LimitsOutOfReach(settings, run.metrics if settings.limit else [])
        self.shown = stack.enter_context(progress.of(settings.steps, run.path, self.steps))
        self.unlogged: tuple[learner.Metrics, dict[str, Any]] | None = None
        stack.callback(self.log)

    @property
    def steps(self) -> int:
        """Agent–environment interactions so far."""
        return self.iteration * self.settings.batch_size

    def due(self, every: int) -> bool:
        """Whether the last batch crossed a multiple of `every`."""
        return self.steps // every > (self.steps - self.settings.batch_size) // every

    def iterate(self) -> None:
        """Collect a batch and learn from it."""
        falls, faults = self.collector.falls, self.collector.faults
        into = self.batches[self.iteration % 2]  # the update of the batch before last is done; of the last, perhaps not
        rollout = self.collector.collect(self._policy(), self.iteration, into)
        self.state, metrics = learner.update(self.learning, self.state, rollout)
        self.log()
        self.writer.check()
        self.iteration += 1
        self.unlogged = (
            metrics,
            {
                "steps": self.steps,
                "iteration": self.iteration,
                "falls": self.collector.falls - falls,
                "faults": self.collector.faults - faults,
                "seconds": time.monotonic() - self.began,
            },
        )

    def log(self) -> None:
        """Write the last iteration down: while the next one is computed, so that nobody waits for it or its critics."""
        if self.unlogged is None:
            return
        (metrics, counts), self.unlogged = self.unlogged, None
        record = {**counts, **_flat_metrics(metrics)}
        self.logs.metrics(record)
        self.shown.iteration(record["steps"], record)
        if record["faults"]:
            fault = self.collector.last_fault
            self.progress.say(f"Environments restarted after a fault: {record['faults']}, such as: {fault}.")
        if self.limits.see(record):
            self.progress.say(self.limits.message)
        _give_up_if_stuck(self.settings, record, self.run)

    def evaluate(self) -> None:
        """Evaluate the policy, and keep it if it is the best so far."""
        self.log()
        settings = self.settings
        result = evaluate(
            self._policy(),
            self.env,
            settings.protocol,
            seed=evaluation_seed(settings.seed, self.steps),
            costs=settings.cost,
            threads=settings.threads,
            workers=settings.workers,
            step_timeout=settings.step_timeout,
            restart_faulty=settings.restart_faulty,
        )
        self.logs.evaluation({"steps": self.steps, **result.record()})
        self.shown.evaluation(result.record())
        score = result.score(settings.limit, float(self.learning.criterion.slope))
        if np.isfinite(score).all() and (self.best is None or score > self.best):
            self.best = score
            self.writer.write(checkpoint.save_best, self.run.path, self.steps, self._arrays(), self._facts())

    def checkpoint(self) -> None:
        """Write down everything that it takes to go on from here."""
        self.log()
        environments = {f"collector/{name}": array for name, array in self.collector.snapshot().items()}
        keep = self.settings.keep_checkpoints
        arrays = {**self._arrays(), **environments}
        self.writer.write(checkpoint.save, self.run.path, self.steps, arrays, self._facts(), keep)

    def _policy(self) -> Policy:
        return Policy(acting_arrays(self.state, self.collector.spec))

    def _arrays(self) -> dict[str, np.ndarray]:
        return {**to_arrays(self.state), **bounds(self.collector.spec)}

    def _facts(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration,
            "seconds": time.monotonic() - self.began,
            "log_sizes": self.logs.flush(),
            "best_score": self.best,
        }


class _Writer:
    """Writes checkpoints beside training, one at a time and in order; what goes wrong is raised in training."""

    def __init__(self) -> None:
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoints")
        self._last: concurrent.futures.Future = concurrent.futures.Future()
        self._last.set_result(None)

    def write(self, save: Callable[..., Any], *what: Any) -> None:
        """Have this written, after what was to be written before it."""
        self._last.result()
        self._last = self._thread.submit(save, *what)

    def check(self) -> None:
        """Raise what went wrong, if it is known by now."""
        if self._last.done():
            self._last.result()

    def finish(self) -> None:
        """Wait until all is written."""
        self._thread.shutdown()
        self._last.result()


def _check_counts(saved: checkpoint.Checkpoint, settings: Settings) -> None:
    """Refuse counters that disagree with each other, before anything is replayed as often as they say."""
    iteration = saved.facts["iteration"]
    collected = saved.arrays.get("collector/steps")
    if saved.facts["steps"] != iteration * settings.batch_size or collected != iteration * settings.horizon:
        raise checkpoint.Damaged(f"The checkpoint {saved.path} does not fit its run: its counters disagree.")


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
