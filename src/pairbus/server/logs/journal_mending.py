"""Journals at the start of a broker: what no batch of the store stands for is cut off, and rows that are missing are noted.

Rule 1: one block beyond the number of the store belongs to a batch that never happened. If there are more, ``journal_ahead`` has seen that first.
Rule 2: a damaged file is kept beside the mended one, which has every block that can be read.
Rule 3: where blocks are missing the audit log gets a row ``audit-resumed`` over the time of the missing rows, so that no certificate says that nothing
        is lost. It stands in a block with the number of a missing one, so it is there once and needs no commit.

The store of a broker that is alone tells how many blocks there must be. The nodes of a cluster keep their audit logs apart: such a log shows only
damage within a file. See decision 0205.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pairbus.gateway.telemetry.audit_rows import AUDIT_RESUMED, AuditRow
from pairbus.server.clock import utc
from pairbus.server.files import FILE_MODE, sync_directory, write_whole
from pairbus.server.logs.journal_blocks import FILLER, Block, Found, block, end_mark, first_number, scan
from pairbus.server.logs.message_journal import FIELDS, encode_row, journal_files, journal_name, lines
from pairbus.server.logs.parquet import hour_ms, seal_number

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

DAMAGED_SUFFIX: Final = ".damaged"
FOREVER: Final = 1 << 64
"""A number that no block has."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the store knows of the audit log."""

    number: int
    """Of the last batch with rows."""
    created_at: int = 0
    """Of the namespace. No row is older."""
    stopped_at: int = 0
    """Since when there was no audit; 0: there was one. The block of the stop may be missing."""
    is_alone: bool = True
    """Whether all blocks are in this audit log."""

    @property
    def number_expected(self) -> int:
        return self.number - 1 if self.stopped_at else self.number


def mend_journals(directory: Path, namespace: str, known: Known, boot_id: str, now: int) -> list[Path]:
    """Mend every journal, and note what is missing. The journals that have rows. Raises OSError."""
    mending = _Mending(directory, namespace, known, now)
    for file in journal_files(directory):
        mending.mend(file)
    if known.is_alone:
        for number, first_ms in mending.holes():
            data = block(number, mending.note(first_ms, now, is_first=True)) + end_mark(number)
            write_whole(directory / journal_name(number, boot_id), data)
    return journal_files(directory)


def newest_part(directory: Path) -> Path | None:
    """The part with the last blocks."""
    return max(directory.glob("hour=*/part-*.parquet"), key=lambda part: part.name, default=None)


def resumed(first_ms: int, last_ms: int, namespace: str = "") -> bytes:
    """The row that says that rows of a time are missing; the first one of a journal has the namespace."""
    row = AuditRow(AUDIT_RESUMED, "", 0, last_ms, b"", time_text(first_ms))
    return encode_row(row, namespace)


class _Mending:
    def __init__(self, directory: Path, namespace: str, known: Known, now: int) -> None:
        self._directory = directory
        self._namespace = namespace
        self._known = known
        self._now = now
        self._parts = _parts(directory)
        self._starts = {*self._parts, *(first_number(file.name) or 0 for file in journal_files(directory))}
        self._ends: dict[int, tuple[int, int]] = {}
        """By the number of its first block: of each journal the number of its last block, and the time of its last row."""
        self._noted: set[int] = set()
        """Those that begin with a row that says what is missing before."""

    def mend(self, file: Path) -> None:
        """One journal: removed if no batch stands for a block of it."""
        data = file.read_bytes()
        first = first_number(file.name)
        found = scan(data, first)
        start = first if first is not None else found.blocks[0].number if found.blocks else 1
        following = min((number for number in self._starts if number > start), default=FOREVER)
        kept = [one for one in found.blocks if one.number <= min(self._known.number, following - 1)]
        limit = min(self._known.number_expected, following - 1)
        if self._is_missing(kept, start, limit, found):
            self._set_aside(file, found, kept)
            last, data = self._rewritten(kept, start, limit if self._is_end_missing(found) else 0)
            write_whole(file, data)
        elif kept:
            last = kept[-1].number
            self._cut(file, data, kept[-1])
        else:
            file.unlink()
            return
        self._ends[start] = last, ms_of(kept[-1], -1) if kept else self._known.created_at
        if kept and kept[0].number == start and note_of(kept[0]) is not None:
            self._noted.add(start)

    def _is_missing(self, kept: list[Block], start: int, limit: int, found: Found) -> bool:
        """Whether something is damaged that a batch stands for. ``limit`` is the last block that the journal must have, if all are in this log."""
        for expected, one in enumerate(kept, start):
            if one.number != expected:
                return True
        return self._is_end_missing(found) and start + len(kept) <= limit

    def _is_end_missing(self, found: Found) -> bool:
        # A torn block of a node never happened, but another node may have written one of its number.
        return found.is_end_damaged or (found.is_torn and self._known.is_alone)

    def _cut(self, file: Path, data: bytes, last: Block) -> None:
        whole = end_mark(last.number)
        if data[last.end :] == whole:
            return
        if data[last.end :].strip(b"\0") and not data[last.end :].startswith(whole):
            logger.info(
                "audit journal cut",
                extra={"event": "audit.cut", "file": file.name, "bytes": len(data) - last.end},
            )
        with file.open("r+b") as stream:
            stream.seek(last.end)
            stream.write(whole)
            stream.truncate()
            stream.flush()
            os.fsync(stream.fileno())

    def _set_aside(self, file: Path, found: Found, kept: list[Block]) -> None:
        copy = _free_name(file)
        try:
            os.link(file, copy)
        except OSError:  # not every file system has links
            shutil.copyfile(file, copy)
            copy.chmod(FILE_MODE)
        sync_directory(self._directory)
        logger.error(
            "a journal of the audit log of messages is damaged: the blocks that can be read are kept, and what is missing is noted in the "
            "audit log",
            extra={
                "event": "message_audit.damaged",
                "file": str(file),
                "offset": found.damage if found.damage is not None else kept[-1].end if kept else 0,
                "blocks": len(kept),
                "kept_as": copy.name,
            },
        )

    def _rewritten(self, kept: list[Block], start: int, limit: int) -> tuple[int, bytes]:
        """The number of the last block, and the blocks: in place of missing ones others that say so. ``limit``: as far as blocks are missing at
        the end.
        """
        made: list[bytes] = []
        expected, before = start, self._known.created_at
        for one in kept:
            if one.number > expected:
                made += [block(number, FILLER) for number in range(expected, one.number - 1)]
                note = self.note(before, ms_of(one, 0) + 1, is_first=expected == start)
                made.append(block(one.number - 1, note))
            made.append(block(one.number, one.data))
            before, expected = ms_of(one, -1), one.number + 1
        if expected <= limit:
            made.append(block(expected, self.note(before, self._now, is_first=not made)))
            expected += 1
        return expected - 1, b"".join([*made, end_mark(expected - 1)])

    def note(self, first_ms: int, last_ms: int, *, is_first: bool) -> bytes:
        """The row that stands for missing ones; ``is_first``: of its journal."""
        logger.error(
            "rows of the audit log of messages are missing: `pairbus reconcile` proves nothing about that time",
            extra={
                "event": "message_audit.missing",
                "directory": str(self._directory),
                "first": time_text(first_ms),
                "last": time_text(last_ms),
            },
        )
        return resumed(first_ms, last_ms, self._namespace if is_first else "")

    def holes(self) -> list[tuple[int, int]]:
        """Blocks that are in no file: the number of the last of each row of them, and the time of the last row before."""
        starts = sorted({*self._ends, *self._parts})
        behind = self._known.number_expected + 1
        if not starts:
            return [(behind - 1, self._known.created_at)] if behind > 1 else []
        found = []
        for start, following in zip(starts, [*starts[1:], behind], strict=True):
            is_last = start == starts[-1]
            if not is_last and (following in self._noted or not {start, following} & self._ends.keys()):
                continue  # noted already; or both are parts, and what was between them has been removed
            last, last_ms = self._ends.get(start) or _end_of(self._parts[start])
            if last is not None and last + 1 < following:
                found.append((following - 1, last_ms))
        return found


def _parts(directory: Path) -> dict[int, Path]:
    """Parts by the number of their first block; of one with rows of several hours that of the last hour."""
    found = {}
    for part in sorted(directory.glob("hour=*/part-*.parquet")):
        number = part.name.split("-")[1]
        if number.isdigit():
            found[int(number)] = part
    return found


def _end_of(part: Path) -> tuple[int | None, int]:
    """The number of the last block of a part, and the beginning of its hour. None: nothing tells."""
    hour = hour_ms(part.parent.name)
    return (None, 0) if hour is None else (seal_number(part), hour)


def note_of(one: Block) -> int | None:
    """If a block begins with a row about a time of which rows are missing: the beginning of that time."""
    rows = lines(one.data)
    fields = json.loads(rows[0]) if rows else []
    if not fields or fields[FIELDS.index("kind")] != AUDIT_RESUMED:
        return None
    return round(datetime.fromisoformat(fields[FIELDS.index("detail")]).timestamp() * 1000)


def _free_name(file: Path) -> Path:
    """A name for the damaged file, also if one of this name was damaged before."""
    names = (file.with_name(f"{file.name}{DAMAGED_SUFFIX}{tail}") for tail in ("", *range(2, 1_000)))
    return next(name for name in names if not name.exists())


def ms_of(one: Block, at: int) -> int:
    """The time of a row of a block. One without rows stands for a block that is lost, and another one tells of that."""
    rows = lines(one.data)
    return int(json.loads(rows[at])[0]) if rows else 0


def time_text(ms: int) -> str:
    """A time as rows and events have it."""
    return utc(ms).isoformat(timespec="milliseconds")
