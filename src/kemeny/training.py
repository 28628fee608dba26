"""The training loop: collect, update, log, evaluate, checkpoint; and the same again after a stop."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kemeny import checkpoint, learner
from kemeny.acting import Policy
from kemeny.collect import Collector
from kemeny.direction import Case
from kemeny.envs.pool import EnvLike, inspect
from kemeny.errors import RunError, UserError
from kemeny.evaluation import evaluate, evaluation_seed
from kemeny.progress import Progress, silent
from kemeny.run import LOGS, Logs, Run, plain, surroundings
from kemeny.settings import Settings, cost_name, from_flat, to_flat
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
    return _train(run, env, settings, None, progress)


def resume(path: str | Path, *, env: EnvLike | None = None, cost: Any = None, progress: Progress = silent) -> Run:
    """Go on with a stopped or killed run exactly where its newest sound checkpoint left it.

    A run whose environment came from a function needs that function again as `env`; one with costs that are functions
    needs its costs again as `cost`.
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
    try:
        saved = checkpoint.latest(run.path, progress.say)
    except UserError:
        progress.say(f"{path} has no usable checkpoint: starting from the beginning.")
        saved = None
    if saved is not None and saved.facts["iteration"] >= settings.iterations:
        progress.say(f"{path} is finished already: {saved.facts['steps']:,} steps.")
        return run
    return _train(run, env, settings, saved, progress)


def _train(run: Run, env: EnvLike, settings: Settings, saved: checkpoint.Checkpoint | None, progress: Progress) -> Run:
    learning = settings.learner()
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
        snapshot=None if saved is None else _under("collector", saved.arrays),
    )
    state = learner.init(learning, collector.spec, jax.random.key(settings.seed))
    iteration, seconds, sizes = 0, 0.0, dict.fromkeys(LOGS, 0)
    if saved is not None:
        state = from_arrays(state, saved)
        iteration, seconds, sizes = saved.facts["iteration"], saved.facts["seconds"], saved.facts["log_sizes"]
    logs = Logs(run, sizes)
    limits = _LimitsOutOfReach(settings, run.metrics if settings.limit else [])
    began = time.monotonic() - seconds
    try:
        with (
            StopSignals() as stop,
            progress.of(settings.steps, run.path, iteration * settings.batch_size) as shown,
        ):
            while iteration < settings.iterations:
                falls = collector.falls
                rollout = collector.collect(Policy(acting_arrays(state, collector.spec)), iteration)
                state, metrics = learner.update(learning, state, rollout)
                iteration += 1
                steps = iteration * settings.batch_size
                record = {"steps": steps, "iteration": iteration, **_flat_metrics(metrics)}
                logs.metrics({**record, "falls": collector.falls - falls, "seconds": time.monotonic() - began})
                shown.iteration(steps, record)
                _give_up_if_stuck(settings, record, run)
                if limits.see(record):
                    progress.say(limits.message)
                last = iteration == settings.iterations
                if last or _due(steps, settings.eval_every, settings.batch_size):
                    policy = Policy(acting_arrays(state, collector.spec))
                    seed = evaluation_seed(settings.seed, steps)
                    result = evaluate(
                        policy,
                        env,
                        settings.protocol,
                        seed=seed,
                        costs=settings.cost,
                        threads=settings.threads,
                    ).record()
                    logs.evaluation({"steps": steps, **result})
                    shown.evaluation(result)
                if last or stop.asked or _due(steps, settings.checkpoint_every, settings.batch_size):
                    facts = {
                        "iteration": iteration,
                        "seconds": time.monotonic() - began,
                        "log_sizes": logs.sizes,
                    }
                    arrays = {
                        **to_arrays(state),
                        **bounds(collector.spec),
                        **{f"collector/{name}": array for name, array in collector.snapshot().items()},
                    }
                    checkpoint.save(run.path, steps, arrays, facts, settings.keep_checkpoints)
                if stop.asked and not last:
                    raise Interrupted(f"Stopped after {steps:,} steps. Go on with: kemeny resume {run.path}")
    finally:
        logs.close()
        collector.close()
    return run


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


def _under(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix + "/"): array for name, array in arrays.items() if name.startswith(prefix + "/")}


class StopSignals:
    """Ctrl-C or SIGTERM asks for a stop after the iteration; a second one stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: object) -> None:
        del number, frame
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
