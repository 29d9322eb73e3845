"""Disk space reserved for the message audit, so that a full disk ends sending and not settling (B12, decision 0011).

The reserve is a file that holds nothing. It has room for the rows of all messages that are stored, up to a limit (decision 0189). A
journal that finds no space gets a piece of it: the file is made shorter by as much as the journal is about to grow. While it is
short, or little else is free, sends are refused; when space is back, it is made whole again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pairbus.server.files import FILE_MODE
from pairbus.storage.descriptors import DescriptorReserve

RESERVE_BYTES: Final = 64 << 20
"""The reserve at its longest: rows of about 200,000 settlements."""
LEAST_BYTES: Final = 16 << 20
"""The reserve of a namespace without messages, and what must be free beside it: rows of about 50,000 sends, which may be accepted before
the next look at the reserve, and of their settlements.
"""
MESSAGE_BYTES: Final = 640
"""What the reserve has for each message that is stored: two rows, because it may be dead-lettered first."""
STEP_BYTES: Final = 4 << 20
"""The length of the reserve is a multiple of this, so that it does not change with each message."""
RESERVE_FILE: Final = ".reserve"
RESERVED_DESCRIPTORS: Final = 2
"""A new journal needs one for itself and one for its directory."""
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class AuditReserve:
    """The file. ``allocate`` belongs to the committer's thread, ``review`` to the audit's own; ``is_short`` may be asked anywhere."""

    def __init__(
        self,
        directory: Path,
        reserve_bytes: int = RESERVE_BYTES,
        message_count: Callable[[], int] | None = None,
    ) -> None:
        """``message_count``: how many messages are stored, asked from any thread; without it the reserve is at its longest."""
        self._directory = directory
        self._bytes_max = reserve_bytes
        self._message_count = message_count
        self._lock = threading.Lock()
        self._file = os.open(directory / RESERVE_FILE, os.O_RDWR | os.O_CREAT, FILE_MODE)
        self._held = min(os.fstat(self._file).st_size, reserve_bytes)
        os.ftruncate(self._file, self._held)
        self.is_short = True
        self.descriptors = DescriptorReserve(RESERVED_DESCRIPTORS)
        self.review()

    def allocate(self, handle: int, offset: int, size: int) -> None:
        """Make a file longer, its space reserved: from the disk, or else from here. OSError when both have none."""
        while True:
            try:
                reserve_space(handle, offset, size)
            except OSError as error:
                if error.errno not in _NO_SPACE or not self._give(size):
                    raise
            else:
                return

    def review(self) -> None:
        """Make the reserve whole again if that can be, and see whether it is."""
        with self._lock:
            if self._file < 0:
                return
            wanted = self._wanted()
            try:
                if self._held < wanted:
                    reserve_space(self._file, self._held, wanted - self._held)
                elif self._held > wanted:
                    os.ftruncate(self._file, wanted)
                self._held = wanted
                figures = os.statvfs(self._directory)
            except OSError:
                # Half of it may have been taken from others: give that back, they need it as much.
                os.ftruncate(self._file, self._held)
                self.is_short = True
                return
            # Rows of what was accepted before this is noticed must find their place too.
            self.is_short = figures.f_bavail * figures.f_frsize < min(LEAST_BYTES, self._bytes_max)

    def _wanted(self) -> int:
        if self._message_count is None:
            return self._bytes_max
        length = LEAST_BYTES + MESSAGE_BYTES * self._message_count()
        return min(self._bytes_max, length // STEP_BYTES * STEP_BYTES)

    def close(self) -> None:
        """Idempotent. The file stays, for the next life."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
                self.descriptors.close()

    def _give(self, size: int) -> bool:
        """Let go of so much of it; False when nothing is left."""
        with self._lock:
            self.is_short = True
            if self._file < 0 or not self._held:
                return False
            self._held = max(0, self._held - size)
            os.ftruncate(self._file, self._held)
            return True


def give_back(directory: Path) -> None:
    """Remove the reserve that an audit left which is no longer wanted."""
    with suppress(OSError):  # the audit's directory may be gone, or somebody else's: nothing depends on it
        (directory / RESERVE_FILE).unlink(missing_ok=True)


def reserve_space(handle: int, offset: int, size: int) -> None:
    """Make a file longer, its space reserved. Raises OSError."""
    try:
        os.posix_fallocate(handle, offset, size)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # where nothing can be reserved, writing will find out
            raise
