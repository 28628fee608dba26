"""What is not given is the preset's; what is given is given."""

import sys

import pytest

import kemeny
from kemeny import cli, presets
from kemeny.errors import UserError
from kemeny.settings import Settings, from_flat, to_flat
from tests.conftest import TINY
from tests.probes import Target

PAPER = {
    "hidden": (64, 64),
    "batch_size": 5_000,
    "gae_lambda": 0.95,
    "critic_rate": 3e-4,
    "critic_l2": 3e-3,
    "damping": 0.01,
    "cg_iterations": 10,
    "backtrack": 0.8,
    "backtrack_tries": 10,
    "delta": 0.01,
    "reset_cost": 100.0,
    "cut": 5_000,
    "eval_every": 100_000,
    "eval_trajectories": 10,
    "steps": 10_000_000,
}
"""Appendix H and §6."""


@pytest.mark.parametrize(("algorithm", "log_std"), [("atrpo", -0.5), ("trpo", -0.5), ("acpo", -1.0), ("cpo", -1.0)])
@pytest.mark.parametrize("env", ["Ant-v3", "HalfCheetah-v3"])
def test_the_papers_preset_is_the_papers(env, algorithm, log_std):
    limits = {"cost": "speed", "limit": 2.0} if algorithm in ("acpo", "cpo") else {}
    settings = from_flat({**presets.preset(env, "paper"), "algorithm": algorithm, **limits})
    assert PAPER.items() <= to_flat(settings).items()
    assert settings.learner().networks.log_std == log_std


def test_every_preset_names_settings_and_none_is_for_another_task():
    for env in presets.TASKS:
        from_flat(presets.preset(f"{env}-v5", "task"))
        assert presets.preset(f"{env}-v5", "task") == presets.TASKS[env]
    assert presets.preset("CartPole-v1", "task") == {}
    assert presets.preset(Target, "task") == {}
    assert presets.preset("AntMaze_UMaze-v5", "task") == {}


def test_an_unknown_preset():
    with pytest.raises(UserError, match="task and paper"):
        kemeny.train("Ant-v3", preset="papre")  # type: ignore[arg-type]


def test_what_is_given_goes_before_the_preset_in_python(tmp_path, monkeypatch):
    monkeypatch.setitem(presets.TASKS, "InvertedPendulum", {"cut": 77, "gae_lambda": 0.5})
    run = kemeny.train("InvertedPendulum-v5", out=tmp_path / "run", **TINY)
    assert (run.config["settings"]["cut"], run.config["settings"]["gae_lambda"]) == (TINY["cut"], 0.5)
    run = kemeny.train("InvertedPendulum-v5", out=tmp_path / "paper", preset="paper", **TINY)
    assert run.config["settings"]["gae_lambda"] == PAPER["gae_lambda"]


def test_what_is_given_goes_before_the_preset_on_the_command_line(tmp_path, monkeypatch, capsys):
    """Also where it is the same as the default."""
    default = Settings().task.cut
    monkeypatch.setitem(presets.TASKS, "InvertedPendulum", {"cut": 77, "gae_lambda": 0.5})
    flags = "--steps 100 --num-envs 2 --batch-size 100 --hidden 4 --eval-max-steps 5"
    command = f"kemeny train {flags} InvertedPendulum-v5 --cut {default} --out {tmp_path / 'run'}"
    monkeypatch.setattr(sys, "argv", command.split())
    cli.main()
    settings = kemeny.Run.open(tmp_path / "run").config["settings"]
    assert (settings["cut"], settings["gae_lambda"], settings["steps"]) == (default, 0.5, 100)
    assert "Preset for InvertedPendulum-v5: --gae-lambda 0.5\n" in capsys.readouterr().out
