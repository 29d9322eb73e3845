"""Files that appear whole or not at all, readable for their owner alone."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
UNFINISHED_SUFFIX: Final = ".tmp"
NAME_BYTES: Final = 16


def write_whole(
    path: Path, content: bytes | Callable[[BinaryIO], object], *, is_durable: bool = True
) -> None:
    """Replace a file. After a crash it is the old one or the new one, never a part. OSError if that fails; then nothing is left behind.

    The directory may be one that others can write to, such as /tmp. So the file is always a new one: its first name cannot be
    guessed, a link in its place is neither followed nor written through, and a file that was there before keeps neither its owner
    nor its mode. That first name begins with a dot: readers of the directory pass such files over.

    Args:
        path: The file to replace.
        content: The bytes, or a function that writes them.
        is_durable: Whether to return only once the file and its name are on stable storage.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(NAME_BYTES)}{UNFINISHED_SUFFIX}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, FILE_MODE)
            if isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
            file.flush()
            if is_durable:
                os.fsync(descriptor)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if is_durable:
        sync_directory(path.parent)


def make_directory(directory: Path) -> None:
    """Make a directory whose name survives a crash."""
    if not directory.is_dir():
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Return once the names in a directory are on stable storage."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
