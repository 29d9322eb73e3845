"""Gives up what was lost at the end of a log, when an operator explicitly accepts the loss, and reports how much that is.

Only the end can be given up: files that are missing, cut short or zeroed from some frame on, and a lost mark. Damage in the midst of
the log stays refused, for everything behind it would have to go as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pairbus.errors import StoreCorrupt, StoreUnavailable
from pairbus.storage.files import FileSystem, RealFileSystem, write_all
from pairbus.storage.identity import LOCK_FILE, MARKED_SINCE, check_identity, missing_format, read_identity
from pairbus.storage.log import recovery
from pairbus.storage.log.mark import make_mark, read_mark
from pairbus.storage.log.segment import OFFSET_BITS

DAMAGED_SUFFIX: Final = ".damaged"
"""A file that cannot be read keeps its contents under its name with this suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What a repair gives up, or would give up."""

    damage: str
    """The store's error; empty: there is no damage."""
    file: str
    """Where the log ends."""
    offset: int
    last_frame: int
    """The number of the last intact frame."""
    lost_frames: int | None
    """Acknowledged commits that are gone; None: unknown, for the mark is lost too."""
    damaged_files: tuple[str, ...]
    """Files that are kept under a name with the suffix ``.damaged``."""


def repair(
    directory: str | Path, *, accepts_loss: bool, file_system: FileSystem | None = None
) -> RepairReport:
    """Make the last intact frame the end of the log. Without ``accepts_loss`` nothing is changed.

    Raises:
        StoreCorrupt: There is damage elsewhere, which cannot be given up this way.
        StoreUnavailable: There is no data, or it is in use or of a newer format.
    """
    files = RealFileSystem(Path(directory)) if file_system is None else file_system
    files.lock(LOCK_FILE)
    try:
        return _repair(files, accepts_loss)
    except OSError as error:
        raise StoreUnavailable(f"the data in {directory} cannot be repaired: {error}") from error
    finally:
        files.unlock()


def _repair(files: FileSystem, accepts_loss: bool) -> RepairReport:
    identity = read_identity(files)
    if identity is None:
        raise missing_format()
    check_identity(identity, None)
    damage = ""
    try:
        recovery.find(files, expects_mark=identity[0] >= MARKED_SINCE)
    except StoreCorrupt as error:
        damage = str(error)
    loss = recovery.Loss()
    found = recovery.look(files, loss)
    if found is None:
        raise StoreCorrupt("the data directory has lost all its segments; restore it from a copy")
    for _ in recovery.batches(files, found):
        pass
    try:
        mark = read_mark(files)
    except StoreCorrupt:
        mark = None
    report = RepairReport(
        damage=damage,
        file=found.tail.name,
        offset=found.end,
        last_frame=found.frame_number,
        lost_frames=None if mark is None else max(0, mark.number - found.frame_number),
        damaged_files=tuple(loss.unreadable),
    )
    if damage and accepts_loss:
        _give_up(files, found, loss)
    return report


def _give_up(files: FileSystem, found: recovery.Found, loss: recovery.Loss) -> None:
    for name in loss.unreadable:
        files.rename(name, name + DAMAGED_SUFFIX)
    for name in loss.unused:
        files.unlink(name)
    for name, length, made_bytes in loss.short:
        if name not in loss.unused:
            _lengthen(files, name, length, made_bytes)
    files.sync_directory()
    make_mark(files, found.frame_number, found.tail.number << OFFSET_BITS | found.end)


def _lengthen(files: FileSystem, name: str, length: int, made_bytes: int) -> None:
    handle = files.open(name)
    try:
        write_all(files, handle, bytes(made_bytes - length), length)
        files.sync(handle)
    finally:
        files.close(handle)
