"""The command line: one file per command, imported when its command is called."""

import difflib
import importlib
import sys

from kemeny import __version__
from kemeny.errors import RunError, UserError

EXIT_MISTAKE, EXIT_INTERRUPTED = 2, 130
COMMANDS = {
    "train": "train a policy and leave a run directory",
    "resume": "go on with a stopped or killed run",
    "evaluate": "run a trained policy and report its returns; film it",
    "plot": "draw the learning curves of runs",
    "exact": "solve a finite model exactly",
    "bench": "measure training speed beside the simulator's",
}
HELP = """usage: kemeny COMMAND …

Deep reinforcement learning for tasks that never end.

    kemeny train HalfCheetah-v3 --steps 1e6 --out runs/cheetah
    kemeny evaluate runs/cheetah
    kemeny plot runs/cheetah -o curve.png
    kemeny exact --zoo access_control

commands:
{commands}

kemeny COMMAND --help explains a command; kemeny --version prints the version.
"""


def main() -> None:
    """`kemeny …`"""
    try:
        _call(sys.argv[1:])
    except (UserError, RunError) as problem:
        from kemeny.runs.interrupts import Interrupted

        print(f"kemeny: {problem}", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED if isinstance(problem, Interrupted) else EXIT_MISTAKE)
    except KeyboardInterrupt:
        print("kemeny: stopped at once; the last checkpoint is intact.", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def _call(arguments: list[str]) -> None:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        commands = "\n".join(f"    {command:<10} {what}" for command, what in COMMANDS.items())
        print(HELP.format(commands=commands), end="")
    elif name == "--version":
        print(f"kemeny {__version__}")
    elif name in COMMANDS:
        from kemeny.cli.parsing import call

        call(getattr(importlib.import_module(f"kemeny.cli.{name}"), name), name, arguments[1:])
    else:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}."
        raise UserError(f"There is no command {name}; {hint}")
