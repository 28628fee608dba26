"""Runs on vector environments: what is collected from them, and how they are resumed."""

import functools

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import kemeny
from kemeny.envs import pool
from kemeny.errors import RunError, UserError
from kemeny.experience import part
from kemeny.experience.collect import Collector
from kemeny.experience.evaluate import evaluate
from kemeny.experience.settings import EvaluationProtocol, Task
from tests.envs.vectors import Cart, Carts, SavedCarts
from tests.probes import policy_for

MODES = list(AutoresetMode)
TASKS = {"continuing": Task(cut=11), "episodic": Task(episodic=True), "dear": Task(cut=40, reset_cost=3.0)}
SIZES = {"num_envs": 5, "batch_length": 40, "seed": 3, "costs": ("cost",)}


def synchronous(mode, cuts_at=None):
    return lambda num_envs: SyncVectorEnv([functools.partial(Cart, cuts_at)] * num_envs, autoreset_mode=mode)


def batches(collector, iterations):
    """What a collector gives, every array of it."""
    seen = []
    for iteration in iterations:
        rollout = collector.roll_out(policy_for(2, 1), iteration)
        seen += [*rollout.signals, *(array for array in rollout if isinstance(array, np.ndarray))]
    return [*seen, np.array([collector.falls])]


@pytest.fixture
def in_one_pool(monkeypatch):
    """Single environments are stepped together too, so that they get the noise of the copies."""
    for module in (pool, part):
        monkeypatch.setattr(module, "sizes_in_turn", lambda env, num_envs, simulation=None: [num_envs])


def assert_same(some, others):
    for one, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_is_that_of_the_environment_unvectorised(mode, task, in_one_pool):
    """Falls, goals, cuts, time-outs and ends: bit for bit, because every restart of every copy has the same seed."""
    vectorised = Collector(synchronous(mode, 17), TASKS[task], **SIZES)
    one_by_one = Collector(functools.partial(Cart, 17), TASKS[task], **SIZES)
    ours, theirs = batches(vectorised, range(3)), batches(one_by_one, range(3))
    assert_same(ours, theirs)
    assert vectorised.falls > 10


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["state", "replay"])
def test_a_snapshot_leads_back(how, mode):
    """By its saved state or, if its copies have seeds of their own, by replaying actions."""
    saved = functools.partial(SavedCarts, mode=mode, noise=0.02, cuts_at=17)
    make = saved if how == "state" else synchronous(mode)
    whole = Collector(make, Task(cut=11), **SIZES)
    batches(whole, range(2))
    snapshot = {name: array.copy() for name, array in whole.snapshot().items()}
    rest = batches(whole, range(2, 4))
    resumed = Collector(make, Task(cut=11), **SIZES, snapshot=snapshot)
    assert_same(rest, batches(resumed, range(2, 4)))
    assert len(snapshot["actions"]) == (0 if how == "state" else snapshot["since_restart"].max())
    assert_same(whole.snapshot().values(), resumed.snapshot().values())


def test_copies_without_a_state_do_not_come_back_exactly():
    said = []

    class Ear(kemeny.Observer):
        def say(self, message):
            said.append(message)

    make = functools.partial(Carts, noise=0.1)
    whole = Collector(make, Task(cut=11), **SIZES, observer=Ear())
    assert "without get_state() and set_state()" in said[0]
    first = batches(whole, range(2))
    snapshot = whole.snapshot()
    with pytest.raises(RunError, match=r"Environment 0 did not come back .* with --inexact"):
        Collector(make, Task(cut=11), **SIZES, snapshot=snapshot)
    resumed = Collector(make, Task(cut=11), **SIZES, snapshot=snapshot, inexact=True, observer=Ear())
    assert said[-1] == "5 environments did not come back to where they were and begin anew."
    again = batches(resumed, [0])
    assert not np.array_equal(again[2][0], first[2][0])  # other start states than at the beginning of the run


def test_a_changed_environment_does_not_come_back():
    whole = Collector(SavedCarts, Task(cut=11), **SIZES)
    batches(whole, [0])
    snapshot = whole.snapshot()

    class Rounded(SavedCarts):
        def get_state(self):
            state = super().get_state()
            return {**state, "state": np.round(state["state"], 3)}

        def set_state(self, state):
            super().set_state({**state, "state": np.round(state["state"], 3)})

        def step(self, actions):
            self.state[:] = np.round(self.state, 3)
            return super().step(actions)

    with pytest.raises(RunError, match="did not come back"):
        Collector(Rounded, Task(cut=11), **SIZES, snapshot=snapshot)


def test_a_run_of_two_halves_is_refused_in_a_sentence(monkeypatch):
    with monkeypatch.context() as older:
        for module in (pool, part):
            older.setattr(module, "sizes_in_turn", lambda env, num_envs, simulation=None: [3, 2])
        snapshot = Collector(SavedCarts, Task(cut=11), **SIZES).snapshot()
    with pytest.raises(UserError, match="An older Kemeny began this run"):
        Collector(SavedCarts, Task(cut=11), **SIZES, snapshot=snapshot)


@pytest.mark.parametrize("mode", MODES)
def test_an_evaluation_is_that_of_the_environment_unvectorised(mode, in_one_pool):
    """Trajectories of different lengths: those that are over take no part."""
    protocol = EvaluationProtocol(eval_trajectories=7, eval_max_steps=60)
    results = [
        evaluate(policy_for(2, 1), env, protocol, seed=4, costs=("cost",), explore=True)
        for env in (synchronous(mode, 50), functools.partial(Cart, 50))
    ]
    np.testing.assert_array_equal(results[0].lengths, results[1].lengths)
    assert_same(results[0].returns.values(), results[1].returns.values())
    np.testing.assert_array_equal(results[0].average_costs, results[1].average_costs)
    assert len(set(results[0].lengths)) > 3


def test_a_run_on_a_vector_environment_resumes_bit_for_bit(tmp_path):
    small = {"steps": 300, "batch_size": 100, "num_envs": 5, "hidden": (4,), "eval_trajectories": 3, "seed": 7}
    small |= {"eval_max_steps": 20, "checkpoint_every": 100, "eval_every": 200}
    make = functools.partial(SavedCarts, noise=0.05)
    whole = kemeny.train(make, out=tmp_path / "whole", **small)
    parts = kemeny.train(make, out=tmp_path / "parts", callback=lambda record: record["steps"] == 100, **small)
    assert len(parts.metrics) < len(whole.metrics)
    parts = kemeny.resume(tmp_path / "parts", env=make)
    records = [[{**line, "seconds": 0} for line in run.metrics + run.evaluations] for run in (whole, parts)]
    assert records[0] == records[1]
    newest = [sorted((run.path / "checkpoints").glob("step-*"))[-1] / "arrays.safetensors" for run in (whole, parts)]
    assert newest[0].read_bytes() == newest[1].read_bytes()
