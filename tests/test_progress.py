"""What only shows must never stop a run."""

import errno
import io
import os
import pty
import subprocess
import sys
import threading
import time

import pytest

from kemeny.runs import checkpoint
from kemeny.runs.progress import Terminal
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
