"""`kemeny exact`: what it prints and draws, for every model of the zoo and for models in files."""

import subprocess
import sys

import numpy as np
import pytest

from kemeny.cli.exact import exact
from kemeny.errors import UserError
from kemeny.experiments.exact import report_model
from kemeny.tabular import MDP, solve, zoo


@pytest.mark.parametrize("name", [name for name in zoo.MODELS if name not in zoo.LARGE])
def test_every_model_of_the_zoo(name, tmp_path, capsys):
    picture = tmp_path / "deep" / "exact.png"
    report_model(zoo.model(name), picture)
    printed = capsys.readouterr().out
    if name == "multichain":
        assert "The best policy has 2 recurrent classes" in printed
        assert not picture.exists()
        return
    best = solve.policy_iteration(zoo.model(name))
    assert f"Best gain {best.gain:.12g}" in printed
    assert " ".join(map(str, best.policy)) in printed
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_model_file_with_a_limit(tmp_path, capsys):
    zoo.queue_admission().save(tmp_path / "queue.npz")
    exact(tmp_path / "queue.npz", output=tmp_path / "queue.svg", limit=2.0)
    printed = capsys.readouterr().out
    assert f"{solve.linear_programme(zoo.queue_admission(), 2.0).gain:.10g}" in printed
    assert "ρ_c, cost per step" in printed
    assert (tmp_path / "queue.svg").read_text().startswith("<?xml")


def with_costs(mdp):
    return MDP(mdp.transitions, mdp.rewards, costs=np.ones(mdp.rewards.shape), name=mdp.name)


def test_a_limit_that_cannot_be_applied_is_an_error_and_not_silence(tmp_path, capsys):
    with pytest.raises(UserError, match=r"The limit 2 was not applied to this model: State 2 cannot reach"):
        report_model(with_costs(zoo.multichain()), tmp_path / "none.png", limit=2.0)
    assert "The best policy has 2 recurrent classes" in capsys.readouterr().out
    with pytest.raises(UserError, match="has no costs"):
        report_model(zoo.multichain(), tmp_path / "none.png", limit=2.0)
    assert capsys.readouterr().out == ""


def test_a_limit_is_applied_where_only_some_policies_have_several_classes(tmp_path, capsys):
    """Action 0 stays, action 1 changes the state; state 1 pays 2 and costs 1, state 0 pays 1 and costs nothing."""
    P = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    mdp = MDP(P, [[1.0, 0.0], [2.0, 0.0]], costs=[0.0, 1.0])
    report_model(mdp, tmp_path / "none.png", limit=1.0)
    printed = capsys.readouterr().out
    assert "The gain may depend on the start state" in printed
    assert "With average cost ≤ 1: best gain 2 at cost 1" in printed


def test_one_iteration_is_one_iteration(tmp_path, capsys):
    report_model(MDP(zoo.two_state(0.3, 0.1).P[:, None, :], [1.0, 0.0]), tmp_path / "chain.png")
    assert "by policy iteration in 1 iteration." in capsys.readouterr().out
    assert str(solve.policy_iteration(zoo.riverswim())).endswith("iterations")


def test_large_model_is_reported_without_dense_matrices(tmp_path, capsys):
    report_model(zoo.garnet(4000, 2, 3, sparse=True), tmp_path / "none.png")
    printed = capsys.readouterr().out
    assert "no bounds and no picture" in printed
    assert "standard error" in printed
    assert not (tmp_path / "none.png").exists()


def test_a_chain_is_a_model_with_one_action(tmp_path, capsys):
    report_model(MDP(zoo.two_state(0.3, 0.1).P[:, None, :], [1.0, 0.0]), tmp_path / "chain.png")
    assert "κ* = 3.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "either a model file or, with --zoo, the name of a known model"),
        ({"file": "model.npz", "zoo": "riverswim"}, "either a model file or"),
        ({"zoo": "pacman"}, "no model 'pacman'"),
        ({"zoo": "riverswim", "share": 0.0}, "above 0 and at most 1"),
        ({"zoo": "riverswim", "output": "picture.nonsense"}, "cannot be written"),
        ({"zoo": "riverswim", "limit": 1.0}, "has no costs"),
    ],
)
def test_mistakes(arguments, sentence, tmp_path):
    output = tmp_path / arguments.get("output", "picture.png")
    with pytest.raises(UserError, match=sentence):
        exact(**(arguments | {"output": output}))


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        ("kemeny.tabular, kemeny.tabular.formats", {"jax", "gymnasium", "rich", "tyro", "matplotlib"}),
        ("kemeny.experiments.exact", {"jax", "gymnasium", "tyro"}),
    ],
)
def test_the_theory_loads_only_what_it_needs(modules, forbidden):
    code = f"import sys, {modules}; print({forbidden!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_interface_of_the_readme():
    """The names in the README and in docs/theory.md."""
    chain = zoo.two_state()
    for name in ("stationary", "kemeny", "fundamental", "first_passage"):
        assert np.all(np.isfinite(getattr(chain, name)))
    mdp = zoo.access_control()
    best = solve.policy_iteration(mdp)
    values = mdp.evaluate(best.policy)
    assert values.rho == pytest.approx(best.gain)
    assert values.bias.shape == (44,)
    assert values.action_bias.shape == values.advantage.shape == (44, 2)


def test_the_worst_case_is_not_searched_for_in_a_larger_model(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("kemeny.experiments.exact.SEARCH_LIMIT", 5)
    report_model(zoo.riverswim(6), tmp_path / "bounds.png")
    assert "More than 5 states: κ*" in capsys.readouterr().out
    report_model(zoo.riverswim(5), tmp_path / "bounds.png")
    assert "κ* = " in capsys.readouterr().out


def test_ctrl_c_prints_what_is_known(tmp_path, capsys, monkeypatch):
    mdp = zoo.criss_cross("BM", truncation=12)
    mdp.save(tmp_path / "network.npz")
    searched = solve.solve

    def stop(known):
        if known.iterations == 10:
            raise KeyboardInterrupt

    monkeypatch.setattr(solve, "solve", lambda mdp, **arguments: searched(mdp, **(arguments | {"watch": stop})))
    with pytest.raises(SystemExit) as ended:
        exact(tmp_path / "network.npz", output=tmp_path / "network.png")
    assert ended.value.code == 130
    assert "Stopped after 10 iterations: the best gain is in [" in capsys.readouterr().out


@pytest.mark.parametrize("precision", [0.0, -1.0, 1.0, float("nan")])
def test_a_precision_that_makes_no_sense_is_refused(tmp_path, precision):
    with pytest.raises(UserError, match="precision must be above 0 and below 1"):
        exact(zoo="riverswim", output=tmp_path / "x.png", precision=precision)
