"""`kemeny sweep`: every flag of `kemeny train` with as many values as one likes."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from tyro.conf import Positional, arg

from kemeny.cluster import Backend, Place
from kemeny.errors import UserError
from kemeny.runs.described import every_setting, words

if TYPE_CHECKING:
    from kemeny.experiments.sweep import Sweep

KINDS = {one.name: one.kind for one in every_setting() if one.name != "seed"}
Values = dataclasses.make_dataclass(
    "Values",
    [
        (
            one.name,
            Annotated[
                tuple[str, ...] | None,
                arg(metavar="VALUE…", help=f"{one.meaning} ({words(one.kind)}; {one.default})", help_behavior_hint=""),
            ],
            None,
        )
        for one in every_setting()
        if one.name != "seed"
    ],
    frozen=True,
)
"""Every setting but the seed, each with several values as they are typed."""
NO_VALUES = Values()


def sweep(
    envs: Annotated[Positional[tuple[str, ...]], arg(metavar="ENV…|FILE.toml")],
    values: Annotated[Values, arg(name="")] = NO_VALUES,  # pyright: ignore[reportInvalidTypeForm]
    seeds: tuple[int, ...] | None = None,
    env_kwargs: Annotated[tuple[str, ...] | None, arg(metavar="JSON…")] = None,
    preset: Annotated[tuple[str, ...] | None, arg(metavar="default|paper|queues…")] = None,
    init_from: Annotated[tuple[str, ...] | None, arg(metavar="DIR…")] = None,
    out: Path | None = None,
    only: Annotated[tuple[str, ...], arg(metavar="ARM…")] = (),
    jobs: int | None = None,
    backend: Backend = "local",
    ray_address: str | None = None,
    array: Annotated[tuple[int, ...] | None, arg(metavar="[I]")] = None,
    list: bool = False,
    count: bool = False,
) -> None:
    """Train every combination of settings with every seed, side by side; the same command again goes on.

    Each setting of kemeny train takes one or more values here. One value that is a list is joined with commas:
    --hidden 64,64 32,32. Finished runs are left alone, stopped ones resumed, missing ones run.

    Args:
        envs: Environments, as for train; or one TOML file that describes the sweep. With a file, flags take the place
            of what stands there.
        values: Settings, each with one or more values.
        seeds: One run of each combination per seed [0].
        env_kwargs: Arguments with which the environments are made, as JSON; several are swept over.
        preset: Where a setting is not given: the default, the paper's, or that for queues; several are swept over.
        init_from: Runs or checkpoints to begin with; several are swept over.
        out: The directory of the sweep [runs/sweep, or runs/NAME for a file NAME.toml].
        only: Arms or groups of the file that are meant [all].
        jobs: Runs side by side [one per core that this process may use, or per CPU of the Ray cluster].
        backend: Where the runs are: in processes of this machine, or on the nodes of a Ray cluster.
        ray_address: Of the cluster: auto for one that runs here, HOST:PORT, or ray://HOST:PORT [that of RAY_ADDRESS, or
            a new one on this machine].
        array: Train the run with this index alone, counted from 0, in this process. Without a number it is read from
            SLURM_ARRAY_TASK_ID, PBS_ARRAY_INDEX or JOB_COMPLETION_INDEX.
        list: Print the index, state and name of every run, and train none.
        count: Print how many runs there are, and train none.
    """
    from kemeny.experiments.sweep import Sweep

    around = {"seeds": seeds, "preset": preset, "init_from": init_from}
    given = {name: [*typed] for name, typed in around.items() if typed is not None}
    given |= {name: [_value(name, text) for text in typed] for name, typed in _typed(values).items()}
    if env_kwargs is not None:
        from kemeny.envs.names import read_kwargs

        given["env_kwargs"] = [read_kwargs(text) for text in env_kwargs]
    for name, alternatives in given.items():
        if not alternatives:
            raise UserError(f"--{name.replace('_', '-')} needs a value, or several.")
    planned = Sweep.of(envs, given, out, only)
    if count:
        print(len(planned.runs))
    elif list:
        print_list(planned)
    elif array is not None:
        _train_member(planned, array)
    else:
        _train(planned, jobs, Place(backend, ray_address))


def _train(planned: "Sweep", jobs: int | None, where: Place) -> None:
    from kemeny.experiments.board import board

    runs = planned.train(jobs, board(), where)
    place = planned.directory.path
    print(f"Finished: {len(runs)} runs. Look at them with: kemeny compare {place}, or kemeny plot {place}")


def _train_member(planned: "Sweep", array: tuple[int, ...]) -> None:
    from kemeny.cli.ending import say_finished
    from kemeny.experiments.sweep import array_index
    from kemeny.runs.progress import Terminal

    if len(array) > 1:
        raise UserError("--array takes one index.")
    index, source = array_index(array[0] if array else None)
    print(f"Run {index}, as {source} says: {planned.member(index).name}", file=sys.stderr, flush=True)
    say_finished(planned.train_member(index, [Terminal()]))


def print_list(planned: "Sweep") -> None:
    """Print the index, name and state of every run."""
    width = max(len(run.name) for run in planned.runs)
    for index, (run, seen) in enumerate(planned.look()):
        print(f"{index:>5}  {run.name:<{width}}  {seen.state:<14}  {seen.steps:,} of {run.settings.steps:,} steps")


def _typed(values: Any) -> dict[str, Any]:
    """What was typed for each setting; a flag without a value is true."""
    given = {name: typed for name, typed in dataclasses.asdict(values).items() if typed is not None}
    return {name: typed or (("true",) if KINDS[name] is bool else ()) for name, typed in given.items()}


def _value(name: str, text: str) -> Any:
    """A text as the value of a setting; what it cannot be stays a text, which the setting then refuses."""
    kind = KINDS[name]
    if get_origin(kind) is tuple:
        return tuple(_single(get_args(kind)[0], part) for part in text.split(",") if part)
    return _single(kind, text)


def _single(kind: Any, text: str) -> Any:
    kinds = get_args(kind) or (kind,)
    if type(None) in kinds and text.lower() == "none":
        return None
    if bool in kinds:
        return {"true": True, "yes": True, "false": False, "no": False}.get(text.lower(), text)
    if int in kinds or float in kinds:
        for number in (int, float):
            try:
                return number(text)
            except ValueError:
                continue
    return text
