"""The environment of a run, from what its config.json says: nothing need be given a second time."""

from collections.abc import Mapping
from typing import Any

from kemeny.envs.names import Environment, EnvLike, as_environment
from kemeny.envs.trust import refuse_strangers
from kemeny.errors import UserError
from kemeny.runs.directory import Run


def describe_environment(env: Environment) -> dict[str, Any]:
    """What config.json says of an environment."""
    return {"env": env.name, "env_is_id": env.found_by_name(), "env_kwargs": dict(env.kwargs)}


def environment_of(run: Run, env: EnvLike | None = None, *, trust: bool = False) -> Environment:
    """The environment on which a run was trained, found by its name, or given again as `env` where it has none.

    If its code is neither installed nor trusted, `trust` must say that it may run.
    """
    config: Mapping[str, Any] = run.config
    kwargs = config.get("env_kwargs", {})
    if env is not None:
        return env if isinstance(env, Environment) else as_environment(env, kwargs)
    if not config["env_is_id"]:
        raise UserError(
            f"{run.path} was trained on the function {config['env']}, which cannot be found by that name: pass it from "
            "Python as env=…; for the command line, train on a function that has a name in a module."
        )
    found = as_environment(config["env"], kwargs)
    refuse_strangers(found, run.path, trust)
    return found
