"""Coroutines that wait for a spool to be written: one thread writes for all of them, and each waits once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.spool.store import Append, Spool


class Writes:
    """The writes of one spool on one event loop, one after the other.

    A write takes everything that is entered when it begins. It begins once every coroutine that can run now has run, so that those
    which are about to enter messages share it. Who enters later waits for the next one. A caller that is cancelled leaves its
    messages to the write.
    """

    def __init__(self, spool: Spool, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._spool = spool
        self._waiting: list[tuple[Append, asyncio.Future[None]]] = []
        self._is_writing = False

    def join(self, append: Append) -> asyncio.Future[None]:
        """A future that ends when an append is done, in one way or the other."""
        ended = self.loop.create_future()
        self._waiting.append((append, ended))
        if not self._is_writing:
            self._is_writing = True
            self.loop.call_soon(self._begin)
        return ended

    def _begin(self) -> None:
        try:
            write = self.loop.run_in_executor(None, self._spool.commit, self._waiting[0][0])
        except RuntimeError as error:  # no thread can be started any more
            waiting, self._waiting, self._is_writing = self._waiting, [], False
            for _, ended in waiting:
                if not ended.done():
                    ended.set_exception(error)
        else:
            write.add_done_callback(self._ended)

    def _ended(self, write: asyncio.Future[None]) -> None:
        if not write.cancelled():
            write.exception()  # each append has its own
        waiting, self._waiting = self._waiting, []
        for append, ended in waiting:
            if not append.is_done:
                self._waiting.append((append, ended))
            elif not ended.done():
                ended.set_result(None)
        self._is_writing = bool(self._waiting)
        if self._is_writing:
            self._begin()
