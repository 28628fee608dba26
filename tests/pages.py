"""The blocks of a page of the documentation, and how each is run: what a page shows is what a reader can type.

- A `sh` block is run line by line, in an empty folder per page. `kemeny …` goes through the real command line, with the
  words of `SHORTER` after it, so that a run takes a second instead of minutes. See `Reader` for the other programs.
- A `python` block is run in the same folder; all blocks of a page share their names. `kemeny.train` is made shorter in
  the same way. A `python FILE` or `toml FILE` block is saved under that name.
- A `text` block is a formula or what a program prints. It is not run.
- `<!-- not run: REASON -->` before a block leaves it out, and says so in the list of skipped tests.

A block of any other kind, or an indented one, is refused.
"""

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from kemeny.experiments.grid import Planned
from kemeny.experiments.sweep_directory import SweepDirectory
from kemeny.runs.train import start

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
RUN, SHOWN = ("sh", "python", "toml"), "text"

TINY = {"steps": 200, "num_envs": 2, "batch_size": 100, "hidden": (8,), "eval_max_steps": 1_000, "eval_trajectories": 1}
"""What a page's `kemeny.train` is shortened to."""
SHORTER = {
    "train": [
        word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value).strip("(),"))
    ],
    "evaluate": "--trajectories 2 --max-steps 1000 --video-steps 5".split(),
    "report": ["--no-films"],
}
SHORTER["sweep"] = [*SHORTER["train"], "--seeds", "0"]
"""Words put after a page's `kemeny` command: where a flag is given twice, the last counts."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of a page, and where it is."""

    page: str
    line: int
    kind: str
    file: str
    text: str
    reason: str
    """Why it is not run, if it is not."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Every block of a page, in order."""
    reason = ""
    for token in MarkdownIt("commonmark").parse(page.read_text()):
        if token.type == "html_block" and (mark := re.match(r"<!-- not run: (.*\S) -->", token.content)):
            reason = mark[1]
        elif token.type in ("fence", "code_block") and token.map is not None:
            kind, _, file = token.info.strip().partition(" ")
            yield Block(page.name, token.map[0] + 1, kind, file, token.content, reason)
            reason = ""


def inline(page: Path) -> Iterator[str]:
    """Everything that a page shows in backticks within its text."""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        yield from (child.content for child in token.children or () if child.type == "code_inline")


class InThisProcess:
    """A backend of sweeps that trains at once, without a process that would import everything again."""

    def __init__(self, directory: SweepDirectory, slots: int):
        self.directory, self.slots = directory, slots

    def start(self, run: Planned, slot: int) -> "InThisProcess":
        start(run.env, run.settings, self.directory.run(run), init_from=run.init_from, resume_if_exists=True)
        return self

    def poll(self) -> int:
        return 0

    def stop(self, at_once: bool) -> None:
        pass

    def last_words(self) -> str:
        return ""


class Reader:
    """Someone who types what a page shows, from its beginning to its end, in one folder."""

    def __init__(self, folder: Path, kemeny: Callable[[list[str]], int]):
        """`kemeny` runs the command line with these words and gives its exit code."""
        self.folder = folder
        self.kemeny = kemeny
        self.names: dict[str, Any] = {"__name__": "page"}
        self.programs = {"kemeny": self._kemeny, "python": self._python, "make": self._make, "pip": self._pip}

    def follow(self, block: Block) -> None:
        """Do what a block says."""
        if block.kind == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                self._type(line)
        elif block.file or block.kind == "toml":
            (self.folder / block.file).write_text(block.text)
        else:
            padded = "\n" * block.line + block.text  # so that an error names the line of the page
            sys.path.insert(0, os.fspath(self.folder))  # as in a Python that is started there
            exec(compile(padded, block.page, "exec"), self.names)
            sys.path.remove(os.fspath(self.folder))

    def _type(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        words = words[:-1] if words[-1:] == ["&"] else words
        while words and re.match(r"[A-Z_]+=", words[0]):  # the surroundings of one command, as in NPROC=1 kemeny …
            words = words[1:]
        if words[:2] == ["taskset", "-c"]:
            words = words[3:]
        if words:
            assert words[0] in self.programs, (
                f"{line!r}: {words[0]} is no program of `Reader`; teach it, or mark the block"
            )
            self.programs[words[0]](words[1:])

    def _kemeny(self, words: list[str]) -> None:
        shorter = list(SHORTER.get(words[0], ()))
        if words[0] == "resume" and "--steps" in words:
            shorter = ["--steps", str(TINY["steps"] + TINY["batch_size"])]
        code = self.kemeny([*words, *shorter])
        assert code == 0, f"kemeny {shlex.join(words)} ended with exit code {code}"

    def _python(self, words: list[str]) -> None:
        """A file of the page is run. Of a benchmark, which takes minutes, only the help is asked for."""
        if words[0].startswith("benchmarks/"):
            found = subprocess.run(
                [sys.executable, ROOT / words[0], "--help"], capture_output=True, text=True, check=True
            )
            unknown = {word for word in words if word.startswith("--")} - flags(found.stdout)
            assert not unknown, f"{words[0]} has no {unknown}"
        else:
            subprocess.run([sys.executable, *words], cwd=self.folder, check=True)

    def _make(self, words: list[str]) -> None:
        """There is such a target; it is not made."""
        subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, check=True)

    def _pip(self, words: list[str]) -> None:
        """The files and extras that are named exist; nothing is installed."""
        import tomllib

        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert words[0] == "install"
        for extra in re.findall(r"\[(.*)\]", " ".join(words)):
            assert set(extra.split(",")) <= set(extras), f"there is no extra {extra}"
        for name in re.findall(r"-c (\S+)", " ".join(words)):
            assert (ROOT / name).exists(), name


def flags(help_text: str) -> set[str]:
    """Every flag that a help names."""
    return set(re.findall(r"--[a-z][a-z0-9-]*", help_text))


def clear_of(folder: Path) -> None:
    """Forget the modules that were imported from a folder."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(os.fspath(folder)):
            del sys.modules[name]
