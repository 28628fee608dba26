"""The training loop: collect, update, log, evaluate, checkpoint; and the same again after a stop."""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from kemeny.cluster import HERE, Place
from kemeny.envs.names import Environment
from kemeny.errors import Damaged, RunError
from kemeny.experience.acting import Policy, check_fits
from kemeny.experience.evaluate import evaluate, evaluation_seed
from kemeny.experience.evaluation import Evaluation
from kemeny.experience.source import Batch, numpy_policy
from kemeny.learning.arrays import bounds, from_arrays, to_arrays
from kemeny.learning.steps.protocol import Outcome
from kemeny.learning.update import Metrics, plain_fields, update
from kemeny.observers import Observer, Observers
from kemeny.runs import checkpoint
from kemeny.runs.assembly import make_learner, make_source, make_state
from kemeny.runs.directory import Run
from kemeny.runs.disk import Disk
from kemeny.runs.interrupts import CallbackObserver, Interrupted, Stop
from kemeny.runs.load import policy_of
from kemeny.runs.logs import Logs, plain
from kemeny.runs.out_of_reach import watch
from kemeny.runs.settings import Settings

Callback = Callable[[dict[str, Any]], Any]


def go(
    run: Run,
    env: Environment,
    settings: Settings,
    saved: checkpoint.Checkpoint | None,
    observers: Sequence[Observer],
    callback: Callback | None,
    inexact: bool = False,
    place: Place = HERE,
) -> Run:
    """Train from the beginning, or from a checkpoint, to the end; the run is locked."""
    if saved is not None:
        _check_counts(saved, settings)
    stop = Stop()
    # A signal must not end the process while the last checkpoint is written: `stop` is left after the loop is closed.
    with contextlib.ExitStack() as signals, contextlib.ExitStack() as stack:
        everyone = list(observers)
        if callback is not None:
            everyone.append(CallbackObserver(callback, stop))
        loop = _Loop(run, env, settings, saved, everyone, stop, inexact, place, stack)
        signals.enter_context(stop)
        if saved is None and run.config.get("init_from") is not None:
            loop.evaluate()  # which is where its curve begins, and perhaps its best policy
        while loop.iteration < settings.iterations:
            loop.iterate()
            last = stop.finished or loop.length.is_end(loop.iteration)
            evaluated = last or loop.due(settings.eval_every)
            if evaluated:
                loop.evaluate()
            if last or stop.asked or loop.due(settings.checkpoint_every):
                loop.log()  # which may find that the run is finished
                if stop.finished and not evaluated:
                    loop.evaluate()
                loop.checkpoint()
                if stop.asked:  # and not before: no way out without a checkpoint
                    break
    if stop.error is not None:
        raise stop.error
    if stop.interrupted_by is not None and loop.iteration < settings.iterations and not stop.finished:
        message = f"Stopped after {loop.steps:,} steps. Go on with: kemeny resume {run.path}"
        raise Interrupted(message, stop.interrupted_by)
    return run


class _Loop:
    """A run in progress."""

    def __init__(
        self,
        run: Run,
        env: Environment,
        settings: Settings,
        saved: checkpoint.Checkpoint | None,
        observers: Sequence[Observer],
        stop: Stop,
        inexact: bool,
        place: Place,
        stack: contextlib.ExitStack,
    ) -> None:
        self.run, self.env, self.settings, self.stop = run, env, settings, stop
        self.learner, self.length = make_learner(settings), run.length
        everyone = Observers(observers)
        past = [record for record in run.metrics if saved is not None and record["steps"] <= saved.facts["steps"]]
        self.observer = Observers([*observers, *watch(settings, env.name, past, everyone.say)])
        snapshot = None if saved is None else saved.under("collector")
        self.source = make_source(env, settings, self.observer, snapshot, inexact, place)
        stack.callback(self.source.close)
        self.state = make_state(self.learner, settings, self.source.spec)
        facts = {"iteration": 0, "seconds": 0.0, "log_sizes": {}, "best_score": None}
        begins_with = saved or run.begins_with()
        if begins_with is not None:
            self.state = from_arrays(self.state, begins_with.arrays, f"The checkpoint {begins_with.path}")
            check_fits(policy_of(begins_with), self.source.spec, env.name)
            facts = begins_with.facts
        self.behaviour = self.state.behind or self.state.behaviour
        """Who acts in the next batch; its arrays are not those that an update in progress still has to compute."""
        self.iteration: int = facts["iteration"]
        self.best = facts["best_score"]
        self.began = time.monotonic() - facts["seconds"]
        disk = Disk(self.observer)
        self.logs = Logs(run.path, facts["log_sizes"], self.steps, disk)
        stack.callback(self.logs.close)
        self.saver = checkpoint.Saver(run.path, settings.keep_checkpoints, disk)
        self.writer = _Writer(self.observer)
        stack.callback(self.writer.finish)
        self.observer.begin("run", run.path, settings.iterations * settings.batch_size, self.steps)
        stack.callback(self.observer.end, "run")
        self.unlogged: tuple[Metrics, Batch, dict[str, Any]] | None = None
        self.flat_in_a_row = _flat_at_the_end(past)
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
        self.observer.begin("collect")
        batch = self.source.collect(self.behaviour, self.iteration)
        self.observer.end("collect")
        self.observer.begin("update")
        learner = dataclasses.replace(self.learner, iterations=self.length.iterations(self.iteration))
        before = self.state.behaviour
        self.state, metrics = update(learner, self.state, batch.rollout, batch.deployed)
        self.behaviour = before if self.settings.pipeline else self.state.behaviour
        self.observer.end("update", self.state, metrics)
        self.iteration += 1
        unlogged = (metrics, batch, self._counts(batch))
        self.log()
        self.unlogged = unlogged
        self.writer.check()

    def log(self) -> None:
        """Write the last iteration down: while the next one is computed, so that nobody waits for it or its critics."""
        if self.unlogged is None:
            return
        (metrics, batch, counts), self.unlogged = self.unlogged, None
        self.observer.begin("critics")
        metrics = jax.device_get(metrics)
        self.observer.end("critics")
        record = {**counts, **plain(plain_fields(metrics))}
        self.observer.begin("log")
        self.logs.metrics(record)
        self.observer.end("log")
        self.observer.iteration(record)
        if record["faults"]:
            self.observer.say(f"Environments restarted after a fault: {record['faults']}, such as: {batch.fault}")
        self._stop_if_stuck(record)

    def evaluate(self) -> None:
        """Evaluate the policy, and keep it if it is the best so far."""
        self.log()
        settings = self.settings
        self.observer.begin("evaluate")
        explores = settings.deployment.deploy == "explore"
        result = self._evaluate(explore=explores)
        if settings.limit or settings.eval_exploring:
            result = result.with_exploring(result if explores else self._evaluate(explore=True))
        self.observer.end("evaluate")
        record = {"steps": self.steps, **result.record()}
        self.logs.evaluation(record)
        self.observer.evaluation(record)
        slope = float(self.learner.criterion.slope)
        kept_for = "deployed" if self.learner.deployed else "exploring"
        score = result.score(settings.limit, slope, settings.best_by, settings.task.given_reset_cost, kept_for)
        if np.isfinite(score).all() and (self.best is None or score > self.best):
            self.best = score
            self.writer.write(self.saver.save_best, self.steps, self._arrays(), self._facts())

    def checkpoint(self) -> None:
        """Write down everything that it takes to go on from here."""
        self.log()
        arrays = self._arrays()  # which waits for the critics
        self.observer.begin("checkpoint")
        arrays |= {f"collector/{name}": array for name, array in self.source.snapshot().items()}
        facts = self._facts()
        self.observer.end("checkpoint")
        self.writer.write(self.saver.save, self.steps, arrays, facts)

    def _evaluate(self, explore: bool) -> Evaluation:
        settings = self.settings
        return evaluate(
            self._policy(),
            self.env,
            settings.protocol,
            seed=evaluation_seed(settings.seed, self.steps),
            costs=settings.cost,
            simulation=settings.simulation,
            explore=explore,
            reset_cost=settings.task.given_reset_cost,
        )

    def _policy(self) -> Policy:
        return numpy_policy(self.state, self.source.spec)

    def _arrays(self) -> dict[str, np.ndarray]:
        return {**to_arrays(self.state), **bounds(self.source.spec)}

    def _counts(self, batch: Batch) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "iteration": self.iteration,
            "falls": batch.falls,
            "cuts": int(np.count_nonzero(batch.rollout.cut)),
            "faults": batch.faults,
            "seconds": time.monotonic() - self.began,
        }

    def _facts(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration,
            "seconds": time.monotonic() - self.began,
            "log_sizes": self.logs.flush(),
            "best_score": self.best,
            "network": self.state.policy.network.description,
            "spaces": self.source.spec.spaces.description,
            "deploy": self.settings.deployment.deploy,
            "config_sum": self.run.config_sum(self.steps),
            "finished": self.stop.finished,
        }

    def _stop_if_stuck(self, record: Mapping[str, Any]) -> None:
        """After so many skipped steps either nothing is left to gain, and the policy is done, or training failed."""
        self.flat_in_a_row = self.flat_in_a_row + 1 if record["outcome"] == Outcome.FLAT else 0
        if self.flat_in_a_row >= self.settings.max_skipped:
            self.observer.say(
                f"For {self.flat_in_a_row} batches every action taken was as good as any other: nothing is left to "
                f"gain, or no reward was found. Training ends after {record['steps']:,} steps. (To look for a rare "
                "reward for longer: --max-skipped.)"
            )
            self.stop.finish()
        elif record["skipped_in_a_row"] >= self.settings.max_skipped:
            outcome = Outcome(record["outcome"])
            self.stop.ask(
                RunError(
                    f"The policy step was skipped {record['skipped_in_a_row']} times in a row: {outcome.advice}. "
                    f"The policy is in {self.run.path / checkpoint.FOLDER}."
                )
            )


class _Writer:
    """Writes checkpoints beside training, one at a time and in order; what goes wrong is raised in training."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoints")
        self._last: concurrent.futures.Future = concurrent.futures.Future()
        self._last.set_result(None)

    def write(self, save: Callable[..., Any], *what: Any) -> None:
        """Have this written, after what was to be written before it."""
        self._last.result()
        self._last = self._thread.submit(self._save, save, *what)

    def check(self) -> None:
        """Raise what went wrong, if it is known by now."""
        if self._last.done():
            self._last.result()

    def finish(self) -> None:
        """Wait until all is written."""
        self._thread.shutdown()
        self._last.result()

    def _save(self, save: Callable[..., Any], *what: Any) -> None:
        self._observer.begin("save")
        save(*what)
        self._observer.end("save")


def _flat_at_the_end(records: list[dict[str, Any]]) -> int:
    """How many of the last records in a row say that the step was flat."""
    return sum(1 for _ in itertools.takewhile(lambda record: record["outcome"] == Outcome.FLAT, reversed(records)))


def _check_counts(saved: checkpoint.Checkpoint, settings: Settings) -> None:
    """Refuse counters that disagree with each other, before anything is replayed as often as they say."""
    iteration = saved.facts["iteration"]
    collected = saved.arrays.get("collector/steps")
    if saved.facts["steps"] != iteration * settings.batch_size or collected != iteration * settings.batch_length:
        raise Damaged(f"The checkpoint {saved.path} does not fit its run: its counters disagree.")
