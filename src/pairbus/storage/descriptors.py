"""File descriptors kept aside: clients may hold all others, and what must be written can still be opened."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_Result = TypeVar("_Result")


class DescriptorReserve:
    """Holds a few descriptors of nothing in particular, and gives them up one by one to actions that find none.

    Call ``fill`` when something was closed, so that the next shortage finds the reserve whole.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[int] = []
        self.fill()

    def run(self, action: Callable[[], _Result]) -> _Result:
        """Do what needs a descriptor. The action must leave no trace when it finds none: it is then done again."""
        while True:
            try:
                return action()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                try:
                    os.close(self._held.pop())
                except IndexError:
                    raise error from None

    def fill(self) -> None:
        """Take as many as are missing, if there are any."""
        with suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY))

    def close(self) -> None:
        """Give all of them back, for good. Idempotent."""
        self._count = 0
        while self._held:
            os.close(self._held.pop())
