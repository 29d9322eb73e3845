"""Finds the shard of a node's namespace, and waits for it while `pairbus store move` brings the namespace into the database.

Towards its end such a move marks the namespace's own shard as one whose namespace is still in a directory, and then gives its name to
another shard, the copy. A node that met the one or the other had to be started again. A node that owns nothing has nothing to lose by looking
again; one that owned the shard ends, because only the end of a process proves that it says nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pairbus.storage.table.ports import OutcomeUnknown, ShardMoved

if TYPE_CHECKING:
    from pairbus.storage.postgres.database import Database

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.5
"""Between two looks while a namespace is moved in."""


class Arrival:
    """The way of a namespace into its database.

    Args:
        database: Gives the database as it is before anything is asked of it; the last one that it gave may be cut from outside.
    """

    def __init__(self, database: Callable[[], Database]) -> None:
        self._new_database = database
        self.database = database()
        self._is_logged = False

    async def find(self) -> Database:
        """The database, prepared: the shard is begun if it is not there. Raises as ``Database.prepare`` does."""
        while True:
            if await self._is_found():
                return self.database
            await asyncio.sleep(PAUSE_SECONDS)

    async def find_again(self, why: ShardMoved) -> Database:
        """The same for a node that met ``why``. Nothing is begun here: raises ``why`` if the database has no such namespace any more."""
        self.database = self._new_database()
        if not await _in_thread(self.database.find):
            raise why
        return await self.find()

    async def _is_found(self) -> bool:
        try:
            await _in_thread(self.database.prepare)
        except ShardMoved as error:
            if not await _in_thread(self.database.is_being_moved_in):
                raise
            self._tell(error)
            return False
        except OutcomeUnknown:
            if not self._is_logged:
                raise  # as at every start
            return False
        return True

    def _tell(self, error: ShardMoved) -> None:
        if not self._is_logged:
            self._is_logged = True
            logger.warning(
                "the namespace is being moved into this database: the node waits until it is there",
                extra={"event": "cluster.moving_in", "error": str(error)},
            )


async def _in_thread(call: Callable[[], object]) -> object:
    return await asyncio.get_running_loop().run_in_executor(None, call)
