"""The command line: what a newcomer types, and what they type wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kemeny import __version__, cli
from kemeny.runs.ending import limits_kept
from kemeny.runs.settings import Settings, to_flat

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
    for name in (*cli.COMMANDS, "kemeny train HalfCheetah-v3"):
        assert name in out
    assert command() == (0, out, "")  # without a command, too
    code, out, _ = command("train", "--help")
    assert code == 0
    for flag in ("--algorithm", "--reset-cost", "--episodic", "--delta", "--eval-max-steps", "--hidden"):
        assert flag in out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_a_help_that_says_what_the_list_says_it_does(name, command):
    code, out, _ = command(name, "--help")
    assert code == 0
    assert f"usage: kemeny {name}" in out


def test_the_version(command):
    assert command("--version") == (0, f"kemeny {__version__}\n", "")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("trian", "kemeny: There is no command trian; did you mean train?\n"),
        ("evalaute", "kemeny: There is no command evalaute; did you mean evaluate?\n"),
        ("xyzzy", f"kemeny: There is no command xyzzy; there are {', '.join(cli.COMMANDS)}.\n"),
        ("--steps", f"kemeny: There is no command --steps; there are {', '.join(cli.COMMANDS)}.\n"),
    ],
)
def test_a_misspelt_command_gets_a_suggestion(typed, expected, command):
    assert command(typed, "HalfCheetah-v3") == (2, "", expected)


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("train", "HalfCheetah-v3", "--gama", "0.9"), "--gamma"),
        (("train", "HalfCheetah-v3", "--bath-size", "100"), "--batch-size"),
        (("evaluate", "run", "--trajectoris", "3"), "--trajectories"),
        (("plot", "run", "--ouput", "curve.png"), "--output"),
    ],
)
def test_a_misspelt_flag_gets_a_suggestion(arguments, flag, command):
    code, _, err = command(*arguments)
    assert code == 2
    assert arguments[2] in err
    assert flag in err.split("Perhaps you meant:")[1]


@pytest.mark.parametrize(
    ("typed", "number"), [("1000", 1_000), ("1_000", 1_000), ("1e3", 1_000), ("1E+3", 1_000), ("2.5e3", 2_500)]
)
def test_a_whole_number_may_be_written_with_an_exponent(typed, number, command, monkeypatch):
    given = []
    monkeypatch.setattr("kemeny.runs.train.start", lambda env, settings, *_, **more: given.append(settings) or Ended())
    code, _, err = command("train", "HalfCheetah-v3", "--steps", typed, "--hidden", "1e1", "8", "--seed", "0")
    assert code == 0, err
    (settings,) = given
    assert settings.steps == number
    assert type(settings.steps) is int
    assert settings.networks.hidden == (10, 8)


class Ended:
    """A run in name only."""

    path = "runs/none"
    config = {"settings": {"limit": []}}  # noqa: RUF012


@pytest.mark.parametrize("typed", ["1.5", "1e-3", "nan", "inf", "1e400", "many", ""])
def test_what_is_no_whole_number_is_refused(typed, command, tmp_path):
    code, out, err = command("train", "HalfCheetah-v3", "--steps", typed)
    assert code == 2
    assert "--steps" in out + err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


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


SPEEDING = "--algorithm acpo --cost speed --limit {} --num-envs 2 --eval-trajectories 1 --critic-epochs 1".split()
SPEEDING += "--steps 40 --batch-size 40 --hidden 4 --eval-max-steps 5".split()


@pytest.mark.parametrize(("limit", "verdict"), [("100", "the limit 100 is kept"), ("-1", "the limit -1 is broken by ")])
def test_the_end_says_whether_each_limit_was_kept(limit, verdict, command):
    code, out, err = command("train", "HalfCheetah-v3", *(flag.format(limit) for flag in SPEEDING), "--out", "run")
    assert code == 0, err
    exploring, mean, finished = out.splitlines()
    for line, manner in ((exploring, "with exploration"), (mean, "mean action")):
        assert line.startswith("speed: ")
        assert f" per step; {verdict}" in line
        assert line.endswith(f"({manner}).")
    assert finished.startswith("Finished.")
    assert command("resume", "run")[1] == out
    for flags, manner in ((("--explore",), "with exploration"), ((), "mean action")):
        code, out, err = command("evaluate", "run", "--trajectories", "2", "--max-steps", "5", *flags)
        assert code == 0, err
        assert f" per step; {verdict}" in out.splitlines()[-1]
        assert out.endswith(f"({manner}).\n")


def test_a_limit_on_a_discounted_sum_is_judged_in_its_own_units():
    settings = Settings(algorithm="cpo", gamma=0.9, cost=("speed", "heat"), limit=(14.0, 6.0))
    costs = np.array([[1.0, 0.5, 7.0], [2.0, 0.5, 7.0]])  # the third has no limit
    assert limits_kept({"settings": to_flat(settings)}, costs, "mean action") == [
        "speed: 1.5 per step, 15 discounted; the limit 14 is broken by 1 (mean action).",
        "heat: 0.5 per step, 5 discounted; the limit 6 is kept (mean action).",
    ]


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
    "limits with the clipped step": (
        ["train", "Ant-v3", "--algorithm", "acpo", "--cost", "speed", "--limit", "2", "--step", "clip"],
        "kemeny: The step clip keeps no limits on costs",
    ),
    "unknown step": (["train", "Ant-v3", "--step", "newton"], "natural"),
    "unknown activation": (["train", "Ant-v3", "--activation", "swish"], "relu"),
    "image observations": (["train", "CarRacing-v3"], ""),
    "not a run": (["evaluate", "nowhere"], "not a run directory"),
    "not a run to resume": (["resume", "nowhere"], "not a run directory"),
    "not a run to plot": (["plot", "nowhere"], "not a run directory"),
    "nothing to plot": (["plot"], ""),
    "not a run to compare": (["compare", "nowhere"], "not a run directory"),
    "two formats at once": (["compare", "nowhere", "--json", "--markdown"], "Choose one"),
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


MAIN = "from kemeny.cli import main; main()"


def start(*arguments, cwd):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def without_a_reader(*arguments, cwd, stream):
    """The exit code and the other stream of a command whose standard output or error leads into a closed pipe."""
    read, write = os.pipe()
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write}
    process = subprocess.Popen([sys.executable, "-c", MAIN, *arguments], cwd=cwd, **streams)
    os.close(write)
    os.close(read)
    out, err = process.communicate(timeout=60)
    return process.returncode, out or b"", err or b""


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["exact", "--zoo", "two_state"]])
def test_output_that_nobody_reads_ends_quietly(arguments, tmp_path):
    assert without_a_reader(*arguments, cwd=tmp_path, stream="stdout") == (1, b"", b"")


def test_a_mistake_that_nobody_hears_of_has_its_exit_code(tmp_path):
    assert without_a_reader("plot", "nowhere", cwd=tmp_path, stream="stderr") == (2, b"", b"")


def test_a_terminal_without_utf_8_gets_question_marks(tiny_run, tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    evaluated, mistaken = (
        subprocess.run(
            [sys.executable, "-c", MAIN, *arguments], cwd=tmp_path, env=environment, capture_output=True, timeout=120
        )
        for arguments in (["evaluate", tiny_run.path, "--trajectories", "1", "--max-steps", "5"], ["resume", "ρ"])
    )
    assert (evaluated.returncode, evaluated.stderr) == (0, b"")
    assert b"return, ? 5 steps" in evaluated.stdout
    assert mistaken.returncode == 2
    assert b"? is not a run directory" in mistaken.stderr


def wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, "the run never got going"
        time.sleep(0.05)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGUSR1, 75)])
def test_a_signal_finishes_the_iteration_and_says_how_to_go_on(how, code, tmp_path):
    flags = "--steps 100000000 --num-envs 4 --batch-size 200 --hidden 8 --eval-every 100000000".split()
    process = start("train", "InvertedPendulum-v5", *flags, "--out", "run", cwd=tmp_path)
    wait_for_lines(tmp_path / "run/metrics.jsonl", 3)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "kemeny resume run" in err
    assert "Traceback" not in err
    newest = sorted((tmp_path / "run/checkpoints").glob("step-*"))[-1]
    steps = json.loads((newest / "facts.json").read_text())["steps"]
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["steps"] == steps
