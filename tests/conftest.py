"""Shapes and types are checked at run time in tests only."""

import atexit
import os
import shutil
import signal
import tempfile

if "KEMENY_TESTS_CACHE" not in os.environ:  # tests share compiled code with each other, and not with the user
    os.environ["KEMENY_TESTS_CACHE"] = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="kemeny-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
# Programs of tests run for a moment and take seconds to compile. The first three flags save four fifths of that, here
# and in the processes that tests start. What XLA_FLAGS is set to already counts instead.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_cpu_multi_thread_eigen=false",  # pytest -n uses the cores
)

import pytest
from jaxtyping import install_import_hook

install_import_hook(["kemeny.learning", "kemeny.rollout"], "beartype.beartype")
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's `&` leaves ignored


TINY = {"steps": 600, "num_envs": 4, "batch_size": 200, "hidden": (8,), "eval_max_steps": 30, "cut": 60}
"""Settings of a run that takes a second."""


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A finished run of ATRPO on a pendulum that falls."""
    import kemeny

    return kemeny.train(
        "InvertedPendulum-v5",
        out=tmp_path_factory.mktemp("runs") / "tiny",
        eval_every=200,
        checkpoint_every=200,
        **TINY,
    )


@pytest.fixture(scope="session")
def constrained_run(tmp_path_factory):
    """One update of ACPO."""
    import kemeny

    return kemeny.train(
        "HalfCheetah-v3",
        out=tmp_path_factory.mktemp("runs") / "constrained",
        algorithm="acpo",
        cost=("speed",),
        limit=(2.0,),
        steps=40,
        num_envs=2,
        batch_size=40,
        hidden=(4,),
        eval_max_steps=5,
        eval_trajectories=1,
        critic_epochs=1,
    )
