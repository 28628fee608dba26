"""Every file of a run: read only if it is a regular file of bounded size, written only where no link leads elsewhere.

Every write is announced to the observers of the run, and flushed before it counts as done.
"""

import contextlib
import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from kemeny.errors import RunError, UserError
from kemeny.observers import NOBODY, Observer

NOT_OWN = "it is a link, or not a regular file, and Kemeny writes only into regular files of the run itself"


class Disk:
    """The file operations of one run."""

    def __init__(self, observer: Observer = NOBODY) -> None:
        self._observer = observer

    def write(self, path: Path, content: bytes) -> None:
        """A new file, flushed."""
        with self._announced("write", path, content), open(create(path, os.O_WRONLY | os.O_EXCL), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or folder its name; its folder is flushed where the file system can."""
        with self._announced("rename", old, new):
            old.rename(new)
        with contextlib.suppress(OSError):  # some file systems cannot flush a directory; the rename is atomic anyway
            descriptor = os.open(new.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, folder: Path) -> None:
        """A folder and all in it; one that cannot be removed stays."""
        with self._announced("remove", folder):
            shutil.rmtree(folder, ignore_errors=True)

    def open_log(self, path: Path, size: int) -> "Log":
        """A file to append to, of which only the first `size` bytes count."""
        return Log(path, size, self)

    @contextlib.contextmanager
    def _announced(self, operation: str, *about: object) -> Iterator[None]:
        self._observer.begin(operation, *about)
        yield
        self._observer.end(operation)


class Log:
    """A file that is appended to without a buffer, so that a write that fails is known at once."""

    def __init__(self, path: Path, size: int, disk: Disk) -> None:
        self._path, self._disk = path, disk
        with self._named():
            self._file = io.FileIO(create(path, os.O_WRONLY | os.O_APPEND), "ab")
            found = self._file.tell()
            if found < size:
                self._file.close()
                raise RunError(
                    f"{path} has lost lines since the checkpoint was written ({found} bytes of {size} are left), "
                    "so the run cannot be resumed exactly; put the file back."
                )
            self._file.truncate(size)
            self._file.seek(0, os.SEEK_END)

    def write(self, content: bytes) -> None:
        """Append."""
        with self._named(), self._disk._announced("append", self._path, content):
            left = memoryview(content)
            while left:
                left = left[self._file.write(left) :]

    def flush(self) -> int:
        """Have all that was written on the disk, and say how many bytes that is."""
        with self._named():
            os.fsync(self._file.fileno())
            return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self._path} could not be written: {error.strerror}. The last checkpoint is intact; when the cause "
                f"is mended, go on with: kemeny resume {self._path.parent}"
            ) from error


def create(path: Path, flags: int) -> int:
    """A descriptor of a file to write, which is made if there is none.

    Never of a file elsewhere: in a run that a stranger made, a name may be a link, and so may be a second name of a
    file (a hard link). Never of a pipe or a device either: `O_NONBLOCK` keeps it from waiting for a reader.
    """
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link, a pipe, a folder
            raise OSError(errno.EINVAL, NOT_OWN, str(path)) from error
        raise
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, NOT_OWN, str(path))
    return descriptor


@contextlib.contextmanager
def opened(path: Path, largest: int) -> Iterator[tuple[BinaryIO, int]]:
    """A file to read that is no larger than this, and its size; a `ValueError` says why not."""
    # Neither a pipe (to be waited for) nor a device (without end) may stand in a file's place.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"{path.name} is not a file")
        if about.st_size > largest:
            raise ValueError(f"{path.name} is larger than any that Kemeny writes")
        yield file, about.st_size


def read(path: Path, largest: int) -> bytes:
    """The content of a file that is no larger than this; a `ValueError` says why not."""
    with opened(path, largest) as (file, size):
        return file.read(size)


def identity(path: Path) -> tuple[int, int] | None:
    """What tells a folder from another that has its name later; None if there is none."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino


def reason(error: Exception) -> str:
    """Why a file could not be read or written, in few words."""
    if isinstance(error, OSError) and error.strerror:
        return f"{os.path.basename(error.filename)}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def refuse_unwritable(path: Path) -> None:
    """Refuse a file that cannot be written, before the work whose result it is for."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{path} cannot be written: it is a directory, or may not be changed.")
