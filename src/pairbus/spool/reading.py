"""Spools as a person and the reports see them: also while a program uses them, and without changing anything."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pairbus.errors import SpoolError
from pairbus.spool.directory import spool_directories, take_lock
from pairbus.spool.store import (
    FILE_NAME,
    About,
    Content,
    Spooled,
    connect,
    read_about,
    read_contents,
    read_messages,
)


@dataclass(frozen=True, slots=True)
class Listed:
    """One spool: whose it is, what it holds by entity, and whether a program has it open."""

    directory: Path
    about: About
    contents: dict[str, Content]
    is_in_use: bool


def listed(root: Path) -> list[Listed]:
    """Every spool below a directory. Raises SpoolError for a directory that is not there, and for a file that is damaged."""
    found = []
    for directory in directories(root):
        with closing(_open(directory)) as database:
            try:
                about, contents = read_about(database, directory / FILE_NAME), read_contents(database)
            except sqlite3.Error as error:
                raise _damaged(directory, error) from error
        lock = take_lock(directory)
        if lock is not None:
            os.close(lock)
        found.append(Listed(directory, about, contents, lock is None))
    return found


def messages(root: Path) -> Iterator[tuple[Path, Spooled]]:
    """Every message of every spool below a directory, each spool in its order.

    Raises SpoolError where a file is damaged; what was readable before that place has come by then.
    """
    for directory in directories(root):
        with closing(_open(directory)) as database:
            try:
                for message in read_messages(database):
                    yield directory, message
            except sqlite3.Error as error:
                raise _damaged(directory, error) from error


def directories(root: Path) -> list[Path]:
    """The directories of spools below ``root``. Raises SpoolError when there is no such directory."""
    if not root.is_dir():
        raise SpoolError(f"there is no spool directory {root}")
    return spool_directories(root)


def _open(directory: Path) -> sqlite3.Connection:
    try:
        database = connect(directory / FILE_NAME)
        database.execute("PRAGMA query_only = 1")
    except (sqlite3.Error, OSError) as error:
        raise _damaged(directory, error) from error
    return database


def _damaged(directory: Path, error: Exception) -> SpoolError:
    return SpoolError(f"the spool {directory / FILE_NAME} cannot be read: {error}")
