"""Ray: sweeps and collectors on a cluster of several nodes, one of which is lost in the middle."""

import contextlib
import functools
import threading
import time
from pathlib import Path

import pytest

import kemeny
from kemeny import cluster
from kemeny.errors import UserError
from kemeny.experiments.on_ray import TOKEN, _unseen, refuse_unshared
from tests.conftest import TINY
from tests.envs.toys import Counter
from tests.faults import compare
from tests.test_check import Hears

ENV = "InvertedPendulum-v5"
needs_ray = pytest.mark.filterwarnings("default")  # Ray's own code warns, and leaves files open


@contextlib.contextmanager
def nodes(*cpus):
    """A cluster of Ray's on this machine: a head without CPUs, and nodes with so many."""
    pytest.importorskip("ray", reason="Ray is not installed")
    import ray
    from ray.cluster_utils import Cluster

    there = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        added = [there.add_node(num_cpus=count, wait=False) for count in cpus]
        there.wait_for_nodes()
        ray.init(address=there.address, log_to_driver=False, logging_level="ERROR")
        yield there, added
    finally:
        ray.shutdown()
        there.shutdown()


def remove(there, node):
    """Kill a node, and wait until the cluster knows."""
    import ray

    there.remove_node(node, allow_graceful=False)
    while any(one["Alive"] and one["NodeID"] == node.node_id for one in ray.nodes()):
        time.sleep(0.02)


def when(condition, act):
    """Do something as soon as a condition holds, in a thread."""

    def wait():
        deadline = time.monotonic() + 60
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@needs_ray
def test_a_node_is_lost_during_a_sweep(tmp_path):
    """Its run goes on elsewhere, and the results are those of processes on this machine that nothing happens to."""
    grid = {"seeds": [0, 1], **TINY, "steps": 12_000, "checkpoint_every": 400, "eval_every": 4_000}
    calm = kemeny.sweep(ENV, out=tmp_path / "calm", **grid)
    with nodes(1, 1) as (there, added):
        runs = [tmp_path / "lost" / run.path.name for run in calm]

        def all_under_way():
            return all(list(run.glob("checkpoints/step-*")) for run in runs)

        remover = when(all_under_way, lambda: remove(there, added[0]))
        kemeny.sweep(ENV, out=tmp_path / "lost", backend="ray", **grid)
        remover.join()
    begun = [(tmp_path / "lost" / f"{run.name}.log").read_text().count("$ kemeny train") for run in runs]
    assert sorted(begun) == [1, 2]
    for run in calm:
        compare(run.path, tmp_path / "lost" / run.path.name)
    assert not (tmp_path / "lost" / TOKEN).exists()


@needs_ray
def test_a_node_is_lost_during_a_run(tmp_path):
    """Collectors on Ray give what processes give, also if one is lost; and either goes on from the other."""
    env, settings = functools.partial(Counter, falls_at=9), {**TINY, "steps": 1_000, "checkpoint_every": 200}
    local = kemeny.train(env, out=tmp_path / "local", collectors=2, **settings)
    hears = Hears()
    with nodes(1, 1) as (there, added):

        def lose_one(record):
            if record["steps"] == 400 and record["log"] == "metrics":
                there.add_node(num_cpus=1)
                remove(there, added[0])
            return record["steps"] == 800

        run = {"env": env, "backend": "ray"}
        out = tmp_path / "lost"
        lost = kemeny.train(**run, out=out, collectors=2, callback=lose_one, observers=[hears], **settings)
        assert lost.steps == 800
        kemeny.resume(out, env=env)
        begun = kemeny.train(
            env, out=tmp_path / "begun", collectors=2, callback=lambda record: record["steps"] == 400, **settings
        )
        assert begun.steps == 400
        kemeny.resume(begun.path, **run)
    assert len([said for said in hears.said if "was lost" in said and "Another takes its place" in said]) == 1
    compare(local.path, out)
    compare(local.path, begun.path)


def test_a_node_that_does_not_see_the_directory_is_named(tmp_path):
    (tmp_path / TOKEN).write_text("one")
    assert _unseen(str(tmp_path), "one") == ""
    answers = {"calm (10.0.0.1)": "", "lost (10.0.0.2)": _unseen(str(tmp_path / "elsewhere"), "one")}
    with pytest.raises(UserError, match=r"The node lost \(10\.0\.0\.2\) does not see .*elsewhere.*storage that they"):
        refuse_unshared(answers, tmp_path)
    assert _unseen(str(tmp_path), "two") == f"sees another {tmp_path}"


@pytest.mark.parametrize(
    ("backend", "address", "said"),
    [
        ("ray", None, "Ray, which cannot be imported .*pip install 'kemeny\\[ray\\]'"),
        ("slurm", None, "There is no backend slurm; there are local and ray."),
        ("local", "auto", "--ray-address is for --backend ray"),
    ],
)
def test_what_is_refused(backend, address, said, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match=said):
        kemeny.sweep(ENV, out=tmp_path / "sweep", backend=backend, ray_address=address, **TINY)
    assert not Path(tmp_path / "sweep").exists()


@needs_ray
def test_an_address_at_which_nobody_listens():
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(UserError, match="There is no Ray cluster at 127"), cluster.connected("127.0.0.1:1"):
        pass
