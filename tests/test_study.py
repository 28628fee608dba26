"""The study is what it says: kept runs have their arm's settings, and the page has the tables made from them."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from kemeny import cli
from kemeny.experiments.study import OURS, TABLES
from kemeny.runs.presets import PAPER
from kemeny.runs.directory import Run
from kemeny.runs.settings import Settings, from_flat, to_flat

ROOT = Path(__file__).parents[1]
KEPT = sorted((ROOT / "benchmarks" / "results" / "runs").iterdir())
ARMS = [arm for arms in TABLES.values() for arm in arms]
WATCHING = {"threads", "eval_every", "eval_max_steps", "checkpoint_every", "keep_checkpoints"}
"""Settings that change nothing about what is learnt."""


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("study", ROOT / "benchmarks" / "study.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def learnt_with(settings: Settings) -> dict:
    flat = {name: value for name, value in to_flat(settings).items() if name not in WATCHING}
    return {**flat, "cost_gae_lambda": settings.learner().cost_gae_lambda if settings.limit else None}


def test_what_the_study_arrived_at_is_the_default():
    assert from_flat({**PAPER, **OURS}) == Settings()


def test_no_two_arms_have_one_name_or_one_setting():
    names = [arm.name for arm in ARMS]
    assert len(names) == len(set(names))
    whole = [(arm.env, seed, learnt_with(arm.settings(seed)).items()) for arm in ARMS for seed in arm.seeds]
    assert len(whole) == len({str(one) for one in whole})


def one_of_each_kind():
    """An arm for each set of settings that are changed: parsing a command takes a while."""
    return {(arm.base, *arm.changes): arm for arm in ARMS}.values()


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_every_arm_has_sound_settings(arm):
    for seed in arm.seeds:
        arm.settings(seed).learner()


@pytest.mark.parametrize("arm", one_of_each_kind(), ids=lambda arm: arm.name)
def test_an_arms_command_gives_its_settings(arm, monkeypatch, capsys, tmp_path):
    started = []

    def start(env, settings, out, progress):
        started.append((env, settings))
        return Run(tmp_path)

    monkeypatch.setattr(cli, "start_run", start)
    monkeypatch.setattr(sys, "argv", ["kemeny", *arm.command(arm.seeds[0])])
    cli.main()
    assert started == [(arm.env, arm.settings(arm.seeds[0]))]


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_a_kept_run_is_one_of_an_arm_and_has_its_settings(folder):
    name, seed = folder.name.rsplit("-", 1)
    (arm,) = [arm for arm in ARMS if arm.name == name]
    assert int(seed) in arm.seeds
    run = Run.open(folder)
    assert run.config["env"] == arm.env
    settings = from_flat(run.config["settings"])
    assert learnt_with(settings) == learnt_with(arm.settings(int(seed)))
    assert len(run.config["git_commit"].split("-")[0]) == 40
    assert run.evaluations[-1]["steps"] == arm.steps, "it is not finished"
    assert len(json.loads((folder / "final.json").read_text())["returns_10000"]) == 10


def test_every_run_of_the_study_is_kept():
    assert {f"{arm.name}-{seed}" for arm in ARMS for seed in arm.seeds} == {folder.name for folder in KEPT}


@pytest.mark.parametrize("arms", list(TABLES.values()), ids=list(TABLES))
def test_no_two_rows_of_a_table_look_the_same(arms):
    rows = [(arm.env, arm.steps, arm.title) for arm in arms]
    assert len(rows) == len(set(rows))


def test_what_is_not_of_the_study_is_refused(study, tmp_path, tiny_run):
    with pytest.raises(SystemExit, match="Name some of the arms"):
        study.run(("nosuch",), folder=tmp_path)
    with pytest.raises(SystemExit, match="no run of the study"):
        study.keep((tiny_run.path,))
    assert not list(tmp_path.iterdir())


def test_the_page_has_the_tables(study):
    page = study.PAGE.read_text()
    assert study.written(page) == page, "run: python benchmarks/study.py tables"
