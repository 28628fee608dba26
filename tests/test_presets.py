"""What is not given is the preset's; what is given is given."""

import sys

import pytest

import kemeny
from kemeny import cli
from kemeny.errors import UserError
from kemeny.runs import presets
from kemeny.runs.assembly import make_learner
from kemeny.runs.settings import Settings, from_flat, to_flat
from tests.conftest import TINY

PAPER = {
    "hidden": (64, 64),
    "batch_size": 5_000,
    "gae_lambda": 0.95,
    "critic_step_size": 3e-4,
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
def test_the_papers_preset_is_the_papers(algorithm, log_std):
    limits = {"cost": "speed", "limit": 2.0} if algorithm in ("acpo", "cpo") else {}
    settings = from_flat({"algorithm": algorithm, **limits}, presets.preset("paper"))
    assert PAPER.items() <= to_flat(settings).items()
    assert make_learner(settings).networks.log_std == log_std
    assert make_learner(settings).cost_gae_lambda == PAPER["gae_lambda"]


def test_the_default_is_what_settings_say():
    assert presets.preset("default") == Settings()


@pytest.mark.parametrize("preset", [presets.PAPER, presets.QUEUES], ids=["paper", "queues"])
def test_a_preset_departs_in_what_it_names(preset):
    default = to_flat(Settings())
    assert all(default[name] != value for name, value in preset.items())


@pytest.mark.parametrize("algorithm", ["acop", ["acpo"], None])
def test_an_unknown_algorithm_is_refused(algorithm):
    with pytest.raises(UserError, match="algorithm"):
        kemeny.train("Ant-v3", algorithm=algorithm)


def test_an_unknown_preset():
    with pytest.raises(UserError, match="there are default, paper, queues"):
        kemeny.train("Ant-v3", preset="papre")  # type: ignore[arg-type]


def test_what_is_given_goes_before_the_preset_in_python(tmp_path):
    run = kemeny.train("InvertedPendulum-v5", out=tmp_path / "run", preset="paper", **TINY)
    assert run.config["settings"]["cut"] == TINY["cut"] != PAPER["cut"]
    assert run.config["settings"]["delta"] == PAPER["delta"] != Settings().region.delta


def test_what_is_given_goes_before_the_preset_on_the_command_line(tmp_path, monkeypatch, capsys):
    """Also where it is the same as the default."""
    default = Settings().task.cut
    flags = "--steps 100 --num-envs 2 --batch-size 100 --hidden 4 --eval-max-steps 5 --preset paper"
    command = f"kemeny train {flags} InvertedPendulum-v5 --cut {default} --out {tmp_path / 'run'}"
    monkeypatch.setattr(sys, "argv", command.split())
    cli.main()
    settings = kemeny.Run.open(tmp_path / "run").config["settings"]
    assert (settings["cut"], settings["gae_lambda"], settings["steps"]) == (default, PAPER["gae_lambda"], 100)
    assert settings["log_std"] is None
    used = (
        "--delta 0.01 --gae-lambda 0.95 --damping 0.01 --log-std None --critic-l2 0.003 --reset-cost 100.0 "
        "--deployed-envs 0"
    )
    assert f"Settings of the preset paper: {used}\n" in capsys.readouterr().out


def test_a_trust_region_that_would_grow_is_refused():
    with pytest.raises(UserError, match=r"--delta-end is 0\.1; it must be at most --delta, 0\.02"):
        from_flat({"delta_end": 0.1}).check()
