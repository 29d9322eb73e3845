"""The sends in doubt: a durable list of messages that may have been sent and are not yet completed.

One line per fact: ``["+", queue, sequence number, message id, enqueued]`` before a send, ``["-", queue, sequence
number]`` once the backlog message is completed, or once the send is known to have failed. A plus without a minus is in
doubt: after a crash, and also when a lock was lost between the send and the completion. The next drain asks the
destination about it before it sends again.

A sequence number alone does not identify a message: a backlog queue that was deleted and created again counts from the
start, and so does a queue of the same name in another namespace. So an entry is about a message only when the message id
and the time at which it was stored are equal too.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from pairbus.errors import UsageError

COMPACT_BYTES: Final = 1_000_000
"""Size from which the file is written again with only what is in doubt."""
IN_DOUBT_MAX: Final = 100_000
"""Messages in doubt that are remembered. Older ones beyond may be delivered twice."""
FILES_MAX: Final = 64
"""How many drains on one machine may keep such a file for one primary."""

logger = logging.getLogger("pairbus.syphon")

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """One send without a known end."""

    message_id: str
    enqueued_ms: int | None
    """When the message was stored in its backlog queue; None in files of earlier versions."""
    since_ms: int
    """When it was sent, on the steady clock of this run; 0: by an earlier run."""

    def is_about(self, message_id: str, enqueued_ms: int | None) -> bool:
        """Whether the entry is about this message, and not about another one that had the same sequence number."""
        is_same_time = self.enqueued_ms is None or enqueued_ms is None or self.enqueued_ms == enqueued_ms
        return is_same_time and self.message_id == message_id


class DoubtfulSends:
    """The sends in doubt of one drain: a file that no other process uses meanwhile, or memory only."""

    def __init__(self, file: TextIO | None = None, open_entries: dict[Key, Entry] | None = None) -> None:
        self._file = file
        self._open: dict[Key, Entry] = dict(open_entries or {})
        self._size = 0
        self._has_warned = False

    @staticmethod
    def open(directory: Path, primary: str) -> DoubtfulSends:
        """The first file of ``primary`` in ``directory`` that no running drain holds."""
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(FILES_MAX):
            file = (directory / f"{primary}-{number}.ledger").open("a+", encoding="utf-8")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                continue
            found = DoubtfulSends(file, _read(file))
            found._size = os.fstat(file.fileno()).st_size
            return found
        raise UsageError(
            f"{FILES_MAX} syphons keep ledgers of {primary!r} in {directory}: give another directory"
        )

    def begin(self, entries: Sequence[tuple[str, int, str, int | None]], now: int) -> None:
        """These (queue, sequence number, message id, enqueued) are about to be sent, once ``sync`` has returned."""
        for queue, number, message_id, enqueued_ms in entries:
            self._open.pop((queue, number), None)
            self._open[queue, number] = Entry(message_id, enqueued_ms, now)
        while len(self._open) > IN_DOUBT_MAX:
            del self._open[next(iter(self._open))]
        self._write([["+", *entry] for entry in entries])

    def sync(self) -> None:
        """Return once everything noted is durable. May take a moment; may run in another thread."""
        if self._file is None:
            return
        try:
            os.fdatasync(self._file.fileno())
        except (OSError, ValueError) as error:
            self._warn(error)

    def end(self, entries: Sequence[Key]) -> None:
        """These are completed, or known not to have been sent."""
        known = [key for key in entries if self._open.pop(key, None) is not None]
        self._write([["-", queue, number] for queue, number in known])
        if self._file is not None and self._size > COMPACT_BYTES + 200 * len(self._open):
            self._compact(self._file)

    def doubt(self, key: Key, message_id: str, enqueued_ms: int | None) -> Entry | None:
        """The send of a message whose outcome is not known; None when it was never sent, or its outcome is known.

        An entry for another message with the same sequence number is dropped: that message is gone.
        """
        entry = self._open.get(key)
        if entry is None or entry.is_about(message_id, enqueued_ms):
            return entry
        self.end([key])
        return None

    def ids(self) -> frozenset[str]:
        """The ids of all messages in doubt."""
        return frozenset(entry.message_id for entry in self._open.values())

    def close(self) -> None:
        """Let go of the file. What is open stays in it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: Key) -> bool:
        return key in self._open

    @property
    def is_durable(self) -> bool:
        return self._file is not None

    def _write(self, lines: Sequence[object]) -> None:
        if self._file is None or not lines:
            return
        content = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        try:
            # Past the buffer: lines that a full disk refused would stay in it and be refused for ever.
            os.write(self._file.fileno(), content)
            self._size += len(content)
            self._has_warned = False
        except OSError as error:
            self._warn(error)

    def _compact(self, file: TextIO) -> None:
        """Empty the file and write what is in doubt into it again.

        The file keeps its inode, and with it the lock that says that this process uses it. A crash in between leaves a
        torn or empty file: duplicates, and nothing lost.
        """
        try:
            os.ftruncate(file.fileno(), 0)
        except OSError as error:
            self._warn(error)
            return
        self._size = 0
        self._write(
            [
                ["+", queue, number, entry.message_id, entry.enqueued_ms]
                for (queue, number), entry in self._open.items()
            ]
        )

    def _warn(self, error: Exception) -> None:
        """Warn once: a file that cannot be written costs duplicates after a crash; to stop draining would cost more."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning("the ledger cannot be written: %s", error, extra={"event": "syphon.ledger_failed"})


def _read(file: TextIO) -> dict[Key, Entry]:
    entries: dict[Key, Entry] = {}
    file.seek(0)
    for line in file:
        try:
            fact = json.loads(line)
            key = (str(fact[1]), int(fact[2]))
            if fact[0] == "+":
                enqueued = fact[4] if len(fact) > 4 else None
                entries[key] = Entry(str(fact[3]), None if enqueued is None else int(enqueued), 0)
            else:
                entries.pop(key, None)
        except (ValueError, IndexError, TypeError, KeyError):
            continue  # the last line of a crash may be torn; it was not acted upon
    return entries
