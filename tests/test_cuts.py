"""Trajectories of two lengths: both are everywhere, all their phases too, and a run goes on with them bit for bit."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import kemeny
from kemeny.envs.settings import Simulation
from kemeny.errors import UserError
from kemeny.experience.collect import Collector
from kemeny.experience.part import cuts, first_phases, shares
from kemeny.experience.settings import Task
from kemeny.experiments.grid import Grid
from kemeny.runs.settings import from_flat
from tests.conftest import TINY
from tests.faults import compare
from tests.probes import Walk, policy_for

ENV = "InvertedPendulum-v5"
TWO = Task(cut=20, long_cut=60)


@pytest.mark.parametrize(("num_envs", "share"), [(20, 0.5), (20, 0.25), (20, 0.9), (7, 0.5), (50, 0.3), (3, 0.4)])
def test_any_neighbours_have_the_mixture_of_all(num_envs, share):
    is_long = cuts(Task(long_cut=10_000, long_share=share), num_envs) == 10_000
    assert is_long.sum() == round(share * num_envs)
    for begin, end in itertools.combinations(range(num_envs + 1), 2):
        assert abs(is_long[begin:end].sum() - is_long.mean() * (end - begin)) < 1


@pytest.mark.parametrize("collectors", [1, 2, 5])
def test_each_shard_of_each_collector_has_both_lengths_alike(collectors):
    is_long = cuts(Task(long_cut=10_000), 20) == 10_000
    run = {"env": Walk, "task": TWO, "batch_length": 5, "seed": 0, "costs": ()}
    divided = shares(collectors, 20, Simulation(), **run)
    ends = np.cumsum([size for share in divided for size in share.shard_sizes])
    assert len(ends) == 2 * collectors
    for shard in np.split(is_long, ends[:-1]):
        assert abs(2 * shard.sum() - len(shard)) <= 1


@pytest.mark.parametrize("longest", [1_000, 300, 5_000, 5_001, 10_000])
def test_a_single_length_has_the_phases_that_it_always_had(longest):
    numbers = np.arange(20)
    expected = numbers * 250 % longest if longest <= 5_000 else numbers * longest // 20
    np.testing.assert_array_equal(first_phases(cuts(Task(cut=longest), 20), 250), expected)


def long_and_short(num_envs, batch_length, batches):
    """Of each length (environments, step of the trajectory at each time, cut at each time)."""
    collector = Collector(Walk, TWO, num_envs=num_envs, batch_length=batch_length, seed=0)
    rollouts = [collector.roll_out(policy_for(2, 1), iteration) for iteration in range(batches)]
    steps = np.concatenate([rollout.observation[:, :, 1] for rollout in rollouts]).astype(int)
    cut = np.concatenate([rollout.cut for rollout in rollouts])
    longest = cuts(TWO, num_envs)
    return {length: (steps[:, longest == length], cut[:, longest == length]) for length in (20, 60)}


def test_over_time_every_phase_of_each_length_is_as_frequent_as_any_other():
    for length, (steps, _) in long_and_short(num_envs=8, batch_length=5, batches=24).items():
        after_the_first = steps[60:]  # which began somewhere on its way
        np.testing.assert_array_equal(np.bincount(after_the_first.ravel()), [4 * 60 // length] * length)


@pytest.mark.parametrize("num_envs", [8, 10])
def test_each_batch_holds_the_phases_of_each_length_as_evenly_as_can_be(num_envs):
    for length, (steps, cut) in long_and_short(num_envs, batch_length=6, batches=30).items():
        for batch in np.split(steps, 30)[10:]:
            often = np.bincount(batch.ravel(), minlength=length)
            assert often.max() - often.min() <= 1
        assert cut.sum(1).max() == 1  # no two of a length are restarted together


def make(snapshot=None, collectors=1):
    task = Task(cut=10, long_cut=45)
    return Collector(
        "Pendulum-v1", task, num_envs=6, batch_length=8, seed=3, collectors=collectors, snapshot=snapshot
    )  # fmt: skip


@pytest.mark.parametrize("collectors", [1, 2])
def test_a_restored_collector_goes_on_bit_for_bit(collectors):
    original, policy = make(collectors=collectors), policy_for(3, 1)
    for iteration in range(10):
        original.roll_out(policy, iteration)
    snapshot = original.snapshot()
    since = snapshot["since_restart"]
    assert since[0::2].max() <= 10 < since[1::2].max() == len(snapshot["actions"]) <= 45
    copy = make(snapshot, collectors)
    for iteration in range(10, 20):
        for expected, got in zip(original.roll_out(policy, iteration), copy.roll_out(policy, iteration), strict=True):
            np.testing.assert_array_equal(got, expected)
    original.close()
    copy.close()


def test_a_run_resumes_exactly(tmp_path):
    settings = {**TINY, "cut": 20, "long_cut": 120, "eval_every": 200, "checkpoint_every": 200}
    whole = kemeny.train("Pendulum-v1", out=tmp_path / "whole", **settings)
    stopped = kemeny.train(
        "Pendulum-v1", out=tmp_path / "stopped", **settings, callback=lambda record: record["steps"] == 400
    )
    assert stopped.steps == 400
    compare(whole.path, kemeny.resume(stopped.path).path)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"long_cut": 1_000}, "must be the longer ones: --long-cut 1000, --cut 1000"),
        ({"long_cut": 2}, "--long-cut is 2; it must be at least 3"),
        ({"long_cut": 10_000, "long_share": 0.02}, r"Of 20 environments, 0 would have long .* \(--long-share 0.02\)"),
        ({"long_cut": 10_000, "long_share": 1}, "Of 20 environments, 20 would have long trajectories"),
        ({"long_cut": 10_000, "num_envs": 1}, "Of 1 environments, 0 would have long trajectories"),
        ({"long_cut": 10_000, "long_share": 1.5}, "--long-share is 1.5; it must be between 0 and 1"),
        ({"long_cut": "long"}, "The setting long_cut is 'long'; it must be a whole number"),
    ],
)
def test_bad_input_gets_a_sentence(given, sentence):
    with pytest.raises(UserError, match=sentence):
        from_flat(given).check()


def test_a_sweep_may_have_both_cuts_in_any_order():
    """A long cut below the default of --cut is no mistake where --cut is shorter."""
    grid = Grid.of({"env": ENV, "long_cut": [500, None], "long_share": 0.3, "cut": 100})
    first, second = grid.runs()
    assert (first.settings.task.long_cut, second.settings.task.long_cut) == (500, None)
    assert "--long-cut=500" in first.command(Path("run"))
