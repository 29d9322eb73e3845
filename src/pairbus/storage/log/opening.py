"""The first step of opening a data directory: whose data it is, where the log ends, and a new log where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pairbus.errors import StoreCorrupt, StoreFailed
from pairbus.storage.files import UNFINISHED_SUFFIX, recreate
from pairbus.storage.identity import (
    MARKED_SINCE,
    check_identity,
    is_current,
    missing_format,
    read_identity,
    write_identity,
)
from pairbus.storage.log import recovery
from pairbus.storage.log.mark import MarkWriter, make_mark, open_mark, read_mark
from pairbus.storage.log.pool import fill, name_segment
from pairbus.storage.log.segment import FIRST_SEGMENT, OFFSET_BITS, SEGMENT_HEADER_BYTES, segment_name

if TYPE_CHECKING:
    from pairbus.storage.files import FileSystem


def find_or_begin(
    files: FileSystem, namespace: str | None, first_bytes: int, make_marker: Callable[[], bytes]
) -> recovery.Found:
    """What the directory holds; an empty one becomes a new log. Raises StoreUnavailable, StoreCorrupt or OSError."""
    identity = read_identity(files)
    if identity is not None:
        check_identity(identity, namespace)
    found = recovery.find(files, expects_mark=identity is not None and identity[0] >= MARKED_SINCE)
    if identity is None and found is not None and found.frame_number:
        raise missing_format(files)
    if found is None:
        if identity is not None:
            raise StoreCorrupt("the data directory has lost all its segments; restore it from a copy")
        found = _begin_new(files, first_bytes, make_marker)
    if identity is None:
        if read_mark(files) is None:
            make_mark(files, 0, found.tail.number << OFFSET_BITS | SEGMENT_HEADER_BYTES)
        write_identity(files, namespace or "")
    return found


def _begin_new(files: FileSystem, first_bytes: int, make_marker: Callable[[], bytes]) -> recovery.Found:
    name = segment_name(FIRST_SEGMENT) + UNFINISHED_SUFFIX
    handle = recreate(files, name, first_bytes)
    try:
        fill(files, handle, first_bytes, lambda: False)
        name_segment(files, handle, name, FIRST_SEGMENT, make_marker(), first_bytes)
    finally:
        files.close(handle)
    found = recovery.find(files, expects_mark=False)
    if found is None:
        raise StoreFailed("the first segment vanished while it was made")
    return found


def confirm_end(files: FileSystem, found: recovery.Found) -> MarkWriter:
    """Write down, durably, where the log was found to end; data of an older format gets its mark here. OSError if that fails.

    Call it once the last frame is certain to be on disk.
    """
    mark = open_mark(files, found.frame_number, found.tail.number << OFFSET_BITS | found.end)
    identity = read_identity(files)
    if identity is not None and not is_current(files, identity[1]):
        write_identity(files, identity[1])
    return mark
