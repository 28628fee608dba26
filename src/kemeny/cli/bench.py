"""`kemeny bench`."""

import dataclasses
import json as json_format
import math
import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kemeny.envs.settings import Simulation
from kemeny.errors import UserError
from kemeny.runs.settings import Settings


def bench(
    envs: Annotated[Positional[tuple[str, ...]], arg(metavar="[ENV…]")] = ("HalfCheetah-v3", "Ant-v3", "Humanoid-v3"),
    env_kwargs: Annotated[str, arg(metavar="JSON")] = "{}",
    rounds: int = 3,
    seconds: float = 8.0,
    num_envs: int = Settings.num_envs,
    threads: int = Simulation.threads,
    eval_max_steps: int = 10_000,
    json: bool = False,
    output: Annotated[Path | None, arg(aliases=["-o"])] = None,
) -> None:
    """Measure training speed beside the simulator's ceiling, and where the time goes; best on an idle machine.

    Args:
        envs: Names of environments, as for train.
        env_kwargs: Arguments with which each of them is made, as JSON.
        rounds: How often ceiling and training are measured, in turn.
        seconds: About how long each measurement takes.
        num_envs: Environments stepped together.
        threads: Threads of each EnvPool pool (0: one per core).
        eval_max_steps: Longest trajectory of the evaluation that is timed.
        json: Print every measurement as JSON instead of tables.
        output: Write the tables to this markdown file, too.
    """
    if not envs or rounds < 1 or not (seconds > 0 and math.isfinite(seconds)):
        raise UserError("Name at least one environment; --rounds must be at least 1 and --seconds above 0.")
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise UserError(f"{output} cannot be written: it is a directory, or it is in one that does not exist.")
    from kemeny.envs.names import as_environment, read_kwargs
    from kemeny.experiments.bench import measure, tables

    settings = {"num_envs": num_envs, "threads": threads, "eval_max_steps": eval_max_steps}
    named = [as_environment(env, read_kwargs(env_kwargs)) for env in envs]
    results = measure(named, rounds, seconds, settings, lambda line: print(line, file=sys.stderr, flush=True))
    if output is not None:
        output.write_text(tables(results))
    print(json_format.dumps(dataclasses.asdict(results)) if json else tables(results).rstrip())
