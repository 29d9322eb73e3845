"""Spools as a person and the reports see them: also while a program uses them, and without changing anything.

A spool that its owner deletes meanwhile was empty, and is left out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pairbus.errors import SpoolError
from pairbus.spool.directory import is_held, spool_directories
from pairbus.spool.file import (
    FILE_NAME,
    WAY_OUT,
    About,
    Content,
    Spooled,
    is_written,
    read_about,
    read_contents,
    read_messages,
    total_of,
)
from pairbus.spool.opening import opened_to_read


@dataclass(frozen=True, slots=True)
class Listed:
    """One spool: whose it is, what it holds by entity, and whether a program has it open."""

    directory: Path
    about: About
    contents: dict[str, Content]
    is_in_use: bool

    def total(self) -> Content:
        """What it holds of all entities together."""
        return total_of(self.contents.values())


def listed(root: Path) -> tuple[list[Listed], list[str]]:
    """Every spool below a directory, and what is wrong with those that cannot be read. Raises SpoolError: no such directory."""
    found: list[Listed] = []
    problems: list[str] = []
    for directory in directories(root):
        try:
            one = listed_in(directory)
        except (sqlite3.Error, OSError, SpoolError) as error:
            if (directory / FILE_NAME).exists():
                problems.append(_problem(directory, error))
            continue
        if one is not None:
            found.append(one)
    return found, problems


def listed_in(directory: Path) -> Listed | None:
    """The spool in one directory; None: it was never written. Raises sqlite3.Error, OSError, SpoolError."""
    with opened_to_read(directory / FILE_NAME) as database:
        if not is_written(database):
            return None
        about, contents = read_about(database, directory / FILE_NAME), read_contents(database)
    return Listed(directory, about, contents, is_held(directory))


def messages(root: Path, problems: list[str]) -> Iterator[tuple[Path, Spooled]]:
    """Every message of every spool below a directory, each spool in its order. Raises SpoolError: no such directory.

    ``problems`` gets a sentence for each spool of which not everything can be read. What can be read comes.
    """
    for directory in directories(root):
        try:
            with opened_to_read(directory / FILE_NAME) as database:
                for message in read_messages(database) if is_written(database) else ():
                    yield directory, message
        except (sqlite3.Error, OSError, SpoolError) as error:
            if (directory / FILE_NAME).exists():
                problems.append(_problem(directory, error))


def directories(root: Path) -> list[Path]:
    """The directories of spools below ``root``. Raises SpoolError when there is no such directory."""
    if not root.is_dir():
        raise SpoolError(f"there is no spool directory {root}")
    return spool_directories(root)


def _problem(directory: Path, error: Exception) -> str:
    if isinstance(error, SpoolError):
        return str(error)
    text = f"the spool {directory / FILE_NAME} cannot be read: {error}"
    if isinstance(error, OSError):
        return (
            f"{text}. It is not damaged for that: read it as a user who may, or read a copy of its directory"
        )
    return f"{text}. {WAY_OUT}"
