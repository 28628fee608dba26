"""Every write of a run: announced to its observers, and flushed before it counts as done."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from kemeny.errors import RunError
from kemeny.observers import NOBODY, Observer


class Disk:
    """The file operations of one run."""

    def __init__(self, observer: Observer = NOBODY) -> None:
        self._observer = observer

    def write(self, path: Path, content: bytes) -> None:
        """A new file, flushed."""
        with self._announced("write", path, content), path.open("wb") as file:
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
            self._file = path.open("ab", buffering=0)
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
