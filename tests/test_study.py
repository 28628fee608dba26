"""The study is what it says: kept runs have their arm's settings, and the page has the tables made from them."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from kemeny import cli
from kemeny.envs.names import Environment
from kemeny.experience.evaluation import Evaluation
from kemeny.experience.settings import RESET_COST, EvaluationProtocol
from kemeny.experiments.grid import Planned
from kemeny.runs import train as train_module
from kemeny.runs.assembly import make_learner
from kemeny.runs.directory import Run
from kemeny.runs.presets import PAPER
from kemeny.runs.settings import Settings, from_flat, to_flat

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
sys.path.insert(0, BENCHMARKS)  # as it is for a script in that folder
study = importlib.import_module("study")
sys.path.remove(BENCHMARKS)

TABLES, PICTURES = study.TABLES, study.PICTURES
ARMS = list(study.ARMS.values())
LINES = [json.loads(line) for line in study.KEPT.read_text().splitlines()]
NOT_LEARNED_FROM = {"threads", "eval_every", "eval_max_steps", "checkpoint_every", "keep_checkpoints"}
"""Settings that change nothing about what is learned."""


def learned_with(settings: Settings) -> dict:
    flat = {name: value for name, value in to_flat(settings).items() if name not in NOT_LEARNED_FROM}
    flat["reset_cost"] = RESET_COST if flat["reset_cost"] is None else flat["reset_cost"]  # these tasks have no goals
    flat["deployed_envs"] = settings.meant_deployed_envs
    return {**flat, "cost_gae_lambda": settings.meant_cost_gae_lambda if settings.limit else None}


def test_what_the_study_arrived_at_is_the_default():
    """And the paper's settings, which it began with, are those of the preset."""
    for name, preset in (("cheetah-undecayed", {}), ("cheetah-paper", PAPER)):
        (run, *_) = study.ARMS[name].runs
        given = {**preset, "steps": 1_000_000, "seed": run.settings.seed}
        assert learned_with(run.settings) == learned_with(from_flat(given))


def test_no_two_arms_have_the_same_name_or_the_same_settings():
    names = [arm.name for arm in ARMS]
    assert len(names) == len(set(names))
    whole = [(arm.env, learned_with(run.settings).items()) for arm in ARMS for run in arm.runs]
    assert len(whole) == len({str(one) for one in whole})


def one_of_each_kind():
    """One arm for each set of settings that are changed: parsing a command takes a while."""
    return {tuple(arm.written): arm for arm in ARMS}.values()


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_every_arm_has_sound_settings(arm):
    for run in arm.runs:
        make_learner(run.settings)


@pytest.mark.parametrize("arm", one_of_each_kind(), ids=lambda arm: arm.name)
def test_an_arms_command_gives_its_settings(arm, monkeypatch, capsys, tiny_run):
    started = []

    def start(env, settings, out, observers, **more):
        started.append((env, settings))
        return tiny_run

    monkeypatch.setattr(train_module, "start", start)
    monkeypatch.setattr(sys, "argv", ["kemeny", *arm.runs[0].command(Path("out"))])
    cli.main()
    assert started == [(Environment(arm.env), arm.runs[0].settings)]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["name"])
def test_a_kept_run_belongs_to_an_arm_and_has_its_settings(line, tmp_path):
    name, seed = line["name"].rsplit("-", 1)
    (arm,) = [arm for arm in ARMS if arm.name == name]
    (planned,) = [run for run in arm.runs if run.settings.seed == int(seed)]
    assert planned.name == line["name"]
    run = Run.open(study.kept.write_out(line, tmp_path))
    assert run.config["env"] == arm.env
    settings = from_flat(run.config["settings"])
    assert learned_with(settings) == learned_with(planned.settings)
    assert len(run.config["git_commit"].split("-")[0]) == 40
    assert run.evaluations[-1]["steps"] == arm.steps, "it is not finished"
    for record in (line["final"], *line.get("earlier", {}).values()):
        assert len(Evaluation.from_record(record).returns[10_000]) == 10
    assert ("exploring" in line["final"]) == bool(settings.limit)


def test_every_run_of_the_study_is_kept_once_and_in_order():
    names = [line["name"] for line in LINES]
    assert names == sorted({f"{arm.name}-{seed}" for arm in ARMS for seed in arm.seeds})


def test_old_configs_are_kept_as_they_were_written():
    """Settings that have another name today are translated when a run is read, and not in what is kept."""
    old = [line for line in LINES if line["config"]["format"] == 1]
    assert old
    assert all("rate" in line["config"]["settings"] for line in old)
    assert not any("rate_by" in line["config"]["settings"] for line in old)


@pytest.mark.parametrize("arms", list(TABLES.values()), ids=list(TABLES))
def test_no_two_rows_of_a_table_look_the_same(arms):
    rows = [(arm.env, arm.steps, arm.title) for arm in arms]
    assert len(rows) == len(set(rows))


def test_pictures_are_of_arms():
    assert {name for names in PICTURES.values() for name in names} <= study.ARMS.keys()
    assert all((study.DRAWN / f"{picture}.png").exists() for picture in PICTURES)


def test_what_does_not_belong_to_the_study_is_refused(tmp_path, tiny_run):
    with pytest.raises(SystemExit, match="no run of the study"):
        study.keep((tiny_run.path,))
    with pytest.raises(SystemExit, match="There is no arm nosuch"):
        study.unpack(tmp_path, ("nosuch",))
    assert not list(tmp_path.iterdir())


def test_unpacking_overwrites_nothing(tmp_path):
    study.unpack(tmp_path, ("humanoid-10M",))
    assert [path.name for path in tmp_path.iterdir()] == ["humanoid-10M-10"]
    with pytest.raises(SystemExit, match="exists already"):
        study.unpack(tmp_path, ("humanoid-10M",))


def test_a_line_is_added_in_order_or_replaced(monkeypatch, tmp_path):
    monkeypatch.setattr(study, "KEPT", tmp_path / "study.jsonl")
    (line,) = [line for line in LINES if "earlier" in line]
    some = sorted([LINES[0], line, LINES[-1]], key=lambda line: line["name"])
    for one in reversed(some):
        study.store(one)
    assert [json.loads(text) for text in study.KEPT.read_text().splitlines()] == some
    again = {name: part for name, part in line.items() if name != "earlier"}
    study.store({**again, "final": {}})
    assert study.kept_runs()[line["name"]] == {**line, "final": {}}
    study.store({**again, "config": {}})
    assert study.kept_runs()[line["name"]] == {**again, "config": {}}, "earlier checkpoints of another run were kept"
    assert [path.name for path in tmp_path.iterdir()] == ["study.jsonl"]


def test_a_finished_run_is_evaluated_and_kept(monkeypatch, capsys, tmp_path, constrained_run):
    monkeypatch.setattr(study, "KEPT", tmp_path / "study.jsonl")
    planned = Planned("tiny-0", "tiny", Environment("HalfCheetah-v3"), from_flat(constrained_run.config["settings"]))
    monkeypatch.setattr(study, "ARMS", {"tiny": study.Arm({"limit": 2.0}, (planned,))})
    monkeypatch.setattr(study, "FINAL", EvaluationProtocol(eval_trajectories=1, eval_max_steps=10_000))
    shutil.copytree(constrained_run.path, tmp_path / "tiny-0")
    study.keep((tmp_path / "tiny-0",))
    (line,) = study.kept_runs().values()
    assert line["name"] == "tiny-0"
    assert line["config"] == json.loads((constrained_run.path / "config.json").read_text())
    assert line["evaluations"] == constrained_run.evaluations
    assert line["final"]["average_costs"] != line["final"]["exploring"]["average_costs"]
    assert line["final"]["training_costs"] == constrained_run.metrics[-1]["cost"]


def test_the_page_has_the_tables():
    page = study.PAGE.read_text()
    assert study.written(page) == page, "run: python benchmarks/study.py tables"
