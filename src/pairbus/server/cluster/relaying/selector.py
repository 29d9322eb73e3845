"""A selector that holds back what waits in the sockets' write buffers while the node may not speak.

A socket that takes no more leaves bytes with asyncio, which writes them as soon as the socket takes some again. A process that was paused
would so write deliveries of its old lease right after waking. Here the event loop does not learn that a socket can be written until the
node may write again; before that, a node that was fenced has cut its connections.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import Final

PAUSE_SECONDS: Final = 0.01
"""Sockets that could be written would end the wait at once, again and again."""


class GatedSelector(selectors.DefaultSelector):
    """See the head of the module.

    ``may_flush`` is asked after each wait that found a socket to write; None: always.
    """

    may_flush: Callable[[], bool] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        if self.may_flush is None or not any(events & selectors.EVENT_WRITE for _, events in ready):
            return ready
        if self.may_flush():
            return ready
        readable = [(key, selectors.EVENT_READ) for key, events in ready if events & selectors.EVENT_READ]
        if not readable:
            time.sleep(PAUSE_SECONDS)
        return readable
