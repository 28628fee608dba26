"""Which runs become one curve, and what the legend calls it."""

import json

import pytest

from kemeny.errors import UserError
from kemeny.experiments.plots import _curves, _draw, _quantities, _series, learning_curves
from kemeny.runs.directory import Run
from kemeny.runs.settings import Settings, to_flat


def fake_run(path, returns, costs=None, env="Walk-v0", **changes):
    path.mkdir()
    settings = {**to_flat(Settings()), **changes}
    (path / "config.json").write_text(json.dumps({"env": env, "env_is_id": True, "settings": settings}))
    lines = [
        {"steps": 100 * (i + 1), "returns_1000": [value - 1, value + 1], "average_costs": costs and [costs, costs]}
        for i, value in enumerate(returns)
    ]
    (path / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Run.open(path)


def test_seeds_are_one_curve_and_any_other_setting_is_another(tmp_path):
    runs = [
        fake_run(tmp_path / "a", [1.0, 2.0], seed=0),
        fake_run(tmp_path / "b", [3.0, 6.0], seed=1, threads=7),
        fake_run(tmp_path / "c", [5.0], delta=0.05),
        fake_run(tmp_path / "d", [5.0], algorithm="trpo"),
    ]
    curves = _curves(runs)
    assert {curve.name: len(curve.runs) for curve in curves} == {
        "ATRPO, delta 0.02": 2,
        "ATRPO, delta 0.05": 1,
        "TRPO γ = 0.99, delta 0.02": 1,
    }
    steps, values = _series(curves[0].runs, _quantities(runs)[0])
    assert steps.tolist() == [100, 200]
    assert values.tolist() == [[1.0, 2.0], [3.0, 6.0]]


def test_words_of_a_legend(tmp_path):
    runs = [fake_run(tmp_path / "a", [1.0]), fake_run(tmp_path / "b", [1.0], algorithm="trpo", episodic=True, cut=0)]
    assert [curve.name for curve in _curves(runs)] == ["ATRPO, cut 1,000", "TRPO γ = 0.99, cut 0, episodic"]


def test_every_seed_is_drawn_beside_the_mean(tmp_path):
    from matplotlib.figure import Figure

    runs = [fake_run(tmp_path / str(seed), [1.0, seed], seed=seed) for seed in (2, 4, 9)]
    axis = Figure().subplots()
    _draw(axis, _curves(runs), _quantities(runs)[0], ["ATRPO"])
    assert sorted(line.get_ydata()[-1] for line in axis.lines) == [2, 4, 5, 9]


def test_a_kind_of_run_has_one_colour_in_every_column_and_a_longer_one_is_dashed(tmp_path, monkeypatch):
    fake_run(tmp_path / "a", [1.0, 2.0], env="Crawl-v0", algorithm="trpo")
    fake_run(tmp_path / "b", [1.0, 2.0], steps=100)
    fake_run(tmp_path / "c", [1.0, 2.0], steps=200)
    fake_run(tmp_path / "d", [1.0, 2.0], steps=200, algorithm="trpo")
    looks = {}

    def draw(axis, curves, quantity, kinds):
        _draw(axis, curves, quantity, kinds)
        lines = zip(curves, axis.lines, strict=True)
        looks.update({curve.runs[0].path.name: (line.get_color(), line.get_linestyle()) for curve, line in lines})

    monkeypatch.setattr("kemeny.experiments.plots._draw", draw)
    learning_curves([tmp_path / name for name in "abcd"], tmp_path / "curve.svg")
    assert looks == {"a": ("C0", "-"), "b": ("C1", "-"), "c": ("C1", "--"), "d": ("C0", "-")}


def test_a_run_that_is_named_twice_is_one_seed(tmp_path, monkeypatch):
    fake_run(tmp_path / "a", [1.0])
    drawn = []

    def draw(axis, curves, quantity, kinds):
        drawn.append(curves)
        _draw(axis, curves, quantity, kinds)

    monkeypatch.setattr("kemeny.experiments.plots._draw", draw)
    learning_curves([tmp_path / "a", tmp_path / "b" / ".." / "a"], tmp_path / "curve.svg")
    assert [len(curve.runs) for curves in drawn for curve in curves] == [1]


def test_each_cost_has_a_row_of_its_own(tmp_path):
    limited = {"algorithm": "acpo", "cost": ["speed", "heat"], "limit": [2.0, 3.0]}
    runs = [fake_run(tmp_path / "a", [1.0], costs=[1.5, 9.0], **limited), fake_run(tmp_path / "b", [1.0])]
    returns, speed, heat = _quantities(runs)
    assert (speed.label, heat.label) == ("speed per step", "heat per step")
    assert [_series(runs[:1], q)[1].tolist() for q in (speed, heat)] == [[[1.5]], [[9.0]]]
    assert returns.of(runs[1].evaluations[0]) == 1.0
    assert speed.of(runs[1].evaluations[0]) is None
    learning_curves([run.path for run in runs], tmp_path / "curve.svg")
    assert "ACPO, speed ≤ 2, heat ≤ 3" in [curve.name for curve in _curves(runs)]


def test_nothing_to_draw(tmp_path):
    with pytest.raises(UserError, match="nothing to draw"):
        learning_curves([fake_run(tmp_path / "a", []).path], tmp_path / "curve.png")


def test_a_deviation_that_is_not_given_is_the_algorithms_own(tmp_path):
    own = fake_run(tmp_path / "a", [1.0], algorithm="atrpo", log_std=-0.5)
    other = fake_run(tmp_path / "b", [1.0], algorithm="atrpo", log_std=-1.0)
    left_open = fake_run(tmp_path / "c", [1.0], algorithm="atrpo", log_std=None)
    told = {curve.name: curve.runs for curve in _curves([own, other, left_open])}
    assert told == {"ATRPO, log std -0.5": [own, left_open], "ATRPO, log std -1.0": [other]}
    limited = fake_run(tmp_path / "d", [1.0], algorithm="acpo", cost=["speed"], limit=[2.0], log_std=None)
    assert [curve.name for curve in _curves([other, limited])] == ["ATRPO", "ACPO, speed ≤ 2"]


def test_a_costs_lambda_that_is_not_given_is_the_rewards_and_says_nothing_without_costs(tmp_path):
    limits = {"algorithm": "acpo", "cost": ["speed"], "limit": [2.0], "gae_lambda": 0.8}
    given = {"same": 0.8, "other": 0.95, "open": None}
    same, other, left_open = (
        fake_run(tmp_path / name, [1.0], cost_gae_lambda=lam, **limits) for name, lam in given.items()
    )
    told = {curve.name: curve.runs for curve in _curves([same, other, left_open])}
    assert told == {
        "ACPO, speed ≤ 2, cost gae lambda 0.8": [same, left_open],
        "ACPO, speed ≤ 2, cost gae lambda 0.95": [other],
    }
    runs = [fake_run(tmp_path / name, [1.0], cost_gae_lambda=lam) for name, lam in (("a", 0.95), ("b", None))]
    assert [curve.name for curve in _curves(runs)] == ["ATRPO"]
