"""Ray, which is an extra: how a cluster is reached, and what is said where there is none."""

import contextlib
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kemeny.errors import UserError
from kemeny.machine import available_cores

if TYPE_CHECKING:
    from types import ModuleType

SECONDS_TO_ANSWER = 10.0
Backend = Literal["local", "ray"]
"""Where work is done: in processes of this machine, or on a cluster of Ray's."""


class Place(NamedTuple):
    """Where work is to be done."""

    backend: Backend = "local"
    address: str | None = None
    """Of the cluster."""

    def check(self) -> None:
        """Refuse what is no backend, and an address of none."""
        if self.backend not in ("local", "ray"):
            raise UserError(f"There is no backend {self.backend}; there are local and ray.")
        if self.address is not None and self.backend != "ray":
            raise UserError("--ray-address is for --backend ray.")
        if self.backend == "ray":
            ray_module()


HERE = Place()


def ray_module() -> "ModuleType":
    """Ray, or a `UserError` where it is not installed."""
    try:
        import ray
    except ImportError as missing:
        raise UserError(
            f"--backend ray needs Ray, which cannot be imported ({missing}): install it with pip install "
            "'kemeny[ray]', or leave out --backend ray."
        ) from missing
    return ray


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[Any]:
    """Ray, connected to the cluster at this address; without one to that of RAY_ADDRESS, or to a new one here.

    Where this process is connected already, that connection is used, and kept.
    """
    ray = ray_module()
    if ray.is_initialized():
        yield ray
        return
    place: dict[str, Any] = {"address": address}
    where = address or os.environ.get("RAY_ADDRESS")
    if where:
        _refuse_silent(where)
    else:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere, unless the user wants it
        place = {"num_cpus": available_cores(), "include_dashboard": False}
    try:
        with _own_signals(), warnings.catch_warnings():
            # JAX warns of forks. Ray forks to start its programs, which is all that the child does.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            ray.init(**place, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        what = f"There is no Ray cluster at {where}" if where else "Ray could not be started here"
        raise UserError(f"{what}: {' '.join(str(error).split())[:200]}") from error
    try:
        yield ray
    finally:
        with _own_signals():
            ray.shutdown()


def _refuse_silent(address: str) -> None:
    """Refuse an address at which nobody listens; Ray itself would knock for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdecimal()):  # auto, or a name that Ray must make sense of
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"There is no Ray cluster at {address} ({error}): give the address of one, or begin one with ray start "
            "--head and give --ray-address auto."
        ) from error


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray listens to SIGTERM itself; here that is for those who write a checkpoint first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


def nodes(ray: Any) -> list[dict[str, Any]]:
    """The nodes that are alive."""
    return [node for node in ray.nodes() if node["Alive"]]


def name_of_node(node: dict[str, Any]) -> str:
    """What a person calls it."""
    return f"{node.get('NodeManagerHostname') or 'a node'} ({node.get('NodeManagerAddress')})"
