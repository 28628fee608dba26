"""Comparing runs: the statistics against SciPy's, and what the tables and sentences say."""

import json

import numpy as np
import pytest
import scipy.stats

import kemeny
from kemeny.errors import UserError
from kemeny.experiments import intervals
from kemeny.experiments.intervals import COVERAGE, ENOUGH, improvement, iqm, iqm_interval, least_chance
from tests.fake_runs import fake_run


@pytest.mark.parametrize("count", [1, 3, 4, 7, 10])
def test_the_interquartile_mean_is_the_trimmed_mean(count):
    scores = np.random.default_rng(count).normal(size=(5, count))
    np.testing.assert_allclose(iqm(scores), scipy.stats.trim_mean(scores, 0.25, axis=-1))


def test_the_interval_is_that_of_scipys_bootstrap():
    scores = np.random.default_rng(0).gamma(2.0, size=10)
    found = iqm_interval([scores])
    theirs = scipy.stats.bootstrap(
        (scores,), lambda x, axis: scipy.stats.trim_mean(x, 0.25, axis=axis), method="percentile", rng=1
    ).confidence_interval
    spread = theirs.high - theirs.low
    assert found.low == pytest.approx(theirs.low, abs=0.03 * spread)
    assert found.high == pytest.approx(theirs.high, abs=0.03 * spread)
    assert found == iqm_interval([scores[::-1]]), "the order of the runs matters"


def test_seeds_are_drawn_within_each_task():
    """Tasks of which each has two equal scores: whatever is drawn, the result is the same."""
    assert iqm_interval([[0.0, 0.0], [1.0, 1.0]]) == (0.5, 0.5, 0.5, 2)
    assert iqm_interval([[3.0]]) == (3.0, None, None, 1)


@pytest.mark.parametrize("ties", [False, True])
def test_the_probability_of_improvement_is_mann_and_whitneys(ties):
    random = np.random.default_rng(3)
    first, second = random.normal(0.6, 1, 5), random.normal(0, 1, 7)
    if ties:
        first, second = np.round(first), np.round(second)
    found = improvement([(first, second)])
    theirs = scipy.stats.mannwhitneyu(first, second, method=scipy.stats.PermutationMethod())
    assert found.value == pytest.approx(theirs.statistic / 35)
    assert found.chance == pytest.approx(theirs.pvalue, abs=0.02)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    other = improvement([(second, first)])
    assert other.value == pytest.approx(1 - found.value)


def test_over_tasks_the_probability_of_improvement_is_their_mean():
    found = improvement([([2.0, 2.0], [1.0, 1.0]), ([0.0, 0.0], [0.0, 0.0])])
    assert found[:3] == (0.75, 0.75, 0.75)


@pytest.mark.parametrize(("count", "least"), [(3, 0.1), (4, 0.0286)])
def test_the_least_chance_is_that_of_complete_separation(count, least):
    first, second = np.arange(count) + 10.0, np.arange(count) + 0.0
    assert least_chance([(count, count)]) == pytest.approx(scipy.stats.mannwhitneyu(first, second).pvalue)
    assert improvement([(first, second)]).chance == pytest.approx(least, abs=0.01)
    assert (least < 0.05) == (count >= ENOUGH)


@pytest.mark.parametrize("count", [3, 4, 10])
def test_intervals_cover_as_often_as_the_sentence_says(count, monkeypatch):
    monkeypatch.setattr(intervals, "RESAMPLES", 500)
    random = np.random.default_rng(0)
    found = [iqm_interval([random.normal(size=count)]) for _ in range(2_000)]
    hits = np.mean([one.low <= 0 <= one.high for one in found])  # pyright: ignore[reportOptionalOperand]
    assert hits == pytest.approx(COVERAGE[count], abs=0.03)


def four_seeds(folder, name, values, **changes):
    return [
        fake_run(folder / f"{name}-{seed}", [0.0, value], seed=seed, steps=200, **changes)
        for seed, value in enumerate(values)
    ]


def test_settings_by_tasks(tmp_path):
    """Rows are settings, named by what differs; a task on which runs are longer is still the same setting."""
    walk = four_seeds(tmp_path, "a", [4.0, 5.0, 6.0, 700.0])
    crawl = four_seeds(tmp_path, "b", [10.0, 20.0, 30.0, 40.0], env="Crawl-v0")
    other = four_seeds(tmp_path, "c", [1.0, 2.0, 3.0, 3.5], algorithm="trpo")
    found = kemeny.compare([*walk, *crawl, *other])
    assert (found.tasks, found.settings) == (("Walk-v0", "Crawl-v0"), ("ATRPO", "TRPO γ = 0.99"))
    (table,) = found.tables
    assert table.label == "return, at most 1,000 steps"
    assert {name: {task: cell.value for task, cell in row.items()} for name, row in table.rows.items()} == {
        "ATRPO": {"Walk-v0": 5.5, "Crawl-v0": 25.0},
        "TRPO γ = 0.99": {"Walk-v0": 2.5},
    }
    assert table.overall == {}, "only one setting has both tasks"
    (pair,) = table.pairs
    assert (pair.first, pair.second, pair.overall) == ("ATRPO", "TRPO γ = 0.99", None)
    assert pair.tasks["Walk-v0"].value == 1.0
    assert found.notes == ()
    record = json.loads(json.dumps(found.record()))
    assert record["tables"][0]["improvement"][0]["value"] == 1.0
    assert "| 1: ATRPO | 6 [" in found.markdown()
    assert "1 over 2" in repr(found)


def test_tasks_count_alike_once_scores_are_normalised(tmp_path):
    for name, changes in {"a": {}, "b": {"algorithm": "trpo"}}.items():
        four_seeds(tmp_path, name, [1.0, 2.0, 3.0, 4.0 + len(changes)], **changes)
        four_seeds(tmp_path, f"{name}-crawl", [1e6 * n for n in (1, 2, 3, 4 + len(changes))], env="Crawl-v0", **changes)
    table = kemeny.compare(tmp_path).tables[0]
    assert table.overall["ATRPO"].value == pytest.approx(0.375)
    assert table.pairs[0].overall is not None


def test_sentences_about_what_is_not_certain(tmp_path):
    short = [fake_run(tmp_path / f"a{seed}", [1.0, 2.0], seed=seed, steps=200) for seed in (0, 1)]
    again = fake_run(tmp_path / "again", [1.0, 2.0], seed=0, steps=200, threads=2)
    longer = fake_run(tmp_path / "longer", [1.0, 2.0, 3.0], algorithm="trpo", steps=1_000)
    nothing = fake_run(tmp_path / "nothing", [])
    left_out, unfinished, lengths, few, twice = kemeny.compare([*short, again, longer, nothing]).notes
    assert "no evaluation yet: nothing." in left_out
    assert "1 of 4 runs are not finished" in unfinished
    assert "longer (300 of 1,000 steps)" in unfinished
    assert "setting 1 200, setting 2 1,000" in lengths
    assert "Walk-v0 (settings 1, 2)" in few
    assert "It takes 4 of each setting" in few
    assert "the same seed" in twice
    with pytest.raises(UserError, match="has been evaluated yet"):
        kemeny.compare(nothing)


def test_costs_have_tables_without_a_winner(tmp_path):
    limited = {"algorithm": "acpo", "cost": ["speed"], "limit": [2.0]}
    runs = [fake_run(tmp_path / name, [1.0], costs=[1.5], seed=n, **limited) for n, name in enumerate("ab")]
    other = fake_run(tmp_path / "c", [2.0])
    returns, speed = kemeny.compare([*runs, other]).tables
    assert len(returns.pairs) == 1
    assert (list(speed.rows), speed.pairs) == (["ACPO, speed ≤ 2"], ())
