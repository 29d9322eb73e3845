"""Gives freed memory back to the system.

The C library keeps what was freed for later. After a thousand connections at once have gone, it would keep their buffers for
ever. Where the library is glibc, its free pages are given back. Two observations lead to a try:

- The library's count of free memory has risen since the last try: something that was in use has been freed. This is tried
  at once, and again as long as it helps: what is left of a page may be freed a moment later. The count itself does not show
  whether giving back helps, for it includes pages that were given back already.
- The process has grown since the last try. Its buffers may have come and gone between two looks, which the count does not
  show. The memory may just as well be in use. Then a try brings nothing, and the next one comes later.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from typing import ClassVar, Final

GROWTH_BYTES: Final = 2 * 1024 * 1024
"""A change that leads to a try, which takes 2 to 4 ms: bytes freed, or bytes by which resident memory has grown."""
LAST_PAUSE_TICKS: Final = 64
"""While the process grows and tries bring nothing, the next one comes after 1 tick, then 2, and so on up to this many."""


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
    """Call ``tick`` every few seconds.

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
        self._least_resident: int | None = None
        """The smallest since the last try."""
        self._least_free = 0
        """The smallest since the last try."""
        self._has_helped = False
        """The last try has brought something."""
        self._pause_ticks = 1
        self._ticks = 0

    def tick(self) -> None:
        """Give free pages back if memory has been freed, or if the process has grown."""
        if self._free_bytes is None:
            return
        self._ticks += 1
        resident, free = self._resident_bytes(), self._free_bytes()
        if self._least_resident is None:
            self._least_resident, self._least_free = resident, free
            return
        self._least_resident = min(self._least_resident, resident)
        self._least_free = min(self._least_free, free)
        was_freed = free - self._least_free >= GROWTH_BYTES
        has_grown = resident - self._least_resident >= GROWTH_BYTES and free >= GROWTH_BYTES
        if was_freed or self._has_helped or (has_grown and self._ticks >= self._pause_ticks):
            self._trim()
            self._ticks = 0
            self._least_resident, self._least_free = self._resident_bytes(), self._free_bytes()
            self._has_helped = self._least_resident <= resident - GROWTH_BYTES // 4
            self._pause_ticks = 1 if self._has_helped else min(2 * self._pause_ticks, LAST_PAUSE_TICKS)


_M_ARENA_MAX: Final = -8
"""``M_ARENA_MAX`` of glibc's ``mallopt``."""


def system_heap(collect: Callable[[], object]) -> Heap:
    """The heap of this process, for a process that is a broker.

    Its threads share one arena from then on: each thread's own arena would keep its pages when connections have gone.

    Args:
        collect: A garbage collection, called before free pages are given back. It also empties the interpreter's lists of
            unused tuples: each of these tuples keeps the memory around it from being freed.
    """
    try:
        library = ctypes.CDLL(None)
        info, trim = library.mallinfo2, library.malloc_trim
        library.mallopt(_M_ARENA_MAX, 1)
    except (AttributeError, OSError, TypeError):
        return Heap(_resident_bytes, None, lambda: None)
    info.restype = _MallocInfo

    def collect_and_trim() -> None:
        collect()
        trim(0)

    return Heap(_resident_bytes, lambda: int(info().fordblks), collect_and_trim)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
