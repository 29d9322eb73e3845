"""The place of a log in a data directory, while a command prepares what will lie there.

A copy is made under another name, where no broker looks, and gets its name at the end. Until then the command owns the place, so no broker
begins an empty log there. What a killed command leaves is refused by brokers: see ``assemble.refuse_moved``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pairbus.errors import UsageError
from pairbus.server.files import sync_directory
from pairbus.storage.files import RealFileSystem
from pairbus.storage.identity import LOCK_FILE
from pairbus.storage.tools.inspect import holds_data


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Own a log's directory, as a broker does. Raises StoreUnavailable if a broker or another command has it."""
    files = RealFileSystem(directory)
    files.lock(LOCK_FILE)
    try:
        yield
    finally:
        files.unlock()


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Own the place of a log that is not there yet. Raises StoreUnavailable if a broker has it, and UsageError if there is a log."""
    with locked(directory):
        if holds_data(directory):
            raise UsageError(f"{directory} holds the data of a namespace already: it is not overwritten")
        try:
            yield
        finally:
            if not holds_data(directory):
                with suppress(OSError):
                    (directory / LOCK_FILE).unlink()
                    directory.rmdir()


def take_place(unfinished: Path, directory: Path) -> None:
    """Give what was prepared its name, in a place that was claimed. Raises OSError."""
    # One step replaces the directory, which is empty then: the lock on the directory itself keeps brokers out until it is done.
    (directory / LOCK_FILE).unlink(missing_ok=True)
    unfinished.rename(directory)
    sync_directory(directory.parent)
