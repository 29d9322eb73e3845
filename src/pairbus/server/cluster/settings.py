"""Uses what all nodes of a shard share beside its log, from the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from pairbus.storage.table.ports import OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.server.cluster.ports import SettingTable

TRIES: Final = 5
PAUSE_SECONDS: Final = 0.1


class SharedSettings:
    """Calls of a setting table, one at a time, each in a thread.

    A call can be repeated, and is: a connection that was idle for long may have been lost without notice.
    """

    def __init__(self, table: SettingTable) -> None:
        self.table = table
        self._lock = asyncio.Lock()

    async def call(self, work: Callable[..., object], *arguments: object) -> Any:
        """``work``: a method of the table, or something that uses it."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            for _ in range(TRIES - 1):
                try:
                    return await loop.run_in_executor(None, work, *arguments)
                except OutcomeUnknown:
                    await asyncio.sleep(PAUSE_SECONDS)
            return await loop.run_in_executor(None, work, *arguments)
