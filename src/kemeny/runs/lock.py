"""Lock files: a process at work in a directory keeps others out, until it ends, however it ends."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from kemeny.errors import InUse, RunError
from kemeny.runs import disk as files
from kemeny.runs.disk import reason

LOCK = "lock"
TRIES, SECONDS_BETWEEN_TRIES = 5, 0.02
"""Who only looks whether a lock is held has it for a moment: that must not turn anybody away."""

_held: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _drop_all() -> None:
    while _held:
        os.close(_held.pop())


# A process that an environment forks has the lock's descriptor, too; if it lived longer, it would keep the run locked.
os.register_at_fork(after_in_child=_drop_all)


@contextlib.contextmanager
def locked(directory: Path, work: str, kind: str = "run directory", *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a directory; where another process has it, an `InUse` says so and what `work` it does.

    A `shared` lock is held beside others that are shared, and keeps out those that are not.
    """
    try:
        lock = files.create(directory / LOCK, os.O_RDWR)
    except OSError as error:
        raise RunError(f"The {kind} {directory} cannot be written: {reason(error)}.") from error
    _held.add(lock)
    try:
        _take(lock, directory, work, kind, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        if lock in _held:  # else this is a forked process, which has closed it
            _held.remove(lock)
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def is_locked(directory: Path) -> bool:
    """Whether some process holds the lock of a directory now; a shared lock counts as well."""
    try:
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def _take(lock: int, directory: Path, work: str, kind: str, how: int) -> None:
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not left:
                holder = os.read(lock, 100).decode(errors="replace").strip()
                holder = f"process {holder}" if holder.isdecimal() else "another process"
                raise InUse(f"{directory} is in use by {holder}: {work}.") from None
            time.sleep(SECONDS_BETWEEN_TRIES)
        except OSError as error:
            raise RunError(f"The {kind} {directory} cannot be locked: {error.strerror}.") from error
    with contextlib.suppress(OSError):  # who holds it is for the message alone
        os.ftruncate(lock, 0)
        if how == fcntl.LOCK_EX:  # of several that share it, none is the holder
            os.write(lock, f"{os.getpid()}\n".encode())
