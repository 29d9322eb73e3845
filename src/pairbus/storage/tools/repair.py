"""Gives up what was lost at the end of a log, when an operator explicitly accepts the loss, and reports how much that is.

Only the end can be given up: files that are missing, cut short or zeroed from some frame on, and a lost mark. Damage in the midst of
the log stays refused, for everything behind it would have to go as well.

Lost commits may have let old segments go, which were used again since. Then the log begins behind those, and one more frame says so:
the last intact one names segments that are no longer there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from pairbus.engine.records import (
    AuditMarked,
    EntityDeleted,
    EntityPut,
    MessageRemoved,
    MessageStored,
    NamespacePut,
    entity_id_of,
)
from pairbus.errors import StoreCorrupt, StoreUnavailable
from pairbus.storage.files import FileSystem, RealFileSystem, write_all
from pairbus.storage.identity import LOCK_FILE, MARKED_SINCE, check_identity, missing_format, read_identity
from pairbus.storage.log import recovery
from pairbus.storage.log.frame import FRAME, HEADER_BYTES, FrameHeader, pack_header
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
    missing_files: tuple[str, ...] = ()
    """Old segments that are missing, and that the lost commits may have let go."""
    unowned_messages: int = 0
    """Messages whose entity is no longer known; the broker drops them."""
    are_keys_lost: bool = False
    """Whether the access rules are lost; the broker makes new keys."""


BeforeLoss = Callable[[str, int], None]
"""Takes the namespace and the number of the last audited batch that is left."""


def repair(
    directory: str | Path,
    *,
    accepts_loss: bool,
    file_system: FileSystem | None = None,
    before_loss: BeforeLoss | None = None,
) -> RepairReport:
    """Make the last intact frame the end of the log. Without ``accepts_loss`` nothing is changed. ``before_loss`` is called before anything is given up.

    Raises:
        StoreCorrupt: There is damage elsewhere, which cannot be given up this way.
        StoreUnavailable: There is no data, or it is in use or of a newer format.
    """
    try:
        files = RealFileSystem(Path(directory)) if file_system is None else file_system
        files.lock(LOCK_FILE)
    except OSError as error:
        raise StoreUnavailable(f"the data directory {directory} cannot be used: {error}") from error
    try:
        return _repair(files, accepts_loss, before_loss)
    except OSError as error:
        raise StoreUnavailable(f"the data in {directory} cannot be repaired: {error}") from error
    finally:
        files.unlock()


def _repair(files: FileSystem, accepts_loss: bool, before_loss: BeforeLoss | None) -> RepairReport:
    identity = read_identity(files)
    if identity is None:
        raise missing_format(files)
    check_identity(identity, None)
    damage = ""
    try:
        recovery.find(files, expects_mark=identity[0] >= MARKED_SINCE)
    except StoreCorrupt as error:
        damage = str(error)
    try:
        mark = read_mark(files)
    except StoreCorrupt:
        mark = None
    loss = recovery.Loss()
    found = recovery.look(files, mark, loss)
    if found is None:
        raise StoreCorrupt("the data directory has lost all its segments; restore it from a copy")
    unowned_messages, has_keys, audited_batch = _account(files, found)
    report = RepairReport(
        damage=damage,
        file=found.tail.name,
        offset=found.end,
        last_frame=found.frame_number,
        lost_frames=None if mark is None else max(0, mark.number - found.frame_number),
        damaged_files=tuple(loss.unreadable),
        missing_files=tuple(loss.gone),
        unowned_messages=unowned_messages if loss.gone else 0,
        are_keys_lost=bool(loss.gone) and not has_keys,
    )
    if damage and accepts_loss:
        if before_loss is not None:
            before_loss(identity[1], audited_batch)
        _give_up(files, found, loss)
    return report


def _account(files: FileSystem, found: recovery.Found) -> tuple[int, bool, int]:
    """How many messages belong to no entity that is known, whether the access rules are there, and the number of the last audited batch. Checks
    every frame.
    """
    stored: dict[int, set[tuple[int, int]]] = {}
    entities: set[int] = set()
    has_keys = False
    audited_batch = 0
    for _, records in recovery.decoded(files, found):
        for record in records:
            if isinstance(record, MessageStored):
                key = record.queue_id, record.message.sequence_number
                stored.setdefault(entity_id_of(record.queue_id), set()).add(key)
            elif isinstance(record, MessageRemoved):
                key = record.queue_id, record.sequence_number
                stored.get(entity_id_of(record.queue_id), set()).discard(key)
            elif isinstance(record, EntityPut):
                entities.add(record.entity_id)
            elif isinstance(record, EntityDeleted):
                entities.discard(record.entity_id)
                stored.pop(record.entity_id, None)
            elif isinstance(record, NamespacePut):
                has_keys = True
            elif isinstance(record, AuditMarked):
                audited_batch = max(audited_batch, record.number)
    unowned = sum(len(keys) for entity_id, keys in stored.items() if entity_id not in entities)
    return unowned, has_keys, audited_batch


def _give_up(files: FileSystem, found: recovery.Found, loss: recovery.Loss) -> None:
    for name in loss.unreadable:
        files.rename(name, name + DAMAGED_SUFFIX)
    for name in loss.unused:
        files.unlink(name)
    for name, length, made_bytes in loss.short:
        if name not in loss.unused:
            _lengthen(files, name, length, made_bytes)
    files.sync_directory()
    if loss.gone:
        _write_oldest(files, found)
    make_mark(files, found.frame_number, found.tail.number << OFFSET_BITS | found.end)


def _write_oldest(files: FileSystem, found: recovery.Found) -> None:
    """End the log with an empty frame that names the oldest segment there is."""
    number = found.frame_number + 1
    header = pack_header(found.tail.marker, FrameHeader(FRAME, 0, 0, 0, number, found.oldest, 0, crc32(b"")))
    handle = files.open(found.tail.name)
    try:
        write_all(files, handle, header, found.end)
        files.sync(handle)
    finally:
        files.close(handle)
    found.frame_number = number
    found.end += HEADER_BYTES


def _lengthen(files: FileSystem, name: str, length: int, made_bytes: int) -> None:
    handle = files.open(name)
    try:
        write_all(files, handle, bytes(made_bytes - length), length)
        files.sync(handle)
    finally:
        files.close(handle)
