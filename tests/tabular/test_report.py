"""`kemeny exact`: what it prints and draws, for every model of the zoo and from a file."""

import subprocess
import sys

import numpy as np
import pytest

from kemeny.errors import UserError
from kemeny.tabular import MDP, solve, zoo
from kemeny.tabular.report import exact


@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_model_of_the_zoo(name, tmp_path, capsys):
    picture = tmp_path / "deep" / "exact.png"
    exact(zoo=name, output=picture)
    printed = capsys.readouterr().out
    if name == "multichain":
        assert "The best policy has 2 recurrent classes" in printed
        assert not picture.exists()
        return
    best = solve.policy_iteration(zoo.model(name))
    assert f"Best gain {best.gain:.12g}" in printed
    assert " ".join(map(str, best.policy)) in printed
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_from_a_file_with_a_limit(tmp_path, capsys):
    zoo.queue_admission().save(tmp_path / "queue.npz")
    exact(tmp_path / "queue.npz", output=tmp_path / "queue.svg", limit=2.0)
    printed = capsys.readouterr().out
    assert f"{solve.linear_programme(zoo.queue_admission(), 2.0).gain:.10g}" in printed
    assert "ρ_c, cost per step" in printed
    assert (tmp_path / "queue.svg").read_text().startswith("<?xml")


def test_large_model_is_reported_without_dense_matrices(tmp_path, capsys):
    zoo.garnet(4000, 2, 3, sparse=True).save(tmp_path / "large.npz")
    exact(tmp_path / "large.npz", output=tmp_path / "none.png")
    printed = capsys.readouterr().out
    assert "no bounds and no picture" in printed
    assert "standard error" in printed
    assert not (tmp_path / "none.png").exists()


def test_a_chain_is_a_model_with_one_action(tmp_path, capsys):
    MDP.from_chain(zoo.two_state(0.3, 0.1).P, [1.0, 0.0], name="coin").save(tmp_path / "coin.npz")
    exact(tmp_path / "coin.npz", output=tmp_path / "coin.png")
    assert "κ* = 3.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "Name a file or, with --zoo, a known model"),
        ({"zoo": "riverswim", "share": 0.0}, "above 0 and at most 1"),
        ({"zoo": "riverswim", "output": "picture.nonsense"}, "cannot be written"),
        ({"zoo": "riverswim", "limit": 1.0}, "has no costs"),
    ],
)
def test_mistakes(arguments, sentence, tmp_path):
    if "output" in arguments:
        arguments = arguments | {"output": tmp_path / arguments["output"]}
    else:
        arguments = arguments | {"output": tmp_path / "picture.png"}
    with pytest.raises(UserError, match=sentence):
        exact(**arguments)


def test_the_theory_does_not_import_jax():
    code = "import sys, kemeny.tabular, kemeny.tabular.report; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_interface_of_the_readme():
    """The names that users were promised."""
    chain = zoo.two_state()
    for name in ("stationary", "kemeny", "fundamental", "first_passage"):
        assert np.all(np.isfinite(getattr(chain, name)))
    mdp = zoo.access_control()
    best = solve.policy_iteration(mdp)
    value = mdp.evaluate(best.policy)
    assert value.rho == pytest.approx(best.gain)
    assert value.bias.shape == (44,)
    assert value.action_bias.shape == value.advantage.shape == (44, 2)
