"""Whose code a run may import: a stranger's run names its environment, and making that can run any code.

An id of EnvPool, of Gymnasium or of an installed package is harmless, and so is a class of an installed package that is
an environment. Everything else (a file, a module in the working directory, any function, for instance `os:system`) is
made only if this user has trained on exactly that before, or says so now.
"""

import importlib.util
import json
import os
import site
import sysconfig
from pathlib import Path

import gymnasium

from kemeny.envs.names import Code, Environment, find, look_here
from kemeny.errors import UserError
from kemeny.machine import cache_folder

TRUSTED = "trusted.jsonl"
"""One line per environment that the user has trained on or trusted: file, name and arguments."""
MOST_TO_READ = 16 * 1024**2
"""Bytes of that file that are read, from its end: the older lines of a file so long are forgotten."""


def refuse_strangers(env: Environment, run: object, trust: bool) -> None:
    """Refuse to make the environment that a run names, if that would run code which this user has never trusted."""
    place = foreign_code(env)
    if place is None:
        return
    if trust:
        remember(env)
    elif _entry(env, place) not in _remembered():
        arguments = f" with {json.dumps(env.kwargs)[:200]}" if env.kwargs else ""
        raise UserError(
            f"{run} was trained on {env.name}{arguments}, which would run code of {place}. You have not trained on it "
            "here before: if you trust that code and the run, add --trust (in Python trust=True)."
        )


def remember(env: Environment) -> None:
    """Note that the user runs this environment of their own will. If that cannot be written, they are asked later."""
    place = foreign_code(env)
    if place is None or _entry(env, place) in _remembered():
        return
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(folder / TRUSTED, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with open(file, "w") as lines:
            lines.write(_entry(env, place) + "\n")
    except OSError:
        return


def foreign_code(env: Environment) -> Path | None:
    """The file whose code runs if the environment is made from its name; None if that is harmless or finds nothing."""
    code = Code.named(env.name)
    if code is None:
        return None
    if code.is_file:
        return Path(os.path.abspath(code.home))
    places = _places(code.home)
    foreign = [place for place in places if not _is_installed(place)]
    if foreign:
        return foreign[0]
    return None if not places or _makes_environments_only(env) else places[0]


def _places(module: str) -> list[Path]:
    """The file of a module's outermost package, or its folders, found without importing anything."""
    look_here()
    importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):  # what it says is said when it is imported
        return []
    if spec is None:
        return []
    if spec.has_location and spec.origin:
        return [Path(spec.origin)]
    return [Path(folder) for folder in spec.submodule_search_locations or ("Python itself",)]


def _is_installed(place: Path) -> bool:
    """Whether this belongs to Python or to an installed package."""
    paths = sysconfig.get_paths()
    homes = [paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    homes += [*site.getsitepackages(), site.getusersitepackages()]
    homes.append(str(Path(gymnasium.__file__).parents[1]))  # where Kemeny's own dependencies are, if elsewhere
    return not place.is_absolute() or any(place.is_relative_to(home) for home in homes)


def _makes_environments_only(env: Environment) -> bool:
    """Whether the name is an id or a class of environments, and not a function, which can do anything."""
    found = find(Environment(env.name, env.kwargs))
    return isinstance(found, str | type)


def _entry(env: Environment, place: Path) -> str:
    return json.dumps([str(place), env.name, env.kwargs], sort_keys=True)


def _remembered() -> set[str]:
    try:
        with open(cache_folder() / TRUSTED, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_TO_READ))
            return set(file.read(MOST_TO_READ).decode(errors="replace").splitlines())
    except OSError:
        return set()
