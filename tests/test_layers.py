"""Imports point down one list of rooms."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "kemeny"

ROOMS = [
    {"cli"},
    {"experiments", "bench"},
    {"training"},
    {"progress", "signals"},
    {"run"},
    {"presets"},
    {"settings"},
    {"state_arrays"},
    {"video"},
    {"evaluation"},
    {"collect", "compilation"},
    {"envs"},
    {"learner"},
    {"algorithms"},
    {"acting"},
    {"checkpoint"},
    {"trust_region", "direction", "advantages", "normalizer"},
    {"policy"},
    {"rollout"},
    {"spec"},
    {"tabular"},
    {"criterion"},
    {"errors"},
]
"""From the top down; rooms on one line do not know of each other. `tabular` shares `criterion` with the rest."""

HEIGHT = {room: -level for level, rooms in enumerate(ROOMS) for room in rooms}


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
    return rooms


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path):
    room = room_of(path)
    assert room in HEIGHT, f"{room} has no place in the list of rooms"
    for other in imported_rooms(path) - {room}:
        assert other in HEIGHT, f"{other} has no place in the list of rooms"
        assert HEIGHT[other] < HEIGHT[room], f"{room} imports {other}, which is not below it"


def test_the_list_names_only_rooms_that_exist():
    assert HEIGHT.keys() == {room_of(path) for path in FILES}
