"""Links of the asynchronous client that open without the SDK's pauses."""

from __future__ import annotations

import asyncio
from typing import Any

from pairbus.sdk.links.quick import at_once


class NeverReady:
    """A link of the SDK whose peer goes on talking and never opens it."""

    def __init__(self) -> None:
        self._has_dropped = False
        self._handler: Any = None

    def _create_handler(self, _auth: Any) -> None:
        self._handler = self

    async def client_ready_async(self) -> bool:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            # ``wait_for`` does this up to Python 3.11 when a frame comes in the same moment.
            if self._has_dropped:
                raise
            self._has_dropped = True
        return False


async def test_opening_at_once_ends_although_a_cancellation_was_dropped() -> None:
    link: Any = at_once(NeverReady())
    link._create_handler(None)

    async with asyncio.timeout(30):
        assert not await asyncio.wait_for(link.client_ready_async(), 0.05)
