"""What only shows must never stop a run."""

import errno
import io
import itertools
import os
import pty
import subprocess
import sys
import threading
import time
import types

import pytest

import kemeny
from kemeny.runs import checkpoint
from kemeny.runs.progress import Terminal, in_notebook, shown
from tests.test_cli import MAIN, TINY_FLAGS

RECORD = {"steps": 100, "rate": 1.25, "cost": [0.5]}
EVALUATION = {"steps": 100, "returns_1000": [1.0, 2.0]}


class Broken(io.StringIO):
    """A stream that fails from its n-th write on."""

    def __init__(self, n, error, terminal):
        super().__init__()
        self.left, self.error, self.terminal = n, error, terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().write(text)

    def flush(self):
        if self.left < 0:
            raise self.error


ERRORS = [BrokenPipeError(errno.EPIPE, "Broken pipe"), OSError(errno.ENOSPC, "full"), ValueError("closed file")]


@pytest.mark.parametrize("terminal", [False, True], ids=["lines", "bar"])
@pytest.mark.parametrize("error", ERRORS, ids=["no reader", "full disk", "closed"])
@pytest.mark.parametrize("n", [0, 1, 4])
def test_a_stream_that_fails_is_given_up(n, error, terminal, monkeypatch, tmp_path):
    failures = []
    monkeypatch.setattr(threading, "excepthook", failures.append)  # of the thread that draws the bar
    monkeypatch.setattr(sys, "stderr", Broken(n, error, terminal))
    monkeypatch.setenv("TERM", "xterm")
    out = sys.stdout
    shows = Terminal()
    shows.say("a sentence")
    shows.begin("run", tmp_path, 200, 0)
    shows.iteration(RECORD)
    shows.evaluation(EVALUATION)
    if terminal:
        time.sleep(0.3)  # the bar is drawn ten times a second
    shows.iteration({**RECORD, "steps": 200})
    shows.say("another")
    shows.end("run")
    shows.say("the last")
    assert sys.stderr.left < 0
    assert sys.stdout is out
    assert not failures


def test_without_standard_error_nothing_is_shown(monkeypatch, tmp_path):
    """As Python is started with 2>&-."""
    monkeypatch.setattr(sys, "stderr", None)
    shows = Terminal()
    shows.begin("run", tmp_path, 200, 0)
    shows.iteration(RECORD)
    shows.end("run")


def test_numbers_that_are_not_finite_are_shown_as_such(capsys, tmp_path):
    """They are null in the record."""
    shows = Terminal()
    shows.begin("run", tmp_path, 100, 0)
    shows.evaluation({"steps": 100, "returns_1000": [None, 2.0]})
    shows.iteration({"steps": 100, "rate": None, "cost": [None]})
    shows.end("run")
    assert "100 of 100 steps" in (err := capsys.readouterr().err)
    assert "ρ̂ not finite  cost not finite" in err


def test_the_last_line_has_the_last_return(capsys, tmp_path):
    shows = Terminal()
    shows.begin("run", tmp_path, 200, 0)
    for steps, found in ((100, 3.0), (200, 7.0)):
        shows.iteration({"steps": steps, "rate": 1.0})
        shows.evaluation({"steps": steps, "returns_1000": [found]})
    shows.end("run")
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("200 of 200 steps")
    assert lines[-1].endswith("return 7")
    assert sum("200 of 200" in line for line in lines) == 1


@pytest.fixture
def notebook(monkeypatch):
    """As behind a notebook: IPython is loaded, and its shell has a kernel."""
    ipython = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", ipython)


def test_a_notebook_is_told_from_other_shells(notebook, monkeypatch):
    assert in_notebook()
    assert [type(one) for one in shown(None)] == [Terminal]
    assert shown(False) == []
    for shell in (None, types.SimpleNamespace()):  # IPython is loaded only, or on a terminal
        monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert not in_notebook()
        assert shown(None) == []
    monkeypatch.delitem(sys.modules, "IPython")
    assert shown(None) == []
    assert [type(one) for one in shown(True)] == [Terminal]


def test_a_notebook_has_a_bar_in_one_line(notebook, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("kemeny.runs.progress.SECONDS_BETWEEN_BARS", -1.0)
    shows = Terminal()
    shows.begin("run", tmp_path, 400, 0)
    shows.iteration({"steps": 100, "rate": 1.0, "cost": [123456.0]})
    shows.evaluation({"steps": 200, "returns_1000": [7.0]})
    shows.iteration({"steps": 400, "rate": 1.0})
    shows.end("run")
    shows.say("speed: kept")
    out, err = capsys.readouterr()
    assert err == ""
    head, bar, said = out.splitlines()[0], out.split("\r")[1:], out.splitlines()[-1]
    assert (head, said) == (f"Run directory: {tmp_path}", "speed: kept")
    assert bar[0].startswith("░" * 30)
    assert bar[1].startswith("█" * 8 + "░" * 22 + "  25%  100 of 400 steps  ")
    assert " left" in bar[1]
    last = bar[-1].removesuffix("speed: kept\n")
    assert last.startswith("█" * 30 + " 100%  400 of 400 steps  ")
    assert "ρ̂ 1  return 7  0:00:00 left" in last
    assert all(
        len(later) >= len(before.rstrip()) for before, later in itertools.pairwise(bar)
    )  # nothing shines through


def test_python_shows_progress_and_the_verdict_on_limits(capsys, tmp_path):
    settings = {"num_envs": 2, "batch_size": 40, "hidden": (4,), "eval_max_steps": 5, "eval_trajectories": 1}
    settings |= {"algorithm": "acpo", "cost": ("speed",), "limit": (100.0,), "critic_epochs": 1}
    kemeny.train("HalfCheetah-v3", out=tmp_path / "run", steps=40, progress=True, **settings)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"Run directory: {tmp_path / 'run'}"
    assert any(line.startswith("40 of 40 steps") for line in lines)
    assert [line.endswith(("(with exploration).", "(mean action).")) for line in lines[-2:]] == [True, True]
    assert all("the limit 100 is kept" in line for line in lines[-2:])
    kemeny.resume(tmp_path / "run", progress=True)
    assert capsys.readouterr().err.splitlines()[-2:] == lines[-2:]
    kemeny.resume(tmp_path / "run")
    assert capsys.readouterr().err == ""


def closed_pipe():
    read, write = os.pipe()
    os.close(read)
    return write


def full_disk():
    return os.open("/dev/full", os.O_WRONLY)


def closed_terminal():
    master, slave = pty.openpty()
    os.close(master)
    return slave


@pytest.mark.parametrize("stderr", [closed_pipe, full_disk, closed_terminal])
def test_a_run_that_nobody_watches_ends_well(stderr, tmp_path):
    stream = stderr()
    command = [sys.executable, "-c", MAIN, "train", "InvertedPendulum-v5", *TINY_FLAGS, "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=stream, text=True, timeout=120)
    os.close(stream)
    assert done.returncode == 0
    assert "Finished" in done.stdout


def test_a_run_whose_output_nobody_reads_trains_to_its_end(tmp_path):
    """As with 2>&1 | head -1."""
    stream = closed_pipe()
    command = [sys.executable, "-c", MAIN, "train", "InvertedPendulum-v5", *TINY_FLAGS, "--out", "run"]
    subprocess.run(command, cwd=tmp_path, stdout=stream, stderr=stream, timeout=120)
    os.close(stream)
    assert checkpoint.latest(tmp_path / "run").facts["steps"] == 400
