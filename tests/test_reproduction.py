"""The paper's figures: which runs each has at each scale, what is drawn from them, and what the page says."""

import functools
import importlib
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kemeny.cli.reproduce import reproduce as reproduce_command
from kemeny.errors import UserError
from kemeny.experiments.paper import reproduce
from kemeny.experiments.paper.figures import FIGURES, TASKS, chosen
from kemeny.experiments.paper.reproduce import Reproduction, draw
from kemeny.experiments.sweep import Sweep
from kemeny.experiments.sweep_directory import SweepDirectory
from kemeny.runs.directory import Run
from kemeny.runs.presets import preset
from kemeny.runs.settings import to_flat
from tests.fake_runs import fake_run

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")
sys.path.insert(0, BENCHMARKS)  # as it is for a script in that folder
reproduction = importlib.import_module("reproduction")
sys.path.remove(BENCHMARKS)

EVERY = list(FIGURES.values())
ENVS = {"cheetah": "HalfCheetah-v3", "ant": "Ant-v3", "humanoid": "Humanoid-v3"}


@functools.cache
def runs_at(scale: str) -> list:
    """Every run that the figures need."""
    return Reproduction(scale, "nowhere").sweep(EVERY).runs


def arms_of(scale: str, name: str) -> dict[str, int]:
    """The arms of a figure, and how many seeds each has."""
    arms = Counter(run.arm for run in runs_at(scale))
    return {arm: arms[arm] for arm in FIGURES[name].arms(list(arms))}


def test_the_scale_of_the_paper_is_the_papers():
    runs = runs_at("paper")
    assert {run.settings.steps for run in runs} == {10_000_000}
    assert {run.settings.eval_every for run in runs} == {100_000}
    assert {run.env.name for run in runs} == set(ENVS.values())
    changed = {"steps", "seed", "algorithm", "gamma", "reset_cost", "episodic", "cut", "cost", "limit", "threads"}
    paper = to_flat(preset("paper"))
    for run in runs:
        different = {name for name, value in to_flat(run.settings).items() if value != paper[name]}
        assert different <= changed, run.name
    assert set(arms_of("paper", "figure-1").values()) == {10}
    assert set(arms_of("paper", "table-1")) == {"humanoid-atrpo", "humanoid-trpo95"}
    costs = [run for run in runs if run.arm.startswith("ant-atrpo") and run.settings.seed == 0]
    assert {run.settings.task.reset_cost for run in costs} == {10, 50, 100, 200, 500}
    assert len(arms_of("paper", "appendix-i-cost")) == 3 * 6


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_every_figure_has_runs_at_every_scale(scale):
    for name in FIGURES:
        arms = arms_of(scale, name)
        assert len(arms) >= 2, name
        assert min(arms.values()) >= 2, name
    assert {arm.split("-")[0] for arm in arms_of(scale, "figure-1")} == set(TASKS)
    assert {arm.split("-")[0] for arm in arms_of(scale, "appendix-i-cost")} == {"ant"}


def test_a_directory_that_was_begun_with_fewer_arms_is_added_to(tmp_path):
    """The runs keep their names; one whose settings changed would be refused."""
    small = Reproduction("small", tmp_path)
    some = [run for run in runs_at("small") if run.arm.startswith(("cheetah-trpo9", "humanoid-a"))]
    SweepDirectory(tmp_path).plan(some)
    assert small.sweep(EVERY).runs == runs_at("small")
    plan = json.loads((tmp_path / "sweep.json").read_text())
    plan["common"]["delta"] = 0.5
    (tmp_path / "sweep.json").write_text(json.dumps(plan))
    with pytest.raises(UserError, match=r"delta is 0\.5 there"):
        small.sweep(EVERY)


def runs_of(folder, arms):
    """Three seeds of each arm; the return of a seed at 10,000 steps is ten times that at 1,000."""
    runs = {}
    for arm, value in arms.items():
        discounted = {"algorithm": "trpo", "gamma": float(f"0.{arm.split('trpo')[1][:2]}")} if "-trpo" in arm else {}
        for seed in (0, 1, 2):
            run = fake_run(
                folder / f"{arm}-{seed}", [], env=ENVS[arm.split("-")[0]], seed=seed, steps=100, **discounted
            )
            record = {
                "steps": 100,
                "returns_1000": [value + seed, value + seed],
                "returns_10000": [10 * (value + seed)] * 2,
                "lengths": [100 * (seed + 1), 10_000],
            }
            (run.path / "evaluations.jsonl").write_text(json.dumps(record) + "\n")
            runs.setdefault(arm, []).append(run)
    return runs


def test_figure_1_has_the_papers_numbers_beside_ours(tmp_path):
    runs = runs_of(
        tmp_path, {"humanoid-atrpo": 299.0, "humanoid-trpo95": 99.0, "humanoid-trpo99": 199.0, "ant-atrpo": 1.0}
    )
    drawn = draw(FIGURES["figure-1"], runs, tmp_path / "figures", missing="Some are missing.")
    assert drawn.pictures == (tmp_path / "figures" / "figure-1.png",)
    assert drawn.pictures[0].exists()
    assert "| Humanoid-v3 | 1,000 | 300 | 200 | 0.99 | +50% | 0.95 | +50.1 % |" in drawn.text
    assert "| Humanoid-v3 | 10,000 | 3,000 | 2,000 | 0.99 | +50% | 0.95 | +913 % |" in drawn.text
    assert "Ant-v3 |" not in drawn.text, "there is nothing to compare ATRPO with"
    assert drawn.text.endswith("Some are missing.\n")
    nothing = draw(FIGURES["appendix-f"], runs, tmp_path, missing="All are missing.")
    assert nothing.pictures == ()
    assert "has not been run yet. All are missing." in nothing.text


def test_table_1_counts_every_trajectory(tmp_path):
    runs = runs_of(tmp_path, {"humanoid-trpo95": 1.0, "humanoid-atrpo": 2.0})
    drawn = draw(FIGURES["table-1"], runs, tmp_path)
    assert "| the paper, TRPO γ = 0.95 | 10 | 108.0 | 4,806.0 | 883.1 | 452.5 | 1,329.9 | – |" in drawn.text
    lengths = [100, 200, 300, 10_000, 10_000, 10_000]
    said = f"{np.mean(lengths):,.1f} | {np.median(lengths):,.1f} | {np.std(lengths, ddof=1):,.1f} | 3 of 6 |"
    assert f"| TRPO γ = 0.95 | 6 (3 seeds) | 100.0 | 10,000.0 | {said}" in drawn.text


def test_figure_2_is_of_the_seed_that_is_best_for_trpo(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(reproduce, "write", lambda *_: None)

    def speed(run):
        asked.append(run.path.name)
        return np.ones(300)

    draw(FIGURES["figure-2"], runs_of(tmp_path, {"humanoid-trpo95": 1.0, "humanoid-atrpo": 2.0}), tmp_path, speed=speed)
    assert sorted(asked) == ["humanoid-atrpo-2", "humanoid-trpo95-2"]


def test_bad_names_and_what_is_missing(tmp_path):
    with pytest.raises(UserError, match="no figure named figure-3 here; there are figure-1"):
        chosen(["figure-3"])
    assert chosen(["all"]) == EVERY
    drawn = Reproduction("small", tmp_path / "runs").draw(FIGURES["table-1"], tmp_path / "figures")
    assert "6 of its 6 runs are not finished: humanoid-atrpo-0 (not begun)" in drawn.text
    assert (tmp_path / "figures" / "table-1.md").read_text() == drawn.text
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        Reproduction("small", tmp_path / "runs").draw(FIGURES["table-1"], tmp_path / "file")


def test_what_is_missing_is_run_unless_it_is_only_to_be_drawn(tmp_path, monkeypatch, capsys):
    trained = []
    monkeypatch.setattr(Sweep, "train", lambda sweep, *_: trained.extend({run.arm for run in sweep.runs}))
    reproduce_command(("table-1",), "small", tmp_path / "runs", tmp_path, draw_only=True)
    assert trained == []
    reproduce_command(("table-1",), "small", tmp_path / "runs", tmp_path)
    assert set(trained) == {"humanoid-atrpo", "humanoid-trpo95"}
    assert f"Wrote {tmp_path / 'table-1.md'}." in capsys.readouterr().out
    reproduce_command((), "small", tmp_path / "runs")
    assert "table-1              Table 1: lengths of the trajectories of a Humanoid (0 of 6" in capsys.readouterr().out


LINES = [json.loads(line) for line in reproduction.KEPT.read_text().splitlines()]


def test_what_is_kept_are_finished_runs_of_the_small_scale(tmp_path):
    planned = {run.name: run for run in runs_at("small")}
    assert [line["name"] for line in LINES] == sorted({line["name"] for line in LINES})
    for line in LINES:
        run = Run.open(reproduction.kept.write_out(line, tmp_path))
        settings = planned[line["name"]].settings
        lists = {"cost": list(settings.cost), "limit": list(settings.limit), "hidden": [64, 64]}
        none_apart = {"deployed_envs": settings.meant_deployed_envs}  # 0 as in the first runs, which do not name it
        assert to_flat(settings) | lists | none_apart == run.settings | {"deployed_envs": 0}
        assert run.evaluations[-1]["steps"] == settings.steps, "it is not finished"
        assert ("speed" in line) == (planned[line["name"]].arm in reproduction.WITH_SPEED)


def test_a_finished_run_is_kept(monkeypatch, tmp_path, constrained_run):
    monkeypatch.setattr(reproduction, "KEPT", tmp_path / "kept.jsonl")
    monkeypatch.setattr(reproduction, "WITH_SPEED", ["humanoid-atrpo"])
    monkeypatch.setattr(reproduction, "speed_of", lambda run: np.array([1.2345, 2.0]))
    line = reproduction.line_of("humanoid-atrpo-0", "humanoid-atrpo", constrained_run)
    reproduction.store([line])
    reproduction.store([{**line, "name": "a"}])
    assert list(reproduction.kept_runs()) == ["a", "humanoid-atrpo-0"]
    assert line["speed"] == [1.23, 2.0]
    again = Run.open(reproduction.kept.write_out(line, tmp_path))
    assert again.settings == constrained_run.settings
    first, second = again.evaluations[-1]["returns_1000"], constrained_run.evaluations[-1]["returns_1000"]
    assert first == pytest.approx(second, abs=0.01)


def test_the_page_is_made_from_what_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(reproduce, "write", lambda *_: None)
    page = reproduction.PAGE.read_text()
    assert reproduction.written(page, tmp_path) == page, "run: python benchmarks/reproduction.py page"
    shown = [line for line in page.splitlines() if line.startswith("![")]
    assert all((reproduction.PAGE.parent / line.split("(")[1].rstrip(")")).exists() for line in shown)
    assert {path.name for path in reproduction.DRAWN.iterdir()} == {line.split("/")[-1].rstrip(")") for line in shown}
