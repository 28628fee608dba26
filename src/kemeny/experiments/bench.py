"""Training speed beside the simulator's ceiling, and where the time of the training loop goes."""

import contextlib
import dataclasses
import os
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kemeny.envs.envpool import FOREVER
from kemeny.envs.masks import first_allowed
from kemeny.envs.names import EnvLike, as_environment
from kemeny.envs.pool import Pool, Step, choose_backend, inspect, make_pool
from kemeny.machine import available_cores, surroundings
from kemeny.observers import Observer
from kemeny.runs.assembly import make_learner
from kemeny.runs.directory import Run
from kemeny.runs.interrupts import Interrupted
from kemeny.runs.settings import Settings, from_flat
from kemeny.runs.train import start
from kemeny.spec import Continuous

COMPILING = 2
"""Iterations at the start of a run that are not counted."""
FEWEST_BATCHES = COMPILING + 4
NEVER = 10**9
"""Steps between two events that shall not happen before the end."""
DRAWN = 100
"""Rows of actions that the ceiling goes round in."""
MANY, AT_ONCE = 64, 32
"""Environments of the asynchronous ceiling, and how many of them are waited for: the first that are ready."""

PARTS = {
    "simulate": "waiting for the simulator",
    "act": "acting",
    "store": "storing the batch",
    "step": "advantages and policy step",
    "critics": "waiting for the critics",
    "logging": "logging",
    "checkpoints": "checkpoints",
    "rest": "the rest",
}
"""What the loop's thread does, and how the table calls it."""
PART_OF = {
    "collect": "store",
    "policy": "step",
    "act": "act",
    "simulate": "simulate",
    "update": "step",
    "critics": "critics",
    "log": "logging",
    "evaluate": "evaluation",
    "checkpoint": "checkpoints",
    "save": "checkpoints",
}
"""The part to which a phase of the loop belongs; other phases belong to the one around them."""

SPEED_NOTE = """\
The ceiling is the simulator alone, stepped with actions drawn beforehand: nobody acts, stores or learns. The whole loop
is everything but evaluations. The asynchronous ceiling is one pool of 64 environments in EnvPool's asynchronous mode:
whichever 32 are ready first get their next actions. It is not repeatable, so training does not use it."""
TIME_NOTE = """\
The parts are those of the thread that runs the loop, and add up to its time. EnvPool simulates in threads of its own
while that thread acts and stores, and the critics are refitted while the next batch is collected: this work shows only
where the thread waits for it, or as slower work of others for want of cores. Waiting for the simulator includes handing
it the actions, and restarts. The last two rows are of another run, which waits for the critics before it begins the
next batch."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """Where the time of a loop went."""

    ms: dict[str, float]
    """Milliseconds per iteration of each of `PARTS`; they add up to the time of an iteration."""
    checkpoints_beside_ms: float
    """Milliseconds per iteration of writing checkpoints in a thread of its own."""
    evaluation_ms: float
    """Milliseconds per iteration that evaluations add, at the interval of the settings."""
    evaluation_lengths: list[int]
    """Steps of each trajectory of the evaluation that was timed."""

    @property
    def total(self) -> float:
        """Milliseconds of an iteration."""
        return sum(self.ms.values())


@dataclasses.dataclass(frozen=True)
class Measured:
    """All about one environment; one entry per round."""

    env: str
    simulator: str
    ceiling: list[float]
    """Steps per second of the simulator as training uses it."""
    asynchronous: list[float]
    """Steps per second of EnvPool's asynchronous mode; empty if the simulator is another."""
    loop: list[float]
    """Steps per second of training."""
    share: list[float]
    """Of `ceiling`, in the same round."""
    share_of_asynchronous: list[float]
    profile: Profile
    in_turn: Profile
    """Of a run that waits for the critics before it begins the next batch."""


@dataclasses.dataclass(frozen=True)
class Results:
    """What was measured, where, and with which settings."""

    versions: dict[str, str]
    cores: int
    load: float
    """Processes that wanted to run in the minute before."""
    num_envs: int
    threads: int
    batch_size: int
    eval_every: int
    checkpoint_every: int
    environments: list[Measured]


def measure(
    envs: Sequence[EnvLike], rounds: int, seconds: float, settings: dict[str, Any], report: Callable[[str], None]
) -> Results:
    """Everything that the tables show; `settings` are those of `kemeny.train` by their flat names."""
    chosen = from_flat(settings)
    make_learner(chosen)  # a mistake in any setting or name is reported before anything is measured
    for env in envs:
        inspect(env)
    return Results(
        versions=surroundings()["versions"],
        cores=available_cores(),
        load=os.getloadavg()[0],
        num_envs=chosen.num_envs,
        threads=chosen.simulation.threads,
        batch_size=chosen.batch_size,
        eval_every=chosen.eval_every,
        checkpoint_every=chosen.checkpoint_every,
        environments=[_measure(env, rounds, seconds, settings, report) for env in envs],
    )


def _measure(
    env: EnvLike, rounds: int, seconds: float, settings: dict[str, Any], report: Callable[[str], None]
) -> Measured:
    chosen, name = from_flat(settings), as_environment(env).name
    expected = 0.6 * ceiling(env, min(seconds, 2.0), chosen, 0)
    batches = max(FEWEST_BATCHES, round(seconds * expected / chosen.batch_size))
    in_envpool = choose_backend(env, "auto", 0) == "envpool"
    tops, highest, loops = [], [], []
    for seed in range(rounds):
        tops.append(ceiling(env, seconds, chosen, seed))
        if in_envpool:
            highest.append(asynchronous_ceiling(env, seconds, chosen, seed))
        loops.append(whole_loop(env, {**settings, "seed": seed}, batches))
        report(f"{name}: ceiling {tops[-1]:,.0f}, whole loop {loops[-1]:,.0f} steps/s")
    report(f"{name}: where the time goes")
    return Measured(
        env=name,
        simulator="EnvPool" if in_envpool else "Gymnasium",
        ceiling=tops,
        asynchronous=highest,
        loop=loops,
        share=[loop / top for loop, top in zip(loops, tops, strict=True)],
        share_of_asynchronous=[loop / top for loop, top in zip(loops, highest, strict=in_envpool)],
        in_turn=profile(env, {**settings, "eval_max_steps": 1}, batches, overlap=False),
        profile=profile(env, settings, batches),
    )


def ceiling(env: EnvLike, seconds: float, settings: Settings, seed: int) -> float:
    """Steps per second of the simulator alone, in two pools in turn as in training, with actions drawn beforehand.

    EnvPool is used by its own interface; other environments by Kemeny's pool.
    """
    rng = np.random.default_rng(seed)
    pools, actions = [], []
    for half, size in ((0, settings.num_envs - settings.num_envs // 2), (1, settings.num_envs // 2)):
        if not size:
            continue
        drawn = _draw(env, rng, size)
        if choose_backend(env, "auto", 0) == "envpool":
            pools.append(_BareEnvPool(env, size, seed + half, settings.simulation.threads))
            actions.append(pools[-1].fit(drawn))
        else:
            pool = make_pool(env, size, seed=seed + half)
            pools.append(_FirstAllowed(pool) if pool.spec.mask else pool)
            actions.append(drawn)
    try:
        return _speed_of(pools, actions, seconds)
    finally:
        for pool in pools:
            pool.close()


def asynchronous_ceiling(env: EnvLike, seconds: float, settings: Settings, seed: int) -> float:
    """Steps per second of EnvPool in its asynchronous mode, where no environment waits for a slower one.

    After an end, EnvPool's next row is a restart, which is not counted.
    """
    pool = _BareEnvPool(env, MANY, seed, settings.simulation.threads, AT_ONCE)
    actions = pool.fit(_draw(env, np.random.default_rng(seed), AT_ONCE))
    for ready in pool.reset_all():
        pool.send(actions[0], ready)
    steps, batches, began = 0, 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        ready, ages = pool.recv_ready()
        steps, batches = steps + np.count_nonzero(ages), batches + 1
        pool.send(actions[batches % DRAWN], ready)
    for _ in range(MANY // AT_ONCE):
        pool.recv_ready()
    pool.close()
    return steps / elapsed


def _draw(env: EnvLike, rng: np.random.Generator, size: int) -> np.ndarray:
    """Actions of so many environments, as an untrained policy draws them: (`DRAWN`, size, …)."""
    kind = inspect(env).action
    if isinstance(kind, Continuous):
        return rng.normal(scale=np.exp(-0.5), size=(DRAWN, size, kind.size))
    return rng.integers(kind.choices, size=(DRAWN, size, len(kind.choices))).reshape(DRAWN, size, *kind.array.shape)


def _speed_of(pools: list[Any], actions: list[np.ndarray], seconds: float) -> float:
    for pool, drawn in zip(pools, actions, strict=True):
        pool.reset(np.arange(pool.num_envs))
        pool.send(drawn[0])
    steps, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        steps += 1
        for pool, drawn in zip(pools, actions, strict=True):
            step = pool.recv()
            ended = step.terminated | step.truncated
            if ended.any():
                pool.reset(np.flatnonzero(ended))
            pool.send(drawn[steps % DRAWN])
    for pool in pools:
        pool.recv()
    return steps * sum(pool.num_envs for pool in pools) / elapsed


class _FirstAllowed:
    """A pool whose environments have masks: whatever is sent, the first action that is allowed is taken."""

    def __init__(self, pool: Pool) -> None:
        self.num_envs, self._pool = pool.num_envs, pool
        self._observation = np.zeros((pool.num_envs, pool.spec.observation.size), np.float32)

    def reset(self, ids: np.ndarray) -> None:
        self._observation[ids] = self._pool.reset(ids)

    def send(self, action: np.ndarray) -> None:
        self._pool.send(first_allowed(self._pool.spec, self._observation))

    def recv(self) -> Step:
        step = self._pool.recv()
        self._observation = step.observation
        return step

    def close(self) -> None:
        self._pool.close()


class _BareEnvPool:
    """EnvPool by its own public interface, with as much of `envs.pool.Pool` as it takes to step it."""

    def __init__(self, env: EnvLike, num_envs: int, seed: int, threads: int, batch_size: int = 0) -> None:
        """With a `batch_size` (0: all), the pool is asynchronous: the first that are ready are enough."""
        import envpool

        self.num_envs = num_envs
        self._everyone = np.arange(num_envs)
        threads = threads or min(num_envs, available_cores())
        named = as_environment(env)
        options = {**named.kwargs, "max_episode_steps": FOREVER}
        self._pool: Any = envpool.make_gymnasium(
            named.name, num_envs=num_envs, batch_size=batch_size, seed=seed, num_threads=threads, **options
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's about EnvPool's own float64 bounds, said once
            _ = self._pool.observation_space, self._pool.action_space

    def fit(self, action: np.ndarray) -> np.ndarray:
        """Actions within the bounds and of the type that EnvPool wants."""
        space = self._pool.action_space
        if hasattr(space, "low"):
            action = np.clip(action.reshape(*action.shape[:2], *space.shape), space.low, space.high)
        return action.astype(space.dtype)

    def reset(self, ids: np.ndarray) -> None:
        self._pool.reset(ids)

    def reset_all(self) -> list[np.ndarray]:
        """Restart all environments of an asynchronous pool; returns their ids, in batches."""
        self._pool.async_reset()
        return [self.recv_ready()[0] for _ in range(MANY // AT_ONCE)]

    def send(self, action: np.ndarray, ids: np.ndarray | None = None) -> None:
        self._pool.send(action, self._everyone if ids is None else ids)

    def recv_ready(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids of the environments that are ready, and how many steps each has made since its restart."""
        info = self._pool.recv()[-1]
        return info["env_id"], info["elapsed_step"]

    def recv(self) -> Step:
        return Step(*self._pool.recv()[:4], costs=np.empty(0), regeneration=np.empty(0))

    def close(self) -> None:
        self._pool.close()


def whole_loop(env: EnvLike, settings: dict[str, Any], batches: int) -> float:
    """Steps per second of training without evaluations: simulation, acting, update, logs and checkpoints."""
    with _trained(env, {**settings, "eval_max_steps": 1, "eval_every": NEVER}, batches) as run:
        lines = run.metrics
    begin, end = lines[COMPILING], lines[-1]
    return (end["steps"] - begin["steps"]) / (end["seconds"] - begin["seconds"])


@contextlib.contextmanager
def _trained(env: EnvLike, settings: dict[str, Any], batches: int, observers: Sequence[Observer] = ()) -> Iterator[Run]:
    """A finished run in a directory that does not stay."""
    chosen = from_flat(settings)
    chosen = dataclasses.replace(chosen, steps=batches * chosen.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = start(env, chosen, Path(folder) / "run", observers)
        except Interrupted:
            raise Interrupted("Stopped before everything was measured.") from None
        yield run


def profile(
    env: EnvLike, settings: dict[str, Any], batches: int, *, overlap: bool = True, observers: Sequence[Observer] = ()
) -> Profile:
    """Run the loop with a stopwatch beside it.

    JAX computes in the background: a batch's update is begun, then the loop writes down the update before it, for which
    it needs the numbers of the critics, and then it needs the new policy. Without `overlap` the stopwatch waits for the
    critics before the next batch is begun, which shows how long they take.
    """
    watch = Stopwatch(overlap)
    rare = {"eval_every": NEVER, "checkpoint_every": NEVER}
    with _trained(env, {**settings, **rare}, batches, [watch, *observers]) as run:
        end = watch.lap()
        lengths = run.evaluations[-1]["lengths"]
    # A lap ends where a batch is begun: the first one is the start of the run, and what follows the last is its end.
    counted = watch.laps[1 + COMPILING :]
    chosen = from_flat(settings)
    a_checkpoint = 1e3 * chosen.batch_size / chosen.checkpoint_every
    an_evaluation = 1e3 * chosen.batch_size / chosen.eval_every
    ms = {part: 1e3 * float(np.mean([lap[part] for lap in counted])) for part in PARTS}
    ms["checkpoints"] = a_checkpoint * end["checkpoints"]
    return Profile(ms, a_checkpoint * watch.beside("checkpoints"), an_evaluation * end["evaluation"], lengths)


class Stopwatch(Observer):
    """Divides the time of each thread among parts; what a part does inside another counts for the inner one alone."""

    def __init__(self, overlap: bool = True) -> None:
        self.laps: list[defaultdict[str, float]] = []
        """Seconds of each part, one lap per batch."""
        self._overlap = overlap
        self._hands: dict[int, _Hand] = {}
        self._mine = self._hand()

    def begin(self, phase: str, *about: Any) -> None:
        """Count what follows for the phase's part."""
        del about
        hand = self._hand()
        if phase == "collect" and hand is self._mine:
            self.laps.append(self.lap())
        hand.enter(PART_OF.get(phase))

    def end(self, phase: str, *outcome: Any) -> None:
        """Count what follows for the part around it."""
        hand = self._hand()
        if phase == "update" and not self._overlap:
            state, _ = outcome
            jax.block_until_ready(state.policy)
            hand.leave()
            hand.enter("critics")
            jax.block_until_ready(state)
        hand.leave()

    def lap(self) -> defaultdict[str, float]:
        """Seconds of each part since the last lap, in the thread that made the stopwatch."""
        self._mine.count()
        lap, self._mine.seconds = self._mine.seconds, defaultdict(float)
        return lap

    def beside(self, part: str) -> float:
        """Seconds of a part in all other threads."""
        return sum(hand.seconds[part] for hand in self._hands.values() if hand is not self._mine)

    def _hand(self) -> "_Hand":
        return self._hands.setdefault(threading.get_ident(), _Hand())


class _Hand:
    """The stopwatch of one thread."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._under_way = ["rest"]
        self._since = time.perf_counter()

    def enter(self, part: str | None) -> None:
        self.count()
        self._under_way.append(part or self._under_way[-1])

    def leave(self) -> None:
        self.count()
        self._under_way.pop()

    def count(self) -> None:
        now = time.perf_counter()
        self.seconds[self._under_way[-1]] += now - self._since
        self._since = now


def tables(results: Results) -> str:
    """The results as markdown."""
    named = ", ".join(
        f"{name} {results.versions[name]}" for name in ("kemeny", "envpool", "jax") if name in results.versions
    )
    head = (
        f"Written by `kemeny bench`: {named}; {results.cores} cores, load {results.load:.1f} at the start; "
        f"{results.num_envs} environments, threads of each pool: {results.threads or 'one per core'}."
    )
    return "\n".join([head, "", *_speed_table(results.environments), "", *_time_table(results), ""])


def _speed_table(environments: list[Measured]) -> list[str]:
    return [
        f"Steps per second, median (range) of {len(environments[0].loop)} interleaved rounds.",
        "",
        "| environment | simulator | its ceiling | asynchronous ceiling | whole loop of `kemeny train` "
        "| share of the ceiling | share of the asynchronous ceiling |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {one.env} | {one.simulator} | {_range(one.ceiling)} | {_range(one.asynchronous)} | {_range(one.loop)} "
            f"| {_range(one.share, '.2f')} | {_range(one.share_of_asynchronous, '.2f')} |"
            for one in environments
        ),
        "",
        SPEED_NOTE,
    ]


def _time_table(results: Results) -> list[str]:
    environments = results.environments

    def row(name: str, cell: Callable[[Measured], str]) -> str:
        return f"| {name} | {' | '.join(cell(one) for one in environments)} |"

    def part_of_loop(part: str) -> Callable[[Measured], str]:
        return lambda one: f"{one.profile.ms[part]:.1f} ({one.profile.ms[part] / one.profile.total:.0%})"

    lengths = ", ".join(f"{np.mean(one.profile.evaluation_lengths):,.0f} ({one.env})" for one in environments)
    return [
        f"Milliseconds per iteration of {results.batch_size:,} steps (share of the loop).",
        "",
        row("", lambda one: one.env),
        row("---", lambda one: "---"),
        *(row(name, part_of_loop(part)) for part, name in PARTS.items()),
        row("**the loop**", lambda one: f"**{one.profile.total:.1f}**"),
        row("checkpoints, written beside it", lambda one: f"{one.profile.checkpoints_beside_ms:.1f}"),
        row("evaluations add", lambda one: f"{one.profile.evaluation_ms:.1f}"),
        row("critics, waited for at once", lambda one: f"{one.in_turn.ms['critics']:.1f}"),
        row("the loop that waits for them", lambda one: f"{one.in_turn.total:.1f}"),
        "",
        TIME_NOTE,
        "",
        f"Checkpoints (one every {results.checkpoint_every:,} steps) and evaluations (one every "
        f"{results.eval_every:,}) are timed once",
        "and spread over their interval; that they wait for the critics is not counted. Mean length of the",
        f"evaluation's trajectories: {lengths} steps.",
    ]


def _range(values: list[float], form: str = ",.0f") -> str:
    if not values:
        return "–"
    return f"{np.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"
