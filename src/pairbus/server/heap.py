"""Gives freed memory back to the system.

The C library keeps what was freed for later. After a thousand connections at once have gone, it would keep their buffers for
ever. Where the library is glibc, its free pages are given back when the process has clearly grown.

The rule looks at the resident memory of the process. The library's own count of free memory does not show whether giving it
back helps: it includes pages that were given back already. Its count of used memory misses buffers that come and go between
two looks. While giving back brings nothing, because the memory is in use, it is tried more and more rarely.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from typing import ClassVar, Final

GROWTH_BYTES: Final = 4 * 1024 * 1024
"""Bytes by which resident memory must have grown since the last time before free pages are given back; this takes 2 to
4 ms. Also the bytes that must be free."""
FIRST_PAUSE_TICKS: Final = 5
LAST_PAUSE_TICKS: Final = 320
"""Ticks until the next try after one that brought nothing: 5, then 10, and so on up to 320."""


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


class Heap:
    """Call ``tick`` about once a second.

    Args:
        resident_bytes: Returns the resident memory of the process.
        free_bytes: Returns how much memory the C library holds free; None where it cannot be asked: then ``tick`` does nothing.
        trim: Gives free pages back to the system.
    """

    def __init__(
        self,
        resident_bytes: Callable[[], int],
        free_bytes: Callable[[], int] | None,
        trim: Callable[[], object],
    ) -> None:
        self._resident_bytes = resident_bytes
        self._free_bytes = free_bytes
        self._trim = trim
        self._least_bytes: int | None = None
        self._pause_ticks = FIRST_PAUSE_TICKS
        self._ticks = 0

    def tick(self) -> None:
        """Give free pages back if the process has clearly grown since it was smallest."""
        if self._free_bytes is None:
            return
        self._ticks += 1
        resident = self._resident_bytes()
        if self._least_bytes is None or resident < self._least_bytes:
            self._least_bytes = resident
        elif (
            resident - self._least_bytes >= GROWTH_BYTES
            and self._ticks >= self._pause_ticks
            and self._free_bytes() >= GROWTH_BYTES
        ):
            self._give_back(resident)

    def _give_back(self, resident: int) -> None:
        self._trim()
        self._ticks = 0
        if self._resident_bytes() <= resident - GROWTH_BYTES // 4:
            self._pause_ticks = FIRST_PAUSE_TICKS
        elif self._pause_ticks < LAST_PAUSE_TICKS:
            self._pause_ticks *= 2


_M_ARENA_MAX: Final = -8
"""``M_ARENA_MAX`` of glibc's ``mallopt``."""


def system_heap() -> Heap:
    """The heap of this process, for a process that is a broker.

    Its threads share one arena from then on: each thread's own arena would keep its pages when connections have gone.
    """
    try:
        library = ctypes.CDLL(None)
        info, trim = library.mallinfo2, library.malloc_trim
        library.mallopt(_M_ARENA_MAX, 1)
    except (AttributeError, OSError, TypeError):
        return Heap(_resident_bytes, None, lambda: None)
    info.restype = _MallocInfo
    return Heap(_resident_bytes, lambda: int(info().fordblks), lambda: trim(0))


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
