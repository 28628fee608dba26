"""The same call begins a run, goes on with it and leaves it alone when it is finished; it never touches another."""

import shutil
import signal
import sys
from pathlib import Path

import pytest

import kemeny
from kemeny import cli
from kemeny.errors import InUse, UserError
from kemeny.runs.directory import Run
from kemeny.runs.interrupts import CALL_AGAIN, Interrupted
from kemeny.runs.lock import is_locked
from tests.conftest import TINY
from tests.faults import compare
from tests.test_interrupts import Raises

ENV = "InvertedPendulum-v5"
OFTEN = {**TINY, "eval_every": 200, "checkpoint_every": 200}


def again(path, **changes):
    return kemeny.train(ENV, out=path, resume_if_exists=True, **{**OFTEN, **changes})


@pytest.fixture
def path(tiny_run, tmp_path):
    """A copy of a finished run."""
    return Path(shutil.copytree(tiny_run.path, tmp_path / "run"))


def content(path):
    return {found: found.read_bytes() for found in path.rglob("*") if found.is_file()}


def test_one_call_begins_resumes_and_ends_a_run(tiny_run, tmp_path):
    with pytest.raises(Interrupted):
        again(tmp_path / "run", observers=[Raises(signal.SIGTERM, 200)])
    assert Run(tmp_path / "run").steps < 600
    compare(tiny_run.path, again(tmp_path / "run").path)
    before = content(tmp_path / "run")
    assert again(tmp_path / "run").finished
    assert content(tmp_path / "run") == before


def test_a_run_that_was_extended_meanwhile_is_still_the_same(path):
    kemeny.resume(path, steps=800)
    assert again(path).steps == 800
    assert again(path, steps=800).steps == 800


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"steps": 800, "hidden": (4, 4)}, r"steps is 600 there and 800 here; hidden is \[8\] there and \[4, 4\] here"),
        ({"algorithm": "acpo", "cost": "x", "limit": 1}, r"cost is \[\] there and \['x'\] here"),
        ({"init_from": "elsewhere"}, "init_from is None there and elsewhere here"),
        ({"env_kwargs": {"a": 1}}, r"env_kwargs is \{\} there"),
    ],
)
def test_another_run_is_left_alone(path, changes, sentence):
    before = content(path)
    with pytest.raises(UserError, match=f"another run: .*{sentence}.*kemeny resume {path}"):
        again(path, **changes)
    assert content(path) == before


def test_what_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="not a run directory"):
        again(tmp_path / "run")
    with pytest.raises(UserError, match="exists already"):
        kemeny.train(ENV, out=tmp_path / "run", **OFTEN)


def test_a_second_process_is_told_to_call_again(path, monkeypatch, capsys):
    before = content(path)
    assert not is_locked(path)
    with Run(path).locked():
        assert is_locked(path)
        with pytest.raises(InUse, match="in use by process"):
            again(path)
        monkeypatch.setattr(sys, "argv", ["kemeny", "resume", str(path)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == CALL_AGAIN
    assert "being trained" in capsys.readouterr().err
    assert {found: kept for found, kept in content(path).items() if found.name != "lock"} == {
        found: kept for found, kept in before.items() if found.name != "lock"
    }
