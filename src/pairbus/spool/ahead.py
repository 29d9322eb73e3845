"""Messages that are ahead of a client's own: in spools of its directory that other clients have open.

A client that is started again finds what it had spooled before. But another client may have opened the directory meanwhile and
taken that spool. Then its messages are on their way by that client, and a client that keeps an order must stay behind them. So when
it opens the directory it notes what the spools of others hold: by entity, the last message and the sessions. Only those messages
count. What their owners add later was sent by them.

Who waits for whom
------------------
Two clients may each hold messages that the other stays behind. So of messages that are in spools already the older ones go first,
by the time of the send, and on a tie those of the spool with the lower number. This is one order for all, so the oldest message never waits.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pairbus.spool.file import FILE_NAME, About, is_written, read_about
from pairbus.spool.opening import opened_to_read

SESSIONS_MAX: Final = 100_000
"""Sessions of one entity that are noted one by one. Beyond that, every session of the entity counts."""

KeyOf = Callable[[bytes], str | None]
"""The session or partition key by which an encoded message is kept in order; None: it has no order."""

_ENTITIES: Final = (
    "SELECT entity.id, key, path, max(number), min(at_ms), max(at_ms) FROM message JOIN entity ON entity.id = message.entity "
    "WHERE reason IS NULL GROUP BY entity.id"
)
_FIRST: Final = (
    "SELECT at_ms FROM message WHERE entity = ? AND number <= ? AND reason IS NULL ORDER BY number LIMIT 1"
)


@dataclass(slots=True)
class Part:
    """What one spool holds of one entity."""

    entity: int
    path: str
    last: int
    """The number of the last message that counts."""
    at_ms: int
    """When the oldest one that waits was sent."""
    keys: frozenset[str] | None
    """The sessions of these messages; None: any session may have some."""

    def concerns(self, key: str) -> bool:
        """Whether messages of a session are among them."""
        return self.keys is None or key in self.keys


class Ahead:
    """One spool that another client has open, and what it held when this client opened the directory."""

    def __init__(self, directory: Path, inode: int) -> None:
        self.directory = directory
        self.number = int(directory.name)
        self.parts: dict[str, Part] = {}
        """By entity. Empty once all of it has left."""
        self.newest_ms = 0
        self._file = directory / FILE_NAME
        self._inode = inode

    @property
    def is_there(self) -> bool:
        """Whether it is still the same spool: its owner may have deleted it, and another client created one of this name."""
        try:
            return os.stat(self._file).st_ino == self._inode
        except FileNotFoundError:
            return False

    def look(self) -> dict[str, int | None]:
        """By entity: when its oldest message that waits was sent; None: all have left. Raises sqlite3.Error, OSError."""
        if not self.is_there:
            return dict.fromkeys(self.parts)
        with opened_to_read(self._file) as database:
            found: dict[str, int | None] = {}
            for key, part in list(self.parts.items()):
                row = database.execute(_FIRST, (part.entity, part.last)).fetchone()
                found[key] = None if row is None else int(row[0])
            return found

    def note(self, found: dict[str, int | None]) -> list[str]:
        """Remember what a look has found. The entities of which something has left since the one before."""
        moved = []
        for key, at_ms in found.items():
            part = self.parts.get(key)
            if part is None or part.at_ms == at_ms:
                continue
            moved.append(key)
            if at_ms is None:
                del self.parts[key]
            else:
                part.at_ms = at_ms
        return moved


def ahead_in(directory: Path, is_ours: Callable[[About], bool], key_of: KeyOf) -> Ahead | None:
    """What a spool holds that has an order; None: nothing. Raises sqlite3.Error, OSError, SpoolError."""
    file = directory / FILE_NAME
    found = Ahead(directory, os.stat(file).st_ino)
    with opened_to_read(file) as database:
        if not is_written(database) or not is_ours(read_about(database, file)):
            return None
        database.execute("BEGIN")
        for entity, key, path, last, oldest_ms, newest_ms in database.execute(_ENTITIES).fetchall():
            keys = _keys(database, entity, key_of)
            if keys is None or keys:
                found.parts[key] = Part(entity, path, last, oldest_ms, keys)
                found.newest_ms = max(found.newest_ms, newest_ms)
        database.execute("COMMIT")
    return found if found.parts else None


def _keys(database: sqlite3.Connection, entity: int, key_of: KeyOf) -> frozenset[str] | None:
    keys: set[str] = set()
    for (payload,) in database.execute(
        "SELECT payload FROM message WHERE entity = ? AND reason IS NULL", (entity,)
    ):
        key = key_of(payload)
        if key is not None:
            keys.add(key)
            if len(keys) > SESSIONS_MAX:
                return None
    return frozenset(keys)
