"""The tasks as environments of Gymnasium: their ids, and what makes them."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium

from kemeny.errors import UserError
from kemeny.tasks import inventory, machines, networks
from kemeny.tasks.admission import access_control, admission
from kemeny.tasks.environment import ProcessEnv, ProcessVectorEnv
from kemeny.tasks.network import Network
from kemeny.tasks.process import Process

PROCESSES: dict[str, Callable[..., Process]] = {
    "CrissCross-v0": networks.criss_cross,
    "NModel-v0": networks.n_model,
    "SixClass-v0": networks.six_class,
    "ReentrantLine-v0": networks.reentrant_line,
    "ServerAllocation-v0": networks.server_allocation,
    "Network-v0": Network,
    "LostSales-v0": inventory.lost_sales,
    "DualSourcing-v0": inventory.dual_sourcing,
    "PerishableStock-v0": inventory.perishable,
    "MachineReplacement-v0": machines.machine_replacement,
    "Maintenance-v0": machines.maintenance,
    "AccessControl-v0": access_control,
    "Admission-v0": admission,
}
"""What describes the process of each id; its arguments are those of the environment."""

NAMESPACE = "kemeny"
OPTIONS = ("largest", "start")
"""Arguments that every environment has beside those of its process."""


def process_of(env: str, **kwargs: Any) -> Process:
    """The process of an id, such as `CrissCross-v0`, with these arguments."""
    make = PROCESSES[env.removeprefix(f"{NAMESPACE}/")]
    known = inspect.signature(make).parameters
    unknown = [name for name in kwargs if name not in known]
    if unknown:
        raise UserError(
            f"{NAMESPACE}/{env} has no argument {unknown[0]!r}; its arguments are {', '.join((*known, *OPTIONS))}."
        )
    return make(**kwargs)


def make_one(env: str, **kwargs: Any) -> ProcessEnv:
    """One copy."""
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    return ProcessEnv(process_of(env, **kwargs), **options)


def make_many(env: str, num_envs: int, **kwargs: Any) -> ProcessVectorEnv:
    """Many copies in one call."""
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    return ProcessVectorEnv(process_of(env, **kwargs), num_envs, **options)


def register() -> None:
    """Make the ids known to Gymnasium; a second call changes nothing."""
    for name in PROCESSES:
        if f"{NAMESPACE}/{name}" not in gymnasium.registry:
            gymnasium.register(
                f"{NAMESPACE}/{name}",
                entry_point=functools.partial(make_one, name),
                vector_entry_point=functools.partial(make_many, name),
                disable_env_checker=True,
                order_enforce=False,
            )
