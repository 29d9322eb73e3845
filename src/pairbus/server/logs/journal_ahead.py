"""An audit log that is ahead of the store: the store has lost commits that were acknowledged, and the rows are what is left of them.

A block is durable before the commit of its batch begins, commits follow one another, and a journal whose last commit failed is never closed. So what
a crash leaves is *one* block beyond the store, the last one of an open journal. Two of them, or one in a closed journal or in a part, show that the
store was repaired with a loss, or replaced by an older copy. Then every row is kept, the audit log gets a row ``audit-resumed`` from the last row
that the store knows to now, and the store goes on behind the numbers of the audit log (decision 0212).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pairbus.server.files import write_whole
from pairbus.server.logs.journal_blocks import block, end_mark, first_number, scan
from pairbus.server.logs.journal_mending import Known, ms_of, note_of, resumed, time_text
from pairbus.server.logs.message_journal import journal_files, journal_name
from pairbus.server.logs.parquet import hour_ms, seal_number

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Extent:
    """How far an audit log reaches."""

    number_known: int
    """Of the last block that the store knows."""
    number: int = 0
    """Of its last block."""
    number_proven: int = 0
    """Of the last block whose batch was durable, as far as the audit log alone tells."""
    known_ms: int = 0
    """The time of a row at or before the last one that the store knows."""
    noted_from: int | None = None
    """If the last block is a row about a time of which rows are missing: the beginning of that time."""


def catch_up(directory: Path, namespace: str, known: Known, boot_id: str, now: int) -> Known:
    """What the store must know before it goes on: another number if the audit log is ahead of it. That is noted in the audit log, once.

    The caller makes the number durable in the store before anything else. Raises OSError.
    """
    found = extent(directory, known)
    if found.number_proven <= known.number:
        return known
    logger.error(
        "the audit log of messages is ahead of the store: the store has lost commits that were acknowledged. The rows are kept, and "
        "`pairbus reconcile` proves nothing about that time",
        extra={
            "event": "message_audit.ahead",
            "directory": str(directory),
            "first": time_text(found.known_ms),
            "last": time_text(now),
            "blocks": found.number - known.number,
        },
    )
    number = found.number
    if found.noted_from is None or found.noted_from > found.known_ms:
        number = note_loss(directory, namespace, found, boot_id, now)
    return replace(known, number=number)


def note_loss(directory: Path, namespace: str, found: Extent, boot_id: str, now: int) -> int:
    """Write a closed journal with a row about the time from what the store knows to now: the number of its block. Raises OSError."""
    number = max(found.number, found.number_known) + 1
    data = block(number, resumed(found.known_ms, now, namespace)) + end_mark(number)
    write_whole(directory / journal_name(number, boot_id), data)
    return number


def extent(directory: Path, known: Known) -> Extent:
    """Look through an audit log. Raises OSError."""
    found = Extent(known.number, known_ms=known.created_at)
    last_known = 0
    for part in sorted(directory.glob("hour=*/part-*.parquet"), reverse=True):
        text, hour = part.name.split("-")[1], hour_ms(part.parent.name)
        if not text.isdigit() or hour is None:
            continue
        found.number_proven = max(found.number_proven, int(text), seal_number(part) or 0)
        # Of a part with rows of several hours the earliest hour, which comes last.
        if last_known <= int(text) <= known.number:
            last_known, found.known_ms = int(text), hour
    found.number = found.number_proven
    for file in journal_files(directory):
        journal = scan(file.read_bytes(), first_number(file.name))
        if not journal.blocks:
            continue
        last = journal.blocks[-1]
        found.number_proven = max(found.number_proven, last.number - (not journal.is_closed))
        if last.number > found.number:
            found.number, found.noted_from = last.number, note_of(last)
        for one in journal.blocks:
            if last_known <= one.number <= known.number and (at := ms_of(one, -1)):
                last_known, found.known_ms = one.number, at
    return found
