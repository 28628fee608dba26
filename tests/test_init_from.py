"""Runs that begin with the policy, critics and normaliser of another."""

import functools
import json
import shutil

import numpy as np
import pytest

import kemeny
from kemeny.errors import UserError
from kemeny.experience.evaluate import evaluate, evaluation_seed
from kemeny.experience.settings import EvaluationProtocol
from kemeny.runs import checkpoint
from kemeny.runs.directory import Run
from tests.conftest import TINY
from tests.envs.toys import Counter
from tests.test_cli import TINY_FLAGS, command  # noqa: F401
from tests.test_training import Listener, same_numbers

FALLS = functools.partial(Counter, falls_at=23)
SETTINGS = {**TINY, "steps": 200, "eval_trajectories": 2, "eval_max_steps": 20, "critic_epochs": 1, "cut": 40}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return kemeny.train(FALLS, out=tmp_path_factory.mktemp("runs") / "source", **SETTINGS)


def begun(path):
    return checkpoint.initial(path).arrays


def test_a_run_begins_where_the_other_ended(source, tmp_path):
    """Its first evaluation is that of the other's policy on the new task, and its arrays are those of the other."""
    longer = functools.partial(Counter, falls_at=31)
    listener = Listener()
    run = kemeny.train(
        longer,
        out=tmp_path / "run",
        init_from=source.path,
        observers=[listener],
        **{**SETTINGS, "seed": 5, "delta": 0.3},
    )
    protocol = EvaluationProtocol(SETTINGS["eval_trajectories"], SETTINGS["eval_max_steps"])
    expected = evaluate(source.policy, longer, protocol, seed=evaluation_seed(5, 0))
    assert [line["steps"] for line in run.evaluations] == [0, 200]
    assert run.evaluations[0] == json.loads(json.dumps({"steps": 0, **expected.record()}))
    theirs, ours = checkpoint.latest(source.path), begun(run.path)
    for name, array in ours.items():
        if name.startswith(("policy/", "normalizer/", "critics/")):
            np.testing.assert_array_equal(array, theirs.arrays[name], err_msg=name)
    assert ours["iteration"] == 0
    assert (ours["key"] != theirs.arrays["key"]).any()
    assert run.config["init_from"] == {"path": str(source.path), "steps": 200, "arrays_sum": theirs.arrays_sum}
    assert f"{theirs.arrays_sum}  arrays.safetensors" in (theirs.path / "SHA256SUMS").read_text()
    assert listener.said == [
        f"The run begins with the policy, critics and normaliser of {source.path} after 200 steps."
    ]


def test_who_acts_first_is_the_policy_that_was_taken_over(source, tmp_path):
    """Also in a run whose batches are collected by the policy before the newest; its memory is empty."""
    run = kemeny.train(FALLS, out=tmp_path / "run", init_from=source.path, **{**SETTINGS, "pipeline": True, "reuse": 2})
    theirs, ours = checkpoint.latest(source.path).arrays, begun(run.path)
    behind = {name: array for name, array in ours.items() if name.startswith("behind/")}
    assert behind
    for name, array in behind.items():
        np.testing.assert_array_equal(array, theirs[name.removeprefix("behind/")], err_msg=name)
    assert not ours["memory/log_prob"].any()


def test_nothing_of_the_other_run_is_needed_again(source, tmp_path):
    """Killed before its first checkpoint, the run begins again with what it has itself."""

    class Stopped(kemeny.Observer):
        def begin(self, phase, *about):
            if phase == "collect":
                raise KeyboardInterrupt

    settings = {**SETTINGS, "steps": 400, "checkpoint_every": 200}
    whole = kemeny.train(FALLS, out=tmp_path / "whole", init_from=source.path, **settings)
    copy = shutil.copytree(source.path, tmp_path / "copy")
    with pytest.raises(KeyboardInterrupt):
        kemeny.train(FALLS, out=tmp_path / "run", init_from=copy, observers=[Stopped()], **settings)
    shutil.rmtree(copy)
    run = kemeny.resume(tmp_path / "run", env=FALLS)
    assert same_numbers(whole, run)
    assert not same_numbers(whole, kemeny.train(FALLS, out=tmp_path / "chance", **settings))
    shutil.rmtree(run.path / "checkpoints" / "init-000000000000")
    assert kemeny.resume(run.path, env=FALLS).path == run.path  # its checkpoints are enough
    for path in (run.path / "checkpoints").glob("step-*"):
        shutil.rmtree(path)
    (run.path / "checkpoints" / "none-yet").mkdir()
    with pytest.raises(kemeny.RunError, match="init-000000000000 is damaged"):
        kemeny.resume(run.path, env=FALLS)


def test_costs_that_the_other_had_not_get_new_critics(source, tmp_path):
    limited = {**SETTINGS, "algorithm": "acpo", "cost": ("cost",), "limit": (8.0,)}
    listener = Listener()
    run = kemeny.train(FALLS, out=tmp_path / "run", init_from=source.path, observers=[listener], **limited)
    theirs, ours = checkpoint.latest(source.path).arrays, begun(run.path)
    np.testing.assert_array_equal(ours["critics/0/network/weights/0"], theirs["critics/0/network/weights/0"])
    assert "critics/1/network/weights/0" in ours
    assert "but with new critics of cost" in listener.said[0]
    again = kemeny.train(FALLS, out=tmp_path / "again", init_from=run.path, **limited)
    for name in ("critics/0/network/weights/0", "critics/1/network/weights/0", "critics/1/unit"):
        np.testing.assert_array_equal(begun(again.path)[name], checkpoint.latest(run.path).arrays[name])


def test_another_criterion_gets_new_critics(source, tmp_path):
    listener = Listener()
    run = kemeny.train(
        FALLS, out=tmp_path / "run", init_from=source.path, observers=[listener], **SETTINGS, algorithm="trpo"
    )
    theirs, ours = checkpoint.latest(source.path).arrays, begun(run.path)
    np.testing.assert_array_equal(ours["policy/network/weights/0"], theirs["policy/network/weights/0"])
    assert (ours["critics/0/network/weights/0"] != theirs["critics/0/network/weights/0"]).any()
    assert "new critics of the reward" in listener.said[0]


@pytest.mark.parametrize(
    ("env", "settings", "sentence"),
    [
        (FALLS, {"hidden": (8, 8)}, r"have --hidden 8, and so must"),
        (FALLS, {"activation": "relu"}, r"have --activation tanh, and so must"),
        (FALLS, {"observation_clip": 3.0}, r"have --observation-clip 10.0, and so must"),
        ("CartPole-v1", {}, r"The policy was trained with .*, but CartPole-v1 has .*: it needs a policy of its own"),
    ],
    ids=["hidden", "activation", "clip", "spaces"],
)
def test_what_does_not_fit_gets_a_sentence(source, env, settings, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        kemeny.train(env, out=tmp_path / "run", init_from=source.path, **{**SETTINGS, **settings})
    assert not list(tmp_path.iterdir())


def test_what_is_no_run_gets_a_sentence(tmp_path):
    with pytest.raises(UserError, match="nowhere is not a run directory: there is no such directory"):
        kemeny.train(FALLS, out=tmp_path / "run", init_from=tmp_path / "nowhere", **SETTINGS)
    assert not list(tmp_path.iterdir())


def test_from_the_command_line(command, tiny_run, tmp_path):  # noqa: F811
    """From a checkpoint: that of the best evaluation."""
    (best,) = (tiny_run.path / "checkpoints").glob("best-*")
    code, _, err = command("train", "InvertedPendulum-v5", *TINY_FLAGS, "--out", "run", "--init-from", best)
    assert code == 0, err
    assert "The run begins with the policy, critics and normaliser of" in err
    run = Run.open(tmp_path / "run")
    assert run.config["init_from"]["path"] == str(best)
    np.testing.assert_array_equal(begun(run.path)["policy/log_std"], checkpoint.load(best).arrays["policy/log_std"])
    code, _, err = command("train", "InvertedPendulum-v5", "--hidden", "9", "--out", "other", "--init-from", "run")
    assert (code, err) == (
        2, "kemeny: The networks of run have --hidden 8, and so must a run that begins with them.\n"
    )  # fmt: skip
