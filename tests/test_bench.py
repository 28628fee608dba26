"""`kemeny bench`: that its numbers are of what they say, on budgets far too small to say how fast anything is."""

import dataclasses
import itertools
import json
import threading
import time
import types

import envpool
import gymnasium
import numpy as np
import pytest

from kemeny.experiments import bench
from kemeny.observers import Observer
from kemeny.runs.settings import from_flat
from tests.test_cli import kemeny

TINY = {"num_envs": 4, "batch_size": 1000, "hidden": (8,), "eval_max_steps": 30}
SECONDS = 0.1
ENVS = {"CartPole-v1": "EnvPool", "GymnasiumPendulum-v0": "Gymnasium"}


@pytest.fixture(scope="module")
def results():
    """Discrete actions and falls; continuous actions, and an environment that EnvPool does not have."""
    gymnasium.register("GymnasiumPendulum-v0", entry_point="gymnasium.envs.classic_control:PendulumEnv")
    lines = []
    yield bench.measure(tuple(ENVS), 2, SECONDS, TINY, lines.append), lines
    del gymnasium.registry["GymnasiumPendulum-v0"]


def test_speeds(results):
    measured, lines = results
    assert [one.env for one in measured.environments] == list(ENVS)
    for one in measured.environments:
        assert len(one.ceiling) == len(one.loop) == len(one.share) == 2
        assert min(one.ceiling) > 0
        assert min(one.loop) > 0
        np.testing.assert_allclose(one.share, np.divide(one.loop, one.ceiling))
        assert len(one.asynchronous) == len(one.share_of_asynchronous) == (2 if one.simulator == "EnvPool" else 0)
        if one.asynchronous:
            assert min(one.asynchronous) > 0
            np.testing.assert_allclose(one.share_of_asynchronous, np.divide(one.loop, one.asynchronous))
    assert sum("steps/s" in line for line in lines) == 2 * len(ENVS)


def test_parts_add_up_to_the_loop(results):
    for one in results[0].environments:
        for profile in (one.profile, one.in_turn):
            assert profile.ms.keys() == bench.PARTS.keys()
            assert min(profile.ms.values()) >= 0
            assert profile.total == pytest.approx(sum(profile.ms.values()))
        for part in ("simulate", "act", "store", "step", "logging", "checkpoints", "rest"):
            assert one.profile.ms[part] > 0, part
        assert one.profile.evaluation_ms > 0
        assert len(one.profile.evaluation_lengths) == 10
        assert max(one.profile.evaluation_lengths) <= 30


def test_the_table_has_one_column_per_environment_and_one_row_per_part(results):
    text = bench.tables(results[0])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    heads = ["environment", "simulator", "its ceiling", "asynchronous ceiling", "whole loop of `kemeny train`"]
    assert rows[0] == [*heads, "share of the ceiling", "share of the asynchronous ceiling"]
    for row, one in zip(rows[2:4], results[0].environments, strict=True):
        assert len(row) == len(rows[0])
        assert (row[3] == "–") == (row[6] == "–") == (one.simulator != "EnvPool")
        assert row[5].startswith(f"{np.median(one.share):.2f} (")
    assert [tuple(row[:2]) for row in rows[2:4]] == list(ENVS.items())
    assert rows[4] == ["", *ENVS]
    assert all(len(row) == 1 + len(ENVS) for row in rows[4:])
    parts = rows[6 : 6 + len(bench.PARTS)]
    assert [row[0] for row in parts] == list(bench.PARTS.values())
    for column in range(1, 1 + len(ENVS)):
        shares = [float(row[column].split("(")[1].strip("%)")) for row in parts]
        assert sum(shares) == pytest.approx(100, abs=0.5 * len(shares))


def test_without_overlap_the_critics_are_waited_for(results):
    for one in results[0].environments:
        assert one.in_turn.ms["step"] + one.in_turn.ms["critics"] > 1  # a hundred minibatches


class Delays(Observer):
    """Sleeps at the beginning of some phases: as if what happens there were slow."""

    def __init__(self, seconds):
        self.seconds = seconds

    def begin(self, phase, *about):
        time.sleep(self.seconds.get(phase, 0))


def test_what_is_slow_shows_as_slow():
    """Each part is the time of what it is named for: delays are found again where they were put."""
    delay = 0.03
    long = 20 * delay  # far above what a busy machine may take to hand a checkpoint over
    delays = dict.fromkeys(("update", "collect", "log", "policy", "critics", "evaluate"), delay) | {"save": long}
    profile = bench.profile("Pendulum-v1", TINY, bench.FEWEST_BATCHES, observers=[Delays(delays)])
    once = 1e3 * delay
    rarely = TINY["batch_size"] / from_flat(TINY).checkpoint_every
    for part, ms in {"step": 2 * once, "store": once, "logging": once, "critics": once}.items():
        assert profile.ms[part] > ms, part
    assert profile.ms["checkpoints"] < rarely * 1e3 * long < profile.checkpoints_beside_ms
    assert profile.evaluation_ms > rarely * once


def test_the_parts_of_every_single_step():
    delay = 1e-3
    steps = 2 * from_flat(TINY).batch_length  # of two shards
    profile = bench.profile("Pendulum-v1", TINY, bench.FEWEST_BATCHES, observers=[Delays({"act": delay})])
    assert profile.ms["act"] > 1e3 * delay * steps


def test_a_stopwatch_counts_the_inner_part_alone():
    watch = bench.Stopwatch()

    def collect():
        watch.begin("collect")
        watch.begin("simulate")
        time.sleep(0.02)
        watch.end("simulate")
        time.sleep(0.01)
        watch.end("collect")

    watch.begin("evaluate")
    watch.begin("append")  # belongs to what is around it
    time.sleep(0.03)
    watch.end("append")
    watch.end("evaluate")
    collect()
    thread = threading.Thread(target=collect)
    thread.start()
    thread.join()
    before, lap = watch.laps[0], watch.lap()
    assert before["evaluation"] >= 0.03
    assert lap["simulate"] >= 0.02
    assert lap["store"] >= 0.01
    assert lap["rest"] >= 0.03  # waiting for the thread
    assert watch.beside("simulate") >= 0.02
    assert watch.beside("store") >= 0.01
    assert watch.beside("evaluation") == 0
    assert sum(watch.lap().values()) < 0.01


@pytest.mark.parametrize("num_envs", [1, 5])
def test_the_ceiling_of_pools_of_any_size(num_envs):
    assert bench.ceiling("HalfCheetah-v3", SECONDS, from_flat({"num_envs": num_envs, "threads": 1}), 0) > 0


def test_the_asynchronous_ceiling_counts_steps_and_no_restarts(monkeypatch):
    """An environment's row is a restart if it is its first, or if the row before it was an end."""
    pools, ticks = [], itertools.count()

    class Recording:
        """EnvPool, with a list of which environments came and which of them had ended."""

        def __init__(self, *args, **kwargs):
            self.options, self.pool, self.batches = kwargs, make(*args, **kwargs), []
            pools.append(self)

        def __getattr__(self, name):
            return getattr(self.pool, name)

        def recv(self):
            row = self.pool.recv()
            self.batches.append((row[4]["env_id"].copy(), row[2] | row[3]))
            return row

    make = envpool.make_gymnasium
    monkeypatch.setattr(envpool, "make_gymnasium", Recording)
    monkeypatch.setattr(bench, "time", types.SimpleNamespace(perf_counter=lambda: next(ticks)))
    speed = bench.asynchronous_ceiling("CartPole-v1", 100, from_flat(TINY), 0)  # one batch per tick
    (pool,) = pools
    assert (pool.options["num_envs"], pool.options["batch_size"]) == (64, 32)
    assert sorted(np.concatenate([ids for ids, _ in pool.batches[:2]])) == list(range(64))
    restart, steps, ends = np.ones(64, bool), [], 0
    for ids, ended in pool.batches:
        steps.append(np.count_nonzero(~restart[ids]))
        restart[ids], ends = ended, ends + np.count_nonzero(ended)
    assert len(steps) == 2 + 99 + 2  # the resets, those on the clock, those under way at the end
    assert speed == sum(steps[2:-2]) / 100
    assert ends > 50


def run(capfd, monkeypatch, *arguments):
    return kemeny(capfd, monkeypatch, "bench", *arguments)


def test_the_command_prints_json_and_writes_the_tables(capfd, monkeypatch, results, tmp_path):
    monkeypatch.setattr(bench, "measure", lambda *args: results[0])
    code, out, _ = run(capfd, monkeypatch, "CartPole-v1", "--json", "-o", tmp_path / "bench.md")
    assert code == 0
    assert json.loads(out) == json.loads(json.dumps(dataclasses.asdict(results[0])))
    assert (tmp_path / "bench.md").read_text() == bench.tables(results[0])
    code, out, _ = run(capfd, monkeypatch, "CartPole-v1")
    assert code == 0
    assert out == bench.tables(results[0])


MISTAKES = {
    "unknown environment": (["HalfCheeta-v3"], "HalfCheetah-v3"),
    "the second is unknown": (["CartPole-v1", "HalfCheeta-v3"], "HalfCheetah-v3"),
    "no rounds": (["--rounds", "0"], "--rounds must be at least 1"),
    "no time": (["--seconds", "nan"], "--seconds above 0"),
    "uneven batch": (["--num-envs", "7"], "--num-envs 8"),
    "threads": (["--threads", "-1"], "--threads is -1"),
    "nowhere to write": (["-o", "nowhere/bench.md"], "nowhere/bench.md cannot be written"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_a_sentence_before_anything_is_measured(name, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "_measure", lambda *args: pytest.fail("measured"))
    arguments, expected = MISTAKES[name]
    code, out, err = run(capfd, monkeypatch, *arguments)
    assert code == 2
    assert expected in err
    assert not out
    assert not list(tmp_path.iterdir())
