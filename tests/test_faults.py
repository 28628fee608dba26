"""What a run survives: kills, failing writes, impatient users, a second process, and environments that fail."""

import errno
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import kemeny
from kemeny.envs.faults import TRIES
from kemeny.envs.settings import Simulation
from kemeny.errors import RunError, UserError
from kemeny.experience.collect import Collector
from kemeny.experience.evaluate import evaluate
from kemeny.experience.settings import EvaluationProtocol, Task
from kemeny.observers import Observer
from kemeny.runs import checkpoint
from kemeny.runs.checkpoint import FOLDER
from kemeny.runs.directory import Run
from kemeny.runs.interrupts import Interrupted
from tests.conftest import TINY
from tests.envs.toys import Counter, Faulty
from tests.faults import compare
from tests.probes import Walk, policy_for
from tests.test_hostile_files import with_facts
from tests.test_training import Interrupt, Listener

ENV = "InvertedPendulum-v5"
OFTEN = {**TINY, "eval_every": 200, "checkpoint_every": 200}


TOLERANT = Simulation(restart_faulty=True)


@pytest.mark.parametrize("scenario", ["atrpo, EnvPool", "acpo, Gymnasium in workers", "trpo, extended"])
def test_killed_runs_resume_bit_for_bit(scenario, tmp_path):
    """A few kills; benchmarks/soak.py does the same for longer and for all scenarios."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults", scenario, "2", "5", tmp_path / "run", "0.3"],
        env={**os.environ, **cache}, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("survived 2 of")


def killed_once(tmp_path):
    """A run that stopped after its second checkpoint."""
    with pytest.raises(Interrupted):
        kemeny.train(ENV, out=tmp_path / "run", observers=[Interrupt(400)], **OFTEN)
    return tmp_path / "run"


def nth(n, then, *, onwards=False):
    """A function that does `then(original, …)` at its n-th call, or from it on."""
    calls = []

    def wrap(original):
        @functools.wraps(original)
        def wrapped(*arguments):
            calls.append(1)
            now = len(calls) == n or (onwards and len(calls) > n)
            return then(original, *arguments) if now else original(*arguments)

        return wrapped

    return wrap


class FailingDisk(Observer):
    """At the n-th operation of a kind the disk is full, after half of the content, or breaks."""

    def __init__(self, operation, n, number):
        self.operation, self.left, self.number = operation, n, number

    def begin(self, phase, *about):
        if phase != self.operation:
            return
        self.left -= 1
        if self.left:
            return
        path, content = about
        if phase in ("write", "append"):
            with path.open("ab") as file:
                file.write(content[: len(content) // 2])
        raise OSError(self.number, os.strerror(self.number), str(path))


@pytest.mark.parametrize(
    ("operation", "n", "number"),
    [("write", 6, errno.ENOSPC), ("append", 5, errno.ENOSPC), ("rename", 3, errno.EIO)],
    ids=["half a checkpoint", "half a line of a log", "rename"],
)
def test_a_write_that_fails_is_reported_and_harms_nothing(operation, n, number, tiny_run, tmp_path):
    disk = FailingDisk(operation, n, number)
    with pytest.raises(RunError, match=f"{os.strerror(number)}.* kemeny resume"):
        kemeny.train(ENV, out=tmp_path / "run", observers=[disk], **OFTEN)
    compare(tiny_run.path, kemeny.resume(tmp_path / "run").path)


def test_a_disk_that_cannot_be_flushed_is_reported_and_harms_nothing(tiny_run, tmp_path, monkeypatch):
    """Of logs and checkpoints, from two threads."""

    def failing(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", nth(10, failing, onwards=True)(os.fsync))
        with pytest.raises(RunError, match=r"Input/output error.* kemeny resume"):
            kemeny.train(ENV, out=tmp_path / "run", **OFTEN)
    compare(tiny_run.path, kemeny.resume(tmp_path / "run").path)


def test_a_second_interrupt_stops_at_once_and_harms_nothing(tiny_run, tmp_path):
    """While a checkpoint is being written, which is finished in its thread."""

    class Impatient(Observer):
        writing = threading.Event()

        def begin(self, phase, *about):
            if phase == "write" and FOLDER in str(about[0]):
                self.writing.set()
                time.sleep(0.05)

        def iteration(self, record):
            if record["steps"] == 400:
                assert self.writing.wait(60)
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        kemeny.train(ENV, out=tmp_path / "run", observers=[Impatient()], **OFTEN)
    assert not list((tmp_path / "run/checkpoints").glob(".writing-*"))
    assert checkpoint.latest(tmp_path / "run").facts["steps"] == 200
    compare(tiny_run.path, kemeny.resume(tmp_path / "run").path)


def test_two_processes_on_one_run(tiny_run):
    """The second is refused; a lock file without a process behind it is no lock."""
    (tiny_run.path / "lock").write_text("4194304\n")
    with tiny_run.locked():
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
            kemeny.resume(tiny_run.path)
        assert kemeny.load_policy(tiny_run.path)  # reading is free
        code = "import sys, kemeny; kemeny.resume(sys.argv[1])"
        other = subprocess.run([sys.executable, "-c", code, tiny_run.path], capture_output=True, text=True)
        assert f"in use by process {os.getpid()}" in other.stderr
    kemeny.resume(tiny_run.path)


def test_lost_lines_are_noticed(tmp_path):
    path = killed_once(tmp_path)
    (path / "metrics.jsonl").write_bytes((path / "metrics.jsonl").read_bytes()[:-1])
    with pytest.raises(RunError, match="has lost lines"):
        kemeny.resume(path)


def test_what_changed_since_the_run_began_is_said(tmp_path):
    path = killed_once(tmp_path)
    config = json.loads((path / "config.json").read_text())
    config["versions"]["numpy"] = "1.0"
    config |= {"processor": "abacus", "cores": 97}
    (path / "config.json").write_text(json.dumps(config))
    with_facts(checkpoint.latest(path).path, config_sum=None)  # as if the machine had changed, not the file
    listener = Listener()
    kemeny.resume(path, observers=[listener])
    assert f"numpy 1.0 → {np.__version__}" in listener.said[0]
    assert "abacus → " in listener.said[1]
    assert "began with 97 threads" in listener.said[2]


def test_tensorboard_forgets_what_was_done_again(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Dies(Observer):
        def iteration(self, record):
            if record["steps"] == 600:
                raise ZeroDivisionError

    settings = {**OFTEN, "checkpoint_every": 400}
    with pytest.raises(ZeroDivisionError):
        kemeny.train(ENV, out=tmp_path / "run", observers=[Dies()], **settings)
    kemeny.resume(tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    assert [event.step for event in events.Scalars("training/rate")] == [200, 400, 600]


def test_the_best_evaluation_is_kept(tiny_run):
    means = [np.mean(record["returns_30"]) for record in tiny_run.evaluations]
    kept = checkpoint.best(tiny_run.path)
    assert kept.facts["steps"] == tiny_run.evaluations[int(np.argmax(means))]["steps"]
    assert kept.facts["best_score"] == [0, max(means)]
    observation = np.ones(4)
    steps = kept.facts["steps"]
    there = kemeny.load_policy(tiny_run.path / f"checkpoints/step-{steps:012d}")
    assert kemeny.load_policy(tiny_run.path, best=True)(observation) == there(observation)


def test_the_best_keeps_its_limits_first():
    """Cost 5, 4, … a step, limit 4; the return counts among those that keep it."""
    policy = policy_for(3, 1)
    low, high = (
        evaluate(policy, functools.partial(Counter, falls_at=n), EvaluationProtocol(2, 50), seed=0, costs=("cost",))
        for n in (15, 20)
    )
    assert high.returns[50].mean() > low.returns[50].mean()
    assert high.score() > low.score()
    limit = (float(low.average_costs.mean()),)
    assert low.score(limit)[0] == 0
    assert high.score(limit) < low.score(limit)
    assert high.score(limit, slope=0.1)[0] == 0


def faulty(how, at=5):
    return functools.partial(Faulty, how, at=at)


@pytest.mark.parametrize(
    ("how", "workers"), [("raise", 0), ("nan", 0), ("shape", 0), ("raise", 1), ("die", 1), ("hang", 1)]
)
def test_a_faulty_step_is_in_no_batch(how, workers):
    """Steps 1 to 4 are sound, the fifth fails: the trajectory is cut after the fourth and another begins."""
    simulation = Simulation(workers=workers, step_timeout=1.0 if how == "hang" else None, restart_faulty=True)
    pool = Collector(faulty(how), Task(), num_envs=1, batch_length=10, seed=0, simulation=simulation)
    first, second = (pool.roll_out(policy_for(3, 1), iteration) for iteration in range(2))
    np.testing.assert_array_equal(first.observation[:, 0, 1], [0, 1, 2, 3, 0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(first.next_observation[:, 0, 1], [1, 2, 3, 4, 1, 2, 3, 4, 1, 2])
    np.testing.assert_array_equal(np.flatnonzero(first.cut), [3, 7])
    np.testing.assert_array_equal(second.observation[:, 0, 1], [2, 3, 0, 1, 2, 3, 0, 1, 2, 3])
    assert len(set(first.observation[:, 0, 0])) == 3  # three start states
    np.testing.assert_allclose(  # the action that is stored is the one that was taken
        np.clip(first.action[:-1, 0, 0], -1, 2), first.next_observation[:-1, 0, 2], rtol=1e-6
    )
    assert pool.faults == 4
    assert pool.shards[0].restarts[0] == 5
    snapshot = pool.snapshot()
    expected = pool.roll_out(policy_for(3, 1), 2)
    pool.close()
    copy = Collector(faulty(how), Task(), num_envs=1, batch_length=10, seed=0, simulation=simulation, snapshot=snapshot)
    for a, b in zip(copy.roll_out(policy_for(3, 1), 2), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert copy.faults == 7
    copy.close()


def test_one_environment_fails_and_the_others_do_not_notice():
    class Third(Faulty):
        def reset(self, **more):
            start = super().reset(**more)
            self.at = 4 if self.start < 0.5 else 10**9
            return start

    def collected(**more):
        pool = Collector(functools.partial(Third, "raise"), Task(), num_envs=6, batch_length=8, seed=1, **more)
        return pool.roll_out(policy_for(3, 1), 0), pool

    batch, pool = collected(simulation=TOLERANT)
    fails = batch.observation[0, :, 0] < 0.5
    assert 0 < fails.sum() < 6
    np.testing.assert_array_equal(batch.observation[:, ~fails, 1], np.arange(8)[:, None].repeat((~fails).sum(), 1))
    np.testing.assert_array_equal(batch.cut.any(0), fails)
    assert any("the wheel came off" in shard.faults.last for shard in pool.shards)
    with pytest.raises(RunError, match="the wheel came off"):
        collected()


class ResetsOnce(Counter):
    """Cannot be restarted; a new one can be made."""

    used = False

    def reset(self, **more):
        if self.used:
            raise OSError("worn out")
        self.used = True
        return super().reset(**more)


def test_a_restart_that_fails_is_tried_with_a_new_environment():
    env = functools.partial(ResetsOnce, falls_at=3)
    pool = Collector(env, Task(), num_envs=2, batch_length=6, seed=0, simulation=TOLERANT)
    batch = pool.roll_out(policy_for(3, 1), 0)
    np.testing.assert_array_equal(batch.observation[:, 0, 1], [0, 1, 2, 0, 1, 2])
    assert pool.faults == 4
    with pytest.raises(RunError, match="worn out"):
        Collector(env, Task(), num_envs=2, batch_length=6, seed=0).roll_out(policy_for(3, 1), 0)


def test_an_environment_that_always_fails_is_given_up():
    pool = Collector(faulty("raise", at=1), Task(), num_envs=2, batch_length=4, seed=0, simulation=TOLERANT)
    with pytest.raises(RunError, match=f"the wheel came off.*failed {TRIES + 1} times in a row"):
        pool.roll_out(policy_for(3, 1), 0)
    with pytest.raises(RunError, match=f"failed {TRIES + 1} times in a row"):
        evaluate(policy_for(3, 1), faulty("raise"), EvaluationProtocol(2, 50), seed=0, simulation=TOLERANT)


def test_evaluation_begins_a_faulty_trajectory_anew():
    class FailsOnce(Faulty):
        def reset(self, **more):
            start = super().reset(**more)
            self.at = 4 if self.start < 0.5 else 10**9
            return start

    result = evaluate(
        policy_for(3, 1), functools.partial(FailsOnce, "nan"), EvaluationProtocol(4, 9), seed=0, simulation=TOLERANT
    )
    assert result.lengths.tolist() == [9, 9, 9, 9]
    assert result.faults > 0
    assert np.isfinite(result.returns[9]).all()
    with pytest.raises(RunError, match="not finite"):
        evaluate(policy_for(3, 1), functools.partial(FailsOnce, "nan"), EvaluationProtocol(4, 9), seed=0)


def test_a_whole_run_of_faulty_environments_counts_them(tmp_path):
    listener = Listener()
    settings = {**TINY, "restart_faulty": True, "eval_max_steps": 3, "steps": 400}
    run = kemeny.train(faulty("raise", at=20), out=tmp_path / "run", observers=[listener], **settings)
    assert [line["faults"] > 0 for line in run.metrics] == [True, True]
    assert "the wheel came off" in listener.said[0]


def test_an_inexact_resume_must_be_asked_for(tmp_path):
    """Walk counts its starts by itself, seed or no seed."""

    env = functools.partial(Walk, falls_at=7)
    with pytest.raises(Interrupted):
        kemeny.train(env, out=tmp_path / "run", observers=[Interrupt(200)], **TINY)
    with pytest.raises(RunError, match="--inexact"):
        kemeny.resume(tmp_path / "run", env=env)
    listener = Listener()
    run = kemeny.resume(tmp_path / "run", env=env, inexact=True, observers=[listener])
    assert "did not come back" in listener.said[0]
    assert [line["steps"] for line in run.metrics] == [200, 400, 600]


def test_a_run_that_is_killed_while_it_is_made_leaves_nothing_in_the_way(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", nth(1, lambda *_: signal.raise_signal(signal.SIGINT))(Path.rename))
        with pytest.raises(KeyboardInterrupt):
            Run.create(tmp_path / "run", {})
    assert not (tmp_path / "run").exists()
    Run.create(tmp_path / "run", {})
