"""A run as a directory: what is read from it, and when it is read again."""

import json
import os
import time
from pathlib import Path

import pytest

from kemeny.errors import UserError
from kemeny.runs.directory import Run
from kemeny.runs.disk import Disk
from kemeny.runs.load import load_policy
from kemeny.runs.logs import Logs
from kemeny.runs.settings import Settings, from_flat, to_flat

RECORD = {"steps": 100, "outcome": 0, "returns_1000": [1.0, 2.0]}
FILES = {"config": "config.json", "metrics": "metrics.jsonl", "evaluations": "evaluations.jsonl"}


@pytest.fixture
def run(tmp_path):
    write_config(tmp_path, to_flat(Settings()))
    for name in ("metrics", "evaluations"):
        append(tmp_path, name, RECORD)
    return Run.open(tmp_path)


def write_config(path, settings):
    (path / "config.json").write_text(json.dumps({"env": "Walk-v0", "env_is_id": True, "settings": settings}))


def append(path, name, record):
    with (path / FILES[name]).open("a") as file:
        file.write(json.dumps(record) + "\n")


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_once_until_it_changes(run, name):
    first = getattr(run, name)
    assert first
    assert getattr(run, name) is first
    others = {other: getattr(run, other) for other in FILES if other != name}
    if name == "config":
        write_config(run.path, {**first["settings"], "steps": 77})
        assert run.config["settings"]["steps"] == 77
    else:
        append(run.path, name, {**RECORD, "steps": 200})
        assert [record["steps"] for record in getattr(run, name)] == [100, 200]
    again = getattr(run, name)
    assert again is not first
    assert getattr(run, name) is again
    for other, value in others.items():
        assert getattr(run, other) is value


def test_nothing_is_read_before_it_is_asked_for(run, monkeypatch):
    """Nor is a file opened again to find out whether it has changed."""
    read = []
    for method in ("_read_config", "_read_lines"):
        original = getattr(Run, method)
        monkeypatch.setattr(Run, method, lambda *given, of=original: (read.append(given[1:]), of(*given))[1])
    _ = run.path
    assert not read
    for _ in range(3):
        _ = run.metrics
        _ = run.config
    assert read == [("metrics.jsonl",), ()]


def test_a_file_of_the_same_size_and_another_time_has_changed(run):
    path = run.path / "metrics.jsonl"
    _ = run.metrics
    path.write_text(path.read_text().replace("100", "300"))
    os.utime(path, ns=(1, 1))
    assert run.metrics[0]["steps"] == 300


def test_two_runs_share_nothing(run):
    other = Run.open(run.path)
    assert other == run
    assert other.metrics == run.metrics
    assert other.metrics is not run.metrics


def test_what_cannot_be_read_is_read_again(run):
    path = run.path / "evaluations.jsonl"
    path.write_text("damaged\n")
    for _ in range(2):
        with pytest.raises(UserError, match=r"evaluations\.jsonl is damaged"):
            _ = run.evaluations
    path.write_text(json.dumps(RECORD) + "\n")
    assert run.evaluations == [RECORD]
    path.unlink()
    assert run.evaluations == []


def test_settings_of_an_older_kemeny_have_their_new_names(tmp_path):
    """And those that were no settings then are what they were: the defaults."""
    settings = to_flat(Settings())
    for name in ("rate_by", "critic_step_size", "step", "activation", "policy_epochs"):
        del settings[name]
    write_config(tmp_path, {**settings, "rate": "td", "critic_rate": 0.5})
    read = from_flat(Run.open(tmp_path).config["settings"])
    assert (read.rate_by, read.critic.critic_step_size) == ("td", 0.5)
    assert (read.step, read.networks.activation, read.clipping) == ("natural", "tanh", Settings().clipping)


def test_settings_that_are_no_more_are_left_out_where_they_changed_nothing(tmp_path):
    settings = to_flat(Settings())
    write_config(tmp_path, {**settings, "critic_loss": "values", "critic_input": "normalized"})
    assert from_flat(Run.open(tmp_path).config["settings"]) == Settings()
    write_config(tmp_path, {**settings, "critic_loss": "changes"})
    with pytest.raises(UserError, match="critic_loss changes, which is no more"):
        _ = Run.open(tmp_path).config


def test_a_directory_without_configuration_is_none(tmp_path):
    with pytest.raises(UserError, match=r"it has no config\.json"):
        Run.open(tmp_path)
    with pytest.raises(UserError, match="no such directory"):
        Run.open(Path("nowhere"))


def test_a_directory_that_cannot_be_read_is_said_to_be(run, monkeypatch):
    """Also by a system that refuses a name because of its length, or of what is in it."""
    for path in ("x" * 300, "nul\0"):
        for look in (Run.open, load_policy, lambda path: load_policy(path, best=True)):
            with pytest.raises(UserError, match=r"cannot be read: "):
                look(path)

    def refuse(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", refuse)
    for look in (Run.open, load_policy):
        with pytest.raises(UserError, match=f"{run.path} cannot be read: .*Permission denied"):
            look(run.path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_directory_of_somebody_else_is_said_to_be(run):
    run.path.chmod(0)
    try:
        for look in (Run.open, load_policy):
            with pytest.raises(UserError, match=r"cannot be read: .*Permission denied"):
                look(run.path)
    finally:
        run.path.chmod(0o700)


def test_costs_are_a_list_of_names_whatever_the_file_has(tmp_path):
    """None are left out, and one needs no list."""
    settings = to_flat(Settings(algorithm="acpo", cost=("speed",), limit=(1.0,)))
    write_config(tmp_path, {**settings, "cost": "speed", "limit": 2})
    read = Run.open(tmp_path).config["settings"]
    assert (read["cost"], read["limit"]) == (["speed"], [2.0])
    write_config(tmp_path, {name: value for name, value in settings.items() if name not in ("cost", "limit")})
    read = Run.open(tmp_path).config["settings"]
    assert (read["cost"], read["limit"]) == ([], [])


@pytest.mark.parametrize(
    ("name", "value"),
    [("cost", None), ("cost", [1]), ("cost", {"speed": 1}), ("limit", "low"), ("limit", [[1]]), ("hidden", [None])],
)
def test_settings_of_a_wrong_type_are_refused(tmp_path, name, value):
    write_config(tmp_path, {**to_flat(Settings()), name: value})
    with pytest.raises(UserError, match=rf"config\.json is not the configuration of a run: The setting {name} "):
        _ = Run.open(tmp_path).config


def test_the_events_of_a_later_session_have_a_later_name(tmp_path, monkeypatch):
    """TensorBoard reads files in the order of their names; a clock may go back."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    now = iter(range(10**9, 0, -1))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    for steps in (100, 200, 300):
        logs = Logs(tmp_path, {}, steps - 100, Disk())
        logs.metrics({"steps": steps, "rate": 1.0})
        logs.close()
    names = sorted(path.name for path in tmp_path.glob("*tfevents*"))
    assert names == [f"events.out.tfevents.{n:010d}" for n in (1, 2, 3)]
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("training/rate")] == [100, 200, 300]


@pytest.mark.parametrize("old", ["1763347200.123456", "0000000009"])
def test_new_events_come_after_those_of_an_older_kemeny(tmp_path, old):
    (tmp_path / f"events.out.tfevents.{old}").write_bytes(b"")
    Logs(tmp_path, {}, 0, Disk()).close()
    names = sorted(path.name for path in tmp_path.glob("*tfevents*"))
    assert len(names) == 2
    assert names[0].endswith(old)


def test_tensorboard_has_the_costs_too(constrained_run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(constrained_run.path))
    events.Reload()
    (line,) = constrained_run.metrics
    for name in ("cost", "violation"):
        (event,) = events.Scalars(f"training/{name}")
        assert event.value == pytest.approx(line[name][0], rel=1e-6)
    assert {"training/critic_loss/0", "training/critic_loss/1"} <= set(events.Tags()["scalars"])
