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
    WAY_OUT,
    About,
    Content,
    Spooled,
    connect,
    is_written,
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


def listed(root: Path) -> tuple[list[Listed], list[str]]:
    """Every spool below a directory, and what is wrong with those that cannot be read. Raises SpoolError: no such directory."""
    found: list[Listed] = []
    problems: list[str] = []
    for directory in directories(root):
        try:
            with closing(_open(directory)) as database:
                if not is_written(database):
                    continue
                about, contents = read_about(database, directory / FILE_NAME), read_contents(database)
        except (sqlite3.Error, SpoolError) as error:
            problems.append(_problem(directory, error))
            continue
        lock = take_lock(directory)
        if lock is not None:
            os.close(lock)
        found.append(Listed(directory, about, contents, lock is None))
    return found, problems


def messages(root: Path, problems: list[str]) -> Iterator[tuple[Path, Spooled]]:
    """Every message of every spool below a directory, each spool in its order. Raises SpoolError: no such directory.

    ``problems`` gets a sentence for each spool of which not everything can be read. What can be read comes.
    """
    for directory in directories(root):
        try:
            with closing(_open(directory)) as database:
                for message in read_messages(database) if is_written(database) else ():
                    yield directory, message
        except (sqlite3.Error, SpoolError) as error:
            problems.append(_problem(directory, error))


def directories(root: Path) -> list[Path]:
    """The directories of spools below ``root``. Raises SpoolError when there is no such directory."""
    if not root.is_dir():
        raise SpoolError(f"there is no spool directory {root}")
    return spool_directories(root)


def _open(directory: Path) -> sqlite3.Connection:
    try:
        database = connect(directory / FILE_NAME)
    except OSError as error:
        raise SpoolError(_problem(directory, error)) from error
    database.execute("PRAGMA query_only = 1")
    return database


def _problem(directory: Path, error: Exception) -> str:
    if isinstance(error, SpoolError):
        return str(error)
    return f"the spool {directory / FILE_NAME} cannot be read: {error}. {WAY_OUT}"
