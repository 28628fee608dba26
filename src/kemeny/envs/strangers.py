"""Code that is not Kemeny's, such as an environment or a cost function: what it raises, and how a message says it."""

from typing import Protocol

RAISED = (Exception, SystemExit)
"""What a stranger's code may raise: `sys.exit` in it must not end a run. A KeyboardInterrupt is the user's."""


class Closeable(Protocol):
    """What has a `close`."""

    def close(self) -> object:
        """Release what it holds."""
        ...


def text_of(error: BaseException) -> str:
    """What an exception says; its type if it says nothing, or if its text raises."""
    try:
        return str(error) or type(error).__name__
    except RAISED:
        return type(error).__name__


def type_and_text(error: BaseException) -> str:
    """Type and text of an exception: `ValueError: no such arena`."""
    name, text = type(error).__name__, text_of(error)
    return name if text == name else f"{name}: {text}"


def close_quietly(thing: Closeable) -> None:
    """Close something whose work is done: should that fail, nothing of the work is lost."""
    try:
        thing.close()
    except RAISED:
        return
