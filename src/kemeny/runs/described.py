"""Every setting in words, so that `help(kemeny.train)` and an editor know all of them."""

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from kemeny.runs.settings import Settings

WIDTH = 100


class Described(NamedTuple):
    """One setting."""

    name: str
    kind: Any
    """Its type, without the bounds."""
    default: Any
    meaning: str
    """The string under its field."""


def every_setting(group: type = Settings) -> Iterator[Described]:
    """Each setting of a group and of the groups in it, in order."""
    hints, meanings, default = get_type_hints(group), _strings_under_fields(group), group()
    for field in dataclasses.fields(group):
        value = getattr(default, field.name)
        if dataclasses.is_dataclass(value):
            yield from every_setting(type(value))
        else:
            yield Described(field.name, hints[field.name], value, meanings.get(field.name, ""))


def takes_every_setting(function: Callable[..., Any]) -> None:
    """Put every setting into the signature of a function, in place of `**settings`, and into its documentation."""
    signature = inspect.signature(function)
    given = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    settings = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.kind)
        for one in every_setting()
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*given, *settings])
    about = "\n".join(_paragraph(one) for one in every_setting())
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nSettings:\n{about}\n"


def _paragraph(one: Described) -> str:
    head = f"    {one.name}: {words(one.kind)} = {one.default!r}"
    body = textwrap.fill(one.meaning, WIDTH, initial_indent=8 * " ", subsequent_indent=8 * " ")
    return f"{head}\n{body}" if one.meaning else head


def words(kind: Any) -> str:
    """A type as one would write it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return words(inner[0])
    if origin in (Union, types.UnionType):
        return " | ".join(words(one) for one in inner)
    if origin is Literal:
        return " | ".join(repr(one) for one in inner)
    if origin is tuple:
        return f"tuple[{', '.join('...' if one is Ellipsis else words(one) for one in inner)}]"
    return "None" if kind is type(None) else kind.__name__


def _strings_under_fields(group: type) -> dict[str, str]:
    """The string that follows each field in the source; none where there is no source."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(group))).body[0]
    except OSError:
        return {}
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                found[name] = " ".join(meaning.split())
    return found
