"""What is trained is what is run: limits for the policy as it is deployed, and a policy that acts as it is meant to."""

import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest

import kemeny
from kemeny.criterion import Discounted
from kemeny.envs.settings import Simulation
from kemeny.errors import UserError
from kemeny.experience.deployed import Deployed
from kemeny.experience.settings import Deployment, Task
from kemeny.learning.learner import init
from kemeny.learning.update import update
from kemeny.observers import NOBODY
from kemeny.runs import checkpoint
from kemeny.runs.settings import from_flat
from tests.conftest import TINY
from tests.faults import compare
from tests.probes import Push, policy_for
from tests.test_best import found
from tests.test_learner import BOX, SMALL, random_batch

LIMITED = {"algorithm": "acpo", "cost": "cost", "limit": 1.0}
PUSH = {
    **LIMITED,
    "steps": 24_000,
    "batch_size": 800,
    "num_envs": 8,
    "cut": 40,
    "hidden": (4,),
    "log_std": -0.35,
    "critic_epochs": 1,
    "eval_every": 10**9,
    "eval_max_steps": 20,
    "eval_trajectories": 1,
}
"""σ² is about e^−0.7 = 0.5 at the beginning."""


def idle_at_first():
    return Push(idle=10)


def deployed_cost(run, observation=(1.0,)):
    """μ²: the cost per step of the mean action, once a trajectory has begun."""
    return float(run.policy(np.array(observation))[0] ** 2)


# Limits


def test_the_deployed_policy_ends_at_the_limit(tmp_path):
    """Exploring costs (1 − 10/40)(μ² + σ²), the deployed policy (1 − 10/400) μ²: with a limit of 1, μ² is 1.03."""
    run = kemeny.train(idle_at_first, out=tmp_path / "run", **PUSH)
    assert deployed_cost(run) == pytest.approx(1 / (1 - 10 / 400), abs=0.1)
    last = run.metrics[-1]
    assert last["violation"][0] == pytest.approx(last["cost"][0] + last["deployed_gap"][0] - 1.0, abs=1e-5)


def test_without_the_correction_it_does_not(tmp_path):
    """The exploring policy keeps the limit: 0.75 (μ² + σ²) = 1, so that μ² is 4/3 − σ², wherever σ has gone."""
    run = kemeny.train(idle_at_first, out=tmp_path / "run", **PUSH, deployed_envs=0)
    variance = float(run.policy.distribution(np.ones(1)).std[0] ** 2)
    assert deployed_cost(run) == pytest.approx(4 / 3 - variance, abs=0.1)
    assert abs(deployed_cost(run) - 1.03) > 0.15
    assert "deployed_gap" not in run.metrics[-1]


def test_rare_costs_have_a_longer_memory_of_what_they_are_more_as_deployed():
    assert dataclasses.replace(SMALL, limits=(1.0, 1.0)).gap_memory == (10, 10)
    assert dataclasses.replace(SMALL, limits=(1.0, 1e-4), cost_memory=(1, 20)).gap_memory == (10, 20)


@pytest.mark.parametrize("criterion", [SMALL.criterion, Discounted(0.9)], ids=["average", "discounted"])
def test_a_gap_is_a_limit_that_is_so_much_lower(criterion):
    """In units of the limit: a cost per step that is g more is a discounted sum that is g/(1−γ) more."""
    batch, gap = random_batch(BOX, 0, signals=2), 0.25
    plain = dataclasses.replace(SMALL, criterion=criterion, limits=(0.5 - criterion.slope * gap,))
    corrected = dataclasses.replace(SMALL, criterion=criterion, limits=(0.5,), deployed=True)
    a, b = (init(learner, BOX, jax.random.key(0)) for learner in (plain, corrected))
    deployed = np.array([batch.signals[1].mean() + gap], np.float32)
    (_, one), (after, other) = update(plain, a, batch), update(corrected, b, batch, deployed)
    np.testing.assert_allclose(other.costs.violation, one.costs.violation, atol=1e-5)
    np.testing.assert_allclose(other.step.details.diagnosis.predicted_cost_change,
                               one.step.details.diagnosis.predicted_cost_change, atol=1e-4)  # fmt: skip
    np.testing.assert_allclose(other.deployed.deployed_gap, [gap], atol=1e-6)
    assert one.deployed is None
    assert after.gap is not None


@pytest.mark.exact
def test_no_gap_changes_nothing():
    """Where the deployed policy costs what the exploring one does, the update is that without the correction."""
    batch = random_batch(BOX, 0, signals=2)
    plain = dataclasses.replace(SMALL, limits=(1e6,))
    corrected = dataclasses.replace(plain, deployed=True)
    a, _ = update(plain, init(plain, BOX, jax.random.key(0)), batch)
    deployed = np.array([batch.signals[1].mean()], np.float32)
    b, _ = update(corrected, init(corrected, BOX, jax.random.key(0)), batch, deployed)
    for one, other in zip(jax.tree.leaves(a.policy), jax.tree.leaves(b.policy), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_environments_apart_change_no_bit_of_the_batches(tmp_path):
    """A limit beyond reach: the run with them is the run without them, and both are that without a limit."""
    settings = {**PUSH, "steps": 1_600, "limit": 1e6}
    runs = [
        kemeny.train(Push, out=tmp_path / "with", **settings),
        kemeny.train(Push, out=tmp_path / "without", **settings, deployed_envs=0),
    ]
    free = {name: value for name, value in settings.items() if name not in LIMITED}
    runs.append(kemeny.train(Push, out=tmp_path / "free", **free))
    for name in ("rate", "objective", "kl", "critic_loss"):
        first = [np.ravel(record[name])[0] for record in runs[0].metrics]
        for run in runs[1:]:
            assert [np.ravel(record[name])[0] for record in run.metrics] == first
    assert "deployed_cost" in runs[0].metrics[0]
    assert not {"deployed_cost", "deployed_gap"} & runs[2].metrics[0].keys()
    names = [set(checkpoint.latest(run.path).arrays) for run in runs]
    assert any(name.startswith(("gap/", "collector/deployed/")) for name in names[0])
    assert not any(name.startswith(("gap/", "collector/deployed/")) for name in names[1] | names[2])


@pytest.mark.parametrize(
    "more", [{}, {"collectors": 2}, {"pipeline": True, "reuse": 2}], ids=["one", "two", "pipeline"]
)
def test_a_run_with_a_gap_resumes_exactly(more, tmp_path):
    settings = {**TINY, **LIMITED, "cost": "jerk", "limit": 0.1, "eval_every": 200, "checkpoint_every": 200, **more}
    env = "InvertedPendulum-v5"
    whole = kemeny.train(env, out=tmp_path / "whole", **settings)
    stopped = kemeny.train(env, out=tmp_path / "stopped", **settings, callback=lambda record: record["steps"] == 400)
    assert stopped.steps == 400
    compare(whole.path, kemeny.resume(stopped.path).path)
    assert whole.metrics[-1]["deployed_cost"] != whole.metrics[-2]["deployed_cost"]


def measure(deployment, env, policy, batches=3, **changes):
    run = {"env": env, "task": Task(cut=10), "batch_length": 20, "seed": 1, "costs": ("cost",), **changes}
    apart = Deployed(deployment, simulation=Simulation(), observer=NOBODY, **run)
    apart.begin()
    costs = [apart.costs(policy, iteration)[0] for iteration in range(batches)]
    apart.close()
    return costs


def test_what_is_measured_is_the_policy_as_deployed():
    """The mean action costs μ² in each step; exploring costs another number in each batch, of mean μ² + σ²."""
    policy = policy_for(1, 1, std=0.5)
    mean = float(policy.head(np.ones((1, 1), np.float32))[0, 0])
    assert measure(Deployment("mean", 4, 10), Push, policy) == pytest.approx([mean**2] * 3, rel=1e-5)
    exploring = measure(Deployment("explore", 50, 10), Push, policy)
    assert len(set(exploring)) == 3
    assert np.mean(exploring) == pytest.approx(mean**2 + 0.25, abs=0.1)


def test_trajectories_of_what_is_deployed_are_cut_late():
    """Of each trajectory the first 10 steps are free: of those of 10 steps all are, of longer ones few."""
    policy = policy_for(1, 1, std=0.5)
    cost = float(policy.head(np.ones((1, 1), np.float32))[0, 0]) ** 2
    assert measure(Deployment("mean", 1, 10), idle_at_first, policy, 1) == [0.0]
    long = measure(Deployment("mean", 1, 1_000), idle_at_first, policy, 1, batch_length=1_000)
    assert long == pytest.approx([0.99 * cost], rel=1e-4)


# Who measures, and who does not


@pytest.mark.parametrize(
    ("given", "envs"),
    [
        ({}, 0),
        (LIMITED, 4),
        ({**LIMITED, "num_envs": 100}, 10),
        ({**LIMITED, "deploy": "explore"}, 0),
        ({**LIMITED, "deploy": "explore", "deployed_envs": 3}, 3),
        ({**LIMITED, "deployed_envs": 0}, 0),
        ({**LIMITED, "algorithm": "cpo", "episodic": True}, 0),
    ],
)
def test_in_how_many_environments_it_acts_as_deployed(given, envs):
    settings = from_flat(given)
    settings.check()
    assert settings.meant_deployed_envs == envs


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"deployed_envs": 2}, "--deployed-envs is for limits"),
        ({**LIMITED, "algorithm": "cpo", "episodic": True, "deployed_envs": 2}, "which an episodic task does not have"),
        ({"deployed_cut": 100}, "--deployed-cut is for environments in which the policy acts as deployed"),
        ({"deploy": "median"}, "it must be one of mean, explore"),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(given, why):
    with pytest.raises(UserError, match=why):
        from_flat(given).check()


def test_a_run_from_before_keeps_limits_as_it_did(constrained_run, tmp_path):
    """Its config.json does not say that environments are apart, and there are none; its policy acts by the mean."""
    old = tmp_path / "old"
    shutil.copytree(constrained_run.path, old)
    config = json.loads((old / "config.json").read_text())
    for name in ("deploy", "deployed_envs", "deployed_cut"):
        del config["settings"][name]
    (old / "config.json").write_text(json.dumps(config))
    settings = kemeny.Run(old).settings
    assert settings["deployed_envs"] == 0
    assert settings["deploy"] == "mean"


# Acting


@pytest.fixture(scope="module")
def exploring_run(tmp_path_factory):
    """A run whose policy is meant to explore."""
    settings = {**PUSH, **LIMITED, "steps": 800, "deploy": "explore"}
    return kemeny.train(Push, out=tmp_path_factory.mktemp("runs") / "exploring", **settings)


def test_a_policy_acts_as_it_is_meant_to(exploring_run):
    policy, observation = exploring_run.policy, np.ones((5_000, 1))
    mean, std = policy.distribution(observation[0])
    drawn = policy(observation)
    assert drawn.std() == pytest.approx(std[0], rel=0.05)
    assert drawn.mean() == pytest.approx(mean[0], abs=0.05)
    np.testing.assert_allclose(policy(observation, explore=False), np.broadcast_to(mean, (5_000, 1)), rtol=1e-6)
    assert policy.predict(observation)[0].std() > 0
    assert policy.predict(observation, deterministic=True)[0].std() == 0


def test_a_policy_that_is_meant_to_act_by_its_mean(tiny_run):
    policy = tiny_run.policy
    observation = np.zeros(policy.observation_size)
    np.testing.assert_array_equal(policy(observation), policy(observation))
    assert policy(observation, explore=True) != policy(observation, explore=True)


def test_evaluations_are_of_the_policy_as_deployed(exploring_run):
    evaluate = functools.partial(kemeny.evaluate, exploring_run, Push, trajectories=4, max_steps=200)
    as_deployed, exploring, mean = evaluate(), evaluate(explore=True), evaluate(explore=False)
    np.testing.assert_array_equal(as_deployed.average_costs, exploring.average_costs)
    assert "with exploration" in as_deployed.about
    assert "mean action" in mean.about
    std = exploring_run.policy.distribution(np.ones(1)).std[0]
    difference = as_deployed.average_costs.mean() - mean.average_costs.mean()
    assert difference == pytest.approx(std**2, abs=0.2)
    record = exploring_run.evaluations[-1]
    assert record["average_costs"] == record["exploring_costs"]


def test_the_best_policy_is_that_which_keeps_the_limits_as_deployed():
    fast, slow = found([900, 900], cost=[2.3], exploring=[1.9]), found([500, 500], cost=[1.9], exploring=[2.3])
    for by in ("return", "limits"):
        assert fast.score((2.0,), by=by, kept_for="deployed") == [pytest.approx(-0.3), 900]
        assert slow.score((2.0,), by=by, kept_for="deployed") == [0, 500]
    assert fast.score((2.0,)) == [0, 900]


def test_exports_act_as_deployed(exploring_run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    observation = np.ones((5_000, 1), np.float32)
    mean, std = exploring_run.policy.distribution(observation[0])

    def actions(**how):
        path = kemeny.export(exploring_run, tmp_path / "policy.onnx", **how)
        return onnxruntime.InferenceSession(path).run(["action"], {"observation": observation})[0]

    drawn = actions()
    assert drawn.std() == pytest.approx(std[0], rel=0.05)
    assert drawn.mean() == pytest.approx(mean[0], abs=0.05)
    assert actions(explore=False).std() == 0
    plain = np.load(kemeny.export(exploring_run, tmp_path / "policy.npz"))
    assert json.loads(str(plain["description"]))["deploy"] == "explore"
