"""Compiled code is kept between processes, and changes no number."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kemeny import checkpoint

PROGRAM = """
import kemeny, sys
kemeny.train("InvertedPendulum-v5", out=sys.argv[1], steps=200, num_envs=2, batch_size=100, hidden=8, eval_max_steps=5)
import jax
print(jax.config.jax_compilation_cache_dir)
"""


def train(out: Path, **environment: str) -> str:
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")
    environ = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", PROGRAM, str(out)]
    done = subprocess.run(command, env=environ | environment, capture_output=True, text=True, check=True)
    assert "Warning" not in done.stderr
    return done.stdout.strip()


def entries(folder: Path) -> set[str]:
    return {path.name.split("-")[0] for path in folder.rglob("*-cache")}


def test_a_second_run_uses_what_the_first_compiled_and_learns_the_same(tmp_path):
    cache = tmp_path / "cache"
    train(tmp_path / "first", XDG_CACHE_HOME=str(cache))
    assert {"jit__move", "jit__refit"} <= entries(cache)
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
