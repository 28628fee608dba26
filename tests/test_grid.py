"""Which runs a sweep consists of: combinations, names, files, and what is named before anything starts."""

import re
import sys
from pathlib import Path

import pytest

from kemeny import cli
from kemeny.envs.names import Environment
from kemeny.errors import UserError
from kemeny.experiments.grid import Grid, Planned
from kemeny.experiments.grid_file import read_grid
from kemeny.experiments.sweep import Sweep, array_index
from kemeny.runs import train as train_module
from kemeny.runs.presets import preset
from kemeny.runs.settings import from_flat
from tests.envs.toys import Counter


def names(**given):
    return [run.name for run in Grid.of(given).runs()]


def test_every_combination_with_every_seed():
    runs = Grid.of({"env": ["A-v1", "B-v1"], "gae_lambda": [0.8, 0.95], "delta": 0.01, "seeds": [3, 4]}).runs()
    assert [run.name for run in runs[:3]] == [
        "A-v1-atrpo-gae_lambda=0.8-seed3", "A-v1-atrpo-gae_lambda=0.8-seed4", "A-v1-atrpo-gae_lambda=0.95-seed3",
    ]  # fmt: skip
    assert [(run.env.name, run.settings) for run in runs] == [
        (env, from_flat({"gae_lambda": gae_lambda, "delta": 0.01, "seed": seed}))
        for env in ("A-v1", "B-v1") for gae_lambda in (0.8, 0.95) for seed in (3, 4)
    ]  # fmt: skip


def test_more_collectors_than_environments_by_default_fit_more_environments():
    (run,) = Grid.of({"env": "A", "collectors": 25, "num_envs": 50}).runs()
    assert (run.settings.collectors, run.settings.num_envs) == (25, 50)


def test_a_preset_is_the_default_of_what_is_not_given():
    plain, paper = Grid.of({"env": "A", "preset": ["default", "paper"], "delta": 0.5}).runs()
    assert plain.settings == from_flat({"delta": 0.5})
    assert paper.settings == from_flat({"delta": 0.5}, preset("paper"))
    assert paper.name == "A-atrpo-preset=paper-seed0"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"env": "A"}, ["A-atrpo-seed0"]),
        ({"env": "A", "algorithm": ["atrpo", "trpo"]}, ["A-atrpo-seed0", "A-trpo-seed0"]),
        ({"env": "A", "hidden": [(64, 64), (8,)]}, ["A-atrpo-hidden=64x64-seed0", "A-atrpo-hidden=8-seed0"]),
        ({"env": "A", "hidden": [64, 64]}, ["A-atrpo-seed0"]),
        ({"env": "A", "reset_cost": [None, 1e-7]}, ["A-atrpo-reset_cost=None-seed0", "A-atrpo-reset_cost=1e-07-seed0"]),
        ({"env": "m:f", "env_kwargs": [{"n": 2}, {}]}, ["m-f-atrpo-n=2-seed0", "m-f-atrpo-plain-seed0"]),
        ({"env": Counter}, ["tests.envs.toys-Counter-atrpo-seed0"]),
        ({"env": "A", "init_from": ["../x", None]}, ["A-atrpo-init_from=..-x-seed0", "A-atrpo-init_from=None-seed0"]),
    ],
)  # fmt: skip
def test_a_name_is_made_of_what_differs(given, expected):
    assert names(**given) == expected


def test_long_names_are_cut_and_still_differ():
    long = names(env="A", cost=[("x" * 300 + "1",), ("x" * 300 + "2",)], limit=1.0, algorithm="acpo", seeds=[7])
    assert len(set(long)) == 2
    assert all(len(name) < 140 and name.endswith("-seed7") for name in long)


MISTAKES = {
    "unknown setting": ({"gae_lamda": 0.9}, "no setting named gae_lamda; did you mean gae_lambda?"),
    "wrong type": ({"gae_lambda": [0.9, "much"]}, "gae_lambda is 'much'; it must be a number"),
    "out of range": ({"gae_lambda": [0.9, 1.1]}, "--gae-lambda is 1.1; it must be between 0 and 1"),
    "no such algorithm": ({"algorithm": ["atrpo", "ppo"]}, "must be one of atrpo"),
    "negative seed": ({"seeds": [0, -1]}, "--seed is -1"),
    "seed for seeds": ({"seed": [0, 1]}, "write --seeds 0 1 2"),
    "twice the same": ({"delta": [0.01, 1e-2]}, "has delta = 0.01 twice"),
    "no values": ({"delta": []}, "delta has no values"),
    "unknown preset": ({"preset": "papr"}, "no preset named papr"),
    "limit without cost": (
        {"algorithm": ["atrpo", "acpo"]}, "The run A-acpo-seed0 cannot be made: acpo needs a cost",
    ),
    "discount for the average": (
        {"algorithm": ["trpo", "atrpo"], "gamma": [0.9, 0.99]}, "A-atrpo-gamma=0.9-seed0 cannot be made",
    ),
    "uneven batch": ({"num_envs": [20, 7]}, "The run A-atrpo-num_envs=7-seed0 cannot be made"),
    "a function as cost": ({"algorithm": "acpo", "cost": print, "limit": 1}, "A cost of a sweep is a name"),
    "a function without a name": ({"env": lambda: None}, "put the function into a module"),
    "arguments of no kind": ({"env_kwargs": [3]}, "env_kwargs must be a dictionary"),
    "too many": ({"delta": [i / 1e6 for i in range(1, 20_001)]}, "has 20,000 runs"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_before_anything_starts(name, tmp_path):
    given, expected = MISTAKES[name]
    with pytest.raises(UserError, match=re.escape(expected)):
        Sweep(Grid.of({"env": "A", **given}), tmp_path / "sweep")
    assert not list(tmp_path.iterdir())


EVERYTHING = Planned(
    "x", "", Environment("m.py:f", {"n": [1, "ä b"]}),
    from_flat({
        "algorithm": "cpo", "gamma": 0.5, "cost": ("speed", "-x"), "limit": (-1e-7, 2.0), "hidden": (), "log_std": None,
        "episodic": True, "reset_cost": 1e-9, "seed": 2**60, "step_timeout": 0.1, "activation": "relu", "steps": 123,
    }), init_from="some where",
)  # fmt: skip


def test_the_command_of_a_run_gives_its_settings(monkeypatch, tiny_run):
    """What sweep and user type is the same run, whatever its settings; the preset's are left out."""
    started = []

    def start(env, settings, out, observers, **more):
        started.append((env, settings, out, more))
        return tiny_run

    monkeypatch.setattr(train_module, "start", start)
    paper = Planned(
        "y", "", Environment("A"), from_flat({"gae_lambda": 0.8, "log_std": -1.0}, preset("paper")), "paper"
    )
    for run in (EVERYTHING, paper):
        monkeypatch.setattr(sys, "argv", ["kemeny", *run.command(Path("out"))])
        cli.main()
        env, settings, out, more = started.pop()
        assert (env, settings, out) == (run.env, run.settings, Path("out"))
        assert more["resume_if_exists"]
        assert str(more["init_from"]) == str(run.init_from)
    assert "--delta" not in " ".join(paper.command(Path("out")))


FILE = """
out = "runs/here"
seeds = [0, 1]
steps = 1_000
delta = 0.5
base = "mine"
env = "A"

[bases.mine]
gae_lambda = 0.7
delta = 0.25

[bases.theirs]
preset = "paper"

[arms.one]

[arms.two]
base = "theirs"
group = "others"
env = ["B", "C"]
hidden = [[4], [5, 5]]
seeds = 3

[arms.three]
group = "others"
delta = 0.125
"""


def test_a_file_with_arms(tmp_path):
    (tmp_path / "study.toml").write_text(FILE)
    file = read_grid(tmp_path / "study.toml")
    runs = {run.name: run for run in file.grid.runs()}
    assert file.out == Path("runs/here")
    assert list(runs) == [
        "one-0", "one-1", "two-B-hidden=4-3", "two-B-hidden=5x5-3", "two-C-hidden=4-3", "two-C-hidden=5x5-3",
        "three-0", "three-1",
    ]  # fmt: skip
    assert runs["one-1"].settings == from_flat({"steps": 1_000, "delta": 0.25, "gae_lambda": 0.7, "seed": 1})
    assert runs["two-C-hidden=5x5-3"].settings == from_flat(
        {"steps": 1_000, "delta": 0.5, "hidden": (5, 5), "seed": 3}, preset("paper")
    )
    assert runs["three-0"].settings.region.delta == 0.125
    assert [arm.name for arm in file.grid.only(["others"]).arms] == ["two", "three"]
    assert [arm.name for arm in file.grid.only(["one", "three"]).arms] == ["one", "three"]
    with pytest.raises(UserError, match="no arm or group named four; there are one, two, three, others"):
        file.grid.only(["four"])


def test_what_is_given_beside_a_file_takes_its_place(tmp_path):
    (tmp_path / "study.toml").write_text(FILE)
    sweep = Sweep.of([str(tmp_path / "study.toml")], {"delta": [0.1, 0.2], "seeds": [9]}, tmp_path / "out", ["one"])
    assert [run.name for run in sweep.runs] == ["one-delta=0.1-9", "one-delta=0.2-9"]
    with pytest.raises(UserError, match="must stand alone"):
        Sweep.of(["A", str(tmp_path / "study.toml")])


BAD_FILES = {
    "no file": (None, "cannot be read: .*No such file"),
    "no TOML": ("a = = b", "is no TOML file: Invalid value"),
    "no text": (b"\xff\xfe", "is no TOML file"),
    "unknown key": ('env = "A"\nstepps = 3', "There is no setting named stepps; did you mean steps?"),
    "unknown key in an arm": ('env = "A"\n[arms.x]\nagorithm = "trpo"', "did you mean algorithm?"),
    "unknown key in a base": ('env = "A"\nbase = "b"\n[bases.b]\nx = 1', "There is no setting named x"),
    "unknown base": ('env = "A"\n[arms.x]\nbase = "b"', "There is no base named b; there are none"),
    "arms that are none": ("arms = 3", r"arms must be tables, each with a name: \[arms.NAME\]"),
    "a name that is none": ('[arms."../x"]\nenv = "A"', "not '../x'"),
    "out that is none": ("out = 3", "out is 3; it must be a text"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_wrong_gets_a_sentence(name, tmp_path):
    content, expected = BAD_FILES[name]
    path = tmp_path / "bad.toml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=expected) as error:
        read_grid(path)
    assert str(path) in str(error.value)


def test_wrong_values_in_an_arm_name_the_arm(tmp_path):
    (tmp_path / "bad.toml").write_text('env = "A"\n[arms.x]\ndelta = "small"')
    with pytest.raises(UserError, match="In the arm x: The setting delta is 'small'"):
        read_grid(tmp_path / "bad.toml").grid.runs()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("A --gae-lambda 0.8 1 --limit 1.5 -2e-3 --cost speed --algorithm acpo", 4),
        ("A B --hidden 64,64 32 --steps 1e3", 4),
        ("A --episodic --algorithm trpo", 1),
        ("A --episodic yes no --algorithm trpo --reset-cost none 3", 4),
        ("A --seeds 0 1 2 --preset default paper", 6),
        ('A --env-kwargs {"n":1} {"n":2}', 2),
    ],
)
def test_values_as_they_are_typed(words, expected, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kemeny", "sweep", *words.split(), "--count"])
    cli.main()
    assert int(capsys.readouterr().out) == expected


def test_a_typed_value_is_what_train_makes_of_it(monkeypatch):
    seen = []
    monkeypatch.setattr(Sweep, "look", lambda self: seen.append(self.runs) or [])
    words = "A --hidden 10,8 --steps 2.5e3 --cost speed,heat --limit -1,2 --algorithm acpo --log-std none --list"
    monkeypatch.setattr(sys, "argv", ["kemeny", "sweep", *words.split()])
    cli.main()
    ((run,),) = seen
    limited = {"algorithm": "acpo", "cost": ("speed", "heat"), "limit": (-1, 2)}
    assert run.settings == from_flat({"hidden": (10, 8), "steps": 2_500, "log_std": None, **limited})


WRONG = (
    "A --gae-lambda",
    "A --gae-lambda high",
    "A --episodic maybe",
    "--count",
    "A --only x",
    "A --array 1",
    "A --jobs 0",
)


@pytest.mark.parametrize("words", WRONG)
def test_what_is_typed_wrong_gets_a_sentence_and_leaves_nothing_behind(words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["kemeny", "sweep", *words.split()])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("kemeny: ")
    assert not list(tmp_path.iterdir())


def test_which_member_of_an_array_this_is():
    assert array_index(3, {"SLURM_ARRAY_TASK_ID": "7"}) == (3, "--array")
    for name in ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "JOB_COMPLETION_INDEX"):
        assert array_index(None, {name: "7"}) == (7, name)
    with pytest.raises(UserError, match="PBS_ARRAY_INDEX is 'x'"):
        array_index(None, {"PBS_ARRAY_INDEX": "x"})
    with pytest.raises(UserError, match="--array needs a number, or one of the variables SLURM_ARRAY_TASK_ID"):
        array_index(None, {})
