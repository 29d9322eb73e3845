"""The few things a log asks of one directory, as a port, and the real one.

Errors are ``OSError``, as the system gives them; the log decides what they mean.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from pairbus.errors import StoreUnavailable
from pairbus.storage.descriptors import DescriptorReserve

FILE_MODE: Final = 0o600
"""Messages are readable for the owner of the process alone."""
DIRECTORY_MODE: Final = 0o700
UNFINISHED_SUFFIX: Final = ".new"
"""Of a file that is being made; it gets its name when it is complete."""
RESERVED_HANDLES: Final = 4
"""File descriptors kept for the store alone: clients may hold all others, and the store must go on (B12)."""


class LockLost(OSError):
    """The directory is no longer owned by this process alone: nothing more may be written there (B69)."""


class FileSystem(Protocol):
    """One directory. A name is a file in it; a handle is an open file."""

    def names(self) -> list[str]:
        """Every file."""

    def path(self, name: str) -> str:
        """What a person calls it."""

    def size(self, name: str) -> int:
        """Its length in bytes."""

    def create(self, name: str, size: int) -> int:
        """A new file of this length, its space reserved; opened. Fails with ENOSPC if there is no such space."""

    def reserve(self, handle: int, offset: int, size: int) -> None:
        """Make a file longer, its space reserved. Fails with ENOSPC if there is no such space; then nothing has changed."""

    def open(self, name: str) -> int:
        """An existing file, for reading and writing."""

    def close(self, handle: int) -> None:
        """Done with it. Says nothing about durability."""

    def write(self, handle: int, pieces: Sequence[bytes], offset: int) -> int:
        """Write the pieces one after the other from an offset on; how many bytes were taken."""

    def sync(self, handle: int) -> None:
        """Return once the file's contents are on stable storage."""

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """So many bytes from an offset on; fewer only at the end of the file."""

    def rename(self, old: str, new: str) -> None:
        """Atomically, replacing what had the new name."""

    def unlink(self, name: str) -> None:
        """Remove a name."""

    def sync_directory(self) -> None:
        """Return once names are on stable storage."""

    def free_bytes(self) -> int:
        """Space that is left for us."""

    def lock(self, name: str) -> None:
        """Become the one owner until ``unlock`` or the process ends. StoreUnavailable if there is one (B69)."""

    def check_lock(self) -> None:
        """LockLost if somebody else may own the directory now. Cheap enough for every commit."""

    def unlock(self) -> None:
        """Give the ownership up. Idempotent."""


class RealFileSystem:
    """A directory of the machine; made if it is not there.

    The owner holds two locks. The lock file can be removed while it is in use, and then says nothing; earlier versions of PairBus
    know no other. The lock on the directory itself excludes others even then. Some network file systems lock no
    directories: there the owner stops as soon as its lock file is gone or replaced.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock_path = ""
        self._lock_handle = -1
        self._lock_identity = (0, 0)
        self._has_directory_lock = False
        self._lock_guard = threading.Lock()
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        self._directory_handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._reserve = DescriptorReserve(RESERVED_HANDLES)

    def names(self) -> list[str]:
        try:
            return self._reserve.run(lambda: os.listdir(self._directory))
        finally:
            self._reserve.fill()

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def size(self, name: str) -> int:
        return os.stat(self._directory / name).st_size

    def create(self, name: str, size: int) -> int:
        handle = self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            if size:
                self.reserve(handle, 0, size)
        except OSError:
            os.close(handle)
            os.unlink(self._directory / name)
            raise
        return handle

    def reserve(self, handle: int, offset: int, size: int) -> None:
        try:
            os.posix_fallocate(handle, offset, size)
        except OSError as error:
            # Where nothing can be reserved, writing will find out.
            if error.errno != errno.EOPNOTSUPP:
                raise

    def open(self, name: str) -> int:
        return self._open(name, os.O_RDWR)

    def _open(self, name: str, flags: int) -> int:
        path = self._directory / name
        return self._reserve.run(lambda: os.open(path, flags, FILE_MODE))

    def close(self, handle: int) -> None:
        os.close(handle)
        self._reserve.fill()

    def write(self, handle: int, pieces: Sequence[bytes], offset: int) -> int:
        return os.pwritev(handle, pieces, offset)

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        data = os.pread(handle, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        done = len(data)
        # A read may stop early (a signal, the system's limit per call); only an empty one means the end.
        while done < size and (data := os.pread(handle, size - done, offset + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._directory / old, self._directory / new)

    def unlink(self, name: str) -> None:
        os.unlink(self._directory / name)

    def sync_directory(self) -> None:
        os.fsync(self._directory_handle)

    def free_bytes(self) -> int:
        figures = os.statvfs(self._directory)
        return figures.f_bavail * figures.f_frsize

    def lock(self, name: str) -> None:
        self._lock_path = str(self._directory / name)
        # The directory first: who is refused must not leave a new lock file there.
        try:
            fcntl.flock(self._directory_handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._has_directory_lock = True
        except BlockingIOError as error:
            raise self._in_use() from error
        except OSError:
            self._has_directory_lock = False  # NFS, for one, has no such locks
        handle = -1
        try:
            handle = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, FILE_MODE)
            self._own(handle)
        except OSError as error:
            if handle >= 0:
                os.close(handle)
            if isinstance(error, BlockingIOError):
                raise self._in_use() from error
            self.unlock()
            raise

    def _own(self, handle: int) -> None:
        """Make an open file our lock. BlockingIOError if somebody has it."""
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        if self._lock_handle >= 0:
            os.close(self._lock_handle)
        self._lock_handle = handle
        self._lock_identity = _identity(os.fstat(handle))

    def _in_use(self) -> StoreUnavailable:
        owner = ""
        with suppress(OSError):
            owner = Path(self._lock_path).read_bytes()[:32].decode("ascii", "replace").strip()
        self.unlock()
        return StoreUnavailable(
            f"the data in {self._directory} is in use by process {owner or 'unknown'}: "
            "stop that broker, or wait for its end if it is a `pairbus store` command; or use another data directory"
        )

    def check_lock(self) -> None:
        try:
            if _identity(os.stat(self._lock_path)) == self._lock_identity:
                return
        except FileNotFoundError:
            pass
        with self._lock_guard:
            self._restore_lock()

    def _restore_lock(self) -> None:
        """The lock file is not ours any more: make it again where the lock on the directory still keeps others out."""
        lost = LockLost(
            f"{self._lock_path} was removed or replaced while the broker ran, so another process may use the same data: "
            "start one broker on it, and leave that file alone"
        )
        try:
            if _identity(os.stat(self._lock_path)) == self._lock_identity:
                return  # another thread has made it again
            raise lost
        except FileNotFoundError:
            pass
        is_same = False
        with suppress(FileNotFoundError):
            is_same = _identity(os.stat(self._directory)) == _identity(os.fstat(self._directory_handle))
        if not (is_same and self._has_directory_lock):
            raise lost
        try:
            handle = self._open(os.path.basename(self._lock_path), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            raise lost from None
        except OSError:
            return  # a full disk, say: the lock on the directory holds, and the next commit tries again
        try:
            self._own(handle)
        except OSError:
            os.close(handle)
            raise lost from None
        self._reserve.fill()

    def unlock(self) -> None:
        if self._lock_handle >= 0:
            # The file stays: removing it would let two processes lock two files of one name.
            os.close(self._lock_handle)
            self._lock_handle = -1
        if self._directory_handle >= 0:
            os.close(self._directory_handle)
            self._directory_handle = -1
        self._reserve.close()


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def recreate(files: FileSystem, name: str, size: int) -> int:
    """A new file, even if an earlier attempt left one of this name; opened."""
    if name in files.names():
        files.unlink(name)
    return files.create(name, size)


def write_all(files: FileSystem, handle: int, data: bytes, offset: int) -> None:
    """Write, or fail: a short write is an error here."""
    written = files.write(handle, (data,), offset)
    if written != len(data):
        raise OSError(errno.EIO, f"short write: {written} of {len(data)} bytes")


def replace_file(files: FileSystem, name: str, data: bytes) -> None:
    """Put these contents under a name, durably. After a crash the file is the old one or the new one. OSError if that fails."""
    unfinished = name + UNFINISHED_SUFFIX
    handle = recreate(files, unfinished, len(data))
    try:
        write_all(files, handle, data, 0)
        files.sync(handle)
    finally:
        files.close(handle)
    files.rename(unfinished, name)
    files.sync_directory()
