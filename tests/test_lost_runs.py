"""Runs that lose something: their checkpoints, their directory, their lock or their configuration."""

import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import kemeny
from kemeny.errors import Damaged, RunError, UserError
from kemeny.observers import Observer
from kemeny.runs import checkpoint
from kemeny.runs.checkpoint import FACTS, FOLDER, Saver
from kemeny.runs.directory import Run
from kemeny.runs.logs import LOGS
from tests.conftest import TINY
from tests.faults import compare
from tests.test_hostile_files import with_facts
from tests.test_training import Listener

ENV = "InvertedPendulum-v5"
OFTEN = {**TINY, "eval_every": 200, "checkpoint_every": 200}


@pytest.fixture
def path(tiny_run, tmp_path):
    """A copy of a finished run."""
    return Path(shutil.copytree(tiny_run.path, tmp_path / "run"))


def emptied(folder):
    for found in folder.iterdir():
        shutil.rmtree(found)


def dangling(folder):
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "not mounted")


def linked(folder):
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")


def no_folder(folder):
    shutil.rmtree(folder)
    folder.write_text("")


def unreadable(folder):
    folder.chmod(0)


LOST = {
    "emptied": (emptied, r"no checkpoint can be seen: .* was emptied"),
    "removed": (shutil.rmtree, "no checkpoint can be seen"),
    "a dangling link": (dangling, "is a link .*not mounted"),
    "a link": (linked, "writes through no link"),
    "a file": (no_folder, "cannot be read: checkpoints: Not a directory"),
    "unreadable": (unreadable, "cannot be read: checkpoints: Permission denied"),
}


@pytest.mark.parametrize("how", LOST)
def test_lost_checkpoints_do_not_cost_the_logs(path, how):
    if how == "unreadable" and os.geteuid() == 0:
        pytest.skip("root may read anything")
    lose, sentence = LOST[how]
    lose(path / FOLDER)
    before = {name: (path / name).read_bytes() for name in LOGS}
    with pytest.raises(RunError, match=sentence):
        kemeny.resume(path)
    assert {name: (path / name).read_bytes() for name in LOGS} == before
    if how == "unreadable":
        (path / FOLDER).chmod(0o700)


def test_a_folder_that_the_system_refuses_is_not_an_empty_one(path, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", refuse)
        for reads in (kemeny.resume, kemeny.load_policy, functools.partial(kemeny.load_policy, best=True)):
            with pytest.raises(RunError, match=r"The checkpoints of .* cannot be read: checkpoints: Permission denied"):
                reads(path)
    assert len(Run.open(path).metrics) == 3


@pytest.mark.parametrize("lose", [emptied, shutil.rmtree])
def test_without_logs_a_run_begins_again(path, tiny_run, lose):
    lose(path / FOLDER)
    for name in LOGS:
        (path / name).write_bytes(b"")
    listener = Listener()
    compare(tiny_run.path, kemeny.resume(path, observers=[listener]).path)
    assert "starting from the beginning" in listener.said[-1]


class Dies(Observer):
    """Stops the run at once, without a checkpoint, when a line is logged."""

    def __init__(self, steps):
        self.steps = steps

    def iteration(self, record):
        if record["steps"] == self.steps:
            raise ZeroDivisionError


def test_a_run_that_never_had_a_checkpoint_begins_again(tiny_run, tmp_path):
    """It has logs and no checkpoint, and nothing is lost: it was killed before the first was due."""
    settings = {**OFTEN, "checkpoint_every": 600}
    with pytest.raises(ZeroDivisionError):
        kemeny.train(ENV, out=tmp_path / "run", observers=[Dies(400)], **settings)
    assert len(Run.open(tmp_path / "run").metrics) == 2
    assert checkpoint.none_yet(tmp_path / "run")
    run = kemeny.resume(tmp_path / "run")
    assert [line["rate"] for line in run.metrics] == [line["rate"] for line in tiny_run.metrics]
    assert not checkpoint.none_yet(run.path)


class Once(Observer):
    """Does something when a line is logged."""

    def __init__(self, steps, action):
        self.steps, self.action = steps, action

    def iteration(self, record):
        if record["steps"] == self.steps:
            self.action()


def move(path, to):
    path.rename(to)


def replace(path, to):
    path.rename(to)
    shutil.copytree(to, path)
    emptied(path / FOLDER)


@pytest.mark.parametrize("how", [move, replace])
@pytest.mark.parametrize("steps", [200, 600], ids=["before a checkpoint", "before the last"])
def test_a_run_that_is_moved_says_where_it_is(how, steps, tiny_run, tmp_path):
    path, to = tmp_path / "run", tmp_path / "moved"
    with pytest.raises(RunError, match=rf"{path} was moved .* at {to} now.*kemeny resume {to}"):
        kemeny.train(ENV, out=path, observers=[Once(steps, lambda: how(path, to))], **OFTEN)
    if how is move:
        assert not path.exists()
    else:
        assert not list((path / FOLDER).iterdir())
    compare(tiny_run.path, kemeny.resume(to).path)


def test_a_run_that_is_moved_after_its_last_checkpoint_does_not_end_well(tmp_path):
    class Late(Observer):
        def end(self, phase, *outcome):
            if phase == "save" and (tmp_path / "run/checkpoints/step-000000000600").exists():
                move(tmp_path / "run", tmp_path / "moved")

    with pytest.raises(RunError, match=f"at {tmp_path / 'moved'} now"):
        kemeny.train(ENV, out=tmp_path / "run", observers=[Late()], **OFTEN)
    assert not (tmp_path / "run").exists()


def empty(path):
    emptied(path / FOLDER)
    for found in path.iterdir():
        found.rmdir() if found.is_dir() else found.unlink()


@pytest.mark.parametrize(("how", "sentence"), [(shutil.rmtree, "what it wrote is gone"), (empty, "what is left of it")])
def test_a_run_that_is_removed_is_not_made_again(how, sentence, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(RunError, match=f"was moved or removed .*{sentence}"):
        kemeny.train(ENV, out=path, observers=[Once(200, lambda: how(path))], **OFTEN)
    assert not (path / FOLDER).exists()


FORKS = """
import os, signal, sys, time
import kemeny
from kemeny.observers import Observer
from tests.probes import Target

class Forks(Target):
    def reset(self, **more):
        if os.path.exists("run/lock") and not os.path.exists("child"):
            child = os.fork()
            if child == 0:
                time.sleep(600)
            with open("child", "w") as file:
                file.write(str(child))
        return super().reset(**more)

class Kill(Observer):
    def iteration(self, record):
        os.kill(os.getpid(), signal.SIGKILL)

kemeny.train(Forks, out="run", observers=[Kill()], steps=800, num_envs=2, batch_size=200, hidden=(), cut=50)
"""


def test_a_child_of_an_environment_does_not_keep_the_lock(tmp_path):
    """It was forked while the run was locked, and lives on after the process that trained was killed."""
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    with (tmp_path / "out").open("wb") as out:
        killed = subprocess.run([sys.executable, "-c", FORKS], cwd=tmp_path, env=environment, stdout=out, stderr=out)
    assert killed.returncode == -signal.SIGKILL, (tmp_path / "out").read_text()
    child = int((tmp_path / "child").read_text())
    try:
        os.kill(child, 0)  # it lives
        with Run.open(tmp_path / "run").locked():
            pass
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore")  # of JAX, about forks
def test_a_child_does_not_unlock_for_its_parent(path):
    """It leaves the block in which the lock is held, too."""
    child = None
    try:
        with Run.open(path).locked():
            child = os.fork()
            if child != 0:
                os.waitpid(child, 0)
                with pytest.raises(UserError, match="in use"), Run.open(path).locked():
                    pass
    finally:
        if child == 0:
            os._exit(0)
    with Run.open(path).locked():
        pass


def test_a_full_disk_at_the_lock_is_no_traceback(path):
    """Who holds the lock cannot be written down, but it is held; what else fails has a sentence of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    (path / "lock").unlink()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        second = Run.open(path).locked()
        with Run.open(path).locked(), pytest.raises(UserError, match="in use by another process"), second:
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "change", [{"settings": {"seed": 8}}, {"settings": {"delta": 0.03}}, {"cores": 97}, {"env": "Ant-v3"}]
)
def test_a_configuration_that_changed_after_a_checkpoint_is_refused(path, change):
    newest = checkpoint.latest(path).path
    with_facts(newest, config_sum=Run.open(path).config_sum(600))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config, sort_keys=True))  # in another order it is the same
    kemeny.resume(path)
    other = {**config, **change, "settings": {**config["settings"], **change.get("settings", {})}}
    (path / "config.json").write_text(json.dumps(other))
    with pytest.raises(Damaged, match=rf"config\.json has other settings than when .*{newest.name} was written"):
        kemeny.resume(path)
    with_facts(newest, config_sum=None)  # an older Kemeny's
    if "env" not in change:
        kemeny.resume(path)


def test_the_sum_of_a_configuration_is_that_of_the_first_look(path):
    run = Run.open(path)
    before = run.config_sum(600)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "cores": 97}))
    assert run.config_sum(600) == before != Run.open(path).config_sum(600)


@pytest.mark.parametrize("name", ["policy/network/weights/0", "policy/log_std", "normalizer/mean", "normalizer/scale"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_never_saved(path, name, value):
    sound = checkpoint.latest(path)
    facts = {key: fact for key, fact in sound.facts.items() if key not in ("format", "steps")}
    arrays = {key: array.copy() for key, array in sound.arrays.items()}
    arrays[name].flat[0] = value
    before = sorted((path / FOLDER).iterdir())
    for save in (Saver(path).save, Saver(path).save_best):
        with pytest.raises(RunError, match=rf"not written, because {name} has entries that are not finite"):
            save(800, arrays, facts)
    assert sorted((path / FOLDER).iterdir()) == before
    arrays[name].flat[0] = 0
    arrays["critics/0/biases/0" if "critics/0/biases/0" in arrays else name].flat[0] = 1
    assert Saver(path).save(800, arrays, facts).exists()


@pytest.mark.parametrize("steps", [800, 600], ids=["a better one", "the same again"])
def test_the_best_is_read_while_it_is_replaced(path, steps, monkeypatch):
    """Between the look into the folder and the look into the file, another best checkpoint comes in its place."""
    sound = checkpoint.best(path)
    facts = {key: fact for key, fact in sound.facts.items() if key not in ("format", "steps")}
    Saver(path).save_best(600, sound.arrays, facts)
    original, calls = checkpoint.load, []

    def load(found):
        calls.append(found)
        if len(calls) == 1:
            original(Saver(path).save_best(steps, sound.arrays, {**facts, "seconds": 77.0}))
            raise Damaged(f"{found} is damaged: {FACTS}: No such file or directory")
        return original(found)

    monkeypatch.setattr(checkpoint, "load", load)
    assert checkpoint.best(path).facts["seconds"] == 77
    assert len(calls) == 2


def test_a_best_that_is_damaged_is_said_to_be(path):
    (checkpoint.best(path).path / FACTS).write_bytes(b"")
    began = time.monotonic()
    with pytest.raises(Damaged, match="is damaged"):
        kemeny.load_policy(path, best=True)
    assert time.monotonic() - began < 5
