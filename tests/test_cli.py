"""The command line: what a newcomer types, and what they type wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kemeny import cli

TINY_FLAGS = "--steps 400 --num-envs 4 --batch-size 200 --hidden 8 --eval-max-steps 30".split()


def kemeny(capfd, monkeypatch, *arguments):
    """Run the command in this process: (exit code, standard output, standard error)."""
    monkeypatch.setattr(sys, "argv", ["kemeny", *map(str, arguments)])
    code = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    return code, *capfd.readouterr()


@pytest.fixture
def command(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: kemeny(capfd, monkeypatch, *arguments)


def test_help_names_every_command(command):
    code, out, _ = command("--help")
    assert code == 0
    for name in ("train", "resume", "evaluate", "plot", "exact", "kemeny train HalfCheetah-v3"):
        assert name in out
    code, out, _ = command("train", "--help")
    assert code == 0
    for flag in ("--algorithm", "--reset-cost", "--episodic", "--delta", "--eval-max-steps", "--hidden"):
        assert flag in out


def test_train_evaluate_plot(command, tmp_path):
    code, out, err = command("train", "InvertedPendulum-v5", *TINY_FLAGS, "--out", "run")
    assert code == 0, err
    assert "kemeny evaluate run" in out
    assert "400 of 400 steps" in err
    code, out, _ = command("evaluate", "run", "--trajectories", "3", "--max-steps", "50", "--json")
    assert code == 0
    record = json.loads(out)
    assert len(record["lengths"]) == len(record["returns_50"]) == 3
    assert record["average_costs"] is None
    code, _, err = command("evaluate", "run", "--max-steps", "5", "--cost", "nonsense")
    assert code == 2
    assert "nonsense" in err
    code, out, _ = command("evaluate", "run/checkpoints/step-000000000400", "--trajectories", "2", "--max-steps", "5")
    assert code == 0
    assert "return, ≤ 5 steps" in out
    code, _, _ = command("plot", "run", "-o", "pictures/curve.png")
    assert code == 0
    assert (tmp_path / "pictures/curve.png").read_bytes().startswith(b"\x89PNG")


def test_exact(command, tmp_path):
    code, out, _ = command("exact", "--zoo", "riverswim", "-o", "bounds.png")
    assert code == 0
    assert "Kemeny's constant" in out
    assert (tmp_path / "bounds.png").exists()
    code, _, err = command("exact", "nowhere.npz")
    assert code == 2
    assert "nowhere.npz" in err


def test_the_default_directory_says_what_is_in_it(command, tmp_path):
    command("train", "InvertedPendulum-v5", *TINY_FLAGS, "--algorithm", "trpo", "--seed", "7")
    assert (tmp_path / "runs/InvertedPendulum-v5-trpo-seed7/config.json").exists()


MISTAKES = {
    "unknown environment": (["train", "HalfCheeta-v3"], "HalfCheetah-v3"),
    "unknown algorithm": (["train", "HalfCheetah-v3", "--algorithm", "ppo"], "atrpo"),
    "gamma of one": (["train", "HalfCheetah-v3", "--algorithm", "trpo", "--gamma", "1"], "atrpo"),
    "gamma for atrpo": (["train", "HalfCheetah-v3", "--gamma", "0.99"], "--algorithm trpo --gamma 0.99"),
    "average on episodic": (["train", "HalfCheetah-v3", "--episodic"], "continuing"),
    "uneven batch": (["train", "HalfCheetah-v3", "--num-envs", "7"], "--num-envs 8"),
    "no steps": (["train", "HalfCheetah-v3", "--steps", "0"], "--steps is 0"),
    "limit without a constrained algorithm": (["train", "Ant-v3", "--cost", "speed", "--limit", "2"], "acpo"),
    "cost without a limit": (["train", "Ant-v3", "--algorithm", "acpo", "--cost", "speed"], "limit"),
    "image observations": (["train", "CarRacing-v3"], ""),
    "not a run": (["evaluate", "nowhere"], "not a run directory"),
    "not a run to resume": (["resume", "nowhere"], "not a run directory"),
    "not a run to plot": (["plot", "nowhere"], "not a run directory"),
    "nothing to plot": (["plot"], ""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_a_sentence_and_leaves_nothing_behind(name, command, tmp_path):
    arguments, expected = MISTAKES[name]
    code, out, err = command(*arguments)
    assert code == 2
    assert expected in out + err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_an_existing_directory_is_left_alone(command, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("data")
    code, _, err = command("train", "InvertedPendulum-v5", *TINY_FLAGS, "--out", "run")
    assert code == 2
    assert "exists already" in err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["precious"]


def start(*arguments, cwd):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", "from kemeny.cli import main; main()", *arguments],
        cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, "the run never got going"
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_iteration_and_says_how_to_go_on(how, tmp_path):
    flags = "--steps 100000000 --num-envs 4 --batch-size 200 --hidden 8 --eval-every 100000000".split()
    process = start("train", "InvertedPendulum-v5", *flags, "--out", "run", cwd=tmp_path)
    wait_for_lines(tmp_path / "run/metrics.jsonl", 3)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "kemeny resume run" in err
    assert "Traceback" not in err
    newest = sorted((tmp_path / "run/checkpoints").glob("step-*"))[-1]
    steps = json.loads((newest / "facts.json").read_text())["steps"]
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["steps"] == steps
