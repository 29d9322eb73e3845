"""What a move writes beside the log of a data directory: which move, where the other side is, and what it brings there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from pairbus.errors import StoreUnavailable
from pairbus.server.assemble import MOVED_DIRECTORY, MOVING_TO_FILE, STORE_DIRECTORY
from pairbus.server.files import write_whole
from pairbus.server.offline.namespace import name_of

if TYPE_CHECKING:
    from pathlib import Path

MOVED_BY_FILE: Final = "moved-by"
"""In MOVED_DIRECTORY: the mark of a move that is finished, for the same command that is given again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What a move has brought to its target."""

    namespace: str
    entities: int
    messages: int
    bytes: int
    """Of the messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Beside a log that a move concerns."""

    move: str
    database: str
    moved: Moved

    def write(self, path: Path) -> None:
        write_whole(path, json.dumps(asdict(self)).encode() + b"\n")


def read_mark(path: Path) -> Mark | None:
    """None: there is none. Raises StoreUnavailable."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreUnavailable(f"{path} cannot be read: {error}") from error
    return Mark(move=values["move"], database=values["database"], moved=Moved(**values["moved"]))


def unfinished_move(data: Path) -> Mark | None:
    """The move that marked a data directory as moved, if it is not known to be finished."""
    return _aside(data, MOVING_TO_FILE)


def finished(data: Path) -> Mark | None:
    """The move into a database that has emptied a data directory; None: none has, or an earlier version."""
    return _aside(data, MOVED_BY_FILE)


def _aside(data: Path, name: str) -> Mark | None:
    is_there = (data / STORE_DIRECTORY).is_dir()
    return None if is_there else read_mark(data / MOVED_DIRECTORY / name)


def moving_name(data: Path) -> str:
    """The namespace that a move out of a data directory moves, has begun to move, or has moved. Raises StoreUnavailable."""
    mark = unfinished_move(data) or finished(data)
    return name_of(data) if mark is None else mark.moved.namespace
