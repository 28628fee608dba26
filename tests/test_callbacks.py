"""The recipes of docs/callbacks.md, executed; nothing goes over the network."""

import importlib.util
import json
import re
import time
import warnings
from pathlib import Path

import pytest

import kemeny

PAGE = Path(__file__).parents[1] / "docs" / "callbacks.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def blocks_with(*texts):
    """The blocks that have one of these texts, in order; the first block of the page comes before them."""
    return "\n".join([BLOCKS[0], *(block for block in BLOCKS[1:] if any(text in block for text in texts))])


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Execute blocks in an empty folder, without telemetry: what they have defined."""
    monkeypatch.chdir(tmp_path)
    variables = {
        "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": tmp_path, "WANDB_CACHE_DIR": tmp_path / "cache",
        "WANDB_CONFIG_DIR": tmp_path / "config", "WANDB_DATA_DIR": tmp_path / "data", "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true", "TRACKIO_DIR": tmp_path / "trackio",
        "DO_NOT_TRACK": "1",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))

    def run(code):
        found = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of other people's packages
            exec(compile(code, PAGE.name, "exec"), found)
        return found

    return run


def needs(package):
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"{package} is not installed: its recipe is not executed"
    )


def test_every_block_of_the_page_is_executed_here():
    known = (
        "SMALL = dict",
        "class Plateau",
        "def numbers",
        "import wandb",
        "import trackio",
        "import mlflow",
        "import optuna",
    )
    assert all(any(text in block for text in known) for block in BLOCKS)
    assert len(BLOCKS) == len(known)


def test_early_stopping(execute, capsys):
    execute(blocks_with("class Plateau").replace("value = np.mean(record[self.field])", "value = 1.0"))
    run = kemeny.Run("runs/plateau")
    assert [line["steps"] for line in run.evaluations] == [500, 1_000]  # the second is not better than the first
    assert capsys.readouterr().out == "1000 of 1500 steps\n"
    assert not run.finished
    assert kemeny.load_policy("runs/plateau", best=True).observation_size == 4


def test_numbers_are_single_and_finite(execute):
    numbers = execute(blocks_with("def numbers"))["numbers"]
    record = {"log": "metrics", "steps": 5, "cost": [1.0, 3.0], "rate": None, "returns": [1.0, None], "flag": True}
    assert numbers(record) == {"metrics/steps": 5.0, "metrics/cost": 2.0, "metrics/flag": 1.0}


def pieces(log, name):
    """The ways to write a name that stand in a file."""
    content = log.read_bytes()
    return {way for way in (name, name.replace(b"/", b"\\/")) if way in content}


@needs("wandb")
def test_weights_and_biases(execute, tmp_path):
    execute(blocks_with("def numbers", "import wandb"))
    (log,) = (tmp_path / "runs" / "wandb").glob("offline-run-*/run-*.wandb")
    for name in (b"metrics/rate", b"evaluations/returns_1000"):
        deadline = time.monotonic() + 60  # a process of its own writes the file, and on a busy machine it is late
        while not (found := pieces(log, name)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found


@needs("trackio")
def test_trackio(execute, tmp_path):
    execute(blocks_with("def numbers", "import trackio"))
    assert list((tmp_path / "trackio").glob("kemeny*"))


@needs("mlflow")
def test_mlflow(execute, tmp_path):
    execute(blocks_with("def numbers", "import mlflow"))
    (rates,) = (tmp_path / "mlruns").glob("*/*/metrics/metrics/rate")
    lines = [line.split() for line in rates.read_text().splitlines()]
    assert [(float(value), int(step)) for _, value, step, *_ in lines] == [
        (pytest.approx(line["rate"]), line["steps"]) for line in kemeny.Run("runs/mlflow").metrics
    ]
    (name,) = (tmp_path / "mlruns").glob("*/*/params/batch_size")
    assert name.read_text() == "500"


@needs("optuna")
def test_optuna(execute, tmp_path):
    """A trial that is worse than the one before is pruned, and its run has a checkpoint from which it could go on."""
    worse = (
        blocks_with("import optuna")
        .replace(
            'trial.report(np.mean(record["returns_1000"]), record["steps"])',
            'trial.report(-trial.number, record["steps"])',
        )
        .replace("n_trials=3", "n_trials=2")
    )  # each has a trust region of its own, which is compiled
    study = execute(worse)["study"]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    assert [kemeny.Run(f"runs/trial-{number}").steps for number in range(2)] == [1_500, 500]
    assert json.loads(Path("runs/trial-0/config.json").read_text())["settings"]["delta"] == study.best_params["delta"]
