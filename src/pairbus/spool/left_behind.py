"""Spools that a client passes by when it opens their directory: they are for another primary, or for its own at another address.

Nobody has them open, so nobody replays them. Their messages may be those of this client, from before its primary moved. So a
client says what is in them, for as long as it is there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from pairbus.errors import SpoolError
from pairbus.spool.directory import is_held
from pairbus.spool.file import FILE_NAME, log_of
from pairbus.spool.reading import Listed, listed_in

_State = tuple[tuple[int, int, int], ...]


class LeftBehind:
    """The spools of one directory that a client passed by, and what they hold now."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._known: dict[Path, tuple[_State, Listed | None]] = dict.fromkeys(directories, ((), None))

    def look(self) -> list[Listed]:
        """Those that hold messages for a namespace and that nobody has open. Reads only files that have changed since the last look."""
        found = []
        for directory, (before, listed) in list(self._known.items()):
            try:
                state = _state(directory)
                if state != before:
                    listed = listed_in(directory)
                    self._known[directory] = state, listed
                is_free = not is_held(directory)
            except FileNotFoundError:
                self._known.pop(directory, None)  # its owner has emptied and deleted it
                continue
            except (sqlite3.Error, OSError, SpoolError):
                is_free = True  # what was known of it is the best that can be said
            if is_free and listed is not None and any(one.count for one in listed.contents.values()):
                found.append(listed)
        return found


def _state(directory: Path) -> _State:
    """What changes when somebody writes to a spool. Raises FileNotFoundError when it is gone."""
    file = directory / FILE_NAME
    parts = [file, *(log for log in [log_of(file)] if log.exists())]
    return tuple((found.st_ino, found.st_size, found.st_mtime_ns) for found in map(Path.stat, parts))
