"""Ray: sweeps and collectors on a cluster of several nodes, one of which is lost in the middle."""

import functools
import time
from pathlib import Path

import pytest

import kemeny
from kemeny import cluster
from kemeny.errors import UserError
from kemeny.experiments.board import Silent
from kemeny.experiments.grid import Grid
from kemeny.experiments.on_ray import TOKEN, _unseen, refuse_unshared
from kemeny.experiments.sweep import Sweep
from tests.conftest import TINY
from tests.envs.toys import Counter
from tests.faults import compare
from tests.test_check import Hears

ENV = "InvertedPendulum-v5"


@pytest.fixture
def there():
    """A cluster of Ray's on this machine: a head without CPUs, to which nodes are added."""
    pytest.importorskip("ray", reason="Ray is not installed")
    import ray
    from ray.cluster_utils import Cluster

    there = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        ray.init(address=there.address, log_to_driver=False, logging_level="ERROR")
        yield there
    finally:
        ray.shutdown()
        there.shutdown()


def remove(there, node):
    """Kill a node, and wait until the cluster knows."""
    import ray

    there.remove_node(node, allow_graceful=False)
    while any(one["Alive"] and one["NodeID"] == node.node_id for one in ray.nodes()):
        time.sleep(0.02)


@pytest.mark.filterwarnings("default")  # Ray's own code warns, and leaves files open
def test_a_node_is_lost_during_a_sweep_and_during_a_run(there, tmp_path):
    """Both on one cluster, which takes long to begin."""
    second = lost_during_a_sweep(there, tmp_path)
    lost_during_a_run(there, second, tmp_path)


def lost_during_a_sweep(there, folder):
    """Its run goes on elsewhere, and the results are those of a process on this machine that nothing happens to."""
    grid = {**TINY, "steps": 60_000, "checkpoint_every": 400, "eval_every": 20_000}  # long enough to be hurt in
    [calm] = kemeny.sweep(ENV, out=folder / "calm", **grid)
    run = folder / "hurt" / calm.path.name
    nodes = [there.add_node(num_cpus=1)]

    class Loses(Silent):
        def show(self, rows):
            if len(nodes) == 1 and list(run.glob("checkpoints/step-*")):
                remove(there, nodes[0])
                nodes.append(there.add_node(num_cpus=1))

    Sweep(Grid.of({"env": ENV, **grid}), folder / "hurt").train(show=Loses(), where=cluster.Place("ray"))
    assert (folder / "hurt" / f"{run.name}.log").read_text().count("$ kemeny train") == 2
    compare(calm.path, run)
    assert not (folder / "hurt" / TOKEN).exists()
    return nodes[1]


def lost_during_a_run(there, node, folder):
    """Collectors on Ray give what processes give, also if one is lost; and either goes on from the other."""
    env, settings = functools.partial(Counter, falls_at=9), {**TINY, "steps": 1_000, "checkpoint_every": 200}
    calm = kemeny.train(env, out=folder / "local", collectors=2, **settings)
    there.add_node(num_cpus=1)  # so that each collector has a node of its own
    hears = Hears()

    def lose_one(record):
        if record["steps"] == 400 and record["log"] == "metrics":
            there.add_node(num_cpus=1)
            remove(there, node)
        return record["steps"] == 800

    out = folder / "lost"
    lost = kemeny.train(
        env, out=out, collectors=2, backend="ray", callback=lose_one, observers=[hears], **settings
    )  # fmt: skip
    assert lost.steps == 800
    compare(calm.path, kemeny.resume(out, env=env).path)
    assert len([said for said in hears.said if "was lost" in said and "Another takes its place" in said]) == 1
    begun = kemeny.train(
        env, out=folder / "begun", collectors=2, callback=lambda record: record["steps"] == 400, **settings
    )
    assert begun.steps == 400
    compare(calm.path, kemeny.resume(begun.path, env=env, backend="ray").path)


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


@pytest.mark.filterwarnings("default")
def test_an_address_at_which_nobody_listens():
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(UserError, match="There is no Ray cluster at 127"), cluster.connected("127.0.0.1:1"):
        pass
