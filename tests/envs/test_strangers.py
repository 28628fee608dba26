"""Environments and costs that raise what they should not, where they should not: sentences, and no run is lost."""

import sys
from functools import partial

import gymnasium
import numpy as np
import pytest

import kemeny
from kemeny.envs.gymnasium import EnvironmentFault
from kemeny.envs.pool import inspect, make_pool
from kemeny.envs.settings import Simulation
from kemeny.envs.strangers import close_quietly, text_of, type_and_text
from kemeny.errors import RunError, UserError
from tests.conftest import TINY
from tests.envs.toys import Counter, Mute, Rude

TWO = np.arange(2)
EXIT = SystemExit("enough")


@pytest.fixture(params=[0, 1], ids=["here", "workers"])
def make(request):
    pools = []

    def make(env, **options):
        simulation = Simulation(workers=request.param, **options)
        pools.append(make_pool(env, 2, seed=0, simulation=simulation))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def stepped(pool):
    pool.reset(TWO)
    pool.send(np.zeros((2, 1), np.float32))
    return pool.recv()


def test_how_an_exception_is_told():
    assert type_and_text(ValueError("no such arena")) == "ValueError: no such arena"
    assert type_and_text(KeyError("wheel")) == "KeyError: 'wheel'"
    assert type_and_text(SystemExit()) == text_of(SystemExit()) == "SystemExit"
    assert type_and_text(Mute()) == text_of(Mute()) == "Mute"


@pytest.mark.parametrize("name", [":", "a:", ":b", "x:y:z", "::", ".x:y", "tests.envs.toys:"])
@pytest.mark.parametrize("workers", [0, 1])
def test_names_that_cannot_be(name, workers):
    simulation = Simulation(workers=workers)
    for use in (inspect, partial(make_pool, num_envs=1, seed=0)):
        with pytest.raises(UserError, match=f"^'{name}' cannot be the name of an environment: write an id.*module:id"):
            use(name, simulation=simulation)


@pytest.mark.parametrize("name", ["\0:y", "a b:c", "a..b:c", "-:-", "kemeny:\n", "☃:☃-v0", "x" * 5_000 + ":y"])
def test_modules_that_cannot_be(name):
    with pytest.raises(UserError):
        inspect(name)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("raise SystemExit('closed today')", "it raised SystemExit: closed today"),
        ("1 +", "it raised SyntaxError: "),
        ("raise ImportError", "ImportError"),
        ("from tests.envs.toys import Mute\nraise Mute", "it raised Mute"),
    ],
)
def test_a_module_that_fails_when_it_is_imported(content, what, tmp_path, monkeypatch):
    (tmp_path / "broken_arena.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_arena", raising=False)
    with pytest.raises(UserError, match=f"broken_arena:Foo-v0.*{what}"):
        inspect("broken_arena:Foo-v0")


@pytest.mark.parametrize(
    ("error", "what"), [(EXIT, "SystemExit: enough"), (SystemExit(), "SystemExit"), (Mute(), "Mute")]
)
def test_what_an_environment_raises_is_told(make, error, what):
    named = r"^Environment 0 \(tests\.envs\.toys:Rude\) raised " + what
    with pytest.raises(EnvironmentFault, match=rf"{named}, when it was restarted with seed \d+\.$"):
        make(partial(Rude, "reset", error)).reset(TWO)
    with pytest.raises(EnvironmentFault, match=rf"{named}, at step 1 after its restart, with action \[0\.\]\.$"):
        stepped(make(partial(Rude, "step", error)))
    with pytest.raises(UserError, match=rf"^tests\.envs\.toys:Rude could not be made: it raised {what}\.$"):
        make(partial(Rude, "__init__", error))


@pytest.mark.parametrize("method", ["__init__", "reset", "step"])
@pytest.mark.parametrize("error", [EXIT, Mute(), OSError("no such arena")], ids=["exit", "mute", "error"])
def test_inspection_tells_it(method, error):
    with pytest.raises(UserError, match=r"toys:Rude (could not be made: it|failed its first step: .*) raised "):
        inspect(partial(Rude, method, error))


def test_an_environment_that_exits_is_restarted_if_that_is_asked_for(make):
    pool = make(partial(Rude, "step", EXIT, at=2), restart_faulty=True)
    assert np.isfinite(stepped(pool).observation).all()
    pool.send(np.zeros((2, 1), np.float32))
    assert np.isnan(pool.recv().observation).all()
    assert [fault.split(",")[0] for fault in pool.take_faults()] == [
        f"Environment {i} (tests.envs.toys:Rude) raised SystemExit: enough" for i in TWO
    ]
    assert np.isfinite(stepped(pool).observation).all()


def test_an_environment_that_cannot_be_made_again():
    made = []

    def make_env():
        made.append(Rude("step", EXIT))
        if len(made) > 1:
            raise OSError("no such arena")
        return made[-1]

    pool = make_pool(make_env, 1, seed=0, simulation=Simulation(restart_faulty=True))
    pool.reset(TWO[:1])
    pool.send(np.zeros((1, 1), np.float32))
    pool.recv()
    assert np.isnan(pool.reset(TWO[:1])).all()
    assert "could not be made again (OSError: no such arena), when it was restarted" in pool.take_faults()[-1]


def test_a_cost_that_exits_is_named():
    def cost(observation, action, reward, info):
        sys.exit(3)

    pool = make_pool(Counter, 2, seed=0, costs=[cost])
    with pytest.raises(RunError, match=r"^The cost function .*cost raised SystemExit: 3\.$"):
        stepped(pool)


@pytest.mark.parametrize("error", [EXIT, Mute(), OSError("jammed")], ids=["exit", "mute", "error"])
def test_closing_never_fails(make, error):
    env = partial(Rude, "close", error)
    inspect(env)
    pool = make(env)
    assert np.isfinite(stepped(pool).observation).all()
    pool.close()


def test_those_made_before_one_that_fails_are_closed():
    closed = []

    class Careful(Counter):
        made = 0

        def __init__(self):
            Careful.made += 1
            if Careful.made == 3:
                raise OSError("no more arenas")
            super().__init__()

        def close(self):
            closed.append(self)

    with pytest.raises(UserError, match="no more arenas"):
        make_pool(Careful, 4, seed=0)
    assert len(closed) == 2


def test_an_interrupt_is_the_users():
    class Interrupted:
        def close(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        close_quietly(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        inspect(partial(Rude, "step", KeyboardInterrupt()))


def test_spaces_that_are_missing():
    class Nowhere(gymnasium.Env):
        pass

    with pytest.raises(UserError, match="Nowhere does not say what its spaces are: AttributeError"):
        inspect(Nowhere)


@pytest.mark.parametrize("workers", [0, 1])
def test_training_is_not_lost_for_an_environment_that_cannot_be_closed(workers, tmp_path):
    run = kemeny.train(partial(Rude, "close", EXIT), out=tmp_path / "run", workers=workers, **TINY)
    assert run.metrics[-1]["steps"] == TINY["steps"]
    assert run.policy(np.zeros(3)).shape == (1,)
