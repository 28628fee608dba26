"""The tasks as environments of Gymnasium: their ids, and what makes them."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import gymnasium
from gymnasium.vector import VectorEnv

from kemeny.errors import UserError
from kemeny.tasks import inventory, machines, networks
from kemeny.tasks.admission import access_control, admission
from kemeny.tasks.environment import ProcessEnv, ProcessVectorEnv
from kemeny.tasks.heating import Heating, HeatingEnv, HeatingVectorEnv
from kemeny.tasks.network import Network
from kemeny.tasks.process import Process

Description = TypeVar("Description")

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


class Makers(NamedTuple):
    """What makes the environments of an id; both take its arguments."""

    one: Callable[..., gymnasium.Env]
    """One copy."""
    many: Callable[..., VectorEnv]
    """Many copies in one call; it takes `num_envs`, too."""


def process_of(env: str, **kwargs: Any) -> Process:
    """The process of an id, such as `CrissCross-v0`, with these arguments."""
    name = env.removeprefix(f"{NAMESPACE}/")
    return describe(name, PROCESSES[name], OPTIONS, kwargs)


def describe(
    name: str, make: Callable[..., Description], options: Sequence[str], kwargs: dict[str, Any]
) -> Description:
    """What these arguments describe; `options` are further arguments that a message names."""
    known = inspect.signature(make).parameters
    unknown = [argument for argument in kwargs if argument not in known]
    if unknown:
        raise UserError(
            f"{NAMESPACE}/{name} has no argument {unknown[0]!r}; its arguments are {', '.join((*known, *options))}."
        )
    return make(**kwargs)


def of_process(name: str) -> Makers:
    """The makers of a process."""

    def split(kwargs: dict[str, Any]) -> tuple[Process, dict[str, Any]]:
        options = {option: kwargs.pop(option) for option in OPTIONS if option in kwargs}
        return process_of(name, **kwargs), options

    def one(**kwargs: Any) -> ProcessEnv:
        process, options = split(kwargs)
        return ProcessEnv(process, **options)

    def many(num_envs: int, **kwargs: Any) -> ProcessVectorEnv:
        process, options = split(kwargs)
        return ProcessVectorEnv(process, num_envs, **options)

    return Makers(one, many)


def of_heating(name: str) -> Makers:
    """The makers of the heated room."""
    return Makers(
        lambda **kwargs: HeatingEnv(describe(name, Heating, (), kwargs)),
        lambda num_envs, **kwargs: HeatingVectorEnv(describe(name, Heating, (), kwargs), num_envs),
    )


MAKERS = {name: of_process(name) for name in PROCESSES} | {"Heating-v0": of_heating("Heating-v0")}
"""What makes the environments of each id."""


def register() -> None:
    """Make the ids known to Gymnasium; a second call changes nothing."""
    for name, makers in MAKERS.items():
        if f"{NAMESPACE}/{name}" not in gymnasium.registry:
            gymnasium.register(
                f"{NAMESPACE}/{name}",
                entry_point=makers.one,
                vector_entry_point=makers.many,
                disable_env_checker=True,
                order_enforce=False,
            )
