"""Times without a message audit: each start of a broker notes whether one begins, stops or goes on (decision 0119).

The store remembers that the namespace is served without an audit, so that the next audited start knows, wherever the audit log is kept. The
audit log has a row for each change, so that `pairbus reconcile` knows too.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pairbus.engine.records import AuditMarked
from pairbus.gateway.telemetry.audit_rows import AUDIT_BEGUN, AUDIT_RESUMED, AUDIT_STOPPED, AuditRow
from pairbus.server.clock import utc
from pairbus.server.files import write_whole
from pairbus.server.logs.journal_ahead import catch_up
from pairbus.server.logs.journal_blocks import BLOCK, block
from pairbus.server.logs.journal_mending import Known, mend_journals
from pairbus.server.logs.message_journal import encode_row, journal_name

if TYPE_CHECKING:
    from pathlib import Path

    from pairbus.engine.namespace import Namespace
    from pairbus.gateway.telemetry.audit_rows import AuditRows
    from pairbus.storage.ports import Store

logger = logging.getLogger(__name__)


def note_audit(namespace: Namespace, rows: AuditRows, now: int) -> None:
    """A broker starts with an audit: its first batch says so, if the rows before it are not complete."""
    stopped_at = namespace.audit_stopped_at
    if stopped_at:
        rows.audit_changed(AUDIT_RESUMED, now, _text(stopped_at))
        namespace.set_audit_stopped(0, now)
        logger.warning(
            "the message audit lacks what happened while the broker ran without --audit: `pairbus reconcile` proves nothing about "
            "that time",
            extra={"event": "message_audit.resumed", "stopped": _text(stopped_at), "resumed": _text(now)},
        )
    elif not namespace.audited_batch:
        rows.audit_changed(AUDIT_BEGUN, now)


def known_of(namespace: Namespace, *, is_alone: bool) -> Known:
    """What the store knows of the audit log."""
    return Known(namespace.audited_batch, namespace.created_at, namespace.audit_stopped_at, is_alone)


def keep_number(namespace: Namespace, store: Store, number: int) -> None:
    """The audit log is ahead of the store: before anything else the store goes on behind it, or a crash would make its rows seem to belong to
    batches that never happened. Raises StorageError.
    """
    if number <= namespace.audited_batch:
        return
    mark = AuditMarked(number)
    store.append(mark)
    namespace.fold(mark)
    batch = store.seal()
    assert batch is not None, "something is staged"
    store.commit(batch)


def note_no_audit(
    namespace: Namespace, store: Store, directory: Path, boot_id: str, now: int, *, is_alone: bool
) -> None:
    """A broker starts without an audit. If the namespace had one, the store remembers since when it has none, and so does the audit log if it
    is here: its row counts with the first commit, by the rule of ``message_audit``.
    """
    if not namespace.audited_batch and not directory.is_dir():
        return
    if not namespace.audit_stopped_at:
        if directory.is_dir():
            _write(directory, namespace, store, is_alone, boot_id, now)
        mark = AuditMarked(namespace.audited_batch + 1)
        store.append(mark)
        namespace.fold(mark)
        namespace.set_audit_stopped(now, now)
    logger.warning(
        "this namespace has an audit log of messages, and this broker runs without --audit: what happens now will be missing there, "
        "and `pairbus reconcile` proves nothing about this time. Start the broker with --audit",
        extra={
            "event": "message_audit.off",
            "directory": str(directory),
            "stopped": _text(namespace.audit_stopped_at),
        },
    )


def _write(
    directory: Path, namespace: Namespace, store: Store, is_alone: bool, boot_id: str, now: int
) -> None:
    """A journal with the one row. Without it (the disk is full) the next audited start still writes when the audit stopped."""
    try:
        known = catch_up(directory, namespace.name, known_of(namespace, is_alone=is_alone), boot_id, now)
        keep_number(namespace, store, known.number)
        # A block that no batch stands for must not get its number from this start.
        mend_journals(directory, namespace.name, known, boot_id, now)
        number = known.number + 1
        data = encode_row(AuditRow(AUDIT_STOPPED, "", 0, now, b"", ""), namespace.name)
        # Space instead of an end mark: its batch is not durable yet.
        write_whole(directory / journal_name(number, boot_id), block(number, data) + bytes(BLOCK.size))
    except OSError as error:
        logger.error(
            "the audit log of messages could not note that it stops",
            extra={"event": "audit.failed", "directory": str(directory), "error": str(error)},
        )


def _text(ms: int) -> str:
    return utc(ms).isoformat(timespec="milliseconds")
