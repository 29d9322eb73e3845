"""The disk of a spool: whether it is full, and how a new name on it becomes durable."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

MAKE_ROOM: Final = "Its disk is full: free space there, or give the spool a directory on another disk"
ROOM_BYTES_MIN: Final = 65_536
"""With less than this left, an error without a reason is that of a full disk: SQLite needs as much to open a file."""


def is_disk_full(directory: Path, error: Exception) -> bool:
    """Whether a full disk is the reason of an error of SQLite or of the system."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_IOERR:
        # The reason is not passed on, for instance where the index of the log does not fit.
        with suppress(OSError):
            disk = os.statvfs(directory)
            return disk.f_bavail * disk.f_frsize < ROOM_BYTES_MIN
    return bool(code == sqlite3.SQLITE_FULL)


def sync_directory(directory: Path) -> None:
    """Make the name of a new file durable."""
    for place in (directory, directory.parent):
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
