"""Many runs by one command or call: a grid of settings and seeds, side by side, or one by one as a job array."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kemeny import cluster
from kemeny.envs.pool import inspect
from kemeny.errors import UserError
from kemeny.experiments.board import Board, board
from kemeny.experiments.grid import ENV, INIT_FROM, KWARGS, PRESET, SEEDS, Grid, Planned, alternatives
from kemeny.experiments.grid_file import read_grid
from kemeny.experiments.local import LocalProcesses, usable_cores
from kemeny.experiments.on_ray import RayActors
from kemeny.experiments.side_by_side import train_all
from kemeny.experiments.sweep_directory import SweepDirectory
from kemeny.observers import Observer
from kemeny.runs.directory import Run
from kemeny.runs.glance import Glance, State, glance

DEFAULT_OUT = Path("runs/sweep")
INDEX_VARIABLES = ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "JOB_COMPLETION_INDEX")
"""In which Slurm, PBS and Kubernetes say which member of an array a process is."""


class Sweep:
    """A grid and its directory. Making one reads what is there and changes nothing."""

    def __init__(self, grid: Grid, out: str | Path, only: Sequence[str] = ()) -> None:
        """`only` are the arms or groups that are meant; the directory is that of the whole grid."""
        self.directory, self._every = SweepDirectory(out), grid.runs()
        self._arms = {arm.name for arm in grid.only(only).arms}
        self.runs = self._chosen(self.directory.named(self._every))
        """In their order, with the names that they have here."""

    @classmethod
    def of(
        cls,
        env: Any = (),
        given: Mapping[str, Sequence[Any]] | None = None,
        out: str | Path | None = None,
        only: Sequence[str] = (),
    ) -> "Sweep":
        """From environments, or from the name of a TOML file; `given` has the values of everything else."""
        given = {} if given is None else given
        envs = list(env) if isinstance(env, list | tuple) else [env]
        files = [one for one in envs if isinstance(one, str | Path) and str(one).endswith(".toml")]
        if not files:
            grid = Grid.of({}).replaced({**({ENV: envs} if envs else {}), **given})
            return cls(grid, DEFAULT_OUT if out is None else out, only)
        if len(envs) > 1:
            raise UserError(f"A sweep is a TOML file, or environments: {files[0]} must stand alone.")
        file = read_grid(Path(files[0]))
        return cls(file.grid.replaced(given), file.out if out is None else out, only)

    def look(self) -> list[tuple[Planned, Glance]]:
        """How far each run is."""
        return [(run, glance(self.directory.run(run))) for run in self.runs]

    def train(
        self,
        jobs: int | None = None,
        show: Board | None = None,
        where: cluster.Place = cluster.HERE,
    ) -> list[Run]:
        """Bring all runs to their end, side by side, `jobs` at a time [one per core of this machine, or of Ray's]."""
        if jobs is not None and jobs < 1:
            raise UserError(f"--jobs is {jobs}; it must be at least 1.")
        where.check()
        show = board(False) if show is None else show
        _refuse_misfits([run for run, seen in self.look() if seen.state != State.FINISHED])
        with contextlib.ExitStack() as stack:
            ray = stack.enter_context(cluster.connected(where.address)) if where.backend == "ray" else None
            self.directory.make()
            stack.enter_context(self.directory.alone())
            if ray is None:
                place = LocalProcesses(self.directory, min(jobs or len(usable_cores()), len(self.runs)))
            else:
                place = RayActors(ray, self.directory, len(self.runs), jobs)
                stack.enter_context(place.shared_storage())
            runs = self._chosen(self.directory.plan(self._every))
            train_all(runs, self.directory, place, show)
        return [Run(self.directory.run(run)) for run in runs]

    def train_member(self, index: int, observers: Sequence[Observer] = ()) -> Run:
        """Begin the run with this index, counted from 0, or go on with it: in this process, to its end."""
        self.member(index)
        from kemeny.runs.train import start

        self.directory.make()
        with self.directory.as_member():
            run = self._chosen(self.directory.plan(self._every))[index]
            path = self.directory.run(run)
            return start(
                run.env, run.settings, path, observers, init_from=run.init_from, resume_if_exists=True
            )  # fmt: skip

    def _chosen(self, runs: Sequence[Planned]) -> list[Planned]:
        return [run for run in runs if run.arm in self._arms]

    def member(self, index: int) -> Planned:
        """The run with this index, counted from 0."""
        if not 0 <= index < len(self.runs):
            raise UserError(f"There is no run {index}: the sweep has {len(self.runs)}, counted from 0.")
        return self.runs[index]


def sweep(
    env: Any,
    *,
    seeds: Any = None,
    env_kwargs: Any = None,
    out: str | Path | None = None,
    preset: Any = None,
    init_from: Any = None,
    only: Sequence[str] = (),
    jobs: int | None = None,
    backend: cluster.Backend = "local",
    ray_address: str | None = None,
    array: int | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> list[Run]:
    """Train every combination of the settings with every seed, side by side, and leave a directory of runs.

    `env` is an environment or a list of several, as for `kemeny.train`, or the name of a TOML file (docs/sweeps.md). A
    list of values is swept over: `gae_lambda=[0.8, 0.95]`. So are lists of `seeds` [0], `env_kwargs`, `preset` and
    `init_from`. A
    setting that is a list itself is swept over by a list of lists: `hidden=[(64, 64), (32, 32)]`. With a file, what is
    given here takes the place of what stands there.

    Each run is a process of its own on a core of its own, `jobs` at a time [as many as there are cores]. The same call
    again resumes what stopped, runs what is missing, and leaves alone what is finished. A run that fails is reported by
    a `kemeny.RunError` when all others are done.

    With the backend "ray" the runs are on the nodes of a Ray cluster (docs/ray.md): that which this process is
    connected to, that at `ray_address`, that of the variable RAY_ADDRESS, or a new one on this machine.

    `array` trains the run with that index alone, in this process. `only` names arms or groups of a file.
    """
    given = {name: alternatives(name, value) for name, value in settings.items()}
    around = {SEEDS: seeds, KWARGS: env_kwargs, PRESET: preset, INIT_FROM: init_from}
    given |= {name: alternatives(name, value) for name, value in around.items() if value is not None}
    planned = Sweep.of(env, given, out, only)
    if array is not None:
        from kemeny.runs.progress import shown

        return [planned.train_member(array, shown(progress))]
    return planned.train(jobs, board(progress), cluster.Place(backend, ray_address))


def array_index(given: int | None, surroundings: Mapping[str, str] = os.environ) -> tuple[int, str]:
    """Which member of an array this is, and who says so: the user, or the scheduler's variable."""
    if given is not None:
        return given, "--array"
    for name in INDEX_VARIABLES:
        if name in surroundings:
            if not surroundings[name].isdecimal():
                raise UserError(f"{name} is {surroundings[name][:50]!r}; it must be a whole number.")
            return int(surroundings[name]), name
    raise UserError(f"--array needs a number, or one of the variables {', '.join(INDEX_VARIABLES)}.")


def _refuse_misfits(runs: Sequence[Planned]) -> None:
    """Refuse, before anything is begun, what `kemeny train` would refuse: settings, environments, costs."""
    if not runs:
        return
    from kemeny.runs.assembly import make_learner

    seen = set()
    for run in runs:
        try:
            make_learner(run.settings)
            looks = repr((run.env, run.settings.cost, run.settings.simulation))
            if looks not in seen:
                seen.add(looks)
                inspect(run.env, costs=run.settings.cost, simulation=run.settings.simulation)
        except UserError as error:
            raise UserError(f"The run {run.name} cannot be made: {error}") from error
