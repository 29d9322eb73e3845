"""What a repair of the store tells the audit log of messages: acknowledged commits were given up (decision 0212)."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from pairbus.server.assemble import MESSAGE_AUDIT_DIRECTORY
from pairbus.server.clock import utc
from pairbus.server.logs.journal_ahead import extent, note_loss
from pairbus.server.logs.journal_mending import Known

if TYPE_CHECKING:
    from pathlib import Path

ID_BYTES: Final = 4


def note_given_up(data: Path, namespace: str, audited_batch: int, now: int) -> None:
    """A row about the time from the last row that the store still knows to now. It is closed and beyond the store, so the next start sees that the audit
    log is ahead, also if only one commit was lost. Raises OSError.
    """
    directory = data / MESSAGE_AUDIT_DIRECTORY
    if not directory.is_dir():
        return
    repair_id = f"{utc(now):%Y%m%dT%H%M%S}-{secrets.token_hex(ID_BYTES)}"
    note_loss(directory, namespace, extent(directory, Known(audited_batch)), repair_id, now)
