"""A rule by its name: found in a module or a file and, if it asks for that, made for the process of an environment."""

from typing import Any

from kemeny.envs.gymnasium import make_env
from kemeny.envs.names import Environment, find_rule, takes
from kemeny.envs.pool import choose_backend
from kemeny.envs.strangers import RAISED, close_quietly, type_and_text
from kemeny.envs.vector import make_copies
from kemeny.errors import UserError
from kemeny.experience.rules import Rule

ASKS_FOR_PROCESS = ("network", "process")
"""A function or class with one of these parameters is no rule, but makes one for the process that it is given."""


def rule_named(name: str, env: Environment) -> Rule:
    """The rule of this name for an environment.

    A function or class with a parameter `network` or `process` is called with the environment's process, any other
    class without arguments, and what it makes is the rule. Everything else is a rule itself.
    """
    found = find_rule(name)
    if not callable(found):
        raise UserError(f"{name} is of type {type(found).__name__}: name a function from an observation to an action.")
    asked = next((parameter for parameter in ASKS_FOR_PROCESS if takes(found, parameter)), None)
    if asked is None and not isinstance(found, type):
        return found
    arguments = {} if asked is None else {asked: _process_of(env, name, asked)}
    try:
        rule = found(**arguments)
    except UserError:
        raise
    except RAISED as error:
        raise UserError(f"The rule {name} could not be made: it raised {type_and_text(error)}.") from error
    if not callable(rule):
        raise UserError(f"{name} made an object of type {type(rule).__name__}, which cannot be called: it is no rule.")
    return rule


def _process_of(env: Environment, rule: str, asked: str) -> Any:
    """The process that an environment was made from: its attribute of that name."""
    backend, process = choose_backend(env, "auto", workers=0), None
    if backend != "envpool":
        made, _ = make_copies(env, 1) if backend == "vector" else make_env(env)
        process = getattr(made.unwrapped, "process", None)
        close_quietly(made)
    if process is None:
        raise UserError(
            f"{rule} has a parameter {asked}, so it makes a rule for a process, but {env.name} has none: name a rule "
            "that needs none, or one of Kemeny's tasks, such as kemeny/CrissCross-v0."
        )
    return process
