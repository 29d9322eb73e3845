"""Gives freed memory back to the system.

The C library keeps what was freed for later. After a thousand connections at once have gone, it would keep their buffers for
ever. Where the library is glibc, it is told to give free pages back once there are clearly more of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import ClassVar, Final

GROWTH_BYTES: Final = 4 * 1024 * 1024
"""Free memory must have grown by this much before it is given back, which takes 2 to 4 ms."""


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
    """Call ``tick`` now and then.

    Args:
        free_bytes: How much the C library holds free; None where it cannot be asked, and nothing is done.
        trim: Gives it back.
    """

    def __init__(self, free_bytes: Callable[[], int] | None, trim: Callable[[], object]) -> None:
        self._free_bytes = free_bytes
        self._trim = trim
        self._free_after_trim: int | None = None

    def tick(self) -> None:
        """Give free memory back if there is clearly more of it than after the last time."""
        if self._free_bytes is None:
            return
        free = self._free_bytes()
        if self._free_after_trim is None or free < self._free_after_trim:
            self._free_after_trim = free
        elif free >= self._free_after_trim + GROWTH_BYTES:
            self._trim()
            self._free_after_trim = self._free_bytes()


def system_heap() -> Heap:
    try:
        library = ctypes.CDLL(None)
        info, trim = library.mallinfo2, library.malloc_trim
    except (AttributeError, OSError, TypeError):
        return Heap(None, lambda: None)
    info.restype = _MallocInfo
    return Heap(lambda: int(info().fordblks), lambda: trim(0))
