"""The tables of tasks are those that the kept runs give."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_are_made_from_the_kept_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
    import tasks as benchmark  # pyright: ignore[reportMissingImports]

    for file, text in benchmark.pages().items():
        assert file.read_text() == text, f"{file.name}: call python benchmarks/tasks.py page"
    monkeypatch.delitem(sys.modules, "tasks")
    monkeypatch.delitem(sys.modules, "kept")
