"""What a function is called in messages, in config.json and in the name of a run directory."""

import functools
from typing import Any


def name_of(thing: Any) -> str:
    """`module:qualname` of a function, a class or the class of an object.

    A string is its own name, and a partial has the name of the function inside.
    """
    if isinstance(thing, str):
        return thing
    if isinstance(thing, functools.partial):
        return name_of(thing.func)
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"
