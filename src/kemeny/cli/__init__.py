"""The command line: one file per command, imported when its command is called."""

import contextlib
import difflib
import importlib
import io
import os
import select
import signal
import sys
from typing import NoReturn, TextIO

from kemeny import __version__
from kemeny.errors import InUse, RunError, UserError
from kemeny.runs.interrupts import CALL_AGAIN, Interrupted, StoppedAtOnce, leaving_at_once

EXIT_NO_READER, EXIT_MISTAKE, EXIT_INTERRUPTED = 1, 2, 130
TRAINING = {"train", "resume", "sweep", "reproduce"}
"""Commands that a scheduler calls and stops: they end with `CALL_AGAIN` if that is what they ask for."""
COMMANDS = {
    "train": "train a policy and leave a run directory",
    "sweep": "train many runs: a grid of settings and seeds, side by side or as a job array",
    "check": "step an environment: can it be trained on, and with what settings",
    "resume": "go on with a stopped or killed run",
    "evaluate": "run a trained policy or a rule: returns, long-run averages, trajectory files, film",
    "export": "write a trained policy as ONNX or plain arrays",
    "compare": "compare runs: a table with intervals, and which setting is better",
    "plot": "draw the learning curves of runs",
    "report": "write one page about runs: tables, curves, films",
    "reproduce": "run and draw the paper's figures and tables",
    "exact": "solve a finite model exactly",
    "bench": "measure training speed beside the simulator's",
}
HELP = """usage: kemeny COMMAND …

Deep reinforcement learning for tasks that never end.

    kemeny train HalfCheetah-v3 --steps 1e6 --out runs/cheetah
    kemeny evaluate runs/cheetah
    kemeny compare runs/sweep
    kemeny plot runs/cheetah -o curve.png
    kemeny sweep HalfCheetah-v3 --gae-lambda 0.8 0.95 --seeds 0 1 2
    kemeny exact --zoo access_control

commands:
{commands}

kemeny COMMAND --help explains a command; kemeny --version prints the version.
"""


def main() -> None:
    """`kemeny …`"""
    _write_what_can_be_encoded()
    try:
        try:
            with leaving_at_once() if TRAINING & set(sys.argv[1:2]) else contextlib.nullcontext():
                _call(sys.argv[1:])
        except SystemExit:  # tyro's, which has printed a help or a mistake
            _flush()
            raise
        _flush()
    except (UserError, RunError) as problem:
        _end(f"kemeny: {problem}", _exit_code(problem))
    except StoppedAtOnce as stop:
        _end(f"kemeny: stopped at once by {stop}; the same command goes on.", CALL_AGAIN)
    except KeyboardInterrupt:
        _end("kemeny: stopped at once; the last checkpoint is intact.", EXIT_INTERRUPTED)
    except BrokenPipeError:
        if not _drop_unread():
            raise
        sys.exit(EXIT_NO_READER)


def _exit_code(problem: Exception) -> int:
    """Schedulers call again, and people who pressed Ctrl-C do so if they like; a mistake stays one."""
    if isinstance(problem, Interrupted):
        return EXIT_INTERRUPTED if problem.by == signal.SIGINT else CALL_AGAIN
    return CALL_AGAIN if isinstance(problem, InUse) else EXIT_MISTAKE


def _flush() -> None:
    """Write all now, while it can still be noticed that nobody reads it."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _end(message: str, code: int) -> NoReturn:
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)
    _drop_unread()
    sys.exit(code)


def _write_what_can_be_encoded() -> None:
    """On a terminal without UTF-8, write ? for ≤ and ρ instead of failing after all the work."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop_unread() -> bool:
    """Send elsewhere what a reader that has left, such as `head`, will not read; whether there is such a stream."""
    left = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and _has_lost_its_reader(stream)]
    for stream in left:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return bool(left)


def _has_lost_its_reader(stream: TextIO) -> bool:
    try:
        poll = select.poll()
        poll.register(stream, 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):  # it is closed, or no file
        return False


def _call(arguments: list[str]) -> None:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        commands = "\n".join(f"    {command:<10} {what}" for command, what in COMMANDS.items())
        print(HELP.format(commands=commands), end="")
    elif name == "--version":
        print(f"kemeny {__version__}")
    elif name in COMMANDS:
        try:
            from kemeny.cli.parsing import call
        except ModuleNotFoundError as missing:
            raise UserError(
                f"kemeny {name} needs {missing.name}, which is not installed: install Kemeny with its dependencies. "
                "Without them, a trained policy acts in Python: kemeny.load_policy."
            ) from missing
        call(getattr(importlib.import_module(f"kemeny.cli.{name}"), name), name, arguments[1:])
    else:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}."
        raise UserError(f"There is no command {name}; {hint}")
