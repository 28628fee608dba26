"""Imports point down seven levels of rooms, and what is light stays light."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "kemeny"

LEVELS = [
    {"cli"},
    {"experiments"},
    {"runs"},
    {"experience"},
    {"learning", "envs"},
    {"tasks"},
    {"tabular"},
]
"""From the top down; rooms on one level do not know of each other."""
FOUNDATION = [
    "rollout",
    "observers",
    "criterion",
    "cluster",
    "machine",
    "naming",
    "ranges",
    "spec",
    "stored_spaces",
    "spaces",
    "errors",
]
"""Files below all rooms, from the top down."""

HEIGHT = {room: -level for level, rooms in enumerate(LEVELS) for room in rooms}
HEIGHT |= {name: -len(LEVELS) - place for place, name in enumerate(FOUNDATION)}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Rooms of Kemeny that a file imports from, anywhere in it."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("kemeny.")}
    return rooms - {"__version__"}


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path):
    room = room_of(path)
    assert room in HEIGHT, f"{room} has no place among the rooms"
    for other in imported_rooms(path) - {room}:
        assert other in HEIGHT, f"{other} has no place among the rooms"
        assert HEIGHT[other] < HEIGHT[room], f"{room} imports {other}, which is not below it"


def test_only_rooms_that_exist_are_listed():
    assert HEIGHT.keys() == {room_of(path) for path in FILES}


def test_the_guide_describes_each_room_and_no_other():
    """The first column of CONTRIBUTING's table, in the order of the levels."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("\n## Rooms\n")[1].split("\n## ")[0]
    described = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", section, re.MULTILINE)
    assert set(described) == HEIGHT.keys()
    heights = [HEIGHT[room] for room in described]
    assert heights == sorted(heights, reverse=True)


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a fresh process has loaded after this."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('loaded', *{{name.split('.')[0] for name in sys.modules}})"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split("loaded ")[-1].split())


def modules_of(*rooms: str) -> list[str]:
    paths = [path for path in FILES if room_of(path) in rooms]
    return [".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__") for path in paths]


@pytest.mark.parametrize("room", ["envs", "tasks", "tabular", *FOUNDATION])
def test_what_never_loads_jax(room):
    assert "jax" not in loaded_after("import " + ", ".join(modules_of(room)))


def test_the_learner_knows_no_environment():
    assert not {"gymnasium", "envpool"} & loaded_after("import " + ", ".join(modules_of("learning")))


LIGHT = {
    "Run": "import kemeny; run = kemeny.Run.open(PATH); run.config, run.metrics, run.evaluations, run.policy",
    "load_policy": "import kemeny; kemeny.load_policy(PATH)",
    "plot": "import sys; from kemeny.cli import main; sys.argv = ['kemeny', 'plot', PATH, '-o', PICTURE]; main()",
    "plot in Python": "import kemeny; kemeny.plot(kemeny.Run(PATH), PICTURE)",
    "report": "import kemeny; kemeny.report(PATH, PICTURE, films=False)",
    "compare": "import sys; from kemeny.cli import main; sys.argv = ['kemeny', 'compare', PATH]; main()",
    "repr": "import kemeny; repr(kemeny.Run(PATH))",
    "help": "import sys; from kemeny.cli import main; sys.argv = ['kemeny', '--help']; main()",
    "settings": "import kemeny; kemeny.Settings(algorithm='cpo').criterion",
}


@pytest.mark.parametrize("name", LIGHT)
def test_what_loads_neither_jax_nor_gymnasium(name, tiny_run, tmp_path):
    code = f"PATH, PICTURE = {str(tiny_run.path)!r}, {str(tmp_path / 'curve.png')!r}\n{LIGHT[name]}"
    assert not {"jax", "jaxlib", "equinox", "gymnasium", "envpool", "mujoco"} & loaded_after(code)


def test_a_policy_needs_numpy_and_safetensors_alone(tiny_run):
    loaded = loaded_after(f"import kemeny; kemeny.load_policy({str(tiny_run.path)!r})")
    assert not {"scipy", "rich", "tyro", "matplotlib", "jaxtyping", "tensorboard"} & loaded


def test_a_command_does_not_load_the_others():
    loaded = loaded_after("from kemeny.cli import main, COMMANDS")
    assert not {"numpy", "tyro"} & loaded
