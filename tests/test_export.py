"""An exported policy acts as the policy in NumPy does, whatever the spaces."""

import dataclasses
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest

import kemeny
from kemeny import cli
from kemeny.errors import RunError, UserError
from kemeny.experience.acting import Normal, Policy
from kemeny.experience.agreement import TOLERANCE, as_given, excess_difference, random_observations
from kemeny.experience.blueprint import Blueprint, draw_up
from kemeny.learning.arrays import bounds
from kemeny.runs import checkpoint
from kemeny.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from kemeny.spec import Continuous, Spec, vector

N = 10_000


def f32(*numbers):
    return np.array(numbers, np.float32)


BOX = Continuous(f32(-0.4, -1, -2), f32(0.4, 1, 2))
FAR = Continuous(f32(10, -1, -1000), f32(20, 1, 1000))
SEVERAL = MultiDiscrete((3, 2, 4), (0, -1, 7), (3,))
NESTED = Dict(
    ("joint", "action", "flags"),  # a name that an output has, too
    (
        Box((2, 2)),
        Tuple((Discrete(3, start=5), MultiDiscrete((2, 3, 2, 2), (0, -1, 0, 4), (2, 2)), Box(()))),
        Dict(("bits",), (MultiBinary((2, 2)),)),
    ),
)


def kind(observation, action, masked=False):
    mask = action.outputs if masked else 0
    return Spec(vector(observation.size + mask), action, None, observation, mask)


KINDS = {
    "box": kind(Box((11,)), BOX),
    "bounds far from one": kind(Box((4,)), FAR),
    "single numbers": kind(Box(()), Continuous(f32(-0.5), f32(0.5), ())),
    "boxes of rank two": kind(Box((2, 3)), Continuous(f32(-1, -20, 0, 3), f32(1, 20, 1, 4), (2, 2))),
    "discrete actions": kind(Box((5,)), Discrete(4)),
    "discrete actions with a start": kind(Box((5,)), Discrete(3, start=-7)),
    "discrete observations": kind(Discrete(6), BOX),
    "discrete observations with a start": kind(Discrete(9, start=2), Discrete(3, start=10)),
    "several numbers": kind(SEVERAL, SEVERAL),
    "bits": kind(MultiBinary((2, 3)), MultiBinary((2, 2))),
    "nested": kind(NESTED, MultiDiscrete((2, 3, 2, 2), (1, 1, 0, 0), (2, 2))),
    "a tuple": kind(NESTED.parts[1], FAR),
    "masked": kind(Box((5,)), Discrete(6, start=1), masked=True),
    "several numbers, masked": kind(NESTED, SEVERAL, masked=True),
    "bits, masked": kind(Discrete(20), MultiBinary((3,)), masked=True),
}


class Case(NamedTuple):
    """A run directory and what its files must agree with."""

    run: Path
    policy: Policy
    blueprint: Blueprint
    feed: dict[str, np.ndarray]
    """10⁴ observations, by the names of the graph's inputs."""

    @property
    def given(self) -> Any:
        """The observations as a batch of the environment."""
        return as_given(self.feed, self.blueprint.spaces.observation)

    @property
    def mask(self) -> np.ndarray | None:
        return self.feed.get("action_mask")


def random_arrays(spec, seed=1):
    """A policy whose actions vary, and are at their bounds now and then, with a normaliser that has seen data."""
    rng = np.random.default_rng(seed)
    sizes = (spec.features, 16, 12, spec.action.outputs)
    arrays = {
        "normalizer/mean": rng.normal(3, 5, spec.observation.size),
        "normalizer/scale": rng.uniform(0.5, 3, spec.observation.size),
        "normalizer/clip": np.array(4.0),
    }
    if not isinstance(spec.observation_space, Box):
        arrays |= {"normalizer/mean": np.full(spec.observation.size, 0.5)}
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
            saved, policy = checkpoint.latest(run), kemeny.load_policy(run)
            blueprint = draw_up(saved.arrays, saved.facts["network"], policy.spaces)
            feed = random_observations(blueprint, N, np.random.default_rng(1))
            made[kind, activation] = Case(run, policy, blueprint, feed)
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
    case = cases(kind, activation)
    found = outputs(kemeny.export(case.run, tmp_path / "policy.onnx"), case.feed)
    assert set(found) == {"action"}
    expected, action, spec = case.policy(case.given, case.mask), found["action"], KINDS[kind]
    assert (action.shape, action.dtype) == (expected.shape, expected.dtype)
    assert len(np.unique(expected.reshape(N, -1), axis=0)) > 1
    if isinstance(spec.action, Continuous):
        size = 1 if spec.action.unit is None else spec.action.unit.scale.reshape(expected.shape[1:])
        np.testing.assert_allclose(action / size, expected / size, rtol=TOLERANCE, atol=TOLERANCE)
        return
    differ = (action != expected).reshape(N, -1).any(1)
    assert differ.mean() < 1e-3
    for i in np.flatnonzero(differ):  # then two options are equally likely
        mask = None if case.mask is None else case.mask[i]
        odds = case.policy.probabilities(take(case.given, i), mask)
        gaps = [np.diff(np.sort(each)[-2:])[0] for each in (odds if isinstance(odds, list) else [odds])]
        assert min(gaps) < TOLERANCE


def take(given, i):
    """One observation of a batch."""
    if isinstance(given, dict):
        return {name: take(part, i) for name, part in given.items()}
    return tuple(take(part, i) for part in given) if isinstance(given, tuple) else given[i]


@pytest.mark.parametrize("kind", KINDS)
def test_the_distribution_is_that_of_the_policy(kind, cases, tmp_path):
    """Mean and deviation in the units of the environment; or probabilities, one choice after the other."""
    case = cases(kind)
    found = outputs(kemeny.export(case.run, tmp_path / "policy.onnx", distribution=True), case.feed)
    expected = case.policy.distribution(case.given, case.mask)
    if isinstance(expected, Normal):
        assert list(found) == ["action", "mean", "std"]
        assert found["mean"].shape == found["std"].shape == found["action"].shape
        np.testing.assert_allclose(found["mean"] / expected.std, expected.mean / expected.std, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found["std"], expected.std, rtol=1e-6)
        low, high = (
            bound.reshape(expected.mean.shape[1:]) for bound in (KINDS[kind].action.low, KINDS[kind].action.high)
        )
        np.testing.assert_array_equal(found["action"], np.clip(found["mean"], low, high))
        assert (found["action"] != found["mean"]).any()
    else:
        assert list(found) == ["action", "probabilities"]
        parts = expected.probabilities
        parts = np.concatenate(parts, 1) if isinstance(parts, list) else parts
        np.testing.assert_allclose(found["probabilities"], parts, atol=1e-5)
        if case.mask is not None:
            assert (found["probabilities"][case.mask == 0] == 0).all()


REFUSED = {
    "box": [("observation", value) for value in (np.nan, np.inf, -np.inf)],
    "single numbers": [("observation", np.nan)],
    "discrete observations": [("observation", state) for state in (-1, 6, 2**40)],
    "discrete observations with a start": [("observation", state) for state in (1, 11, -(2**62))],
    "several numbers": [("observation", 6)],
    "bits": [("observation", bit) for bit in (-1, 2)],
    "nested": [("observation.joint", np.inf), ("observation.action.1", 6), ("observation.flags.bits", 3)],
    "masked": [("action_mask", bit) for bit in (-1, 2)],
}


@pytest.mark.parametrize(
    ("kind", "name", "value"), [(kind, name, value) for kind, cases in REFUSED.items() for name, value in cases]
)
def test_what_the_policy_refuses_the_graph_refuses(kind, name, value, cases, tmp_path):
    """Alone, and in a batch of others."""
    case = cases(kind)
    path = kemeny.export(case.run, tmp_path / "policy.onnx")
    for n in (1, 5):
        feed = {part: array[:n].copy() for part, array in case.feed.items()}
        feed[name].flat[-1] = value
        refused(path, case, feed)


@pytest.mark.parametrize("kind", ["masked", "several numbers, masked", "bits, masked"])
def test_a_mask_that_forbids_every_option_of_a_choice_is_refused(kind, cases, tmp_path):
    case = cases(kind)
    path = kemeny.export(case.run, tmp_path / "policy.onnx")
    feed = {part: array[:3].copy() for part, array in case.feed.items()}
    feed["action_mask"][2, -case.blueprint.action.sizes[-1] :] = 0
    refused(path, case, feed)


def refused(path, case, feed):
    with pytest.raises(UserError):
        case.policy(as_given(feed, case.blueprint.spaces.observation), feed.get("action_mask"))
    with pytest.raises(Exception, match="refuse_what_is_no_observation"):
        outputs(path, feed)


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
    assert len(code.splitlines()) < 33
    names: dict = {}
    exec(code, names)
    return names["load"]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loader_of_the_documentation_acts_as_the_policy(kind, activation, cases, tmp_path, load_npz):
    case = cases(kind, activation)
    load = load_npz(kemeny.export(case.run, tmp_path / "policy.npz"))
    masks = ({} for _ in range(500)) if case.mask is None else ({"mask": mask} for mask in case.mask)
    found = np.stack([load(take(case.given, i), **mask) for i, mask in zip(range(500), masks, strict=False)])
    feed = {name: array[:500] for name, array in case.feed.items()}
    assert (excess_difference(found, feed, case.blueprint, case.policy) <= 0).all()


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


def test_without_the_dependencies_a_command_says_what_is_missing(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    monkeypatch.delitem(sys.modules, "kemeny.cli.parsing", raising=False)
    code, _, err = command("run")
    assert code == 2
    assert "kemeny export needs tyro, which is not installed" in err


def test_names_that_are_the_same_are_refused(tmp_path):
    observation = Dict(("a.b", "a"), (Box((1,)), Dict(("b",), (Box((1,)),))))
    run = make_run(tmp_path / "run", kind(observation, BOX))
    with pytest.raises(UserError, match="the name of a part of an observation is another's"):
        kemeny.export(run, tmp_path / "policy.onnx")


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
