"""What a user of Python finds: names, help, runs as tables, pictures."""

import inspect
import pydoc
import shutil
import subprocess
import sys

import pytest

import kemeny
from kemeny.errors import UserError
from kemeny.runs.described import every_setting
from kemeny.runs.settings import Settings, to_flat
from tests.test_hostile_files import with_facts

LISTS_OF_METRICS = {"critic_loss"}
LISTS_OF_EVALUATIONS = {"lengths", "returns_30"}


def test_every_public_name_is_listed_and_there():
    listed = dir(kemeny)
    assert {*kemeny.__all__, "__version__"} <= set(listed)
    assert {"train", "resume", "evaluate", "plot", "Run", "load_policy", "Settings"} <= set(listed)
    for name in kemeny.__all__:
        assert inspect.getdoc(getattr(kemeny, name)), f"{name} has no docstring"


def test_names_are_listed_without_loading_anything():
    code = "import kemeny, sys; dir(kemeny); print('numpy' in sys.modules, 'plot' in dir(kemeny))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False True\n"


def test_the_help_of_train_has_every_setting():
    text = pydoc.plain(pydoc.render_doc(kemeny.train))
    signature = inspect.signature(kemeny.train)
    for name, default in to_flat(Settings()).items():
        assert signature.parameters[name].default == default
        assert f"\n        {name}: " in text, f"{name} is not in the help"
    assert "settings" not in signature.parameters
    assert {"env", "out", "preset", "init_from", "progress", "callback", "observers"} <= signature.parameters.keys()
    assert "delta: float = 0.02\n            Trust region δ: the most KL divergence a step may cause" in text
    assert "algorithm: 'atrpo' | 'trpo' | 'acpo' | 'cpo' = 'atrpo'" in text


def test_every_setting_is_described():
    assert [one.name for one in every_setting()] == list(to_flat(Settings()))
    assert all(one.meaning for one in every_setting())


def test_a_run_is_made_of_its_path(tiny_run):
    run = kemeny.Run(str(tiny_run.path))
    assert run == tiny_run == kemeny.Run.open(tiny_run.path)
    assert (run.env, run.steps, run.finished) == ("InvertedPendulum-v5", 600, True)
    assert run.settings["num_envs"] == 4
    assert repr(run).startswith(
        f"Run('{run.path}': InvertedPendulum-v5, atrpo, seed 0, 600 of 600 steps, finished, last"
    )
    assert "<td>600 of 600 steps, finished</td>" in run._repr_html_()
    with pytest.raises(UserError, match="nowhere is not a run directory"):
        kemeny.Run("nowhere")


def test_a_run_in_progress_and_one_that_cannot_be_read(tiny_run, tmp_path):
    run = kemeny.Run(shutil.copytree(tiny_run.path, tmp_path / "a<b"))
    assert "a&lt;b" in run._repr_html_()
    shutil.rmtree(run.path / "checkpoints" / "step-000000000600")
    assert not run.finished
    assert "600 of 600 steps, last return" in repr(run)
    with_facts(run.path / "checkpoints" / "step-000000000400", finished=True)
    assert run.finished  # nothing was left to gain
    (run.path / "config.json").write_text("damaged")
    assert "cannot be read: " in repr(run)
    assert "cannot be read: " in run._repr_html_()


def test_records_are_tables_of_pandas(tiny_run, constrained_run):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: tables are not tested with it")
    metrics = pandas.DataFrame(tiny_run.metrics)
    assert list(metrics.steps) == [200, 400, 600]
    not_numbers = {name for name in metrics if metrics[name].dtype.kind not in "iufb"}
    assert not_numbers == LISTS_OF_METRICS
    assert all(isinstance(one, list) for name in not_numbers for one in metrics[name])
    evaluations = pandas.DataFrame(tiny_run.evaluations)
    single = evaluations.explode(sorted(LISTS_OF_EVALUATIONS), ignore_index=True)
    assert len(single) == 3 * 10
    assert single.groupby("steps").returns_30.mean().tolist() == pytest.approx(
        [sum(line["returns_30"]) / 10 for line in tiny_run.evaluations]
    )
    costs = pandas.json_normalize(constrained_run.metrics).cost.explode()
    assert costs.tolist() == constrained_run.metrics[0]["cost"]


def test_plot_takes_one_run_or_several_by_path_or_as_they_are(tiny_run, tmp_path):
    figure = kemeny.plot(tiny_run, tmp_path / "deep" / "curve.png")
    assert (tmp_path / "deep" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert [axis.get_ylabel() for axis in figure.axes] == ["return, at most 30 steps", "ρ̂, reward per step in training"]
    assert figure._repr_png_().startswith(b"\x89PNG")
    for runs in (str(tiny_run.path), [tiny_run.path, tiny_run], (tiny_run,)):
        assert len(kemeny.plot(runs).axes) == 2
    with pytest.raises(UserError, match="at least one run"):
        kemeny.plot([])
    with pytest.raises(UserError, match="cannot be written"):
        kemeny.plot(tiny_run, tmp_path / "curve.xyz")


def test_plot_leaves_the_choice_of_windows_alone(tiny_run):
    code = f"import kemeny, sys; kemeny.plot({str(tiny_run.path)!r}); print('matplotlib.pyplot' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
