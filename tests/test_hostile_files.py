"""Damaged, forged and hostile files: each is refused in a sentence or read for what it is; none crashes a loader."""

import contextlib
import copy
import json
import os
import shutil
import struct
import time

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import kemeny
from kemeny.errors import Damaged, RunError, UserError
from kemeny.experience.collect import Collector
from kemeny.experience.settings import Task
from kemeny.experiments.plots import plot
from kemeny.experiments.report.page import report
from kemeny.runs import checkpoint, directory
from kemeny.runs.assembly import make_learner
from kemeny.runs.checkpoint import ARRAYS, FACTS, SUMS
from kemeny.runs.directory import Run
from kemeny.runs.settings import from_flat
from kemeny.tabular import formats, zoo
from tests.probes import policy_for

fuzz = hypothesis.settings(
    deadline=None, max_examples=int(os.environ.get("KEMENY_FUZZ", "60")), database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture
def saved(tiny_run, tmp_path):
    """A copy of a checkpoint."""
    return shutil.copytree(checkpoint.latest(tiny_run.path).path, tmp_path / "saved")


@pytest.fixture
def run(tiny_run, tmp_path):
    """A copy of a run."""
    return Run.open(shutil.copytree(tiny_run.path, tmp_path / "run"))


@pytest.fixture
def unfinished(run):
    """A run that stopped before its last batch."""
    shutil.rmtree(run.path / "checkpoints/step-000000000600")
    return run.path


def forge(path, **content):
    """Write files into a checkpoint, and checksums that fit."""
    for name, bytes_ in content.items():
        (path / {"arrays": ARRAYS, "facts": FACTS}[name]).write_bytes(bytes_)
    (path / SUMS).write_bytes(checkpoint._sums({name: (path / name).read_bytes() for name in (ARRAYS, FACTS)}))


def places(size, dense):
    """Every one of the first `dense` bytes, then some, and the last."""
    return sorted({*range(min(dense, size)), *range(0, size, max(1, size // 100)), size - 1})


@pytest.mark.parametrize(("name", "dense"), [(SUMS, 300), (FACTS, 300), (ARRAYS, 400)])
def test_a_flipped_bit_anywhere_is_found(saved, name, dense):
    """Checksums, facts, and the length, names and numbers of the arrays."""
    content = (saved / name).read_bytes()
    for place in places(len(content), dense):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 8)
        (saved / name).write_bytes(flipped)
        with pytest.raises(Damaged, match=f"{saved} is damaged"):
            checkpoint.load(saved)
    (saved / name).write_bytes(content)
    checkpoint.load(saved)


@pytest.mark.parametrize("name", [SUMS, FACTS, ARRAYS])
def test_a_truncated_or_missing_file_is_found(saved, name):
    content = (saved / name).read_bytes()
    for size in {0, 1, 7, len(content) // 2, len(content) - 1}:
        (saved / name).write_bytes(content[:size])
        with pytest.raises(Damaged):
            checkpoint.load(saved)
    (saved / name).unlink()
    with pytest.raises(Damaged, match=f"{name}: No such file"):
        checkpoint.load(saved)


@fuzz
@hypothesis.given(data=st.data())
def test_forged_facts_are_refused_or_sound(saved, data):
    facts = json.loads((saved / FACTS).read_bytes())
    facts[data.draw(st.sampled_from([*facts, "new"]))] = data.draw(JSON)
    original = (saved / FACTS).read_bytes()
    forge(saved, facts=json.dumps(facts).encode())
    try:
        found = checkpoint.load(saved).facts
    except (Damaged, UserError):
        return
    finally:
        forge(saved, facts=original)
    for name in ("steps", "iteration"):
        assert type(found[name]) is int
        assert found[name] >= 0
    assert 0 <= found["seconds"] < np.inf
    assert all(type(size) is int for size in found["log_sizes"].values())


@fuzz
@hypothesis.given(data=st.data())
def test_forged_arrays_are_refused_or_make_a_policy_that_acts(saved, data):
    """A header changed as JSON or byte by byte, checksums right."""
    original = (saved / ARRAYS).read_bytes()
    size = struct.unpack("<Q", original[:8])[0]
    header = json.loads(original[8 : 8 + size])
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(header)))
        field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        numbers = st.integers(-1, 2**64)
        header[name][field] = data.draw(
            JSON | st.sampled_from(["F64", "BF16", "F8_E5M2", "I4", "F16"]) | st.lists(numbers, max_size=3)
        )
        text = json.dumps(header).encode()
        blob = struct.pack("<Q", len(text)) + text + original[8 + size :]
    else:
        changed = bytearray(original)
        for place in data.draw(st.lists(st.integers(0, size + 100), min_size=1, max_size=4)):
            changed[place] = data.draw(st.integers(0, 255))
        blob = bytes(changed)
    forge(saved, arrays=blob)
    try:
        policy = kemeny.load_policy(saved)
        assert policy(np.zeros(policy.observation_size)).shape in ((1,), ())
    except Damaged:
        pass
    finally:
        forge(saved, arrays=original)


def hostile_header(text):
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        struct.pack("<Q", 2**62),
        struct.pack("<Q", 2**20 + 1) + b"{}",
        hostile_header(b"[" * 10**6),
        hostile_header(b'{"policy":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
        hostile_header(b'{"../../policy":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'),
        hostile_header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,99999999999]}}'),
    ],
    ids=["empty", "length", "long header", "deep", "overflow", "path", "beyond the end"],
)
def test_hostile_arrays_are_refused_at_once(saved, blob):
    forge(saved, arrays=blob)
    began = time.monotonic()
    with pytest.raises(Damaged):
        kemeny.load_policy(saved)
    assert time.monotonic() - began < 2


def test_files_that_are_no_files_or_too_large_are_refused_at_once(saved, run):
    began = time.monotonic()
    for name, largest in checkpoint.LARGEST.items():
        (saved / name).rename(saved / "kept")
        with (saved / name).open("wb") as file:
            file.truncate(largest + 1)
        with pytest.raises(Damaged, match="larger than any"):
            checkpoint.load(saved)
        (saved / name).unlink()
        for trick in (os.mkfifo, lambda path: os.symlink("/dev/zero", path), os.mkdir):
            trick(saved / name)
            with pytest.raises(Damaged):
                checkpoint.load(saved)
            (os.rmdir if trick is os.mkdir else os.unlink)(saved / name)
        (saved / "kept").rename(saved / name)
    for content in (b"[" * 100_000, b"\xff", b"1" * 5_000, b"{}", b'{"format": true}'):
        forge(saved, facts=content)
        with pytest.raises(Damaged):
            checkpoint.load(saved)
    for content in (b"[" * 100_000, b"\xff", b"{}", b" " * (2**20 + 1)):
        (run.path / "config.json").write_bytes(content)
        with pytest.raises(UserError, match=r"config\.json"):
            _ = Run.open(run.path).config
    assert time.monotonic() - began < 10


def sparse(size, header=None):
    """A file of arrays that is mostly a hole, its header right or not."""

    def make(path):
        with path.open("wb") as file:
            file.write(b"" if header is None else hostile_header(json.dumps(header).encode()))
            file.truncate(size)

    return make


@pytest.mark.parametrize(
    "make",
    [
        sparse(checkpoint.LARGEST[ARRAYS]),
        sparse(checkpoint.LARGEST[ARRAYS], {}),
        sparse(checkpoint.LARGEST[ARRAYS], {"policy": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
        sparse(checkpoint.LARGEST[ARRAYS], {"policy": {"dtype": "F32", "shape": [2], "data_offsets": [8]}}),
        sparse(checkpoint.LARGEST[ARRAYS], {"policy": "F32"}),
        sparse(checkpoint.LARGEST[ARRAYS], [1]),
    ],
    ids=["zeros", "no arrays", "a small array", "half a place", "no place", "no names"],
)
def test_a_huge_file_is_refused_before_it_is_read(saved, make):
    """Four gigabytes take a minute to read and to sum."""
    make(saved / ARRAYS)
    began = time.monotonic()
    with pytest.raises(Damaged, match=rf"is damaged: .*{ARRAYS}|is damaged: Expecting value"):
        kemeny.load_policy(saved)
    assert time.monotonic() - began < 2


WRITTEN = ["lock", "metrics.jsonl", "evaluations.jsonl"]


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_nothing_is_written_through_a_link(unfinished, tmp_path, name, link):
    """In a run that a stranger made, it may lead to a file of the user's."""
    precious = tmp_path / "precious"
    precious.write_bytes((unfinished / name).read_bytes() + b"data" if (unfinished / name).exists() else b"data")
    before = precious.read_bytes()
    (unfinished / name).unlink(missing_ok=True)
    link(precious, unfinished / name)
    with pytest.raises(RunError, match=rf"{name}.*it is a link, or not a regular file"):
        kemeny.resume(unfinished)
    assert precious.read_bytes() == before


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("trick", [os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)])
def test_nothing_is_written_into_what_is_no_file(unfinished, name, trick):
    (unfinished / name).unlink(missing_ok=True)
    trick(unfinished / name)
    began = time.monotonic()
    with pytest.raises(
        (RunError, UserError), match=rf"{name}.*(it is a link, or not a regular file|is not a file|Is a d)"
    ):
        kemeny.resume(unfinished)
    assert time.monotonic() - began < 20
    assert not (unfinished / "nowhere").exists()


def test_checkpoints_are_not_written_through_a_link(unfinished, tmp_path):
    (unfinished / "checkpoints").rename(tmp_path / "elsewhere")
    (unfinished / "checkpoints").symlink_to(tmp_path / "elsewhere")
    before = sorted((tmp_path / "elsewhere").rglob("*"))
    assert kemeny.load_policy(unfinished)  # reading is free
    with pytest.raises(RunError, match=rf"is a link \(to {tmp_path / 'elsewhere'}\)"):
        kemeny.resume(unfinished)
    sound = checkpoint.latest(unfinished)
    with pytest.raises(RunError, match="writes through no link"):
        checkpoint.Saver(unfinished).save(800, sound.arrays, sound.facts)
    assert sorted((tmp_path / "elsewhere").rglob("*")) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
@pytest.mark.parametrize(
    "trick",
    [
        os.mkfifo,
        lambda path: os.symlink("/dev/zero", path),
        lambda path: path.write_bytes(b"\0" * (directory.LONGEST_LINE + 1)),
        sparse(directory.LARGEST_LOG),
        sparse(directory.LARGEST_LOG + 1),
    ],
    ids=["pipe", "device", "long line", "hole", "too large"],
)
def test_logs_that_are_no_logs_are_refused_at_once(unfinished, tmp_path, name, trick):
    """By all that reads them; a pipe would be waited for, and a device has no end."""
    (unfinished / name).unlink()
    trick(unfinished / name)
    began = time.monotonic()
    with pytest.raises(UserError, match=rf"{name} is damaged: .*(not a file|than any that Kemeny writes)"):
        _ = getattr(Run.open(unfinished), name.removesuffix(".jsonl"))
    if name == "evaluations.jsonl":
        with pytest.raises(UserError, match="is damaged"):
            plot([unfinished], tmp_path / "curve.png")
    assert time.monotonic() - began < 5


def test_only_names_of_checkpoints_are_checkpoints(run):
    """Nothing else in the folder is read, and no link is followed to be deleted."""
    folder = run.path / "checkpoints"
    for name in (
        "step-9",
        "step-99999999999x",
        "step-../../etc",
        "step-000000000009.old",
        ".writing-step-000000009999",
    ):
        (folder / name.replace("/", "_")).mkdir()
    assert checkpoint.latest(run.path).facts["steps"] == 600


def test_a_newer_format_gets_its_own_sentence_and_is_left_alone(run):
    newest = checkpoint.latest(run.path).path
    facts = json.loads((newest / FACTS).read_bytes())
    forge(newest, facts=json.dumps({**facts, "format": checkpoint.FORMAT + 1}).encode())
    with pytest.raises(UserError, match=r"written by a newer Kemeny .* upgrade"):
        kemeny.resume(run.path)
    assert newest.exists()


def with_facts(saved, **changes):
    """Other facts; those that are None are left out."""
    facts = {**json.loads((saved / FACTS).read_bytes()), **changes}
    forge(saved, facts=json.dumps({name: fact for name, fact in facts.items() if fact is not None}).encode())


@pytest.mark.parametrize(
    ("network", "error", "message"),
    [
        ({"kind": "transformer"}, UserError, r"saved holds a network .* does not know \('transformer'\): upgrade"),
        ({}, UserError, r"does not know \(None\)"),
        ({"kind": "perceptron", "activation": "swish"}, UserError, "unknown kind: 'swish'"),
        ({"kind": "perceptron"}, UserError, "unknown kind: None"),
        ("perceptron", Damaged, "no usable network"),
        (["perceptron"], Damaged, "no usable network"),
        ({"kind": ["perceptron"]}, Damaged, "no usable network"),
        ({"kind": "perceptron", "activation": 1}, Damaged, "no usable network"),
    ],
)
def test_a_network_that_is_not_known_is_refused(saved, network, error, message):
    with_facts(saved, network=network)
    with pytest.raises(error, match=message):
        kemeny.load_policy(saved)


def test_a_checkpoint_of_the_first_format_has_a_perceptron_of_tanh_units(saved):
    observations = np.random.default_rng(0).normal(size=(10, 4))
    expected = kemeny.load_policy(saved)(observations)
    with_facts(saved, network={"kind": "perceptron", "activation": "relu"})
    assert not np.array_equal(kemeny.load_policy(saved)(observations), expected)
    with_facts(saved, network=None, format=1)
    np.testing.assert_array_equal(kemeny.load_policy(saved)(observations), expected)


def test_when_every_checkpoint_is_damaged_nothing_is_thrown_away(run):
    for path in (run.path / "checkpoints").iterdir():
        (path / FACTS).write_bytes(b"")
    before = (run.path / "metrics.jsonl").read_bytes()
    with pytest.raises(Damaged, match="all 3 are damaged"):
        kemeny.resume(run.path)
    assert (run.path / "metrics.jsonl").read_bytes() == before
    with pytest.raises(Damaged):
        kemeny.load_policy(run.path, best=True)


def test_a_damaged_future_does_not_outlive_a_sound_present(run):
    """With one checkpoint kept, falling back and saving must not leave the damaged one as the only one."""
    folder = run.path / "checkpoints"
    sound = checkpoint.load(folder / "step-000000000200")
    (folder / "step-000000000600" / FACTS).write_bytes(b"")
    facts = {key: value for key, value in sound.facts.items() if key not in ("format", "steps")}
    checkpoint.Saver(run.path, keep=1).save(300, sound.arrays, facts)
    assert [path.name for path in folder.glob("step-*")] == ["step-000000000300"]
    assert checkpoint.latest(run.path).facts["steps"] == 300


@pytest.fixture(scope="module")
def snapshot():
    pool = Collector("InvertedPendulum-v5", Task(cut=50), num_envs=2, batch_length=20, seed=0)
    pool.roll_out(policy_for(4, 1), 0)
    return pool.snapshot()


@fuzz
@hypothesis.given(data=st.data())
def test_a_forged_snapshot_of_the_environments_is_refused(snapshot, data):
    forged = copy.deepcopy(snapshot)
    name = data.draw(st.sampled_from(sorted(forged)))
    hypothesis.assume(name not in ("falls", "faults", "clock"))  # counters that only count
    change = data.draw(st.sampled_from(["shape", "dtype", "missing", "numbers"]))
    if change == "missing":
        hypothesis.assume(name not in ("paid", "starts"))  # which an older Kemeny did not store
        del forged[name]
    elif change == "dtype":
        forged[name] = forged[name].astype(np.float16)
    elif change == "shape":
        forged[name] = forged[name].reshape(1, *forged[name].shape)
    else:
        hypothesis.assume(name != "starts")  # observations of the past, with which nothing can be compared
        number = data.draw(st.sampled_from([-1, 2**40, 2**62, -(2**62)]))
        forged[name] = np.full_like(forged[name], np.clip(number, -(2**30), 2**30) if name == "actions" else number)
        hypothesis.assume(not (name == "steps" and number > 0))  # training compares it with the iteration
    began = time.monotonic()
    with pytest.raises(RunError):
        Collector("InvertedPendulum-v5", Task(cut=50), num_envs=2, batch_length=20, seed=0, snapshot=forged).close()
    assert time.monotonic() - began < 5


@fuzz
@hypothesis.given(data=st.data())
def test_forged_settings_are_refused_or_usable(run, data):
    path = run.path / "config.json"
    original = path.read_bytes()
    config = json.loads(original)
    if data.draw(st.integers(0, 3)) == 0:
        config[data.draw(st.sampled_from(sorted(config)))] = data.draw(JSON)
    else:
        config["settings"][data.draw(st.sampled_from(sorted(config["settings"])))] = data.draw(JSON)
    path.write_text(json.dumps(config))
    try:
        assert make_learner(from_flat(Run.open(run.path).config["settings"]))
    except UserError:
        pass
    finally:
        path.write_bytes(original)


@fuzz
@hypothesis.given(data=st.data())
def test_damaged_logs_are_refused_or_read(run, data):
    name = data.draw(st.sampled_from(["metrics", "evaluations"]))
    path = run.path / f"{name}.jsonl"
    original = path.read_bytes()
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(original) - 1))
        changed = original[:place] + data.draw(st.binary(max_size=4)) + original[place + 1 :]
    else:
        record = json.loads(original.splitlines()[0])
        record[data.draw(st.sampled_from(sorted(record)))] = data.draw(JSON)
        changed = json.dumps(record).encode() + b"\n" + original
    path.write_bytes(changed)
    try:
        assert all(type(record["steps"]) is int for record in getattr(Run.open(run.path), name))
    except UserError:
        pass
    finally:
        path.write_bytes(original)


DAMAGED_COSTS = [
    {"cost": None},
    {"cost": []},
    {"cost": [1.0, 2.0]},
    {"cost": [[1.0]]},
    {"cost": 1.0},
    {"cost": [10**400]},
    {"case": None},
    {"case": 1.5},
    {"case": [1]},
    {"outcome": None},
    {"outcome": 0.5},
]


@pytest.mark.parametrize("damage", DAMAGED_COSTS, ids=str)
def test_damaged_metrics_of_a_constrained_run(constrained_run, tmp_path, damage):
    """Resuming counts from them how long the limits have been out of reach, and how long nothing was gained."""
    path = shutil.copytree(constrained_run.path, tmp_path / "run")
    record = json.loads((path / "metrics.jsonl").read_text())
    changed = [{**record, **damage}, {key: value for key, value in record.items() if key not in damage}]
    for line in changed:
        (path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        with pytest.raises(UserError, match=r"metrics\.jsonl is damaged: line 1 "):
            _ = Run.open(path).metrics


DAMAGED_EVALUATIONS = [
    b'{"steps": 1}\n',
    b'{"steps": 1, "returns_1000": "many"}\n',
    b'{"steps": 1, "returns_x": [1]}\n',
    b'{"steps": 1, "returns_1000": []}\n',
    b'{"steps": 1, "returns_1000": [[1], [2, 3]]}\n',
    b'{"steps": 1, "returns_1000": [null, 2]}\n',
    b'{"steps": 1, "returns_1000": 3, "average_costs": 4}\n',
    b'{"steps": 1, "returns_1000": [1e999]}\n',
    b'{"steps": 1, "returns_1000": [1%s]}\n' % (b"0" * 400),
    b'{"steps": 1, "returns_1000": [1], "faults": [1]}\n',
    b'{"steps": 1, "returns_1000": [1], "faults": 1e999}\n',
    b'{"steps": 1%s, "returns_1000": [1]}\n' % (b"0" * 400),
    b"[" * 100_000 + b"\n",
    b"null\n",
]


@pytest.mark.parametrize("content", DAMAGED_EVALUATIONS, ids=range(len(DAMAGED_EVALUATIONS)))
def test_plots_and_reports_of_damaged_evaluations(run, tmp_path, content):
    (run.path / "evaluations.jsonl").write_bytes(content)
    with contextlib.suppress(UserError):
        plot([run.path], tmp_path / "curve.png")
    with contextlib.suppress(UserError):
        report([run.path], tmp_path / "report.html", films=False)


@fuzz
@hypothesis.given(data=st.data())
def test_a_damaged_model_is_refused_or_read(tmp_path, data):
    path = tmp_path / "model.npz"
    if not path.exists():
        formats.save(zoo.access_control(), path)
    original = path.read_bytes()
    changed = bytearray(original)
    for place in data.draw(st.lists(st.integers(0, len(original) - 1), min_size=1, max_size=5)):
        changed[place] = data.draw(st.integers(0, 255))
    path.write_bytes(changed[: data.draw(st.sampled_from([len(original), len(original) // 2]))])
    try:
        formats.load(path)
    except UserError:
        pass
    finally:
        path.write_bytes(original)
