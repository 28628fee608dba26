"""What functions are called, and what importing the modules of environments loads."""

import pkgutil
import subprocess
import sys
from functools import partial

import pytest

import kemeny.envs
from kemeny.naming import name_of


def function():
    pass


class Maker:
    def __call__(self):
        pass

    def method(self):
        pass


HERE = __name__


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        ("Ant-v5", "Ant-v5"),
        (function, f"{HERE}:function"),
        (partial(partial(function), 1), f"{HERE}:function"),
        (lambda: None, f"{HERE}:<lambda>"),
        (Maker, f"{HERE}:Maker"),
        (Maker(), f"{HERE}:Maker"),
        (partial(Maker()), f"{HERE}:Maker"),
        (Maker().method, f"{HERE}:Maker.method"),
        (max, "builtins:max"),
    ],
)
def test_names(thing, name):
    assert name_of(thing) == name


def loaded(modules):
    """The large packages that a new process has loaded after it has imported these modules."""
    program = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {"jax", "gymnasium", "envpool", "mujoco"} & set(ran.stdout.split())


def test_environments_do_not_load_jax():
    modules = [f"kemeny.envs.{module.name}" for module in pkgutil.iter_modules(kemeny.envs.__path__)]
    assert len(modules) > 5
    assert loaded(modules) == {"gymnasium"}


def test_settings_load_nothing_large():
    assert loaded(["kemeny.envs.settings", "kemeny.naming"]) == set()
