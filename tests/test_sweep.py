"""Runs side by side: what is started, what a failure, a signal or another process does, what a directory refuses."""

import contextlib
import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rich.console

import kemeny
from kemeny.errors import InUse, RunError, UserError
from kemeny.experiments import local, side_by_side
from kemeny.experiments.board import FAILED, TRAINING, Lines, Row, Silent, Table
from kemeny.experiments.grid import Grid
from kemeny.experiments.side_by_side import train_all
from kemeny.experiments.sweep import Sweep
from kemeny.experiments.sweep_directory import SweepDirectory
from kemeny.runs.directory import Run
from kemeny.runs.glance import Glance, State, glance
from kemeny.runs.interrupts import CALL_AGAIN, Interrupted
from tests.conftest import TINY
from tests.test_cli import MAIN, wait_for_lines

ENV = "InvertedPendulum-v5"
OFTEN = {**TINY, "eval_every": 200, "checkpoint_every": 200}


def planned(count=4, **given):
    return Grid.of({"env": ENV, "seeds": list(range(count)), **OFTEN, **given}).runs()


class Place:
    """A backend whose runs end after some polls, with the exit codes that are given by name."""

    def __init__(self, slots=2, codes=(), polls=2, when_started=lambda run: None):
        self.slots, self.codes, self.polls, self.when_started = slots, dict(codes), polls, when_started
        self.started, self.stops, self.busy = [], [], {}

    def start(self, run, slot):
        assert slot not in self.busy, "two runs in one slot"
        self.busy[slot] = run.name
        self.started.append(run.name)
        self.when_started(run)
        return Pretended(self, run.name, slot)


class Pretended:
    def __init__(self, place, name, slot):
        self.place, self.name, self.slot, self.left = place, name, slot, place.polls
        self.stopped = False

    def poll(self):
        self.left -= 1
        if self.left > 0 and not self.stopped:
            return None
        self.place.busy.pop(self.slot, None)
        codes = self.place.codes.get(self.name, [0])
        return CALL_AGAIN if self.stopped else codes.pop(0) if len(codes) > 1 else codes[0]

    def stop(self, at_once):
        self.stopped = True
        self.place.stops.append((self.name, at_once))

    def last_words(self):
        return f"{self.name} had enough"


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "SECONDS_BETWEEN_POLLS", 0.001)
    return SweepDirectory(tmp_path)


def test_runs_are_side_by_side_and_a_failure_touches_no_other(directory):
    runs = planned()
    first, second, third, fourth = (run.name for run in runs)
    place = Place(codes={second: [2], third: [-signal.SIGKILL]}, when_started=lambda run: seen.append(len(place.busy)))
    seen = []
    with pytest.raises(
        RunError, match=rf"2 of 4 runs failed.*\n  {second}: {second} had enough \(.*{second}\.log\)"
    ) as end:
        train_all(runs, directory, place, Silent())
    assert "killed by SIGKILL" in str(end.value)
    assert place.started == [first, second, third, fourth]
    assert max(seen) == 2


def test_a_run_that_cannot_be_started_touches_no_other(directory):
    def full(run):
        if run is runs[0]:
            raise OSError("no room")

    runs = planned(2)
    place = Place(slots=1, when_started=full)
    place.busy = NoRoom()
    with pytest.raises(RunError, match=f"1 of 2 runs failed.*\n  {runs[0].name}: it could not be started: no room"):
        train_all(runs, directory, place, Silent())
    assert place.started[-1] == runs[1].name


class NoRoom(dict):
    """Forgets at once."""

    def __setitem__(self, slot, name):
        pass


def test_a_run_that_asks_to_be_called_again_is(directory):
    runs = planned(2)
    place = Place(codes={runs[0].name: [CALL_AGAIN, CALL_AGAIN, 0]})
    train_all(runs, directory, place, Silent())
    assert sorted(place.started) == sorted([runs[0].name] * 3 + [runs[1].name])


def test_what_is_finished_is_left_alone(directory, tiny_run):
    runs = planned(2)
    shutil.copytree(tiny_run.path, directory.run(runs[0]))
    assert glance(directory.run(runs[0]))[:3] == (State.FINISHED, 600, 600)
    place = Place()
    train_all(directory.named(runs), directory, place, Silent())
    assert place.started == [runs[1].name]


def test_a_run_that_another_process_trains_is_waited_for(directory, tiny_run, monkeypatch):
    runs = planned(2)
    shutil.copytree(tiny_run.path, directory.run(runs[0]))
    shutil.rmtree(directory.run(runs[0]) / "checkpoints/step-000000000600")
    naps = []
    with contextlib.ExitStack() as other:
        other.enter_context(Run(directory.run(runs[0])).locked())
        assert glance(directory.run(runs[0])).state == State.TRAINING
        place = Place()

        def nap(seconds):
            naps.append(list(place.started))
            if len(naps) == 5:
                other.close()

        monkeypatch.setattr(side_by_side.time, "sleep", nap)
        train_all(runs, directory, place, Silent())
    assert naps[4] == [runs[1].name]
    assert place.started == [runs[1].name, runs[0].name]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_with_a_checkpoint(directory, number):
    runs = planned()
    place = Place(polls=10**9, when_started=lambda run: run is runs[1] and signal.raise_signal(number))
    with pytest.raises(Interrupted, match=r"0 of 4 runs are finished\. Go on with the same command") as stopped:
        train_all(runs, directory, place, Silent())
    assert stopped.value.by == number
    assert place.stops == [(runs[0].name, False), (runs[1].name, False)]
    assert len(place.started) == 2


def test_a_second_ctrl_c_waits_for_nobody(directory):
    class Stubborn(Place):
        def start(self, run, slot):
            job = super().start(run, slot)
            job.stop = lambda at_once: self.stops.append(at_once) or (at_once or signal.raise_signal(signal.SIGINT))
            job.poll = lambda: 0 if True in self.stops else None
            return job

    place = Stubborn(slots=1, when_started=lambda run: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train_all(planned(), directory, place, Silent())
    assert place.stops == [False, True]


def test_a_sweep_can_be_added_to_and_its_runs_keep_their_names(directory):
    old = directory.plan(planned(2))
    assert directory.plan(planned(2)) == old
    new = directory.plan(planned(3, gae_lambda=[0.95, "auto"]))  # which is the default
    kept = {run.settings.seed: run.name for run in new if run.settings.gae_lambda == "auto"}
    assert [kept[0], kept[1]] == [run.name for run in old]
    assert kept[2] == f"{ENV}-atrpo-gae_lambda=auto-seed2"
    assert [run.name for run in directory.plan(planned(3, gae_lambda=[0.95, "auto"]))] == [run.name for run in new]


@pytest.mark.parametrize(
    ("given", "why"),
    [({"steps": 800}, "steps is 600 there and 800 here"), ({"gae_lambda": [0.9, 0.95]}, "it is not in this one")],
)
def test_the_directory_of_another_sweep_is_refused(directory, given, why):
    directory.plan(planned(2))
    before = (directory.path / "sweep.json").read_bytes()
    with pytest.raises(UserError, match=f"another sweep, of which this one leaves out 2 of 2 runs, .*{why}"):
        directory.plan(planned(2, **given))
    assert (directory.path / "sweep.json").read_bytes() == before


def test_a_run_of_other_settings_in_a_runs_place_is_refused(directory, tiny_run):
    runs = planned(1, delta=0.5)
    shutil.copytree(tiny_run.path, directory.run(runs[0]))
    with pytest.raises(UserError, match=r"another run: delta is 0\.02 there and 0\.5 here"):
        directory.named(runs)


HOSTILE = {
    "no JSON": "{",
    "not a plan": "[]",
    "a path as a name": json.dumps({"format": 1, "common": {}, "runs": [{"name": "../x", "arm": "", "differs": {}}]}),
    "no name": json.dumps({"format": 1, "common": {}, "runs": [{"name": 3, "arm": "", "differs": {}}]}),
    "a newer one": json.dumps({"format": 99}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_plan_that_is_damaged_or_hostile_is_refused(directory, name):
    (directory.path / "sweep.json").write_text(HOSTILE[name])
    with pytest.raises(UserError, match=r"sweep\.json (is not the plan of a sweep|was written by a newer)"):
        directory.named(planned(1))


def test_two_sweeps_at_one_directory(directory):
    """Members of an array stand beside each other, and beside no sweep."""
    other = SweepDirectory(directory.path)
    with directory.alone():
        for way in (other.alone, other.as_member):
            with pytest.raises(InUse, match=f"in use by process {os.getpid()}: it is the directory of a sweep"), way():
                pass
    with directory.as_member(), other.as_member(), pytest.raises(InUse, match="by another process"), other.alone():
        pass


def test_what_train_would_refuse_is_refused_before_anything_is_begun(tmp_path):
    given = {"env": [ENV, "HalfCheeta-v3"], "steps": 200}
    with pytest.raises(UserError, match=r"The run HalfCheeta-v3-atrpo-seed0 cannot be made: .*HalfCheetah-v3"):
        Sweep(Grid.of(given), tmp_path / "sweep").train()
    given = {"env": ENV, "algorithm": "acpo", "cost": "x", "limit": 1.0, "step": ["natural", "clip"]}
    with pytest.raises(UserError, match=r"keeps no limits|no cost named|'x'"):
        Sweep(Grid.of(given), tmp_path / "sweep").train()
    assert not list(tmp_path.iterdir())


def test_a_member_of_an_array_from_python(tiny_run, tmp_path, capsys):
    """The same call again leaves a finished run alone."""
    for _ in range(2):
        (run,) = kemeny.sweep(ENV, seeds=[0, 1], out=tmp_path / "sweep", array=0, **OFTEN)
        assert run.finished
        assert [line["rate"] for line in run.metrics] == [line["rate"] for line in tiny_run.metrics]
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()) == [f"{ENV}-atrpo-seed0"]
    with pytest.raises(UserError, match="There is no run 2: the sweep has 2"):
        kemeny.sweep(ENV, seeds=[0, 1], out=tmp_path / "sweep", array=2, **OFTEN)


def rows():
    row = Row("a[b]c", 1_000)
    row.see(Glance(State.TRAINING, steps=200, total=1_000, seconds=4.0))
    row.see(Glance(State.TRAINING, steps=400, total=1_000, seconds=6.0, rate=1.234, last_return=56.7))
    row.state = TRAINING
    return [row, Row("waits", 600), dataclasses.replace(row, name="failed", state=FAILED)]


def test_what_a_person_sees():
    output = io.StringIO()
    Table(rich.console.Console(file=output, width=100, height=40)).close(rows())
    line = next(line for line in output.getvalue().splitlines() if "a[b]c" in line)
    assert [cell.strip() for cell in line.split("│")[1:-1]] == [
        "a[b]c", "training", "400 of 1,000", "100", "1.23", "57", "0:00:06",
    ]  # fmt: skip
    assert "3 runs: 1 training, 1 failed, 1 waiting; about 0:00:12 left" in output.getvalue()
    plain = io.StringIO()
    lines = Lines(plain)
    for _ in range(3):
        lines.show(rows())
    assert plain.getvalue().splitlines() == [
        "a[b]c: training  400 of 1,000 steps  100 steps/s  ρ̂ 1.23  return 57  0:00:06 left",
        "failed: failed  400 of 1,000 steps  ρ̂ 1.23  return 57",
    ]


def test_a_process_has_one_core_and_one_thread(monkeypatch):
    before = os.sched_getaffinity(0)
    code = "import os; print(os.sched_getaffinity(0), os.environ['OMP_NUM_THREADS'])"
    core = max(before)
    with local._pinned(core):
        seen = subprocess.run(
            [sys.executable, "-c", code], env=local._surroundings(), capture_output=True, text=True, check=True
        )
    assert seen.stdout == f"{{{core}}} 1\n"
    assert os.sched_getaffinity(0) == before


FAILS = """
import gymnasium
import numpy as np

class Fails(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, after):
        self.left = after

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        if self.left < 0:
            raise ValueError("enough")
        return np.zeros(1, np.float32), self.np_random.normal(), False, False, {}
"""


def test_processes_of_a_sweep(tmp_path):
    """One fails and touches no other; Ctrl-C stops the other with a checkpoint; it can be gone on with."""
    (tmp_path / "fails.py").write_text(FAILS)
    flags = (
        "--steps 100000000 --num-envs 2 --batch-size 200 --hidden 4 --eval-every 100000000 --jobs 2 --out sweep".split()
    )
    words = ["sweep", "fails:Fails", "--env-kwargs", '{"after": 150}', '{"after": 1000000000}', *flags]
    said = tmp_path / "said"
    with said.open("w") as file:
        process = subprocess.Popen([sys.executable, "-c", MAIN, *words], cwd=tmp_path, stderr=file)
    bad, good = (tmp_path / f"sweep/fails-Fails-atrpo-after={after}-seed0" for after in (150, 1_000_000_000))
    try:
        wait_for_lines(good / "metrics.jsonl", 2)
        deadline = time.monotonic() + 300
        while f"{bad.name}: failed" not in said.read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=300)
    err = said.read_text()
    assert process.returncode == 130, err
    assert "Go on with the same command." in err
    assert f"{bad.name}: failed" in err
    assert "ValueError: enough" in err.splitlines()[-1]
    assert "Traceback" not in err
    seen = glance(good)
    assert seen.state == State.STOPPED
    assert (
        json.loads(Path(sorted((good / "checkpoints").glob("step-*"))[-1] / "facts.json").read_text())["steps"]
        == seen.steps
    )
    assert Run(good).config["cores"] == 1


def test_a_member_of_an_array_that_is_killed_and_requeued_is_the_same_in_the_end(tmp_path):
    """At random moments, by SIGKILL and SIGTERM, also with two processes at one directory."""
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.requeues", tmp_path, "5", "0"], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5 requeues" in ran.stdout
