"""A run as a user sees it: repeatable, resumable, and with every setting doing something."""

import errno
import functools
import json
import os
import re
import signal
import threading

import numpy as np
import pytest

import kemeny
from kemeny.errors import RunError, UserError
from kemeny.observers import Observer
from kemeny.runs import checkpoint
from kemeny.runs.directory import Run
from kemeny.runs.interrupts import Interrupted
from kemeny.runs.settings import Settings, from_flat, to_flat
from tests.conftest import TINY
from tests.envs.toys import Faulty
from tests.probes import Patience, Target

ENV = "InvertedPendulum-v5"


def same_numbers(first: Run, second: Run) -> bool:
    """Every logged number but the clock's, and every array of the last checkpoint."""
    logs = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in run.metrics] + run.evaluations
        for run in (first, second)
    ]
    arrays = [checkpoint.latest(run.path).arrays for run in (first, second)]
    return (
        logs[0] == logs[1]
        and arrays[0].keys() == arrays[1].keys()
        and all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
    )


def test_a_run_directory_holds_what_the_docs_promise(tiny_run):
    names = {path.name for path in tiny_run.path.iterdir()}
    assert {"config.json", "metrics.jsonl", "evaluations.jsonl", "checkpoints"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert [line["steps"] for line in tiny_run.metrics] == [200, 400, 600]
    assert [line["steps"] for line in tiny_run.evaluations] == [200, 400, 600]
    assert len(tiny_run.evaluations[0]["lengths"]) == 10
    config = tiny_run.config
    assert config["env"] == ENV
    assert config["versions"]["kemeny"] == kemeny.__version__
    assert from_flat(config["settings"]) == from_flat({**TINY, "eval_every": 200, "checkpoint_every": 200})
    names = sorted(path.name.split("-")[0] for path in (tiny_run.path / "checkpoints").iterdir())
    assert names == ["best", "step", "step", "step"]


def test_tensorboard_reads_the_events(tiny_run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tiny_run.path))
    events.Reload()
    assert [event.step for event in events.Scalars("training/rate")] == [200, 400, 600]
    rates = [event.value for event in events.Scalars("training/rate")]
    np.testing.assert_allclose(rates, [line["rate"] for line in tiny_run.metrics], rtol=1e-6)
    assert events.Scalars("evaluation/lengths")


def test_same_seed_same_run(tiny_run, tmp_path):
    again = kemeny.train(ENV, out=tmp_path / "again", eval_every=200, checkpoint_every=200, **TINY)
    assert same_numbers(tiny_run, again)
    other = kemeny.train(ENV, out=tmp_path / "other", eval_every=200, checkpoint_every=200, seed=1, **TINY)
    assert not same_numbers(tiny_run, other)


class Interrupt(Observer):
    """Presses Ctrl-C once the run has come so far."""

    def __init__(self, steps):
        self.steps = steps

    def iteration(self, record):
        if record["steps"] == self.steps:
            signal.raise_signal(signal.SIGINT)


class Listener(Observer):
    """Remembers what is said."""

    def __init__(self):
        self.said = []

    def say(self, message):
        self.said.append(message)


VARIANTS = {
    "atrpo": {},
    "trpo": {"algorithm": "trpo"},
    "given": {"gae_lambda": 0.8},
    "auto": {"gae_lambda": "auto"},
    "reuse": {"reuse": 3},
    "pipeline": {"pipeline": True},
    "both": {"pipeline": True, "reuse": 2},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_an_interrupted_run_resumes_bit_for_bit(changes, tmp_path):
    settings = {**TINY, **changes, "eval_every": 400, "checkpoint_every": 1_000}
    whole = kemeny.train(ENV, out=tmp_path / "whole", **settings)
    with pytest.raises(Interrupted, match="kemeny resume"):
        kemeny.train(ENV, out=tmp_path / "parts", observers=[Interrupt(200)], **settings)
    assert len(Run(tmp_path / "parts").metrics) == 2  # an observer hears of a batch when the next one is collected
    # What was logged after the checkpoint is written again, not twice.
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"steps": 400, "half": ')
    parts = kemeny.resume(tmp_path / "parts")
    assert same_numbers(whole, parts)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path):
    settings = {**TINY, "checkpoint_every": 200}
    whole = kemeny.train(ENV, out=tmp_path / "whole", **settings)
    cut_short = kemeny.train(ENV, out=tmp_path / "cut", **settings)
    newest = sorted((cut_short.path / "checkpoints").glob("step-*"))[-1]
    blob = (newest / "arrays.safetensors").read_bytes()
    (newest / "arrays.safetensors").write_bytes(blob[: len(blob) // 2])
    listener = Listener()
    resumed = kemeny.resume(cut_short.path, observers=[listener])
    assert str(newest) in listener.said[0]
    assert same_numbers(whole, resumed)


def test_resuming_a_finished_run_changes_nothing(tiny_run):
    before = (tiny_run.path / "metrics.jsonl").read_bytes()
    kemeny.resume(tiny_run.path)
    assert (tiny_run.path / "metrics.jsonl").read_bytes() == before


def test_a_run_on_a_function_without_a_name_in_a_module_needs_it_again(tmp_path):
    def make():
        return Target()

    settings = {**TINY, "cut": 100}
    run = kemeny.train(make, out=tmp_path / "run", **settings)
    with pytest.raises(UserError, match="env="):
        kemeny.resume(run.path)
    assert kemeny.resume(run.path, env=make).path == run.path


CHANGED = {
    "algorithm": "trpo",
    "gamma": 0.9,
    "steps": 800,
    "seed": 3,
    "num_envs": 2,
    "batch_size": 100,
    "gae_lambda": 0.5,
    "critic_gae_lambda": 0.5,
    "rate_by": "td",
    "gauge": "free",
    "reuse": 2,
    "pipeline": True,
    "reuse_region": "shared",
    "eval_every": 300,
    "eval_exploring": True,
    "checkpoint_every": 400,
    "keep_checkpoints": 1,
    "reset_cost": 10.0,
    "cut": 45,
    "long_cut": 90,
    "long_share": 0.25,
    "eval_trajectories": 4,
    "eval_max_steps": 9,
    "hidden": (4,),
    "activation": "relu",
    "step": "clip",
    "factor_decay": 0.5,
    "clip_ratio": 0.001,
    "policy_step_size": 1e-2,
    "policy_epochs": 2,
    "policy_minibatch": 20,
    "log_std": -2.0,
    "observation_clip": 0.5,
    "delta": 0.001,
    "damping": 0.5,
    "cg_iterations": 2,
    "critic_step_size": 1e-2,
    "critic_l2": 0.5,
    "critic_epochs": 2,
    "critic_minibatch": 20,
    "critic_unit": "targets",
    "critic_form": "quadratic",
    "state_weight": "relative",
    "delta_end": 0.001,
}
ELSEWHERE = {
    "cost": "test_constraints.py",
    "limit": "test_constraints.py",
    "cost_gae_lambda": "test_constraints.py",
    "cost_memory": "test_falls.py",
    "fall_target": "test_falls.py",
    "episodic": "test_collect.py",
    "backtrack": "test_trust_region.py",
    "backtrack_tries": "test_trust_region.py",
    "multiplier_step_size": "test_project.py",
    "max_skipped": "below",
    "collectors": "test_collectors.py",
    "threads": "changes speed alone: test_collect.py",
    "workers": "changes speed alone: envs/test_gymnasium.py",
    "step_timeout": "envs/test_gymnasium.py",
    "restart_faulty": "test_faults.py",
    "next_value": "tasks/test_luck.py",
    "quadratic_fit": "test_equations.py",
    "best_by": "test_best.py",
    "deploy": "test_deployed.py",
    "deployed_envs": "test_deployed.py",
    "deployed_cut": "test_deployed.py",
}


def test_every_setting_is_tested_here_or_elsewhere():
    assert CHANGED.keys() | ELSEWHERE.keys() == to_flat(Settings()).keys()
    assert not CHANGED.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("name", CHANGED)
def test_a_setting_that_does_nothing_lies(name, tiny_run, tmp_path):
    """Change each field and demand that the run changes."""
    base = {**TINY, "eval_every": 200, "checkpoint_every": 200, "steps": 400}
    if name == "gamma":
        base["algorithm"] = "trpo"
    if name in ("clip_ratio", "policy_step_size", "policy_epochs", "policy_minibatch"):
        base["step"] = "clip"
    if name == "long_share":
        base["long_cut"] = 90
    if name == "factor_decay":
        base["step"] = "kfac"
    if name == "rate_by":
        base["gauge"] = "free"  # a centred critic forgets the constant that ρ̂ would add to its targets
    if name == "reuse_region":
        base["reuse"] = 2
    first = kemeny.train(ENV, out=tmp_path / "first", **base)
    second = kemeny.train(ENV, out=tmp_path / "second", **{**base, name: CHANGED[name]})
    if name in ("keep_checkpoints", "checkpoint_every"):
        assert [len(list((run.path / "checkpoints").glob("step-*"))) for run in (first, second)] == [2, 1]
    else:
        assert not same_numbers(first, second)


def test_a_run_whose_steps_keep_failing_ends_with_advice_and_its_policy(tmp_path):
    """A step that is far too long, and never shortened."""
    settings = {**TINY, "steps": 2_000, "checkpoint_every": 10**6, "delta": 30.0, "backtrack_tries": 1}
    with pytest.raises(RunError, match=r"skipped 2 times in a row: no step length .* The policy is in"):
        kemeny.train(Target, out=tmp_path / "run", max_skipped=2, **settings)
    assert kemeny.load_policy(tmp_path / "run")(np.ones(1)).shape == (1,)


def test_an_environment_that_raises_is_named_and_the_run_can_be_resumed(tmp_path):
    """Five environments of which one breaks; what was checkpointed stays sound."""
    settings = {**TINY, "num_envs": 1, "checkpoint_every": 200, "steps": 600, "cut": 1_000, "eval_every": 10_000}
    with pytest.raises(RunError, match="the wheel came off"):
        kemeny.train(functools.partial(Faulty, "raise", at=450), out=tmp_path / "run", **settings)
    assert checkpoint.latest(tmp_path / "run").facts["steps"] == 400


def test_metrics_are_plain_json(tiny_run):
    for line in (tiny_run.path / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} in metrics.jsonl"))
        assert all(isinstance(value, int | float | bool | list | None) for value in record.values())


def test_signals_are_left_alone_outside_the_main_thread(tmp_path):
    """kemeny.train in a thread of a notebook or server."""
    results = []
    thread = threading.Thread(
        target=lambda: results.append(kemeny.train(ENV, out=tmp_path / "run", **{**TINY, "steps": 200}))
    )
    thread.start()
    thread.join()
    assert results
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_place_gets_a_sentence(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UserError, match="cannot be made"):
        kemeny.train(ENV, out=tmp_path / "locked" / "run", **TINY)


@pytest.mark.parametrize(
    ("settings", "goes_round"),
    [
        ({"algorithm": "atrpo"}, True),
        ({"algorithm": "trpo", "gamma": 0.7}, False),
        ({"algorithm": "trpo", "gamma": 0.99}, True),
    ],
)
def test_criteria_differ_as_they_should(settings, goes_round, tmp_path):
    """A round of six states pays 4, leaving pays 1 at once: 0.67 against 0.5 a step, but 0.7⁵·4 < 1 now."""
    run = kemeny.train(
        Patience, out=tmp_path / "run", steps=30_000, num_envs=10, batch_size=1_000, hidden=(), cut=200,
        critic_step_size=0.05, delta=0.05, eval_every=30_000, eval_max_steps=60, critic_minibatch=250, gae_lambda=0.9,
        **settings,
    )  # fmt: skip
    per_step = np.mean(run.evaluations[-1]["returns_60"]) / 60
    assert per_step == pytest.approx(4 / 6 if goes_round else 1 / 2, abs=0.02)


@pytest.mark.parametrize("algorithm", ["atrpo", "trpo"])
def test_continuous_actions_reach_the_target(algorithm, tmp_path):
    run = kemeny.train(
        Target, out=tmp_path / "run", algorithm=algorithm, steps=20_000, num_envs=10, batch_size=500, hidden=(8,),
        cut=100, eval_every=20_000, eval_max_steps=10, critic_minibatch=100, delta=0.02,
    )  # fmt: skip
    assert run.policy(np.ones(1))[0] == pytest.approx(0.5, abs=0.05)


def test_training_does_not_wait_for_a_checkpoint_to_be_written(tmp_path):
    class SlowDisk(Observer):
        """The first checkpoint is written only after the second batch has been collected."""

        collected = threading.Event()
        batches = 0

        def begin(self, phase, *about):
            if phase == "save":
                assert self.collected.wait(60), "training waited for its checkpoint"

        def end(self, phase, *outcome):
            if phase == "collect":
                self.batches += 1
                if self.batches == 2:
                    self.collected.set()

    run = kemeny.train(
        Target, out=tmp_path / "run", checkpoint_every=200, eval_every=10**6, observers=[SlowDisk()], **TINY
    )
    assert checkpoint.latest(run.path).facts["steps"] == 600


def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_leaves_those_before(tmp_path):
    class Full(Observer):
        def begin(self, phase, *about):
            if phase == "write" and "step-000000000400" in str(about[0]):
                raise OSError(errno.ENOSPC, "no space left", str(about[0]))

    with pytest.raises(RunError, match="no space left"):
        kemeny.train(ENV, out=tmp_path / "run", checkpoint_every=200, eval_every=10**6, observers=[Full()], **TINY)
    assert checkpoint.latest(tmp_path / "run").facts["steps"] == 200


def test_a_callback_sees_every_record(tmp_path):
    records = {"metrics": [], "evaluations": []}
    run = kemeny.train(
        ENV,
        out=tmp_path / "run",
        eval_every=200,
        checkpoint_every=200,
        callback=lambda record: records[record.pop("log")].append(record),
        **TINY,
    )
    assert records == {"metrics": run.metrics, "evaluations": run.evaluations}


def stops_at_400(record):
    return record["log"] == "metrics" and record["steps"] == 400


def raises_at_400(record):
    if stops_at_400(record):
        raise ZeroDivisionError("in the callback")


@pytest.mark.parametrize("way_out", ["callback stops", "callback raises", "Ctrl-C"])
def test_every_way_out_leaves_a_checkpoint_from_which_the_run_goes_on(way_out, tmp_path):
    """No checkpoint was due before the end; afterwards the run is that of one never stopped."""
    settings = {**TINY, "steps": 1_000, "checkpoint_every": 10**6, "eval_every": 400}
    whole = kemeny.train(ENV, out=tmp_path / "whole", **settings)
    out = tmp_path / "parts"
    if way_out == "callback stops":
        assert kemeny.train(ENV, out=out, callback=stops_at_400, **settings).path == out
    elif way_out == "callback raises":
        with pytest.raises(ZeroDivisionError, match="in the callback"):
            kemeny.train(ENV, out=out, callback=raises_at_400, **settings)
    else:
        with pytest.raises(Interrupted):
            kemeny.train(ENV, out=out, observers=[Interrupt(400)], **settings)
    # After an evaluation the record of its batch is already written, so the run stops right there.
    assert checkpoint.latest(out).facts["steps"] == 400
    assert [line["steps"] for line in Run(out).metrics] == [200, 400]
    assert same_numbers(whole, kemeny.resume(out))


def test_observers_see_the_phases_nested_as_documented(tmp_path):
    class Phases(Observer):
        def __init__(self):
            self.open, self.seen = {}, set()

        def begin(self, phase, *about):
            stack = self.open.setdefault(threading.get_ident(), [])
            self.seen.add((stack[-1] if stack else None, phase))
            stack.append(phase)

        def end(self, phase, *outcome):
            assert self.open[threading.get_ident()].pop() == phase

    phases = Phases()
    kemeny.train(ENV, out=tmp_path / "run", eval_every=200, checkpoint_every=200, observers=[phases], **TINY)
    assert not any(phases.open.values())
    inside = {phase: {inner for outer, inner in phases.seen if outer == phase} for phase in ("run", "collect", "save")}
    assert {"collect", "update", "critics", "log", "evaluate", "checkpoint"} <= inside["run"]
    assert inside["collect"] == {"policy", "act", "simulate"}
    assert {"write", "rename"} <= inside["save"]
    documented = set(re.findall(r"^ {8,}(\w+)", Observer.__doc__ or "", re.MULTILINE))
    assert {phase for _, phase in phases.seen} | {"remove"} == documented | {"write", "append", "rename", "remove"}
