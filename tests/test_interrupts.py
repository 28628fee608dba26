"""How a run is asked to stop, and that each way out leaves a checkpoint."""

import signal
import threading
import time

import pytest

import kemeny
from kemeny.observers import Observer
from kemeny.runs import checkpoint
from kemeny.runs.interrupts import BY_A_SCHEDULER, Interrupted, Stop, StoppedAtOnce, leaving_at_once
from kemeny.runs.loop import _Loop
from tests.conftest import TINY
from tests.probes import Target

ENV = "InvertedPendulum-v5"
SELDOM = {**TINY, "eval_every": 10**6, "checkpoint_every": 10**6}


@pytest.fixture(autouse=True)
def kept_handlers():
    """A signal that is not handled must not end the tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *BY_A_SCHEDULER)}
    heard = []
    for number in BY_A_SCHEDULER:
        signal.signal(number, lambda number, frame: heard.append(number))
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", BY_A_SCHEDULER)
def test_a_scheduler_asks_to_stop_as_often_as_it_likes(number):
    """The shell of a closed terminal sends SIGHUP, and so does the system; a job's step and its group both get one."""
    with Stop() as stop:
        for _ in range(3):
            signal.raise_signal(number)
        assert stop.asked
        signal.raise_signal(signal.SIGINT)  # the first
        assert stop.interrupted_by == number


def test_a_scheduler_ends_at_once_what_does_not_train(kept_handlers):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with leaving_at_once():
        signal.raise_signal(signal.SIGHUP)  # under nohup
        signal.raise_signal(signal.SIGUSR1)  # somebody else's
        assert kept_handlers == [signal.SIGUSR1]
        with pytest.raises(StoppedAtOnce, match="SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_second_signal_stops_at_once():
    with Stop() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_under_nohup_a_closed_terminal_does_not_matter(kept_handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Stop() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert not stop.asked
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


class Raises(Observer):
    """Sends a signal once the run has come so far."""

    def __init__(self, number, steps):
        self.number, self.steps = number, steps

    def iteration(self, record):
        if record["steps"] == self.steps:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, *BY_A_SCHEDULER])
def test_a_signal_leaves_a_checkpoint(number, tmp_path, kept_handlers):
    with pytest.raises(Interrupted, match="kemeny resume") as stopped:
        kemeny.train(ENV, out=tmp_path / "run", observers=[Raises(number, 200)], **SELDOM)
    assert stopped.value.by == number
    assert checkpoint.latest(tmp_path / "run").facts["steps"] == 400
    assert not kept_handlers


def test_a_signal_at_the_last_moment_of_an_iteration_leaves_a_checkpoint(tmp_path, monkeypatch):
    """It comes when it has just been decided that no checkpoint is due."""
    due = _Loop.due

    def interrupted(self, every):
        answer = due(self, every)
        if every == SELDOM["checkpoint_every"] and self.steps == 200:
            signal.raise_signal(signal.SIGTERM)
        return answer

    monkeypatch.setattr(_Loop, "due", interrupted)
    settings = {**SELDOM, "eval_every": 10**6 + 1}
    with pytest.raises(Interrupted, match="Stopped after 400 steps"):
        kemeny.train(ENV, out=tmp_path / "run", **settings)
    assert checkpoint.latest(tmp_path / "run").facts["steps"] == 400


def test_a_signal_while_the_last_checkpoint_is_written_does_not_end_the_process(tmp_path, kept_handlers):
    class Late(Observer):
        def begin(self, phase, *about):
            if phase == "save" and threading.current_thread() is not threading.main_thread():
                time.sleep(0.5)  # the loop has ended meanwhile
                signal.raise_signal(signal.SIGHUP)
                time.sleep(0.1)

    kemeny.train(ENV, out=tmp_path / "run", observers=[Late()], **SELDOM)
    assert checkpoint.latest(tmp_path / "run").facts["steps"] == 600
    assert not kept_handlers


class Flat(Target):
    """Nothing to gain, ever."""

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, 0.0, *rest


@pytest.mark.parametrize("every", [200, 10**6], ids=["at a checkpoint", "before one"])
def test_a_run_with_nothing_left_to_gain_is_evaluated_and_saved(every, tmp_path):
    """Also if that is found when a checkpoint is due."""
    settings = {**SELDOM, "steps": 4_000, "max_skipped": 2, "critic_step_size": 0.0, "checkpoint_every": every}
    run = kemeny.train(Flat, out=tmp_path / "run", **settings)
    saved = checkpoint.latest(run.path)
    assert saved.facts["steps"] < 4_000
    assert [record["steps"] for record in run.evaluations] == [saved.facts["steps"]]
    assert run.metrics[-1]["steps"] == saved.facts["steps"]
