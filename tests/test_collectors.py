"""Several collectors: where they are, and whether one of them is lost, changes no bit of a batch."""

import functools
import os
import signal

import numpy as np
import pytest

import kemeny
from kemeny.envs.settings import Simulation
from kemeny.errors import RunError, UserError
from kemeny.experience.collect import Collector
from kemeny.experience.elsewhere import Process
from kemeny.experience.part import Part, shares
from kemeny.experience.settings import Task
from tests.conftest import TINY
from tests.envs.toys import Counter, Faulty
from tests.faults import compare
from tests.probes import policy_for
from tests.test_check import Hears

RUN = {"env": Counter, "task": Task(cut=11), "batch_length": 4, "seed": 3, "costs": ()}
SIZES = {"num_envs": 5, "batch_length": 30, "seed": 3}
TASKS = {"continuing": Task(cut=11), "episodic": Task(episodic=True)}
FALLS = functools.partial(Counter, falls_at=7)
POLICY = policy_for(3, 1)


def same(first, second):
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def lose(collector, number):
    """Kill the process of a collector."""
    member = collector.crew.members[number]
    assert isinstance(member, Process)
    os.kill(member.worker.process.pid, signal.SIGKILL)
    member.worker.process.wait()


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
def test_a_collector_that_is_lost_is_replaced_and_no_bit_changes(task):
    env, policy = FALLS, POLICY
    calm = Collector(env, task, **SIZES, collectors=2)
    hears = Hears()
    hurt = Collector(env, task, **SIZES, collectors=2, observer=hears)
    for iteration in range(4):
        if iteration in (0, 3):
            lose(hurt, iteration % 2)
        same(calm.roll_out(policy, iteration), hurt.roll_out(policy, iteration))
    assert calm.falls == hurt.falls > 0
    assert len(hears.said) == 2
    assert hears.said[0].startswith("Collector 0 (environments 0–2) died with exit code -9, SIGKILL. Another takes")
    snapshots = calm.snapshot(), hurt.snapshot()
    assert snapshots[0].keys() == snapshots[1].keys()
    same(snapshots[0].values(), snapshots[1].values())
    resumed = Collector(env, task, **SIZES, collectors=2, snapshot=snapshots[0])
    same(calm.roll_out(policy, 4), resumed.roll_out(policy, 4))
    for collector in (calm, hurt, resumed):
        collector.close()


def test_each_environment_is_the_same_in_whichever_collector_it_is():
    """Its start and its phase depend on its number, not on its company."""
    whole = Part(shares(1, 5, Simulation(), **RUN)[0])
    parts = [Part(share) for share in shares(3, 5, Simulation(), **RUN)]
    for part in (whole, *parts):
        part.begin()
    for name in ("observation", "clock"):
        together = np.concatenate([part.standing()[name] for part in parts])
        np.testing.assert_array_equal(whole.standing()[name], together)
    assert [part.share.first_shard for part in parts] == [0, 2, 4]


def test_what_goes_wrong_in_a_collector_is_said_here():
    collector = Collector(functools.partial(Faulty, "raise", at=4), Task(), **SIZES, collectors=2)
    with pytest.raises(RunError, match=r"Environment \d.*the wheel came off"):
        collector.roll_out(policy_for(3, 1), 0)
    collector.close()


def test_a_run_with_collectors_resumes_exactly(tmp_path):
    settings = {**TINY, "collectors": 2, "eval_every": 200, "checkpoint_every": 200}
    whole = kemeny.train("InvertedPendulum-v5", out=tmp_path / "whole", **settings)
    stopped = kemeny.train(
        "InvertedPendulum-v5", out=tmp_path / "stopped", **settings, callback=lambda record: record["steps"] == 400
    )
    assert stopped.steps == 400
    compare(whole.path, kemeny.resume(stopped.path).path)


def test_more_collectors_than_environments(tmp_path):
    with pytest.raises(UserError, match=r"5 collectors \(--collectors\) cannot share 4 environments"):
        kemeny.train("InvertedPendulum-v5", out=tmp_path / "run", **TINY, collectors=5)
