"""The documentation names what there is: no more, no less."""

import contextlib
import dataclasses
import functools
import inspect
import io
import json
import re
import shlex
import sys

import pytest

import kemeny
from kemeny import cli
from kemeny.learning.reuse import ImportanceMetrics
from kemeny.learning.steps import clip, natural, project
from kemeny.learning.steps.direction import Case
from kemeny.learning.steps.protocol import Outcome, Report
from kemeny.learning.update import (
    CostMetrics,
    CriticMetrics,
    DeployedMetrics,
    Metrics,
    ResetMetrics,
    RunningCostMetrics,
)
from kemeny.machine import RECORDED_VERSIONS
from kemeny.runs.checkpoint import latest
from kemeny.runs.settings import Settings, to_flat
from tests import pages
from tests.conftest import TINY
from tests.pages import PAGES, ROOT

DOCS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def documented(heading: str) -> set[str]:
    """The names in the first column of the tables under a heading of docs/metrics.md."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    names = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(names) == len(set(names)), "a name is documented twice"
    return set(names)


@pytest.fixture(scope="module")
def clipped_run(tmp_path_factory):
    """A run with the clipped step."""
    return kemeny.train(
        "InvertedPendulum-v5", out=tmp_path_factory.mktemp("runs") / "clipped", step="clip", **{**TINY, "steps": 200}
    )


@pytest.fixture(scope="module")
def projected_run(tmp_path_factory):
    """One update of ACPO with the projected step."""
    return kemeny.train(
        "HalfCheetah-v3", out=tmp_path_factory.mktemp("runs") / "projected", step="project", algorithm="acpo",
        cost="speed", limit=2.0, **{**TINY, "steps": 200},
    )  # fmt: skip


NATURAL = set(natural.Details._fields) - {"diagnosis"}
CLIP = set(clip.Details._fields)
PROJECT = {*project.Details._fields, *project.Limited._fields} - {"limited"}
COSTS = {*CostMetrics._fields, *DeployedMetrics._fields} - {"running"}
LIMITED = COSTS | set(natural.Diagnosis._fields)
RARE = {*RunningCostMetrics._fields, *ResetMetrics._fields}
"""With `--cost fall`, `--cost-memory` or `--reset-cost auto`; that an update then has them: test_falls.py."""
EXPECTED = {"luck_removed"}
"""With `--next-value expected` alone; that a run then has it: tasks/test_luck.py."""
REUSE = set(ImportanceMetrics._fields)
"""With `--reuse` or `--pipeline` alone; that an update then has them: test_reuse.py, test_pipeline.py."""


def test_every_metric_is_documented_and_every_documented_metric_exists(
    tiny_run, constrained_run, clipped_run, projected_run
):
    groups = {"step", "costs", "reset", "deployed", "critics", "details", "importance"}
    fields = {*Metrics._fields, *Report._fields, *CriticMetrics._fields} - groups
    everything = documented("metrics.jsonl")
    assert fields | NATURAL | CLIP | PROJECT | LIMITED | REUSE | RARE <= everything
    everything -= EXPECTED | REUSE | RARE
    assert set(tiny_run.metrics[0]) == everything - LIMITED - CLIP
    assert set(constrained_run.metrics[0]) == everything - CLIP
    assert set(clipped_run.metrics[0]) == everything - LIMITED - NATURAL
    common = everything - LIMITED - NATURAL - CLIP
    assert set(projected_run.metrics[0]) == common | PROJECT | COSTS


def test_every_field_of_an_evaluation(tiny_run):
    found = {re.sub(r"^returns_(?!1000$|10000$)\d+$", "returns_N", name) for name in tiny_run.evaluations[0]}
    assert found == documented("evaluations.jsonl")


TWICE = {"steps", "falls", "falls_per_million"}
"""Of training in evaluations.jsonl or until the first fall, and of the long run."""


def test_every_field_that_evaluate_prints(constrained_run):
    record = kemeny.evaluate(constrained_run, trajectories=1, max_steps=4).full_record()
    found = {name for name in record if not name.startswith("returns_")} | set(record["long_run"])
    assert found - documented("evaluations.jsonl") | TWICE >= documented("kemeny evaluate --json")
    assert found <= documented("kemeny evaluate --json") | documented("evaluations.jsonl")
    assert set(record["limits"][0]) == {"cost", "limit", "average", "kept"}
    assert set(record["long_run"]["reward"]) == {"average", "low", "high", "spread"}


def test_every_field_of_the_configuration(tiny_run):
    assert set(tiny_run.config) == documented("config.json")
    assert set(tiny_run.config["settings"]) == set(to_flat(Settings()))
    assert set(tiny_run.config["versions"]) <= {"python", *RECORDED_VERSIONS}


def test_every_part_of_a_checkpoint(tiny_run, clipped_run):
    saved, clipped = latest(tiny_run.path), latest(clipped_run.path)
    assert set(json.loads((saved.path / "facts.json").read_text())) == documented("A checkpoint's facts.json")
    parts = [{name.split("/")[0] for name in one.arrays} for one in (saved, clipped)]
    everything = documented("A checkpoint's arrays.safetensors")
    others = {"memory", "behind", "running_costs", "reset_cost", "gap"}  # with settings that these runs do not have
    assert others <= everything
    assert parts[0] == everything - {"step"} - others
    assert parts[1] == everything - others


@pytest.mark.parametrize("member", [*Outcome, *Case], ids=lambda member: member.name)
def test_numbers_that_stand_for_names_are_explained(member):
    assert re.search(rf"\b{member.value} `{member.name}`", (ROOT / "docs" / "metrics.md").read_text())


def settings_with_owner(group: type = Settings):
    """(class, field) of every setting."""
    for field in dataclasses.fields(group):
        if isinstance(field.default_factory, type):
            yield from settings_with_owner(field.default_factory)
        else:
            yield group, field.name


@pytest.mark.parametrize(
    ("owner", "name"), list(settings_with_owner()), ids=lambda value: getattr(value, "__name__", value)
)
def test_every_setting_has_a_help_text(owner, name):
    """A string follows the field in the source: what tyro shows in --help."""
    assert re.search(rf"^    {name}: .*\n    \"\"\"\S", inspect.getsource(owner), re.MULTILINE), (
        f"{name} has no help text"
    )


def test_settings_are_all_found():
    assert {name for _, name in settings_with_owner()} == set(to_flat(Settings()))


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}#{anchor}: there is no such heading"


def anchors(page):
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_files_that_are_named_exist(page):
    """`docs/…`, `tests/…`, `examples/…`, `benchmarks/…` and `src/…` in backticks are paths in the repository."""
    for path in re.findall(r"`((?:docs|tests|examples|benchmarks|src)/[\w./-]+)`", page.read_text()):
        assert (ROOT / path).exists(), f"{page.name} names {path}, which does not exist"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_code_that_is_named_exists(page):
    """`kemeny.….name` in backticks can be imported; `module.name` of a module of the package is there."""
    import importlib

    modules = {path.stem for path in (ROOT / "src" / "kemeny").iterdir()}
    for dotted in re.findall(r"`(?:kemeny\.)?([a-z_]+(?:\.\w+)+)(?:\(.*?\))?`", page.read_text()):
        parts = dotted.split(".")
        if parts[0] not in modules or parts[-1] == "py":
            continue
        found = importlib.import_module(f"kemeny.{parts[0]}")
        for part in parts[1:]:
            if not hasattr(found, part):
                found = importlib.import_module(f"{found.__name__}.{part}")
            else:
                found = getattr(found, part)


BLOCKS = [block for page in PAGES for block in pages.blocks(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_says_what_it_is(block):
    """A block that is not run is skipped here, with its reason."""
    assert block.kind in (*pages.RUN, pages.SHOWN), (
        f"{block}: a block is ```sh, ```python, ```toml or ```text, not {block.kind!r}"
    )
    if block.reason:
        assert block.kind in pages.RUN, f"{block} would not be run anyway"
        pytest.skip(f"{block} is not run: {block.reason}")


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's, about the processes that a page starts
@pytest.mark.parametrize("page", [page for page in PAGES if any(pages.blocks(page))], ids=lambda page: page.name)
def test_what_a_page_shows_can_be_typed(page, tmp_path, monkeypatch):
    """All blocks of a page, in order (`tests/pages.py` says how)."""
    for folder in ("docs/pictures", "benchmarks/results"):  # where pages write to
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("kemeny.experiments.bench.measure", lambda *_: sys.exit())  # its flags are read, no more
    train = kemeny.train
    monkeypatch.setattr(kemeny, "train", lambda env, **settings: train(env, **{**settings, **pages.TINY}))
    sweep = kemeny.sweep
    monkeypatch.setattr(kemeny, "sweep", lambda env, **more: sweep(env, **{**more, **pages.TINY, "seeds": [0]}))
    monkeypatch.setattr("kemeny.experiments.sweep.LocalProcesses", pages.InThisProcess)
    reader = pages.Reader(tmp_path, functools.partial(run_command_line, monkeypatch))
    try:
        for block in pages.blocks(page):
            if block.kind in pages.RUN and not block.reason:
                reader.follow(block)
    finally:
        pages.clear_of(tmp_path)


def run_command_line(monkeypatch, words) -> int:
    """`kemeny …` in this process."""
    monkeypatch.setattr(sys, "argv", ["kemeny", *words])
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(scope="module")
def all_flags():
    """The flags of every command, by its name."""
    found = {}
    for name in cli.COMMANDS:
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as help_text:
            run_command_line(patch, [name, "--help"])
        found[name] = pages.flags(help_text.getvalue())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_flags_within_the_text_exist(page, all_flags):
    """`kemeny COMMAND --flag` in backticks is a command with that flag; `--flag` alone is a flag of some command."""
    for text in pages.inline(page):
        if text.startswith("kemeny "):
            command, *words = shlex.split(text)[1:]
            known = all_flags.get(command, {"--help", "--version"})
            assert command in {"COMMAND", "--version", "--help", "…", *all_flags}, f"{page.name}: {text}"
        elif text.startswith("--") and page.name != "comparison.md":  # which names the flags of others
            words, known = shlex.split(text), set().union(*all_flags.values())
        else:
            continue
        unknown = {word for word in words if re.fullmatch(r"--[a-z-]+", word)} - known  # XLA's flags have a _
        assert not unknown, f"{page.name}: `{text}`: there is no {unknown}"
