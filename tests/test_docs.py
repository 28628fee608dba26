"""The documentation names what there is: no more, no less."""

import dataclasses
import inspect
import json
import re
from pathlib import Path

import pytest

from kemeny.runs.checkpoint import latest
from kemeny.learning.steps.direction import Case
from kemeny.learning.update import ConstraintMetrics, Metrics
from kemeny.runs.directory import RECORDED_VERSIONS
from kemeny.runs.settings import Settings, to_flat
from kemeny.learning.steps.trust_region import Outcome

ROOT = Path(__file__).parents[1]
DOCS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def documented(heading: str) -> set[str]:
    """The names in the first column of the tables under a heading of docs/metrics.md."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    names = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(names) == len(set(names)), "a name is documented twice"
    return set(names)


def test_every_metric_is_documented_and_every_documented_metric_exists(tiny_run, constrained_run):
    fields = {*Metrics._fields, *ConstraintMetrics._fields} - {"constraint"}
    assert fields <= documented("metrics.jsonl")
    assert set(tiny_run.metrics[0]) == documented("metrics.jsonl") - set(ConstraintMetrics._fields)
    assert set(constrained_run.metrics[0]) == documented("metrics.jsonl")


def test_every_field_of_an_evaluation(tiny_run):
    found = {re.sub(r"^returns_(?!1000$|10000$)\d+$", "returns_N", name) for name in tiny_run.evaluations[0]}
    assert found == documented("evaluations.jsonl")


def test_every_field_of_the_configuration(tiny_run):
    assert set(tiny_run.config) == documented("config.json")
    assert set(tiny_run.config["settings"]) == set(to_flat(Settings()))
    assert set(tiny_run.config["versions"]) <= {"python", *RECORDED_VERSIONS}


def test_every_part_of_a_checkpoint(tiny_run):
    saved = latest(tiny_run.path)
    assert set(json.loads((saved.path / "facts.json").read_text())) == documented("A checkpoint's facts.json")
    assert {name.split("/")[0] for name in saved.arrays} == documented("A checkpoint's arrays.safetensors")


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
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_files_that_are_named_exist(page):
    """`docs/…`, `tests/…`, `examples/…`, `benchmarks/…` and `src/…` in backticks are paths in the repository."""
    for path in re.findall(r"`((?:docs|tests|examples|benchmarks|src)/[\w./-]+)`", page.read_text()):
        assert (ROOT / path).exists(), f"{page.name} names {path}, which does not exist"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_code_that_is_named_exists(page):
    """`kemeny.….name` in backticks can be imported; `module.name` of a module of the package is there."""
    import importlib

    modules = {path.stem for path in (ROOT / "src" / "kemeny").glob("*.py")} | {"tabular", "envs", "experiments"}
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
