"""Opens the file of a spool to read it: while its owner writes, and where nothing can be written.

The connection is a read-only one. It never writes back a log nor deletes it, which would be fatal if the owner deleted its empty
spool meanwhile and another client created one of the same name. And the file is opened by SQLite alone: closing another descriptor
of it would end the locks that a client in the same process has on it.

On a read-only file system SQLite cannot create the index of a log. Without a log the file is read as one that does not change, with
one a copy of both is.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from pairbus.spool.file import BUSY_SECONDS, check_log, log_of

COPIES_MAX: Final = 5
"""How often a file is copied that changes meanwhile."""
_NEEDS_TO_WRITE: Final = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


@contextmanager
def opened_to_read(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection that reads a spool and changes nothing. Raises sqlite3.Error, OSError."""
    check_log(file)
    try:
        database = _connect(file, "mode=ro")
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _NEEDS_TO_WRITE:
            raise
    else:
        with closing(database):
            yield database
        return
    if not _state(log_of(file))[0]:
        with closing(_connect(file, "mode=ro&immutable=1")) as database:
            yield database
        return
    with tempfile.TemporaryDirectory(prefix="pairbus-spool-") as directory:
        copy = _copied(file, Path(directory))
        with closing(_connect(copy, "mode=rw")) as database:
            yield database


def _connect(file: Path, how: str) -> sqlite3.Connection:
    database = sqlite3.connect(
        f"{file.absolute().as_uri()}?{how}",
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
    )
    try:
        database.execute("PRAGMA query_only = 1")
        # Only a read shows whether the log can be used.
        database.execute("SELECT 1 FROM sqlite_master").fetchone()
    except BaseException:
        database.close()
        raise
    return database


def _copied(file: Path, directory: Path) -> Path:
    """A copy of a file and its log, both of one moment."""
    parts = (file, log_of(file))
    for _ in range(COPIES_MAX):
        before = [_state(part) for part in parts]
        for part in parts:
            shutil.copyfile(part, directory / part.name)
        if [_state(part) for part in parts] == before:
            return directory / file.name
    raise sqlite3.OperationalError(
        "a program writes to it all the time: try again, or give the directory as that program has it"
    )


def _state(part: Path) -> tuple[int, int]:
    """Size and time of the last change; zeros for a file that does not exist."""
    try:
        found = part.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
