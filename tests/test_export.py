"""An exported policy acts as the policy in NumPy does, whatever the spaces."""

import dataclasses
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest

import kemeny
from kemeny import cli
from kemeny.errors import RunError, UserError
from kemeny.experience.agreement import TOLERANCE, excess_difference, random_observations
from kemeny.experience.blueprint import draw_up
from kemeny.learning.arrays import bounds
from kemeny.runs import checkpoint
from kemeny.spaces import Box, Discrete
from kemeny.spec import Continuous, Spec, vector
from kemeny.stored_spaces import read_spaces

N = 10_000


def f32(*numbers):
    return np.array(numbers, np.float32)


BOX = Continuous(f32(-0.4, -1, -2), f32(0.4, 1, 2))
FAR = Continuous(f32(10, -1, -1000), f32(20, 1, 1000))
KINDS = {
    "box": Spec(vector(11), BOX, None),
    "bounds far from one": Spec(vector(4), FAR, None),
    "single numbers": Spec(vector(1), Continuous(f32(-0.5), f32(0.5), ()), None, Box(())),
    "discrete actions": Spec(vector(5), Discrete(4), None),
    "discrete actions with a start": Spec(vector(5), Discrete(3, start=-7), None),
    "discrete observations": Spec(vector(6), BOX, None, Discrete(6)),
    "discrete observations with a start": Spec(vector(9), Discrete(3, start=10), None, Discrete(9, start=2)),
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
    + [("discrete observations with a start", state) for state in (1, 11, -(2**62))],
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


ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def load_npz(tmp_path_factory):
    """The loader that docs/deployment.md shows."""
    text = (ROOT / "docs" / "deployment.md").read_text()
    [code] = re.findall(r"^```python npz_policy\.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) < 30
    names: dict = {}
    exec(code, names)
    return names["load"]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loader_of_the_documentation_acts_as_the_policy(kind, activation, cases, tmp_path, load_npz):
    run, policy, blueprint, feed = cases(kind, activation)
    load = load_npz(kemeny.export(run, tmp_path / "policy.npz"))
    expected = policy(feed["observation"][:500])
    found = np.stack([load(observation) for observation in feed["observation"][:500]])
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert (excess_difference(found, {"observation": feed["observation"][:500]}, blueprint, policy) <= 0).all()


def test_npz_is_plain(cases, tmp_path):
    """No pickle, and each array and word of the description is explained."""
    text = (ROOT / "docs" / "deployment.md").read_text()
    for kind in ("bounds far from one", "discrete actions"):
        with np.load(kemeny.export(cases(kind).run, tmp_path / "policy.npz"), allow_pickle=False) as file:
            for name in file.files:
                assert file[name].dtype == np.float32 or name == "description"
                assert f"`{name}`" in text or name[:-1] in ("weights_", "biases_")
            about = json.loads(str(file["description"]))
        assert (about["environment"], about["steps"], about["kemeny"]) == ("Toy-v0", 1234, kemeny.__version__)
        for name in (*about, *about["action"]):
            assert f"`{name}`" in text, f"{name} of the description is not explained"


def test_what_can_be_exported(tiny_run, tmp_path):
    """A run, the path of one, its best policy, or one of its checkpoints; from a folder that is made."""
    newest, best = checkpoint.latest(tiny_run.path), checkpoint.best(tiny_run.path)
    for run, options, saved in (
        (tiny_run, {}, newest), (str(tiny_run.path), {}, newest), (tiny_run.path, {"best": True}, best),
        (best.path, {}, best),
    ):  # fmt: skip
        path = kemeny.export(run, tmp_path / "new" / "policy.npz", **options)
        with np.load(path) as file:
            about = json.loads(str(file["description"]))
            np.testing.assert_array_equal(file["biases_1"], saved.arrays["policy/network/biases/1"])
        assert (about["steps"], about["environment"]) == (saved.facts["steps"], "InvertedPendulum-v5")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["policy.npz"]


def test_a_checkpoint_that_was_copied_away_from_its_run_can_be_exported(cases, tmp_path):
    shutil.copytree(checkpoint.latest(cases("box").run).path, tmp_path / "copy")
    with np.load(kemeny.export(tmp_path / "copy", tmp_path / "policy.npz")) as file:
        assert "environment" not in json.loads(str(file["description"]))


def test_a_file_that_exists_is_replaced_whole(cases, tmp_path):
    """A reader that has it open keeps the old one; the mode is that of any new file."""
    path = tmp_path / "policy.onnx"
    path.write_bytes(b"old")
    with open(path, "rb") as old:
        kemeny.export(cases("box").run, path)
        assert old.read() == b"old"
    onnx.checker.check_model(path)
    (tmp_path / "other").write_bytes(b"")
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode
    assert {file.name for file in tmp_path.iterdir()} == {"policy.onnx", "other"}


@pytest.fixture
def command(capfd, monkeypatch, tmp_path):
    """Runs `kemeny export` in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def export(*arguments):
        monkeypatch.setattr(sys, "argv", ["kemeny", "export", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as stop:
            return stop.code, *capfd.readouterr()
        return 0, *capfd.readouterr()

    return export


def test_from_the_command_line(cases, command, tmp_path):
    run = cases("discrete actions").run
    assert command(run, "-o", "policy.onnx", "--distribution") == (0, "Wrote policy.onnx.\n", "")
    assert command(checkpoint.latest(run).path, "-o", "policy.npz")[0] == 0
    names = [output.name for output in onnx.load(tmp_path / "policy.onnx").graph.output]
    assert names == ["action", "probabilities"]


MISTAKES = {
    "an unknown ending": (["RUN", "-o", "policy.pt"], "policy.pt ends neither in .onnx nor in .npz"),
    "no ending": (["RUN", "-o", "policy"], "ends neither in .onnx nor in .npz"),
    "not a run": (["nowhere"], "not a run directory"),
    "no checkpoint": (["EMPTY"], "has no checkpoint yet"),
    "no best checkpoint": (["RUN", "--best"], "has no best checkpoint"),
    "a folder in its place": (["RUN", "-o", "folder.onnx"], "folder.onnx cannot be written: Is a directory"),
    "a file where a folder must be": (["RUN", "-o", "file/policy.onnx"], "cannot be written: "),
    "nowhere to write to": (["RUN", "-o", "/proc/policy.npz"], "/proc/policy.npz cannot be written: "),
    "a distribution in npz": (["RUN", "-o", "policy.npz", "--distribution"], "leave out --distribution"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_a_sentence_and_leaves_nothing_behind(name, cases, command, tmp_path):
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "file").write_text("precious")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    arguments, expected = MISTAKES[name]
    before = sorted(tmp_path.rglob("*"))
    code, _, err = command(*({"RUN": cases("box").run, "EMPTY": empty}.get(word, word) for word in arguments))
    assert code == 2
    assert expected in err
    assert len(err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_without_onnx_the_extra_is_named(cases, command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    code, _, err = command(cases("box").run, "-o", "policy.onnx")
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert "pip install 'kemeny[onnx]'" in err
    assert command(cases("box").run, "-o", "policy.npz")[0] == 0


ALONE = """
import sys
class Barred:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {*sys.stdlib_module_names, "numpy", "safetensors", "kemeny"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Barred())
import kemeny, numpy as np
policy = kemeny.load_policy(sys.argv[1])
print(policy(np.zeros(11)).shape, policy.sample(np.zeros((2, 11)), np.random.default_rng(0)).shape)
"""


def test_numpy_and_safetensors_are_enough_to_act(cases):
    arguments = [sys.executable, "-c", ALONE, cases("box").run]
    answer = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.stderr) == ("(3,) (2, 3)\n", "")
