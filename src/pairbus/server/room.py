"""The room that a new namespace needs on its disk (B12, decision 0175).

A namespace that exists is served on a full disk, so that it can be drained. A new one has nothing to drain: on a disk that is too
small it could only refuse, for ever, because its own reserves take what is missing. So it is refused before they are made.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Final

from pairbus.errors import StoreUnavailable
from pairbus.server.logs.audit_reserve import LEAST_BYTES as AUDIT_RESERVE_BYTES
from pairbus.storage.log.pool import READY_MIN
from pairbus.storage.log.store import FIRST_SEGMENT_BYTES, RESERVE_BYTES, SEGMENT_BYTES

if TYPE_CHECKING:
    from pathlib import Path

MEGABYTE: Final = 1 << 20
LOG_BYTES: Final = FIRST_SEGMENT_BYTES + RESERVE_BYTES + (2 + READY_MIN) * SEGMENT_BYTES + SEGMENT_BYTES // 4
"""The first segment; the reserves for settlements and for housekeeping; two segments beyond what is taken, which any send needs to
be admitted, and one that is being made; and what is left to others.
"""
AUDIT_BYTES: Final = 2 * AUDIT_RESERVE_BYTES
"""The reserve of the audit log of messages, as long as there are none, and as much that must be free for sends to be taken."""
RAISE_FILE_SIZE_LIMIT: Final = "raise the limit (`ulimit -f unlimited`, or LimitFSIZE=infinity of its service); the disk may have room enough"


def check_room(data: Path, declared_bytes: int, has_audit: bool) -> None:
    """Raises StoreUnavailable if the disk, or the limit of the process, has less room than a new namespace needs, whose log is not begun yet.

    ``declared_bytes``: what the entities of its configuration take. Less than a megabyte goes into what is left to others.
    """
    _check_file_size_limit(data, has_audit)
    try:
        free = _free_bytes(data)
    except OSError:
        return  # the log, when it opens the directory, says what is wrong with it
    if free < _needed(declared_bytes, has_audit):
        raise no_room(data, free, declared_bytes, has_audit)


def _check_file_size_limit(data: Path, has_audit: bool) -> None:
    """A limit below the first files that are made would look like a full disk, or end the broker at the first one that is filled."""
    limit = _file_size_limit()
    needed = max(SEGMENT_BYTES, AUDIT_RESERVE_BYTES if has_audit else 0)
    if limit is not None and limit < needed:
        raise StoreUnavailable(
            f"a new namespace needs files of {_mb(needed)} in {data}, and the file size limit of this process is {_shown_size(limit)}: "
            f"{RAISE_FILE_SIZE_LIMIT}"
        )


def file_size_way_out() -> str:
    """What to say after an error ``EFBIG``: the system answers that beyond the limit, whatever room the disk has."""
    limit = _file_size_limit()
    known = "" if limit is None else f" of {_shown_size(limit)}"
    return f"the broker met the file size limit{known} of its process: {RAISE_FILE_SIZE_LIMIT}"


def no_room(data: Path, free: int | None, declared_bytes: int, has_audit: bool) -> StoreUnavailable:
    """The refusal of a new namespace: what it needs, what takes it, and the way out. ``free``: None where the system's figure is wrong."""
    parts = [f"{_mb(LOG_BYTES)} for its log"]
    if declared_bytes >= MEGABYTE:
        parts.append(f"{_mb(declared_bytes)} for the entities of its configuration")
    if has_audit:
        reserve = _mb(AUDIT_RESERVE_BYTES)
        parts.append(
            f"{_mb(AUDIT_BYTES)} for the audit log of messages (--audit: a reserve of {reserve}, and as much free)"
        )
    found = "the disk does not give that" if free is None else f"{_mb(free)} are free"
    return StoreUnavailable(
        f"a new namespace needs {_mb(_needed(declared_bytes, has_audit))} in {data}, and {found}: {', '.join(parts)}. "
        "Free some space there, or name another directory with --data"
    )


def _needed(declared_bytes: int, has_audit: bool) -> int:
    return LOG_BYTES + declared_bytes // MEGABYTE * MEGABYTE + (AUDIT_BYTES if has_audit else 0)


def _free_bytes(data: Path) -> int:
    """What is free where the data directory is, or will be."""
    place = data.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    figures = os.statvfs(place)
    return figures.f_bavail * figures.f_frsize


def _mb(size: int) -> str:
    return f"{size // MEGABYTE} MB"


def _file_size_limit() -> int | None:
    """The largest file that this process may write, in bytes; None: there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft


def _shown_size(size: int) -> str:
    """In megabytes, or in kilobytes where it is none."""
    return _mb(size) if size >= MEGABYTE else f"{size >> 10} kB"
