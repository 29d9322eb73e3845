"""One takeover of a node: reads the log in a thread and starts a server over it, until that is done or the node gives it up.

A node that is stopped, drained or fenced meanwhile must not wait: nobody serves the shard before the lease is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pairbus.errors import PairbusError

if TYPE_CHECKING:
    from pairbus.server.assemble import Assembly
    from pairbus.server.config.options import Options
    from pairbus.server.server import Server
    from pairbus.storage.table.ports import Acquired

AssembleShard = Callable[["Options", int, "Acquired", Callable[[], bool]], "Assembly"]
"""Opens the store of an acquired shard and builds the broker over it. The last argument tells whether to go on with reading the log, and
later whether a commit may be repeated."""


class TakeoverGivenUp(PairbusError):
    """This node was told to stop or to take no part while it read the log."""


class Building:
    """A server that is being built.

    Args:
        acquired: The epoch and the fence under which this node owns the shard.
        may_retry: Whether a commit without an answer is repeated; from any thread.
    """

    def __init__(self, acquired: Acquired, may_retry: Callable[[], bool]) -> None:
        self.acquired = acquired
        self.is_given_up = False
        self._may_retry = may_retry
        self._given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def give_up(self) -> None:
        """Nobody wants the server any more: what is under way ends soon. Idempotent."""
        self.is_given_up = True
        if not self._given_up.done():
            self._given_up.set_result(None)

    def may_go_on(self) -> bool:
        """From any thread."""
        return not self.is_given_up and self._may_retry()

    async def assemble(self, assemble: AssembleShard, options: Options, now: int) -> Assembly:
        """Read the log. Raises StorageError or UsageError, or TakeoverGivenUp."""
        loop = asyncio.get_running_loop()
        assembly = await loop.run_in_executor(None, assemble, options, now, self.acquired, self.may_go_on)
        if self.is_given_up:
            assembly.close()
            raise TakeoverGivenUp
        return assembly

    async def start(self, server: Server) -> None:
        """Start the server. Raises what ``Server.start`` raises, or TakeoverGivenUp; then nothing of it is left."""
        # Its first commit waits for the lease, and would wait in vain once this node withdraws.
        starting = asyncio.ensure_future(server.start())
        await asyncio.wait((starting, self._given_up), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
        if starting.cancelled():
            raise TakeoverGivenUp
        starting.result()
        self.check()

    def check(self) -> None:
        """Raises TakeoverGivenUp."""
        if self.is_given_up:
            raise TakeoverGivenUp
