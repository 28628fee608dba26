"""Whose code a run may import: a stranger's run names its environment, and making that can run any code.

An id of EnvPool or of Gymnasium is harmless. So are the ids and the classes of environments of Gymnasium itself, and of
installed packages that Gymnasium loads as its plugins. Everything else (a file, a module in the working directory, any
other module, any function, for instance `os:system`) is imported only if this user has trained on exactly that before,
or says so now.
"""

import importlib.metadata
import importlib.util
import json
import os
import site
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

import gymnasium

from kemeny.envs.names import Code, Environment, find
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
    """Whose code runs if the environment is made from its name; None if that is harmless, or there is no such code."""
    code = Code.named(env.name)
    if code is None:
        return None
    if code.is_file:
        place = Path(os.path.abspath(code.home))
        return place if place.is_file() else None  # what is missing is said when it is imported
    package = code.home.partition(".")[0]
    places = _places(package)
    if not places:
        return None
    harmless = package in _plugins() and all(map(_is_installed, places)) and _makes_environments_only(env)
    return None if harmless else places[0]


def _places(package: str) -> list[Path]:
    """The file of a package or its folders; empty if there is none. Nothing is imported, and no path is changed."""
    importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec(package) or PathFinder.find_spec(package, [os.getcwd()])
    except (ImportError, ValueError):  # such as __main__, which has none: nobody can say what its code is
        return [Path(package)]
    if spec is None:
        return []
    if spec.has_location and spec.origin:
        return [Path(spec.origin)]
    return [Path(folder) for folder in spec.submodule_search_locations or (package,)]


def _plugins() -> set[str]:
    """The packages whose environments Gymnasium loads by itself, and Gymnasium."""
    found = importlib.metadata.entry_points(group="gymnasium.envs")
    return {"gymnasium", *(entry.module.partition(".")[0] for entry in found)}


def _is_installed(place: Path) -> bool:
    """Whether this belongs to Python or to an installed package."""
    paths = sysconfig.get_paths()
    homes = [paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    homes += [*site.getsitepackages(), site.getusersitepackages()]
    homes.append(str(Path(gymnasium.__file__).parents[1]))  # where Kemeny's own dependencies are, if elsewhere
    return any(place.is_relative_to(home) for home in homes)


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
