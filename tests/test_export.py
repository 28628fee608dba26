"""An exported policy acts as the policy in NumPy does, whatever the spaces."""

import dataclasses
import itertools
import json
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest

import kemeny
from kemeny.errors import RunError, UserError
from kemeny.experience import agreement
from kemeny.experience.agreement import TOLERANCE, excess_difference, random_observations, runner
from kemeny.experience.blueprint import draw_up
from kemeny.learning.arrays import bounds
from kemeny.runs import checkpoint
from kemeny.spec import Box, Continuous, Discrete, Spec, read_spaces, vector

N = 10_000


def f32(*numbers):
    return np.array(numbers, np.float32)


BOX = Continuous(f32(-0.4, -1, -2), f32(0.4, 1, 2))
FAR = Continuous(f32(10, -1, -1000), f32(20, 1, 1000))
KINDS = {
    "box": Spec(vector(11), BOX, None),
    "bounds far from one": Spec(vector(4), FAR, None),
    "single numbers": Spec(vector(1), Continuous(f32(-2), f32(2), ()), None, Box(())),
    "discrete actions": Spec(vector(5), Discrete(4), None),
    "discrete actions with a start": Spec(vector(5), Discrete(3, start=-7), None),
    "discrete observations": Spec(vector(6), BOX, None, Discrete(6)),
    "discrete observations with a start": Spec(vector(5), Discrete(3, start=10), None, Discrete(5, start=2)),
}


class Case(NamedTuple):
    """A run directory and what its files must agree with."""

    run: str
    policy: kemeny.Policy
    blueprint: object
    feed: dict


def random_arrays(spec, seed=1):
    """A policy whose actions vary, and are at their bounds now and then, with a normaliser that has seen data."""
    rng = np.random.default_rng(seed)
    sizes = (spec.observation.size, 16, 12, spec.action.size)
    arrays = {
        "normalizer/mean": rng.normal(3, 5, sizes[0]),
        "normalizer/scale": rng.uniform(0.2, 2, sizes[0]),
        "normalizer/clip": np.array(4.0),
    }
    if isinstance(spec.observation_space, Discrete):
        arrays |= {"normalizer/mean": np.full(sizes[0], 0.5), "normalizer/scale": np.full(sizes[0], 3.0)}
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        arrays[f"policy/network/weights/{i}"] = rng.normal(0, 3 / np.sqrt(inputs), (inputs, outputs))
        arrays[f"policy/network/biases/{i}"] = rng.normal(0, 0.1, outputs)
    if isinstance(spec.action, Continuous):
        arrays["policy/log_std"] = rng.normal(-1, 0.3, spec.action.size)
    return {**{name: array.astype(np.float32) for name, array in arrays.items()}, **bounds(spec)}


def make_run(path, spec, activation="tanh"):
    """A run directory with one checkpoint of a random policy."""
    path.mkdir()
    checkpoint.prepare(path)
    config = {"format": checkpoint.FORMAT, "env": "Toy-v0", "env_is_id": True, "settings": {}}
    (path / "config.json").write_text(json.dumps(config))
    network = {"kind": "perceptron", "activation": activation}
    facts = {"iteration": 1, "seconds": 0.0, "log_sizes": {}, "best_score": None, "spaces": spec.spaces.description}
    checkpoint.Saver(path).save(1234, random_arrays(spec), {**facts, "network": network})
    return path


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Runs by kind of space and activation, each made once."""
    made = {}

    def case(kind, activation="tanh"):
        if (kind, activation) not in made:
            run = make_run(tmp_path_factory.mktemp("runs") / "run", KINDS[kind], activation)
            saved = checkpoint.latest(run)
            blueprint = draw_up(saved.arrays, saved.facts["network"], read_spaces(saved.facts["spaces"], run))
            feed = random_observations(blueprint, N, np.random.default_rng(1))
            made[kind, activation] = Case(run, kemeny.load_policy(run), blueprint, feed)
        return made[kind, activation]

    return case


def outputs(path, feed):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_runtime_acts_as_the_policy(kind, activation, cases, tmp_path):
    """On 10⁴ observations, many of them beyond the normaliser's clip or the bounds of the actions."""
    run, policy, blueprint, feed = cases(kind, activation)
    found = outputs(kemeny.export(run, tmp_path / "policy.onnx"), feed)
    assert set(found) == {"action"}
    expected = policy(feed["observation"])
    assert (found["action"].shape, found["action"].dtype) == (expected.shape, expected.dtype)
    if expected.dtype == np.float32:
        unit = KINDS[kind].action.unit
        size = 1 if unit is None else unit.scale
        np.testing.assert_allclose(found["action"] / size, expected / size, rtol=TOLERANCE, atol=TOLERANCE)
    else:
        same = found["action"] == expected
        assert same.mean() > 0.999
        head = policy.head(blueprint.spaces.observation.rows(feed["observation"][~same]))
        best = np.sort(head, axis=1)
        assert np.all(best[:, -1] - best[:, -2] < TOLERANCE * (1 + np.abs(best[:, -1])))
    assert len(np.unique(expected.reshape(N, -1), axis=0)) > 1


@pytest.mark.parametrize("kind", ["box", "bounds far from one", "single numbers"])
def test_mean_and_deviation_in_the_units_of_the_environment(kind, cases, tmp_path):
    run, policy, _, feed = cases(kind)
    found = outputs(kemeny.export(run, tmp_path / "policy.onnx", distribution=True), feed)
    action, arrays = KINDS[kind].action, checkpoint.latest(run).arrays
    shift, scale = (0, 1) if action.unit is None else action.unit
    shape = policy(feed["observation"]).shape
    head = policy.head(feed["observation"].reshape(N, -1))
    np.testing.assert_allclose(
        found["mean"], (shift + scale * head).reshape(shape), rtol=1e-4, atol=1e-4 * np.max(scale)
    )
    deviation = np.broadcast_to(scale * np.exp(arrays["policy/log_std"]), head.shape).reshape(shape)
    np.testing.assert_allclose(found["std"], deviation, rtol=1e-6)
    within = np.clip(found["mean"].reshape(head.shape), action.low, action.high).reshape(shape)
    np.testing.assert_array_equal(found["action"], within)
    assert (within != found["mean"]).any()


def test_probabilities(cases, tmp_path):
    run, policy, _, feed = cases("discrete actions with a start")
    found = outputs(kemeny.export(run, tmp_path / "policy.onnx", distribution=True), feed)
    logits = policy.head(feed["observation"]).astype(float)
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)
    np.testing.assert_array_equal(found["action"], found["probabilities"].argmax(1) - 7)


@pytest.mark.parametrize(
    ("kind", "observation"),
    [("box", np.nan), ("box", np.inf), ("box", -np.inf), ("single numbers", np.nan)]
    + [("discrete observations", state) for state in (-1, 6, 2**40)]
    + [("discrete observations with a start", state) for state in (1, 7, -(2**62))],
)
def test_what_the_policy_refuses_the_graph_refuses(kind, observation, cases, tmp_path):
    """Alone, and in a batch of others."""
    run, policy, _, feed = cases(kind)
    path = kemeny.export(run, tmp_path / "policy.onnx")
    for n in (1, 5):
        batch = feed["observation"][:n].copy()
        batch.flat[-1] = observation
        with pytest.raises(UserError):
            policy(batch)
        with pytest.raises(Exception, match="refuse_what_is_no_observation"):
            outputs(path, {"observation": batch})


def test_a_graph_says_what_it_is(cases, tmp_path):
    run = cases("discrete observations with a start").run
    model = onnx.load(kemeny.export(run, tmp_path / "policy.onnx"))
    onnx.checker.check_model(model, full_check=True)
    assert (model.producer_name, model.ir_version, model.opset_import[0].version) == ("kemeny", 7, 13)
    about = {entry.key: entry.value for entry in model.metadata_props}
    assert (about["kemeny"], about["environment"], about["steps"]) == (kemeny.__version__, "Toy-v0", "1234")
    assert json.loads(about["observation"])[0]["starts"] == [2]
    assert json.loads(about["action"])["sizes"] == [3]


def test_a_graph_that_acts_otherwise_is_not_written(cases, tmp_path, monkeypatch):
    for kind, name in (("box", "biases_2"), ("discrete actions", "weights_0"), ("bounds far from one", "action_scale")):

        def wrong(*given, name=name):
            blueprint = draw_up(*given)
            return dataclasses.replace(blueprint, arrays={**blueprint.arrays, name: 1.1 * blueprint.arrays[name]})

        monkeypatch.setattr("kemeny.runs.export.draw_up", wrong)
        with pytest.raises(RunError, match="does not act as the policy does"):
            kemeny.export(cases(kind).run, tmp_path / "policy.onnx")
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_without_onnx_runtime_the_evaluator_of_onnx_checks(kind, cases, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    kemeny.export(cases(kind).run, tmp_path / "policy.onnx")
