"""The machine is described as it is; compiled code is kept between processes, and changes no number."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kemeny import machine
from kemeny.runs import checkpoint

PROGRAM = """
import kemeny, sys
kemeny.train("InvertedPendulum-v5", out=sys.argv[1], steps=200, num_envs=2, batch_size=100, hidden=8, eval_max_steps=5)
import jax
print(jax.config.jax_compilation_cache_dir)
"""

FUNCTIONS = """
import collections, jax
from kemeny import machine
events = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event.split("/")[-1]]))
machine.keep_compiled(1)
def double(x): return 2 * x
def square(x): return x * x
def negative(x): return -x
print(*(float(jax.jit(function)(3.0)) for function in (double, square, negative)))
print(events["cache_hits"], events["cache_misses"])
"""


def run(*arguments: str, **environment: str) -> str:
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE", "NPROC")
    environ = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([sys.executable, *arguments], env=environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout.strip()


def train(out: Path, **environment: str) -> str:
    return run("-c", PROGRAM, str(out), **environment)


def compile_functions(**environment: str) -> tuple[int, int]:
    """How many of three functions a new process finds in the cache, and how many it writes to it."""
    values, counts = run("-W", "error", "-c", FUNCTIONS, **environment).splitlines()
    assert values == "6.0 9.0 -3.0"
    hits, misses = counts.split()
    return int(hits), int(misses)


def damage(folder: Path) -> list[Path]:
    """Cut an entry short, empty a second one, and leave a flipped byte in a third."""
    cut, empty, flipped = (next(folder.rglob(f"jit_{name}-*-cache")) for name in ("double", "square", "negative"))
    whole = flipped.read_bytes()
    middle = len(whole) // 2
    cut.write_bytes(cut.read_bytes()[:-100])
    empty.write_bytes(b"")
    flipped.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    return [cut, empty, flipped]


def entries(folder: Path) -> set[str]:
    return {path.name.split("-")[0] for path in folder.rglob("*-cache")}


def test_a_second_run_uses_what_the_first_compiled_and_learns_the_same(tmp_path):
    cache = tmp_path / "cache"
    train(tmp_path / "first", XDG_CACHE_HOME=str(cache))
    assert {"jit__improve", "jit_refit"} <= entries(cache)
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*-cache")}
    train(tmp_path / "second", XDG_CACHE_HOME=str(cache))
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*-cache")} == before  # nothing was compiled
    first, second = (checkpoint.latest(tmp_path / name).arrays for name in ("first", "second"))
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize("switch", [{"JAX_ENABLE_COMPILATION_CACHE": "false"}, {"JAX_COMPILATION_CACHE_DIR": "own"}])
def test_jaxs_own_switches_are_respected(tmp_path, switch):
    cache = tmp_path / "cache"
    if "JAX_COMPILATION_CACHE_DIR" in switch:
        switch = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own")}
    folder = train(tmp_path / "run", XDG_CACHE_HOME=str(cache), **switch)
    assert folder == switch.get("JAX_COMPILATION_CACHE_DIR", "None")
    assert not cache.exists()


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path):
    (tmp_path / "file").write_text("")
    assert train(tmp_path / "run", XDG_CACHE_HOME=str(tmp_path / "file")) == "None"


def test_damaged_entries_are_replaced_without_a_word(tmp_path):
    cache = str(tmp_path)
    assert compile_functions(XDG_CACHE_HOME=cache) == (0, 3)
    assert compile_functions(XDG_CACHE_HOME=cache) == (3, 0)
    damaged = damage(tmp_path)
    contents = [path.read_bytes() for path in damaged]
    assert compile_functions(XDG_CACHE_HOME=cache) == (0, 3)
    assert all(path.read_bytes() != before for path, before in zip(damaged, contents, strict=True))
    assert compile_functions(XDG_CACHE_HOME=cache) == (3, 0)


def test_damaged_entries_of_the_users_own_cache_are_left_alone(tmp_path):
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    assert compile_functions(**own) == (0, 3)
    damaged = damage(tmp_path)
    contents = [path.read_bytes() for path in damaged]
    with pytest.raises(AssertionError, match="Error reading persistent compilation cache entry"):
        compile_functions(**own)
    assert [path.read_bytes() for path in damaged] == contents


def test_another_jax_may_have_changed_what_is_private(tmp_path, monkeypatch):
    monkeypatch.delattr("jax._src.compilation_cache._initialize_cache")
    machine._replace_damaged(tmp_path)


def test_the_machine_is_known_without_jax():
    """Environments import this module, and their processes never load JAX."""
    program = "import sys; from kemeny import machine; machine.surroundings(); print('jax' in sys.modules)"
    assert run("-c", program) == "False"


def test_nproc_is_what_xla_goes_by(monkeypatch):
    monkeypatch.delenv("NPROC", raising=False)
    assert machine.xla_cores() == machine.available_cores() > 0
    monkeypatch.setenv("NPROC", "7")
    assert machine.xla_cores() == machine.surroundings()["cores"] == 7
    for nonsense in ("0", "-2", "many", ""):
        monkeypatch.setenv("NPROC", nonsense)
        assert machine.xla_cores() == machine.available_cores()


KEEP = """
import os
from kemeny import machine
now, said = machine.xla_cores(), []
print(*(machine.keep_cores(cores, said.append) - now for cores in (None, True, 0, 10**6, str(now + 1), now + 1)))
machine.keep_cores(now + 2, said.append)
print(os.environ.get("NPROC"), len(said), f"began with {now + 2} threads" in said[0])
"""


@pytest.mark.parametrize("nproc", [{}, {"NPROC": "2"}])
def test_cores_are_kept_once_and_nproc_is_left_as_it_was(nproc):
    more, after = run("-c", KEEP, **nproc).splitlines()
    assert more == "0 0 0 0 0 1"
    assert after == f"{nproc.get('NPROC')} 1 True"


def test_nothing_differs_from_now():
    assert machine.differences(machine.surroundings()) == []


def test_another_version_and_another_processor_differ():
    before = machine.surroundings()
    before["versions"] = before["versions"] | {"python": "2.7", "jax": None, "of no matter": "1"}
    first, second = machine.differences(before | {"processor": "abacus"})
    assert f"python 2.7 → {platform.python_version()}, jax None → " in first
    assert "of no matter" not in first
    assert "abacus → " in second
    assert machine.differences(before | {"versions": "none"}) == []


def test_a_processor_without_a_name_is_what_python_calls_it(monkeypatch):
    named, hashed = machine._processor(), machine._processor_hash()
    assert len(hashed) == 12
    monkeypatch.setattr(machine, "_cpuinfo", list)
    monkeypatch.setattr(platform, "processor", lambda: "abacus")
    assert machine._processor() == "abacus" != named
    assert machine._processor_hash() != hashed
