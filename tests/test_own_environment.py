"""An environment in a file of the user's: named, made, trained on, and found again by whoever may run its code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kemeny
from kemeny.envs import trust
from kemeny.envs.envpool import EnvPoolPool
from kemeny.envs.names import Environment, as_environment, find
from kemeny.envs.pool import choose_backend, inspect, make_pool, why_not_envpool
from kemeny.envs.settings import Simulation
from kemeny.envs.trust import foreign_code, refuse_strangers, remember
from kemeny.errors import UserError
from kemeny.runs.directory import Run
from kemeny.runs.environment import environment_of
from tests.conftest import TINY
from tests.envs.toys import Counter
from tests.test_cli import MAIN, TINY_FLAGS
from tests.test_cli import kemeny as command

SOURCE = """
import gymnasium
import numpy as np


class Queue(gymnasium.Env):
    def __init__(self, capacity=10):
        self.capacity = capacity
        self.observation_space = gymnasium.spaces.Box(0.0, capacity, (1,))
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.length = min(self.length + 1, self.capacity)
        return np.full(1, self.length, np.float32), -float(self.length), False, False, {"length": self.length}


def make(capacity=10):
    return Queue(capacity)


def needs(capacity, *, rate):
    return Queue(capacity)


def anything(**options):
    return Queue(**options)


class NoEnvironment:
    pass


made = Queue()
gymnasium.register("NAME-v0", Queue)
"""
NUMBER = iter(range(100))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a module in the working directory, which nobody has imported yet."""
    name = f"own_envs_{next(NUMBER)}"
    (tmp_path / f"{name}.py").write_text(SOURCE.replace("NAME", name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """Somebody who has trusted nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def longest_queue(env):
    """What the environment shows after 30 steps."""
    pool = make_pool(env, 1, seed=0)
    pool.reset(np.arange(1))
    for _ in range(30):
        pool.send(np.zeros(1, np.int32))
        step = pool.recv()
    pool.close()
    return step.observation[0, 0]


@pytest.mark.parametrize(
    "name",
    [
        "{}:make",
        "{}:Queue",
        "{}:anything",
        "{}:{}-v0",
        "{}.py:make",
        "./{}.py:Queue",
        "{}.py:{}-v0",
        "sub/../{}.py:make",
    ],
)
def test_every_way_to_name_it(name, own):
    name = name.replace("{}", own)
    if name.startswith("sub"):
        Path("sub").mkdir()
    env = as_environment(name, {"capacity": 7})
    assert inspect(env).observation.shape == (1,)
    assert longest_queue(env) == 7
    assert longest_queue(name) == 10


def test_a_worker_finds_it_too(own):
    simulation = Simulation(workers=1)
    pool = make_pool(Environment(f"{own}.py:make", {"capacity": 2}), 1, seed=0, simulation=simulation)
    pool.reset(np.arange(1))
    for _ in range(4):
        pool.send(np.zeros(1, np.int32))
        step = pool.recv()
    pool.close()
    assert step.observation[0, 0] == 2


def test_a_file_finds_the_files_beside_it(own, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / f"{own}_helper.py").write_text("CAPACITY = 4")
    maker = f"from {own}_helper import CAPACITY\nfrom {own} import Queue\ndef make(): return Queue(CAPACITY)"
    (tmp_path / "deep" / "one.py").write_text(maker)
    assert longest_queue("deep/one.py:make") == 4


def test_the_working_directory_hides_no_module(own, tmp_path):
    (tmp_path / "queue.py").write_text(SOURCE)
    with pytest.raises(
        UserError,
        match=r"queue has no function, class or id 'make'; it is not the file in this dir.*"
        r"write queue\.py:make\.$",
    ):
        inspect("queue:make")
    with pytest.raises(
        UserError, match=r"is a class, but no gymnasium\.Env: it is not the file .* write queue\.py:Queue\.$"
    ):
        inspect("queue:Queue")
    assert str(tmp_path) not in sys.path
    inspect(f"{own}:make")
    assert sys.path[-1] == str(tmp_path)
    assert longest_queue("queue.py:make") == 10


MISTAKES = {
    "no such module": (
        "{}_none:make",
        None,
        "needs the module {}_none, which is neither installed nor in this directory",
    ),
    "no such file": ("sub/{}.py:make", None, r"needs the file sub/{}\.py, which does not exist"),
    "a file alone": ("{}.py", None, r"is a file: name the function or class in it too, as in {}\.py:make_env"),
    "no such name": ("{}:mak", None, "has no function, class or id 'mak'; did you mean make"),
    "no such id": ("{}:Other-v0", None, "There is no environment '{}:Other-v0'"),
    "no environment": ("{}:NoEnvironment", None, r"is a class, but no gymnasium\.Env"),
    "made already": ("{}:made", None, "is an environment that was made already"),
    "no function": ("{}:np", None, "is of type module: name a function or class"),
    "other result": ("{}:np.zeros", {"shape": 2}, r"returned an object of type ndarray"),
    "needs arguments": (
        "{}:needs",
        None,
        r"needs arguments \(capacity, rate\): give them with --env-kwargs '.\"capacity\": …, ",
    ),
    "needs one more": ("{}:needs", {"capacity": 2}, r"needs arguments \(rate\)"),
    "misspelt argument": ("{}:make", {"capacty": 2}, "takes no argument 'capacty'; it takes: capacity"),
    "misspelt for a class": ("{}:Queue", {"capacty": 2}, "takes no argument 'capacty'; it takes: capacity"),
    "misspelt for an id": ("{}:{}-v0", {"capacty": 2}, "could not be made: it raised TypeError: .*capacty"),
    "wrong value": ("{}:make", {"capacity": "ten"}, "could not be made: it raised "),
    "number of environments": ("{}:make", {"num_envs": 3}, "it is the setting --num-envs"),
    "no JSON": ("{}:make", {"capacity": {1, 2}}, "env_kwargs must be numbers, texts, lists"),
    "no names": ("{}:make", {3: 2}, "must be a dictionary of arguments by their names"),
    "no dictionary": ("{}:make", [3], "must be a dictionary of arguments by their names"),
    "too long": ("{}:make", {"capacity": "x" * 100_000}, "at most 65,536"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case, own):
    name, kwargs, message = (part.replace("{}", own) if isinstance(part, str) else part for part in MISTAKES[case])
    with pytest.raises(UserError, match=message) as refused:
        inspect(as_environment(name, kwargs))
    assert str(refused.value).count("\n") == 0


@pytest.mark.parametrize(
    ("text", "what"),
    [("raise OSError('no arena')", "OSError: no arena"), ("import nothing_like_it", "ModuleNotFoundErr")],
)
@pytest.mark.parametrize("form", ["{}", "{}.py"])
def test_code_that_raises(own, tmp_path, form, text, what):
    (tmp_path / f"{own}.py").write_text(text)
    home = form.format(own)
    for _ in range(2):  # what failed once is not taken for imported
        with pytest.raises(UserError, match=f"^{home}:make cannot be made: when {home} was imported, it raised {what}"):
            inspect(f"{home}:make")


def test_options_of_envpool():
    env = as_environment("Ant-v3", {"terminate_when_unhealthy": False, "max_episode_steps": 50})
    assert choose_backend(env, "auto", 0) == "envpool"
    assert inspect(env).time_limit == 50
    pool = make_pool(env, 2, seed=0)
    assert isinstance(pool, EnvPoolPool)
    pool.reset(np.arange(2))
    for _ in range(60):  # EnvPool's Ant falls within some 30 steps of such actions, and its limit would cut it at 50
        pool.send(np.tile(np.float32([1, -1] * 4), (2, 1)))
        step = pool.recv()
        assert not (step.terminated | step.truncated).any()
    pool.close()


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"gravity": 3}, "takes no argument 'gravity'; it takes: .*ctrl_cost_weight"),
        ({"frame_skip": "two"}, "does not take these arguments; its own are: frame_skip 5"),
        ({"seed": 3}, "option 'seed' is Kemeny's to set"),
    ],
)
def test_what_envpool_does_not_take(kwargs, why):
    with pytest.raises(UserError, match=f"^EnvPool.* {why}"):
        inspect(as_environment("Ant-v3", kwargs))  # which Gymnasium does not have


def test_gymnasium_takes_what_envpool_does_not():
    env = as_environment("Pendulum-v1", {"g": 1.0})
    assert choose_backend(env, "auto", 0) == "gymnasium"
    assert why_not_envpool(env, 0).endswith("So Gymnasium's is used, which is slower.")
    assert why_not_envpool(env, 1) is why_not_envpool("Pendulum-v1", 0) is why_not_envpool(Counter, 0) is None
    inspect(env)
    with pytest.raises(UserError, match="takes no argument 'g'"):
        inspect(env, backend="envpool")


def test_which_functions_are_found_by_name(own):
    for found in (Counter, make_pool, "Ant-v3"):
        assert Environment(found).found_by_name()
    made_here = lambda: Counter()  # noqa: E731
    main = type("Main", (), {"__module__": "__main__"})
    for lost in (made_here, main, Counter().step, lambda: Counter()):
        assert not Environment(lost).found_by_name()


def test_names_of_directories():
    assert Environment("ALE/Pong-v5").short_name == "ALE-Pong-v5"
    assert Environment("/far/away/envs.py:make").short_name == "envs-make"
    assert Environment("my.envs:make").short_name == "my.envs-make"


def test_what_is_harmless(own):
    for harmless in (
        "Ant-v3",
        *(f"gymnasium.envs.classic_control:{name}" for name in ("CartPole-v1", "CartPoleEnv")),
        "nosuchmodule:make",
    ):
        assert foreign_code(Environment(harmless)) is None
    for doubtful in (f"{own}:make", f"{own}:{own}-v0", f"{own}.py:make"):
        assert foreign_code(Environment(doubtful)).name == f"{own}.py"
    assert own not in sys.modules  # nothing of it has run


def test_a_function_of_an_installed_package_can_do_harm(own, stranger):
    env = as_environment("os:system", {"command": "touch harm"})
    with pytest.raises(UserError, match=r"^run was trained on os:system with .*touch harm.*add --trust"):
        refuse_strangers(env, "run", trust=False)


def test_only_what_was_trusted_is_trusted(own, stranger, tmp_path):
    env = as_environment(f"{own}:make", {"capacity": 3})
    with pytest.raises(UserError, match=rf"would run code of .*{own}\.py\. You have not trained on it here before"):
        refuse_strangers(env, "run", trust=False)
    refuse_strangers(env, "run", trust=True)
    refuse_strangers(env, "run", trust=False)
    remember(env)
    (line,) = (tmp_path / "cache/kemeny" / trust.TRUSTED).read_text().splitlines()
    assert json.loads(line) == [str(tmp_path / f"{own}.py"), f"{own}:make", {"capacity": 3}]
    for other in (env.with_kwargs(capacity=4), as_environment(f"{own}:np.load", {"file": "x"})):
        with pytest.raises(UserError, match="add --trust"):
            refuse_strangers(other, "run", trust=False)


@pytest.mark.parametrize("name", ["__main__:__builtins__.__import__", "__main__:os.system", "this:CartPole-v1"])
def test_no_module_runs_unasked(name, own, stranger):
    """`__main__` has no spec; `this` is installed, but not for environments, and prints a poem."""
    with pytest.raises(UserError, match="add --trust"):
        refuse_strangers(as_environment(name, {"name": own}), "run", trust=False)
    assert own not in sys.modules
    assert "this" not in sys.modules


def test_what_python_keeps_for_itself_makes_no_environment(own):
    with pytest.raises(UserError, match="cannot be found"):
        find(Environment(f"{own}:__loader__.get_data"))


def test_asking_about_trust_leaves_the_path_as_it_was(own):
    """Else a file beside a stranger's run could stand in for a package that is not installed."""
    before = list(sys.path)
    for name in ("gymnasium.envs.classic_control:CartPoleEnv", f"{own}:make"):
        foreign_code(Environment(name))
    assert sys.path == before
    find(Environment("gymnasium.envs.classic_control:CartPoleEnv"))
    assert sys.path == before


def test_a_file_that_is_not_there_is_nobodys(own):
    assert foreign_code(Environment("nowhere.py:make")) is None


def test_an_edited_file_is_read_again(own, tmp_path):
    for capacity in (3, 5):
        (tmp_path / "edited.py").write_text(f"from {own} import Queue\ndef make(): return Queue({capacity})\n")
        os.utime(tmp_path / "edited.py", (capacity, capacity))
        assert find(Environment("edited.py:make"))().capacity == capacity


def test_a_namespace_package_half_of_which_is_here_is_not_installed(own, tmp_path, monkeypatch):
    parts = [tmp_path / place / "spread" for place in ("installed", "here")]
    for part in parts:
        part.mkdir(parents=True)
        monkeypatch.syspath_prepend(part.parent)
    monkeypatch.setattr(trust, "_is_installed", lambda place: place == parts[0])
    assert foreign_code(Environment("spread.evil:make")) == parts[1]


def test_where_nothing_can_be_written_the_user_is_asked(own, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    env = Environment(f"{own}:make")
    remember(env)
    refuse_strangers(env, "run", trust=True)
    with pytest.raises(UserError, match="add --trust"):
        refuse_strangers(env, "run", trust=False)


def test_from_python_to_the_command_line_and_back(own, tmp_path, monkeypatch):
    """A run trained on an importable function is found by its name; another user of the same run is asked."""
    make = find(Environment(f"{own}:make"))
    run = kemeny.train(make, env_kwargs={"capacity": 3}, out="run", **{**TINY, "steps": 200})
    assert run.config["env"] == f"{own}:make"
    assert run.config["env_kwargs"] == {"capacity": 3}
    assert run.config["env_is_id"]
    assert str(tmp_path) not in (tmp_path / "run/config.json").read_text()
    assert environment_of(run) == Environment(f"{own}:make", {"capacity": 3})
    arguments = ["evaluate", "run", "--max-steps", "5", "--json"]
    shown = subprocess.run([sys.executable, "-P", "-c", MAIN, *arguments], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert min(json.loads(shown.stdout)["returns_5"]) == -(1 + 2 + 3 + 3 + 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UserError, match="add --trust"):
        kemeny.resume("run")
    assert kemeny.resume("run", trust=True).path == run.path
    kemeny.resume("run")


def test_the_command_line_alone(own, tmp_path, capfd, monkeypatch):
    flags = [*TINY_FLAGS, "--env-kwargs", '{"capacity": 2}', "--out", "run"]
    code, _, err = command(capfd, monkeypatch, "train", f"{own}.py:Queue", *flags)
    assert code == 0, err
    config = Run.open("run").config
    assert (config["env"], config["env_kwargs"]) == (f"{own}.py:Queue", {"capacity": 2})
    code, _, err = command(capfd, monkeypatch, "resume", "run")
    assert code == 0, err
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    code, _, err = command(capfd, monkeypatch, "evaluate", "../run", "--trust")
    assert code == 2
    assert f"needs the file {own}.py, which does not exist" in err


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ("{capacity: 3}", "--env-kwargs is no JSON"),
        ("[3]", "it must be an object"),
        ('{"capacity": NaN}', "must be numbers"),
        ('{"capacty": 3}', "takes no argument 'capacty'"),
    ],
)
def test_mistakes_on_the_command_line(kwargs, message, own, tmp_path, capfd, monkeypatch):
    code, out, err = command(capfd, monkeypatch, "train", f"{own}:make", "--env-kwargs", kwargs, *TINY_FLAGS)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_lambda_has_to_be_given_again(tmp_path):
    run = Run.create(
        tmp_path / "run", {"env": "tests:<lambda>", "env_is_id": False, "env_kwargs": {"a": 1}, "settings": {}}
    )
    with pytest.raises(
        UserError, match="was trained on the function tests:<lambda>, which cannot be found by that name"
    ):
        environment_of(run)
    assert environment_of(run, Counter) == Environment(Counter, {"a": 1})


def test_other_arguments_are_another_run(tmp_path):
    sums = []
    for number, more in enumerate(({}, {"env_kwargs": {}}, {"env_kwargs": {"a": 1}}, {"env_kwargs": {"a": 2}})):
        config = {"env": "Ant-v3", "env_is_id": True, "settings": {}, **more}
        sums.append(Run.create(tmp_path / str(number), config).config_sum(0))
    assert sums[0] == sums[1]  # a run that an older Kemeny began is still itself
    assert len(set(sums)) == 3
