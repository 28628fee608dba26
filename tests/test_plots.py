"""Which runs become one curve, what the legend calls it, and which panels there are."""

import json

import numpy as np
import pytest

import kemeny
from kemeny.errors import UserError
from kemeny.experiments import plots
from kemeny.experiments.curves import group_runs, open_runs
from kemeny.experiments.drawing import COLORS
from kemeny.experiments.intervals import iqm_interval
from kemeny.experiments.plots import Manner, _by_time, _draw, _draw_column, _shared, plot
from kemeny.experiments.quantities import quantities
from kemeny.experiments.speeds import draw_speeds, speed_of, speeds_of_runs
from tests.fake_runs import fake_run


def test_other_arguments_of_the_environment_are_another_curve(tmp_path):
    runs = []
    for name, arguments in (("a", {"capacity": 10}), ("b", {"capacity": 20}), ("c", {"capacity": 20})):
        runs.append(fake_run(tmp_path / name, [1.0], seed=len(runs)))
        config = json.loads((tmp_path / name / "config.json").read_text())
        (tmp_path / name / "config.json").write_text(json.dumps({**config, "env_kwargs": arguments}))
    assert {curve.name: len(curve.runs) for curve in group_runs(runs)} == {
        "ATRPO, env kwargs capacity = 10": 1,
        "ATRPO, env kwargs capacity = 20": 2,
    }


def drawn(runs, tmp_path, monkeypatch):
    """Of each column of the picture: the panels, by the label of their axis, and the words of the legend."""
    columns = []

    def draw_column(column, *about):
        _draw_column(column, *about)
        shown = {axis.get_ylabel(): axis for axis in column if axis.axison}
        legends = [axis.get_legend() for axis in column if axis.get_legend() is not None]
        columns.append((shown, [text.get_text() for legend in legends for text in legend.get_texts()]))

    monkeypatch.setattr(plots, "_draw_column", draw_column)
    plot([run.path for run in runs], tmp_path / "curve.svg")
    return columns


def test_seeds_are_one_curve_and_any_other_setting_is_another(tmp_path):
    runs = [
        fake_run(tmp_path / "a", [1.0, 2.0], seed=0),
        fake_run(tmp_path / "b", [3.0, 6.0], seed=1, threads=7),
        fake_run(tmp_path / "c", [5.0], delta=0.05),
        fake_run(tmp_path / "d", [5.0], algorithm="trpo"),
    ]
    curves = group_runs(runs)
    assert {curve.name: len(curve.runs) for curve in curves} == {
        "ATRPO, delta 0.02": 2,
        "ATRPO, delta 0.05": 1,
        "TRPO γ = 0.99, delta 0.02": 1,
    }
    steps, values = _shared([quantities(runs)[0].of(run) for run in curves[0].runs])
    assert steps.tolist() == [100, 200]
    assert values.tolist() == [[1.0, 2.0], [3.0, 6.0]]


def test_a_setting_that_differs_on_one_environment_is_named_on_all(tmp_path):
    """What differs only between environments is not: a longer run on a harder task is the same kind."""
    runs = [
        fake_run(tmp_path / "a", [1.0], reset_cost=10.0, steps=100),
        fake_run(tmp_path / "b", [1.0], reset_cost=50.0, steps=100),
        fake_run(tmp_path / "c", [1.0], env="Crawl-v0", reset_cost=50.0, steps=300, delta=0.05),
    ]
    assert [(curve.env, curve.name) for curve in group_runs(runs)] == [
        ("Walk-v0", "ATRPO, reset cost 10.0"),
        ("Walk-v0", "ATRPO, reset cost 50.0"),
        ("Crawl-v0", "ATRPO, reset cost 50.0"),
    ]


def test_a_directory_of_runs_is_its_runs(tmp_path):
    """In the order of a sweep, if it is one; a run that is named again is there once."""
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    with pytest.raises(UserError, match="not a run directory"):
        open_runs(sweep)
    for name in ("x-10", "x-9"):
        fake_run(sweep / name, [1.0])
    (sweep / "figures").mkdir()
    assert [run.path.name for run in open_runs([sweep, sweep / "x-9"])] == ["x-10", "x-9"]
    plan = {"format": 1, "common": {}, "runs": [{"name": f"x-{n}", "arm": "x", "differs": {}} for n in (9, 10, 11)]}
    (sweep / "sweep.json").write_text(json.dumps(plan))
    assert [run.path.name for run in open_runs(str(sweep))] == ["x-9", "x-10"]
    for name in ("x-9", "x-10"):
        (sweep / name).rename(tmp_path / name)
    with pytest.raises(UserError, match="None of the 3 runs"):
        open_runs(sweep)


def test_words_of_a_legend(tmp_path):
    runs = [fake_run(tmp_path / "a", [1.0]), fake_run(tmp_path / "b", [1.0], algorithm="trpo", episodic=True, cut=0)]
    assert [curve.name for curve in group_runs(runs)] == ["ATRPO, cut 1,000", "TRPO γ = 0.99, cut 0, episodic"]


def test_every_seed_is_drawn_beside_the_mean(tmp_path):
    from matplotlib.figure import Figure

    runs = [fake_run(tmp_path / str(seed), [1.0, seed], seed=seed) for seed in (2, 4, 9)]
    axis = Figure().subplots()
    _draw(axis, group_runs(runs), quantities(runs)[0], ["ATRPO"])
    assert sorted(line.get_ydata()[-1] for line in axis.lines) == [2, 4, 5, 9]


def test_a_kind_of_run_has_one_colour_in_every_column_and_a_longer_one_is_dashed(tmp_path, monkeypatch):
    fake_run(tmp_path / "a", [1.0, 2.0], env="Crawl-v0", algorithm="trpo")
    fake_run(tmp_path / "b", [1.0, 2.0], steps=100)
    fake_run(tmp_path / "c", [1.0, 2.0], steps=200)
    fake_run(tmp_path / "d", [1.0, 2.0], steps=200, algorithm="trpo")
    looks = {}

    def draw(axis, curves, quantity, *about):
        _draw(axis, curves, quantity, *about)
        lines = zip(curves, axis.lines, strict=True)
        looks.update({curve.runs[0].path.name: (line.get_color(), line.get_linestyle()) for curve, line in lines})

    monkeypatch.setattr("kemeny.experiments.plots._draw", draw)
    plot([tmp_path / name for name in "abcd"], tmp_path / "curve.svg")
    first, second = COLORS[:2]
    assert looks == {"a": (first, "-"), "b": (second, "-"), "c": (second, "--"), "d": (first, "-")}


def test_a_run_that_is_named_twice_is_one_seed(tmp_path, monkeypatch):
    fake_run(tmp_path / "a", [1.0])
    drawn = []

    def draw(axis, curves, *about):
        drawn.append(curves)
        _draw(axis, curves, *about)

    monkeypatch.setattr("kemeny.experiments.plots._draw", draw)
    plot([tmp_path / "a", tmp_path / "b" / ".." / "a"], tmp_path / "curve.svg")
    assert [len(curve.runs) for curves in drawn for curve in curves] == [1]


def test_each_cost_has_a_row_of_its_own(tmp_path):
    limited = {"algorithm": "acpo", "cost": ["speed", "heat"], "limit": [2.0, 3.0]}
    runs = [fake_run(tmp_path / "a", [1.0], costs=[1.5, 9.0], **limited), fake_run(tmp_path / "b", [1.0])]
    returns, speed, heat = quantities(runs)
    assert (speed.label, heat.label) == ("speed per step, mean action", "heat per step, mean action")
    assert [quantity.of(runs[0]) for quantity in (returns, speed, heat)] == [{100: 1.0}, {100: 1.5}, {100: 9.0}]
    assert [quantity.of(runs[1]) for quantity in (returns, speed, heat)] == [{100: 1.0}, {}, {}]
    plot([run.path for run in runs], tmp_path / "curve.svg")
    assert "ACPO, speed ≤ 2, heat ≤ 3" in [curve.name for curve in group_runs(runs)]


def test_a_cost_with_exploration_has_a_row_of_its_own(tmp_path, monkeypatch):
    """For that policy training keeps the limit."""
    run = fake_run(tmp_path / "a", [], algorithm="acpo", cost=["speed"], limit=[2.0])
    record = {"steps": 100, "returns_1000": [1.0], "average_costs": [[3.0]], "exploring_costs": [[1.5]]}
    (run.path / "evaluations.jsonl").write_text(json.dumps(record) + "\n")
    ((panels, _),) = drawn([run], tmp_path, monkeypatch)
    heights = {name: [line.get_ydata() for line in axis.lines] for name, axis in panels.items()}
    assert {name: [values[0] for values in lines if len(values)] for name, lines in heights.items()} == {
        "return, at most 1,000 steps": [1.0],
        "speed per step, mean action": [3.0, 2.0],
        "speed per step, with exploration": [1.5, 2.0],
    }


def test_a_cost_is_found_by_its_name_in_whatever_place_it_was_given(tmp_path):
    speed_first = {"algorithm": "acpo", "cost": ["speed", "heat"], "limit": [2.0, 3.0]}
    heat_only = {"algorithm": "acpo", "cost": ["heat"], "limit": [3.0]}
    runs = [
        fake_run(tmp_path / "a", [1.0], costs=[1.5, 9.0], **speed_first),
        fake_run(tmp_path / "b", [1.0], costs=[8.0], **heat_only),
    ]
    _, speed, heat = quantities(runs)
    assert [speed.of(run) for run in runs] == [{100: 1.5}, {}]
    assert [heat.of(run) for run in runs] == [{100: 9.0}, {100: 8.0}]


def test_no_panel_is_empty_and_no_curve_is_missing_in_the_legend(tmp_path, monkeypatch):
    """Two algorithms on one environment, limits on another, and a run that has not been evaluated yet."""
    limited = {"algorithm": "acpo", "cost": ["speed"], "limit": [2.0], "env": "Crawl-v0"}
    runs = [
        *(fake_run(tmp_path / f"a{n}", [1.0, n], rates=[0.1, 0.2], seed=n) for n in (1, 2)),
        fake_run(tmp_path / "b", [1.0, 3.0], algorithm="trpo"),
        fake_run(tmp_path / "c", [], rates=[0.3, 0.4], algorithm="trpo", gamma=0.9),
        fake_run(tmp_path / "d", [1.0, 2.0], costs=[1.5], **limited),
    ]
    (crawl, crawl_legend), (walk, walk_legend) = drawn(runs, tmp_path, monkeypatch)
    assert list(walk) == ["return, at most 1,000 steps", "ρ̂, reward per step in training"]
    assert list(crawl) == ["return, at most 1,000 steps", "speed per step, mean action"]
    assert all(axis.lines for panels in (walk, crawl) for axis in panels.values())
    assert walk_legend == ["ATRPO (2 seeds)", "TRPO γ = 0.99 (1 seed)", "TRPO γ = 0.9 (1 seed)"]
    assert crawl_legend == ["ACPO, speed ≤ 2 (1 seed)", "limit"]


def test_the_rate_is_a_point_per_iteration_or_the_mean_of_a_few(tmp_path):
    rates = [0.1, 0.3, 0.5, None, 0.7]
    short = fake_run(tmp_path / "a", [], rates=rates, steps=1_000, batch_size=50)
    long = fake_run(tmp_path / "b", [], rates=[0.1, 0.3, 0.5, 0.6, 0.7], steps=20_000, batch_size=50)
    (rate,) = quantities([short, long])
    assert rate.of(short) == {50: 0.1, 100: 0.3, 150: 0.5, 250: 0.7}
    assert rate.of(long) == pytest.approx({100: 0.2, 200: 0.55, 250: 0.7})


def test_seeds_that_were_never_evaluated_at_the_same_step_are_drawn_all_the_same(tmp_path, monkeypatch):
    runs = [fake_run(tmp_path / "a", [1.0, 2.0], seed=0), fake_run(tmp_path / "b", [], seed=1)]
    (runs[1].path / "evaluations.jsonl").write_text('{"steps": 150, "returns_1000": [3.0]}\n')
    (((panel,), legend),) = [(list(panels.values()), words) for panels, words in drawn(runs, tmp_path, monkeypatch)]
    assert [list(line.get_ydata()) for line in panel.lines] == [[], [1.0, 2.0], [3.0]]
    assert legend == ["ATRPO (2 seeds)"]


def test_each_limit_is_a_line_in_the_units_of_its_panel(tmp_path, monkeypatch):
    """The limit of cpo is on a discounted sum: divided by 1/(1−γ) it is one per step."""
    average = {"algorithm": "acpo", "cost": ["speed", "heat"], "limit": [2.0, 3.0]}
    discounted = {"algorithm": "cpo", "gamma": 0.9, "cost": ["speed"], "limit": [15.0]}
    runs = [
        fake_run(tmp_path / "a", [1.0, 2.0], costs=[1.5, 9.0], **average),
        fake_run(tmp_path / "b", [1.0, 2.0], costs=[1.0], **discounted),
    ]
    ((panels, legend),) = drawn(runs, tmp_path, monkeypatch)

    def limits(axis):
        lines = [line for line in axis.lines if line.get_linestyle() == ":" and len(line.get_ydata())]
        return [(round(line.get_ydata()[0], 9), line.get_color()) for line in lines]

    assert limits(panels["speed per step, mean action"]) == [(2.0, COLORS[0]), (1.5, COLORS[1])]
    assert limits(panels["heat per step, mean action"]) == [(3.0, "black")]
    assert limits(panels["return, at most 1,000 steps"]) == []
    assert legend == ["ACPO, speed ≤ 2, heat ≤ 3 (1 seed)", "CPO γ = 0.9, speed ≤ 15 (1 seed)", "limit"]


def test_nothing_to_draw(tmp_path):
    with pytest.raises(UserError, match="nothing to draw"):
        plot([fake_run(tmp_path / "a", []).path], tmp_path / "curve.png")


def test_a_deviation_that_is_not_given_is_the_algorithms_own(tmp_path):
    own = fake_run(tmp_path / "a", [1.0], algorithm="atrpo", log_std=-0.5)
    other = fake_run(tmp_path / "b", [1.0], algorithm="atrpo", log_std=-1.0)
    left_open = fake_run(tmp_path / "c", [1.0], algorithm="atrpo", log_std=None)
    shown = {curve.name: curve.runs for curve in group_runs([own, other, left_open])}
    assert shown == {"ATRPO, log std -0.5": [own, left_open], "ATRPO, log std -1.0": [other]}
    limited = fake_run(tmp_path / "d", [1.0], algorithm="acpo", cost=["speed"], limit=[2.0], log_std=None)
    assert [curve.name for curve in group_runs([other, limited])] == ["ATRPO", "ACPO, speed ≤ 2"]


def test_a_costs_lambda_that_is_not_given_is_the_rewards_and_says_nothing_without_costs(tmp_path):
    limits = {"algorithm": "acpo", "cost": ["speed"], "limit": [2.0], "gae_lambda": 0.8}
    given = {"same": 0.8, "other": 0.95, "open": None}
    same, other, left_open = (
        fake_run(tmp_path / name, [1.0], cost_gae_lambda=lam, **limits) for name, lam in given.items()
    )
    shown = {curve.name: curve.runs for curve in group_runs([same, other, left_open])}
    assert shown == {
        "ACPO, speed ≤ 2, cost gae lambda 0.8": [same, left_open],
        "ACPO, speed ≤ 2, cost gae lambda 0.95": [other],
    }
    runs = [fake_run(tmp_path / name, [1.0], cost_gae_lambda=lam) for name, lam in (("a", 0.95), ("b", None))]
    assert [curve.name for curve in group_runs(runs)] == ["ATRPO"]
    runs = [fake_run(tmp_path / str(lam), [1.0], gae_lambda=lam) for lam in (0.8, 0.95)]
    assert [curve.name for curve in group_runs(runs)] == ["ATRPO, gae lambda 0.8", "ATRPO, gae lambda 0.95"]
    assert [curve.name for curve in group_runs([runs[0], left_open])] == ["ATRPO", "ACPO, speed ≤ 2"]


def test_a_critics_lambda_is_named_where_it_is_its_own(tmp_path):
    given = {"open": None, "meant": 0.95, "other": 0.9}
    runs = [fake_run(tmp_path / name, [1.0], gae_lambda="auto", critic_gae_lambda=lam) for name, lam in given.items()]
    shown = {curve.name: curve.runs for curve in group_runs(runs)}
    assert shown == {"ATRPO": runs[:2], "ATRPO, critic gae lambda 0.9": runs[2:]}


def test_settings_of_the_other_policy_step_say_nothing(tmp_path):
    natural = [fake_run(tmp_path / name, [1.0], policy_epochs=n) for name, n in (("a", 3), ("b", 10))]
    clipped = [fake_run(tmp_path / name, [1.0], step="clip", damping=d) for name, d in (("c", 0.1), ("d", 0.5))]
    shown = {curve.name: len(curve.runs) for curve in group_runs([*natural, *clipped])}
    assert shown == {"ATRPO, step natural": 2, "ATRPO, step clip": 2}
    assert [curve.name for curve in group_runs(natural)] == ["ATRPO"]
    assert [curve.name for curve in group_runs(clipped)] == ["ATRPO"]
    kfac, projected = (
        [fake_run(tmp_path / f"{step} {decay}", [1.0], step=step, factor_decay=decay) for decay in (0.5, 0.9)]
        for step in ("kfac", "project")
    )
    assert [curve.name for curve in group_runs(kfac)] == ["ATRPO, factor decay 0.5", "ATRPO, factor decay 0.9"]
    assert [curve.name for curve in group_runs(projected)] == ["ATRPO"]


def test_a_run_of_an_older_kemeny_is_on_the_same_curve(tmp_path):
    """Its config.json has old names, and lacks what was no setting then."""
    new, old = (fake_run(tmp_path / name, [1.0], seed=seed) for seed, name in enumerate("ab"))
    config = json.loads((old.path / "config.json").read_text())
    settings = config["settings"]
    settings["rate"], settings["critic_rate"] = settings.pop("rate_by"), settings.pop("critic_step_size")
    for name in ("step", "activation", "clip_ratio", "policy_step_size", "policy_epochs", "policy_minibatch"):
        del settings[name]
    (old.path / "config.json").write_text(json.dumps(config))
    assert {curve.name: len(curve.runs) for curve in group_runs([new, old])} == {"ATRPO": 2}


def test_the_band_is_an_interval_or_one_deviation(tmp_path):
    from matplotlib.figure import Figure

    runs = [fake_run(tmp_path / str(seed), [0.0, seed], seed=seed) for seed in (0, 10, 20, 30, 500)]
    edges = {}
    for band in ("iqm", "deviation"):
        axis = Figure().subplots()
        _draw(axis, group_runs(runs), quantities(runs)[0], ["ATRPO"], Manner(band))
        (filled,) = axis.collections
        inner = axis.lines[0].get_ydata()[-1]
        heights = filled.get_paths()[0].vertices[:, 1]
        edges[band] = (heights.min(), inner, heights.max())
    values = np.array([0.0, 10.0, 20.0, 30.0, 500.0])
    assert edges["deviation"] == pytest.approx(
        (values.mean() - values.std(), values.mean(), values.mean() + values.std())
    )
    assert edges["iqm"] == pytest.approx((0.0, 20.0, iqm_interval([values]).high), abs=15)


def test_against_time_seeds_are_joined_by_straight_lines(tmp_path):
    """One seed is twice as fast as the other: it is drawn over the time that both have."""
    runs = []
    for seed, slower in enumerate((1, 2)):
        runs.append(fake_run(tmp_path / str(seed), [10.0, 20.0, 40.0], seed=seed))
        metrics = [{"steps": 100 * n, "seconds": 60 * slower * n, "outcome": 0} for n in (1, 2, 3)]
        (runs[-1].path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    returns = quantities(runs)[0]
    tables = [_by_time(run, returns.of(run), "minutes") for run in runs]
    assert tables == [{1: 10.0, 2: 20.0, 3: 40.0}, {2: 10.0, 4: 20.0, 6: 40.0}]
    minutes, values = _shared(tables, "time")
    assert minutes.tolist() == [2, 3]
    assert values.tolist() == [[20.0, 40.0], [10.0, 15.0]]
    figure = plot(runs, tmp_path / "curve.pdf", against="time", rows=["return"])
    assert [axis.get_xlabel() for axis in figure.axes] == ["minutes of training"]


def test_a_profile_is_the_share_of_runs_above(tmp_path):
    for seed, value in enumerate((1.0, 2.0, 4.0)):
        fake_run(tmp_path / f"a{seed}", [0.0, value], seed=seed)
        fake_run(tmp_path / f"b{seed}", [0.0, 10 * value], seed=seed, env="Crawl-v0")
        fake_run(tmp_path / f"c{seed}", [0.0, value], seed=seed, algorithm="trpo")
        fake_run(tmp_path / f"d{seed}", [0.0, 20 * value], seed=seed, env="Crawl-v0", algorithm="trpo")
    figure = plot(tmp_path, tmp_path / "profile.svg", kind="profile")
    crawl, walk, both = figure.axes
    assert [axis.get_title() for axis in figure.axes] == ["Crawl-v0", "Walk-v0", "all tasks, normalised"]
    places, shares = walk.lines[0].get_data()
    assert np.interp([0.95, 1.5, 3.0, 4.1], places, shares) == pytest.approx([1, 2 / 3, 1 / 3, 0])
    assert {text.get_text() for text in crawl.get_legend().get_texts()} == {"ATRPO", "TRPO γ = 0.99"}
    assert len(both.lines) == 2
    with pytest.raises(UserError, match="those of learning curves"):
        plot(tmp_path, kind="profile", band="deviation")


def test_the_speed_of_a_trajectory(constrained_run, tiny_run):
    speed = speed_of(constrained_run, max_steps=30)
    again = speed_of(constrained_run, max_steps=20)
    assert len(speed) == 30
    assert speed[:20].tolist() == again.tolist()
    plain = kemeny.evaluate(constrained_run, trajectories=1, max_steps=30, returns_only=True)
    assert np.abs(speed).mean() == pytest.approx(plain.average_costs[0, -1])
    figure = draw_speeds({"a": speed, "b": np.ones(500)}, longest=500)
    assert [axis.get_title(loc="left") for axis in figure.axes][1] == "b: goes on to the end, 1.00 on average"
    assert "falls after 30 steps" in figure.axes[0].get_title(loc="left")
    with pytest.raises(UserError, match="has no forward speed"):
        plot(tiny_run, kind="speed")
    with pytest.raises(UserError, match="name at most 12"):
        speeds_of_runs([constrained_run] * 13)


def test_the_same_picture_is_the_same_file(tmp_path):
    """So that a picture in a repository changes only if its runs do."""
    run = fake_run(tmp_path / "a", [1.0, 2.0])
    for ending in ("svg", "pdf"):
        first, second = (tmp_path / f"{n}.{ending}" for n in (1, 2))
        plot(run, first)
        plot(run, second)
        assert first.read_bytes() == second.read_bytes(), ending
