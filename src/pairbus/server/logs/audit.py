"""The audit log: who did what to the namespace, and who was turned away (M13).

One JSON object per line, mode 0600, appended and never rewritten. A line is handed to the system before the action is
answered, so it survives a kill of the process. Keys and tokens never reach it.

There are two series of files in ``DATA/audit``, each with its own limit, so that refusals, which anybody can cause,
never push out the record of an action:

    audit-<number>.jsonl     actions of callers who proved a right
    refused-<number>.jsonl   refused log-ins, tokens and requests

In one minute up to ``REFUSALS_PER_MINUTE`` refusals get a record each. Further ones are counted by action and host, and
the minute ends with one record for each of these, which has a ``count``. A record without a count stands for one
refusal, so the sum over all records is the number of refusals.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pairbus.server.clock import BrokerClock, utc

logger = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
FILES_MAX: Final = 16
"""Files of actions; the oldest is deleted when there are more."""
REFUSED_FILE_BYTES_MAX: Final = 16 * 1024 * 1024
REFUSED_FILES_MAX: Final = 4
"""Files of refusals; the oldest is deleted when there are more."""
FIELD_CHARACTERS_MAX: Final = 1024
REFUSED_FIELD_CHARACTERS_MAX: Final = 256
REFUSALS_PER_MINUTE: Final = 60
REFUSAL_GROUPS_MAX: Final = 100
"""Pairs of action and host that are counted apart in one minute; further hosts are counted together."""
MINUTE_MS: Final = 60_000


class AuditLog:
    """Appends records of actions and of refusals."""

    def __init__(self, directory: Path, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock if clock is not None else BrokerClock()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._actions = _Series(directory, "audit", FILE_BYTES_MAX, FILES_MAX)
        self._actions.open()
        self._refusals = _Series(directory, "refused", REFUSED_FILE_BYTES_MAX, REFUSED_FILES_MAX)
        self._minute = 0
        self._in_minute = 0
        self._counts: dict[tuple[str, str], int] = {}
        """Refusals of this minute beyond those with a record each, by action and host."""

    def write(self, action: str, path: str, who: str, result: str, peer: str = "") -> None:
        """One record: what was done, to what, by whom, with which result, from which address."""
        self._actions.append(self._record(FIELD_CHARACTERS_MAX, action, path, who, result, peer))

    def write_refusal(self, action: str, path: str, who: str, result: str, peer: str = "") -> None:
        """A caller was turned away: one record, or one more in the count that ends this minute."""
        self.flush()
        self._in_minute += 1
        if self._in_minute <= REFUSALS_PER_MINUTE:
            record = self._record(REFUSED_FIELD_CHARACTERS_MAX, action, path, who, result, peer)
            self._refusals.append(record)
            return
        group = (action[:REFUSED_FIELD_CHARACTERS_MAX], peer.rpartition(":")[0])
        if group not in self._counts and len(self._counts) >= REFUSAL_GROUPS_MAX:
            group = ("", "")
        self._counts[group] = self._counts.get(group, 0) + 1

    def flush(self) -> None:
        """Write the counts of a minute that has ended; call it now and then."""
        minute = self._clock() // MINUTE_MS
        if minute != self._minute:
            self._write_counts()
            self._minute, self._in_minute = minute, 0

    def close(self) -> None:
        """Write what was counted and close the files. Idempotent."""
        self._write_counts()
        self._actions.close()
        self._refusals.close()

    def _write_counts(self) -> None:
        counts, self._counts = self._counts, {}
        for (action, host), count in counts.items():
            record = self._record(REFUSED_FIELD_CHARACTERS_MAX, action, "", "", "refused", host)
            self._refusals.append({**record, "count": count})

    def _record(
        self, characters_max: int, action: str, path: str, who: str, result: str, peer: str
    ) -> dict[str, object]:
        return {
            "time": utc(self._clock()).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "action": action[:characters_max],
            "path": path[:characters_max],
            "who": who[:characters_max],
            "result": result[:characters_max],
            "peer": peer[:characters_max],
        }


class _Series:
    """Numbered files of one kind; when one is full the next is opened, when there are too many the oldest is deleted."""

    def __init__(self, directory: Path, name: str, file_bytes_max: int, files_max: int) -> None:
        self._directory = directory
        self._name = name
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._file = -1
        self._number = 0
        self._size = 0

    def open(self) -> None:
        """Go on with the last file, or begin the first."""
        numbers = self._numbers()
        self._number = numbers[-1] if numbers else 1
        self._open()

    def append(self, record: dict[str, object]) -> None:
        """One line; never raises."""
        line = json.dumps(record).encode() + b"\n"
        try:
            if self._file < 0:
                self.open()
            if self._size + len(line) > self._file_bytes_max:
                self._turn_page()
            os.write(self._file, line)
        except OSError as error:
            # The action is done and cannot be taken back; a full disk must not make its answer a lie (M11).
            logger.error(
                "the audit log cannot be written", extra={"event": "audit.failed", "error": str(error)}
            )
            return
        self._size += len(line)

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _turn_page(self) -> None:
        self.close()
        self._number += 1
        self._open()
        for number in self._numbers()[: -self._files_max]:
            self._path(number).unlink()

    def _open(self) -> None:
        self._file = os.open(self._path(self._number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size

    def _path(self, number: int) -> Path:
        return self._directory / f"{self._name}-{number:06}.jsonl"

    def _numbers(self) -> list[int]:
        names = (
            path.stem.removeprefix(f"{self._name}-") for path in self._directory.glob(f"{self._name}-*.jsonl")
        )
        return sorted(int(name) for name in names if name.isdigit())
