"""Runs that are given more steps than they began with."""

import json
import shutil

import gymnasium
import numpy as np
import pytest

import kemeny
from kemeny.errors import UserError
from kemeny.runs import checkpoint
from kemeny.runs.directory import Run
from kemeny.runs.length import Extension, Length, is_record
from tests.conftest import TINY
from tests.faults import compare
from tests.test_cli import TINY_FLAGS, command  # noqa: F401
from tests.test_training import Interrupt, Listener, same_numbers

ENV = "InvertedPendulum-v5"
SETTINGS = {**TINY, "steps": 400, "eval_every": 600, "checkpoint_every": 200}


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A finished run of 400 steps, not to be changed."""
    return kemeny.train(ENV, out=tmp_path_factory.mktemp("runs") / "short", **SETTINGS)


@pytest.fixture
def run(short, tmp_path):
    return Run.open(shutil.copytree(short.path, tmp_path / "run"))


def test_the_length_in_force_is_that_of_its_time():
    """Against the totals written down batch by batch, with extensions at every second batch."""
    length, history, done = Length(1_000, 100), [], 0
    for steps in (1_000, 1_050, 2_000, 3_000):
        length = length.extend(done, steps)
        history += [steps, steps]
        done += 200
    assert [length.in_all(100 * i) for i in range(8)] == history
    assert [length.iterations(i) for i in range(8)] == [-(-steps // 100) for steps in history]
    assert length.iterations(100) == 30
    assert length.until(200) == Length(1_000, 100, (Extension(0, 1_000),))
    assert length.until(500).steps == 2_000
    assert is_record(json.loads(json.dumps(length.record())))
    assert [i for i in range(40) if length.is_end(i)] == [30]  # the others were extended before their end
    assert [i for i in range(40) if Length(350, 100).extend(400, 900).is_end(i)] == [4, 9]


def test_of_two_changes_at_one_place_the_first_was_never_in_force():
    assert Length(400, 100).extend(400, 800).extend(400, 900) == Length(400, 100).extend(400, 900)
    # Nor is one that lies behind the checkpoint from which the run goes on, the newest being damaged.
    assert Length(400, 100).extend(400, 800).extend(200, 900) == Length(400, 100).extend(200, 900)


@pytest.mark.parametrize(
    "extended",
    [
        None, {}, [1], [{}], [{"at": 1}], [{"at": 1, "before": 0}], [{"at": -1, "before": 1}],
        [{"at": 1.0, "before": 1}], [{"at": 1, "before": True}], [{"at": 1, "before": 1, "more": 1}],
        [{"at": 2, "before": 1}, {"at": 1, "before": 1}],
    ],
)  # fmt: skip
def test_extensions_that_nobody_made_are_refused(extended, run):
    assert not is_record(extended)
    config = json.loads((run.path / "config.json").read_text())
    (run.path / "config.json").write_text(json.dumps({**config, "extended": extended}))
    with pytest.raises(UserError, match="not the configuration of a run"):
        kemeny.resume(run.path, steps=800)


def test_a_finished_run_goes_on_to_its_new_end(run, short):
    listener = Listener()
    assert kemeny.resume(run.path, steps=800, observers=[listener]) == run
    assert [line["steps"] for line in run.metrics] == [200, 400, 600, 800]
    assert run.metrics[:2] == short.metrics
    assert [line["steps"] for line in run.evaluations] == [400, 600, 800]
    assert run.config["settings"]["steps"] == 800
    assert run.config["extended"] == [{"at": 400, "before": 400}]
    assert {k: v for k, v in run.config.items() if k not in ("settings", "extended")} == {
        k: v for k, v in short.config.items() if k not in ("settings", "extended")
    }
    (said,) = listener.said
    assert "800 steps in all from now on, instead of 400" in said
    assert "step size is 0.5 of its first value, instead of 0;" in said
    kemeny.resume(run.path, steps=800, observers=[listener])  # the same command again
    assert listener.said[-1] == f"{run.path} is finished already: 800 steps."


def test_an_extended_run_stopped_and_damaged_on_the_way_is_the_same(run, tmp_path):
    """Also where the checkpoint from which it was extended is lost, and its last steps are done again."""
    whole = Run.open(shutil.copytree(run.path, tmp_path / "whole"))
    kemeny.resume(whole.path, steps=1_000)
    with pytest.raises(RuntimeError, match="Stopped after"):
        kemeny.resume(run.path, steps=1_000, observers=[Interrupt(600)])
    for path in sorted((run.path / "checkpoints").glob("step-*"))[1:]:
        (path / "facts.json").write_text("damaged")
    assert checkpoint.latest(run.path).facts["steps"] == 200
    compare(whole.path, kemeny.resume(run.path).path)


def test_only_the_critics_learn_otherwise_than_in_a_run_of_that_length(run, tmp_path):
    """Where their step size is 0, nothing of the length of a run is left in its numbers."""
    settings = {**SETTINGS, "critic_step_size": 0.0, "eval_every": 200}
    longer = kemeny.train(ENV, out=tmp_path / "longer", **{**settings, "steps": 800})
    extended = kemeny.train(ENV, out=tmp_path / "extended", **settings)
    kemeny.resume(extended.path, steps=800)
    assert same_numbers(longer, extended)
    with_critics = kemeny.resume(run.path, steps=800)
    assert not same_numbers(with_critics, kemeny.train(ENV, out=tmp_path / "other", **{**SETTINGS, "steps": 800}))


def test_a_run_without_checkpoint_is_extended_from_its_beginning(short, tmp_path):
    class Stopped(kemeny.Observer):
        def begin(self, phase, *about):
            if phase == "collect":
                raise KeyboardInterrupt

    longer = kemeny.train(ENV, out=tmp_path / "longer", **{**SETTINGS, "steps": 800})
    with pytest.raises(KeyboardInterrupt):
        kemeny.train(ENV, out=tmp_path / "run", observers=[Stopped()], **SETTINGS)
    assert same_numbers(longer, kemeny.resume(tmp_path / "run", steps=800))


@pytest.mark.parametrize("steps", [1, 200, 399])
def test_a_run_is_not_shortened(run, steps):
    before = (run.path / "config.json").read_bytes()
    with pytest.raises(UserError, match=rf"has done 400 of 400 steps; --steps {steps} would shorten it"):
        kemeny.resume(run.path, steps=steps)
    assert (run.path / "config.json").read_bytes() == before


def test_too_many_steps_can_be_taken_back(run):
    class Stopped(kemeny.Observer):
        def begin(self, phase, *about):
            if phase == "collect":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kemeny.resume(run.path, steps=10**9, observers=[Stopped()])
    assert kemeny.Run(run.path).config["settings"]["steps"] == 10**9
    assert kemeny.resume(run.path, steps=800).steps == 800


def test_a_run_whose_environment_cannot_be_made_is_not_extended(tmp_path, monkeypatch):
    class Gone:
        works = True

    def make():
        if not Gone.works:
            raise OSError("the simulator is gone")
        return gymnasium.make("CartPole-v1")

    run = kemeny.train(make, out=tmp_path / "own", **SETTINGS)
    before, Gone.works = (run.path / "config.json").read_bytes(), False
    with pytest.raises(UserError, match="the simulator is gone"):
        kemeny.resume(run.path, env=make, steps=800)
    assert (run.path / "config.json").read_bytes() == before


@pytest.mark.parametrize("steps", [0, -5, 1.5, "many", 2**60])
def test_what_is_no_number_of_steps_is_refused(run, steps):
    with pytest.raises(UserError, match=r"steps is .* must be"):
        kemeny.resume(run.path, steps=steps)


def test_a_solved_run_stays_as_it_is(run):
    from tests.test_hostile_files import with_facts

    with_facts(checkpoint.latest(run.path).path, finished=True)
    before, listener = (run.path / "config.json").read_bytes(), Listener()
    kemeny.resume(run.path, steps=800, observers=[listener])
    assert "ended after 400 steps because nothing was left to gain, and stays as it is" in listener.said[0]
    assert (run.path / "config.json").read_bytes() == before


def test_a_length_that_was_changed_by_hand_is_refused(run):
    config = json.loads((run.path / "config.json").read_text())
    config["settings"]["steps"] = 800
    (run.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(kemeny.RunError, match="has other settings"):
        kemeny.resume(run.path)


def test_from_the_command_line(command, tmp_path):  # noqa: F811
    assert command("train", ENV, *TINY_FLAGS, "--out", "run")[0] == 0
    code, out, err = command("resume", "run", "--steps", "6e2")
    assert code == 0, err
    assert "600 of 600 steps" in err
    assert out.startswith("Finished.")
    assert np.all([line["steps"] for line in Run.open(tmp_path / "run").metrics] == [200, 400, 600])
    code, _, err = command("resume", "run", "--steps", "300")
    assert (code, err.count("would shorten it")) == (2, 1)
