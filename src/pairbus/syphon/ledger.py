"""What may have been sent and is not yet completed: a durable list that a restarted syphon asks about.

One line per fact: ``["+", queue, sequence number, message id]`` before a send, ``["-", queue, sequence number]`` once
the backlog message is completed. After a crash, what has a plus and no minus is in doubt.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from pairbus.errors import UsageError

COMPACT_BYTES: Final = 1_000_000
IN_DOUBT_MAX: Final = 100_000
"""How many messages in doubt are remembered; of the oldest beyond, a copy too many may come home."""
LEDGERS_MAX: Final = 64
"""How many syphons on one machine may keep a ledger for one primary."""

logger = logging.getLogger("pairbus.syphon")

Key = tuple[str, int]


class Ledger:
    """The ledger of one syphon; a file that no other process uses meanwhile."""

    def __init__(self, file: TextIO | None = None, open_entries: dict[Key, str] | None = None) -> None:
        self._file = file
        self._open: dict[Key, str] = dict(open_entries or {})
        self.in_doubt: dict[Key, str] = dict(self._open)
        """What an earlier run left: message ids by backlog queue and sequence number."""
        self._is_told = False

    @staticmethod
    def open(directory: Path, primary: str) -> Ledger:
        """The first ledger of ``primary`` in ``directory`` that no running syphon holds."""
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(LEDGERS_MAX):
            file = (directory / f"{primary}-{number}.ledger").open("a+", encoding="utf-8")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                continue
            return Ledger(file, _read(file))
        raise UsageError(
            f"{LEDGERS_MAX} syphons keep ledgers of {primary!r} in {directory}: give another directory"
        )

    def begin(self, entries: Sequence[tuple[str, int, str]]) -> None:
        """These are about to be sent, once ``sync`` has returned."""
        for queue, number, message_id in entries:
            self._open[queue, number] = message_id
        self._write([["+", queue, number, message_id] for queue, number, message_id in entries])

    def sync(self) -> None:
        """Return once everything noted is durable. May take a moment; may run in another thread."""
        if self._file is None:
            return
        try:
            os.fdatasync(self._file.fileno())
        except (OSError, ValueError) as error:
            self._tell(error)

    def end(self, entries: Sequence[Key]) -> None:
        """These are completed, or known not to have been sent."""
        known = [key for key in entries if self._open.pop(key, None) is not None]
        for key in entries:
            self.in_doubt.pop(key, None)
        self._write([["-", queue, number] for queue, number in known])
        if self._file is not None and not self._open and self._file.tell() > COMPACT_BYTES:
            self._file.truncate(0)

    def doubt(self, key: Key, message_id: str) -> None:
        """This one was sent and may come again."""
        self.in_doubt[key] = message_id
        while len(self.in_doubt) > IN_DOUBT_MAX:
            del self.in_doubt[next(iter(self.in_doubt))]

    def close(self) -> None:
        """Let go of the file. What is open stays in it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_durable(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def _write(self, lines: Sequence[object]) -> None:
        if self._file is None or not lines:
            return
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        try:
            # Past the buffer: what a full disk refused would stay in it and be refused for ever.
            os.write(self._file.fileno(), text.encode())
            self._is_told = False
        except OSError as error:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        """A ledger that cannot be written costs a copy too many after a crash; to stop draining would cost more."""
        if not self._is_told:
            self._is_told = True
            logger.warning("the ledger cannot be written: %s", error, extra={"event": "syphon.ledger_failed"})


def _read(file: TextIO) -> dict[Key, str]:
    entries: dict[Key, str] = {}
    file.seek(0)
    for line in file:
        try:
            fact = json.loads(line)
            key = (str(fact[1]), int(fact[2]))
            if fact[0] == "+":
                entries[key] = str(fact[3])
            else:
                entries.pop(key, None)
        except (ValueError, IndexError, TypeError, KeyError):
            continue  # the last line of a crash may be torn; it was not acted upon
    return entries
