"""How flags become arguments: tyro, and whole numbers that may be written 1e6."""

from collections.abc import Callable, Sequence
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from kemeny.errors import UserError

REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def whole_number(about: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """1000000, 1_000_000 and 1e6 are the same whole number."""
    if about.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda texts: _whole(texts[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda number: [str(number)],
    )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not number.is_integer():
        raise ValueError(f"{text} is not a whole number")
    return int(number)


def chosen_manner(explore: bool, mean: bool) -> bool | None:
    """Whether --explore or --mean was given: to explore, or not to; None if neither was, and the run decides."""
    if explore and mean:
        raise UserError("--explore and --mean contradict each other: leave out one of the two.")
    return explore or (False if mean else None)


def call(command: Callable[..., Any], name: str, arguments: Sequence[str]) -> Any:
    """Call a command with the arguments that these words say."""
    return tyro.cli(
        command,
        prog=f"kemeny {name}",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
        registry=REGISTRY,
    )
