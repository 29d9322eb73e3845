"""The audit log: who did what to the namespace, and who was turned away (M13).

One JSON object per line in ``DATA/audit/audit-<number>.jsonl``, mode 0600, appended and never rewritten. A line is handed to the
system before the action is answered, so it survives a kill of the process. Keys and tokens never reach it.
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
"""The oldest file goes when there are more: a flood of refused log-ins must not fill the disk."""
FIELD_CHARACTERS_MAX: Final = 1024


class AuditLog:
    """Appends records; opens the next file when one is full."""

    def __init__(self, directory: Path, clock: Callable[[], int] | None = None) -> None:
        self._directory = directory
        self._clock = clock if clock is not None else BrokerClock()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        numbers = self._numbers()
        self._number = numbers[-1] if numbers else 1
        self._file = self._open()
        self._size = os.fstat(self._file).st_size

    def write(self, action: str, path: str, who: str, result: str, peer: str = "") -> None:
        """One record: what was done, to what, by whom, with which result, from which address."""
        record = {
            "time": utc(self._clock()).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "action": action[:FIELD_CHARACTERS_MAX],
            "path": path[:FIELD_CHARACTERS_MAX],
            "who": who[:FIELD_CHARACTERS_MAX],
            "result": result[:FIELD_CHARACTERS_MAX],
            "peer": peer[:FIELD_CHARACTERS_MAX],
        }
        line = json.dumps(record).encode() + b"\n"
        if self._size + len(line) > FILE_BYTES_MAX:
            self._turn_page()
        try:
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
        self._file, self._size = self._open(), 0
        for number in self._numbers()[:-FILES_MAX]:
            self._path(number).unlink()

    def _open(self) -> int:
        return os.open(self._path(self._number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _path(self, number: int) -> Path:
        return self._directory / f"audit-{number:06}.jsonl"

    def _numbers(self) -> list[int]:
        names = (path.stem.removeprefix("audit-") for path in self._directory.glob("audit-*.jsonl"))
        return sorted(int(name) for name in names if name.isdigit())
