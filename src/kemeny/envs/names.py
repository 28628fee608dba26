"""How an environment or a rule is named and found: an id, something in a module or in a file, a function; arguments.

This is the only place that imports a user's code by its name.
"""

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium

from kemeny.envs.strangers import RAISED, type_and_text
from kemeny.errors import UserError
from kemeny.naming import name_of

Maker = Callable[..., Any]
"""A function or class that makes an environment."""
LONGEST_KWARGS = 2**16
"""Characters of the keyword arguments, as JSON: config.json holds them."""
OUR_IDS = "kemeny/"
"""The ids of Kemeny's own tasks begin with this; they are registered when one is first named."""
NUM_ENVS = "num_envs"
"""The parameter by which Kemeny says how many environments a maker makes together; never one of the user's."""


@dataclass(frozen=True)
class Environment:
    """An environment as the user names it, and the keyword arguments with which it is made."""

    source: "str | Maker"
    """A name, or a function or class that makes it."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """For EnvPool and Gymnasium their options; for a function or class what it is called with."""

    @property
    def name(self) -> str:
        """What messages and config.json call it."""
        return name_of(self.source)

    @property
    def short_name(self) -> str:
        """For the name of a directory: of a file or a module only its last part."""
        code = Code.named(self.source) if isinstance(self.source, str) else None
        name = self.name if code is None or not code.is_file else f"{Path(code.home).stem}-{code.thing}"
        return name.replace("/", "-").replace(":", "-")

    def found_by_name(self) -> bool:
        """Whether the name is enough to make the environment again in another process."""
        if isinstance(self.source, str):
            return True
        module, _, path = self.name.partition(":")
        if module in ("__main__", "builtins") or module not in sys.modules:
            return False
        return _attribute(sys.modules[module], path) == self.source

    def with_kwargs(self, **more: Any) -> "Environment":
        """The same with some arguments more, or instead of its own."""
        return Environment(self.source, {**self.kwargs, **more})


EnvLike = str | Maker | Environment
"""A name, a function or class that makes an environment, or either with keyword arguments."""


def as_environment(env: EnvLike, env_kwargs: Mapping[str, Any] | None = None) -> Environment:
    """An environment from what the user gave; a `UserError` if that can be none."""
    if isinstance(env, Environment):
        return env
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise UserError(
            "A run needs vector environments of several sizes, so one that is made already is of no use: pass a "
            "function with the parameter num_envs that makes one."
        )
    if not (isinstance(env, str) or callable(env)):
        raise UserError(f"An environment is an id or a function that makes one, not of type {type(env).__name__}.")
    return Environment(env, {} if env_kwargs is None else _checked_kwargs(env_kwargs))


def read_kwargs(text: str) -> dict[str, Any]:
    """Keyword arguments as they are written on the command line."""
    try:
        kwargs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"""--env-kwargs is no JSON ({error}): write it as '{{"capacity": 20}}', in quotes."""
        ) from error
    if not isinstance(kwargs, dict):
        raise UserError(f"""--env-kwargs is {text[:50]}, but it must be an object, such as '{{"capacity": 20}}'.""")
    return _checked_kwargs(kwargs)


def _checked_kwargs(kwargs: Any) -> dict[str, Any]:
    """The arguments as config.json will hold them, so that a resumed run has the same."""
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise UserError("env_kwargs must be a dictionary of arguments by their names.")
    if NUM_ENVS in kwargs:
        raise UserError(f"{NUM_ENVS} is no argument of an environment here: it is the setting --num-envs.")
    try:
        text = json.dumps(dict(kwargs), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"env_kwargs must be numbers, texts, lists and dictionaries, as config.json holds them ({error}): pass a "
            "function without arguments that makes the environment."
        ) from error
    if len(text) > LONGEST_KWARGS:
        raise UserError(
            f"env_kwargs are {len(text):,} characters long as JSON; they must be at most {LONGEST_KWARGS:,}."
        )
    return json.loads(text)


class Code(NamedTuple):
    """What a name says of code that is to be imported."""

    home: str
    """A module, or the path of a file."""
    thing: str
    """A function, a class or an id in it."""

    @classmethod
    def named(cls, name: str) -> "Code | None":
        """The two parts of a name; None for an id alone."""
        if ":" not in name:
            if name.endswith(".py"):
                raise UserError(f"{name!r} is a file: name the function or class in it too, as in {name}:make_env.")
            return None
        code = cls.read(name)
        if code is None:
            raise UserError(
                f"{name!r} cannot be the name of an environment: write an id, such as HalfCheetah-v3; module:id for an "
                "id that a module registers; module:function or module:Class; or path/to/file.py:function."
            )
        return code

    @classmethod
    def read(cls, name: str) -> "Code | None":
        """The two parts of a name; None for a name that has not these parts."""
        home, _, thing = name.rpartition(":")
        code = cls(home, thing)
        sound = home and thing and ":" not in home and (code.is_file or not home.startswith("."))
        return code if sound else None

    @property
    def is_file(self) -> bool:
        """Whether the first part is the path of a file."""
        return self.home.endswith(".py")


def find(env: Environment) -> "str | Maker":
    """What makes the environment: an id that is registered by now, or a function or class; it may import code."""
    if not isinstance(env.source, str):
        return env.source
    code = Code.named(env.source)
    if code is None:
        if env.source.startswith(OUR_IDS):
            importlib.import_module("kemeny.tasks")  # which registers them
        return env.source
    module = _import(code, env.name)
    registered = code.thing if code.is_file else env.source  # Gymnasium imports a module itself
    if code.thing in gymnasium.registry:
        return registered
    found = _attribute(module, code.thing)
    if found is not None:
        return _checked_maker(found, env.name, _other_file(module, code))
    if _has_versions(code.thing):
        return registered
    raise _nothing_there(module, code, env.name, "function, class or id")


def find_rule(name: str) -> Any:
    """What `module:rule` or `path/to/file.py:rule` leads to: a rule, or what makes one; imports code."""
    code = Code.read(name)
    if code is None:
        raise UserError(
            f"{name!r} cannot be the name of a rule: write module:rule, such as kemeny.tasks:MaxWeight, or "
            "path/to/file.py:rule."
        )
    module = _import(code, name)
    found = _attribute(module, code.thing)
    if found is None:
        raise _nothing_there(module, code, name, "rule")
    return found


def _checked_maker(found: Any, name: str, other_file: str) -> Maker:
    """What was found, if it can make an environment; `other_file` is said if the user may have meant that."""
    if isinstance(found, type):
        if not issubclass(found, gymnasium.Env | gymnasium.vector.VectorEnv):
            what = other_file or "name a class that is, or a function that makes one."
            raise UserError(f"{name} is a class, but no gymnasium.Env: {what}")
    elif isinstance(found, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise UserError(f"{name} is an environment that was made already: name a function that makes a new one.")
    elif not callable(found):
        raise UserError(
            f"{name} is of type {type(found).__name__}: name a function or class that makes an environment."
        )
    return found


def refuse_misfit(maker: Maker, env: Environment) -> None:
    """Refuse to call a function or class with arguments that it does not take, or without some that it needs."""
    try:
        parameters = inspect.signature(maker).parameters
    except (TypeError, ValueError):  # some that are written in C do not say
        return
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    by_name = {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for name in env.kwargs:
        if name not in by_name and not anything:
            takes = ", ".join(by_name) or "none"
            raise UserError(f"{env.name} takes no argument {name!r}; it takes: {takes}.")
    unfilled = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and name not in env.kwargs
    ]
    missing = [name for name in unfilled if name != NUM_ENVS]
    if missing:
        example = json.dumps(dict.fromkeys(missing, "…"), ensure_ascii=False).replace('"…"', "…")
        raise UserError(f"{env.name} needs arguments ({', '.join(missing)}): give them with --env-kwargs '{example}'.")


def takes(maker: Maker, argument: str) -> bool:
    """Whether a function or class has this parameter."""
    try:
        return argument in inspect.signature(maker).parameters
    except (TypeError, ValueError):
        return False


def look_here() -> None:
    """Put the working directory on the path, last: a file of the user's named queue.py must hide none of Python's."""
    _append(os.getcwd())


def _append(folder: str) -> None:
    if folder not in sys.path and not ("" in sys.path and folder == os.getcwd()):
        sys.path.append(folder)


def _import(code: Code, name: str) -> ModuleType:
    return _import_file(code.home, name) if code.is_file else _import_module(code.home, name)


def _import_module(module: str, env: str) -> ModuleType:
    """The module; the working directory is looked into, and stays on the path, only if it is found nowhere else."""
    importlib.invalidate_caches()  # the file may be younger than what Python has seen of its folder
    try:
        with _telling_what_is_raised(module, env):
            return importlib.import_module(module)
    except ModuleNotFoundError:
        look_here()
    try:
        with _telling_what_is_raised(module, env):
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{env} needs the module {module}, which is neither installed nor in this directory: go to the directory "
            f"that holds {module.split('.')[0]}.py, or name the file, as in path/to/file.py:function."
        ) from error


def _import_file(path: str, env: str) -> ModuleType:
    place = os.path.abspath(path)
    if not os.path.isfile(place):
        raise UserError(
            f"{env} needs the file {path}, which does not exist: name it as seen from this directory, or go to the "
            "directory from which it was named."
        )
    # Hides no module of its own name; a file that was edited is another module.
    version = f"{place}\0{os.stat(place).st_mtime_ns}"
    name = f"{Path(place).stem}_{hashlib.sha256(version.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    look_here()
    _append(os.path.dirname(place))  # where it finds the files beside it, as a script does
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _telling_what_is_raised(path, env):
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError):
            raise _raises(path, env, error) from error
        raise
    return module


@contextlib.contextmanager
def _telling_what_is_raised(home: str, env: str) -> Iterator[None]:
    """What an import raises as a `UserError`; but for a `ModuleNotFoundError` of that module itself."""
    try:
        yield
    except RAISED as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{home}.".startswith(f"{missing}."):
            raise
        raise _raises(home, env, error) from error


def _raises(home: str, env: str, error: BaseException) -> UserError:
    return UserError(f"{env} cannot be made: when {home} was imported, it raised {type_and_text(error)}.")


def _attribute(module: ModuleType, path: str) -> Any:
    """What a dotted path leads to; None if to nothing, or by way of what Python keeps for itself (`__builtins__`)."""
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None) if part.isidentifier() and not part.startswith("__") else None
    return found


def _has_versions(name: str) -> bool:
    """Whether Gymnasium has versions of this, or an id like it, and so says itself what is wrong with it."""
    bare = name.split("-v")[0]
    return bare != name or any(key.split("-v")[0] == bare for key in gymnasium.registry)


def _nothing_there(module: ModuleType, code: Code, env: str, wanted: str) -> UserError:
    exported = getattr(module, "__all__", ())
    there = [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_")
        if name in exported or getattr(value, "__module__", None) == module.__name__
    ]
    close = difflib.get_close_matches(code.thing, there, 3) or there[:5]
    hint = f"did you mean {' or '.join(close)}?" if close else "it has none at all."
    hint = _other_file(module, code) or hint
    return UserError(f"{env} cannot be found: {code.home} has no {wanted} {code.thing!r}; {hint}")


def _other_file(module: ModuleType, code: Code) -> str:
    """What to write for the file in this directory that has the name of the module, if that is another one."""
    beside = os.path.abspath(f"{code.home}.py")
    if code.is_file or not os.path.isfile(beside) or os.path.abspath(module.__file__ or "") == beside:
        return ""
    return f"it is not the file in this directory: for that, write {code.home}.py:{code.thing}."


@cache
def envpool_ids() -> frozenset[str]:
    """Ids that EnvPool has; none where it is not installed."""
    try:
        import envpool
    except ImportError:
        return frozenset()
    return frozenset(envpool.list_all_envs())


def unknown(env: str) -> UserError:
    """The error for an id that neither EnvPool nor Gymnasium has, with the ids that may have been meant."""
    importlib.import_module("kemeny.tasks")
    known = {name.lower(): name for name in (*gymnasium.registry, *envpool_ids())}
    other_versions = sorted(name for key, name in known.items() if key.split("-v")[0] == env.lower().split("-v")[0])
    close = other_versions or [known[key] for key in difflib.get_close_matches(env.lower(), known, n=5)]
    hint = f"did you mean {' or '.join(close)}?" if close else "is the package that registers it imported?"
    return UserError(f"There is no environment {env!r}: {hint} (An id from another package is written module:id.)")
