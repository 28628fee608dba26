"""`kemeny train`: every flag is a field of the settings that the library itself uses."""

import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from kemeny.cli.ending import say_finished
from kemeny.cli.parsing import call
from kemeny.cluster import Backend, Place
from kemeny.runs.presets import Preset, described
from kemeny.runs.presets import preset as preset_settings
from kemeny.runs.settings import Settings

DEFAULTS = Settings()
EnvName = Annotated[Positional[str], arg(metavar="ENV")]
EnvKwargs = Annotated[str, arg(metavar="JSON")]


def train(
    env: EnvName,
    settings: Settings = DEFAULTS,
    env_kwargs: EnvKwargs = "{}",
    out: Path | None = None,
    preset: Preset = "default",
    init_from: Annotated[Path | None, arg(metavar="DIR")] = None,
    resume_if_exists: bool = False,
    backend: Backend = "local",
    ray_address: str | None = None,
) -> None:
    """Train a policy and leave a run directory.

    Args:
        env: An id of EnvPool or Gymnasium, such as HalfCheetah-v3; or module:id, module:function, module:Class or
            path/to/file.py:function.
        settings: What to learn and how.
        env_kwargs: Arguments with which the environment is made, as JSON.
        out: The run directory to make [runs/ENV-ALGORITHM-seedSEED].
        preset: Where a setting is not given: the default; the paper's (Appendix H); or, for queues, stocks and machines
            that are simulated by the thousand, such as Kemeny's own tasks, `queues`.
        init_from: Begin with the policy, the critics and the normaliser of this run, or of this checkpoint of a run.
            The environment must have the same spaces and the networks the same sizes; all else may be another.
        resume_if_exists: If --out is there already and is a run of this environment with these settings, go on with
            it; so one command begins a run, resumes it and ends it, as schedulers need it.
        backend: Where --collectors are: in processes of this machine, or on the nodes of a Ray cluster.
        ray_address: Of the cluster: auto for one that runs here, HOST:PORT, or ray://HOST:PORT [that of RAY_ADDRESS, or
            a new one on this machine].
    """
    from kemeny.envs.names import as_environment, read_kwargs
    from kemeny.runs.progress import Terminal
    from kemeny.runs.train import start

    named = as_environment(env, read_kwargs(env_kwargs))
    if preset != "default":
        settings = _given(preset_settings(preset))
        print(f"Settings of the preset {preset}: {described(preset, settings)}")
    place = Place(backend, ray_address)
    about = {"init_from": init_from, "resume_if_exists": resume_if_exists, "place": place}
    say_finished(start(named, settings, out, [Terminal()], **about))


def _given(defaults: Settings) -> Settings:
    """The settings of this command line, with other defaults."""

    def train(
        env: EnvName,
        settings: Settings = defaults,
        env_kwargs: EnvKwargs = "{}",
        out: Path | None = None,
        preset: Preset = "default",
        init_from: Path | None = None,
        resume_if_exists: bool = False,
        backend: Backend = "local",
        ray_address: str | None = None,
    ) -> Settings:
        del env, env_kwargs, out, preset, init_from, resume_if_exists, backend, ray_address
        return settings

    return call(train, "train", sys.argv[2:])
