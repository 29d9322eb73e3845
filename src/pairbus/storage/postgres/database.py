"""A namespace's shard in a PostgreSQL database: gives out the connections that its parts use."""

from __future__ import annotations

from typing import Final

from pairbus.storage.postgres.connection import Address, Session
from pairbus.storage.postgres.lease import PostgresLease
from pairbus.storage.postgres.nodes import PostgresNodes
from pairbus.storage.postgres.reader import PostgresReader
from pairbus.storage.postgres.schema import RANGE_FRAMES, drop_shard, ensure, find_shard, shard_of
from pairbus.storage.postgres.settings import PostgresSettings, setting_of
from pairbus.storage.postgres.writer import PostgresWriter
from pairbus.storage.table.ports import TableFailed

MOVED: Final = "moved"
"""The setting of a shard whose namespace lives elsewhere now: where."""


class Database:
    """Call ``prepare`` first.

    Args:
        url: ``postgresql://user@host[,host…]/database``.
        namespace: Whose shard.
        range_frames: Frames in each range of a new shard.
    """

    def __init__(self, url: str, namespace: str, *, range_frames: int = RANGE_FRAMES) -> None:
        self.address = Address(url)
        self.namespace = namespace
        self._range_frames = range_frames
        self._shard = 0

    def __str__(self) -> str:
        """Hosts and database, without anything secret."""
        return str(self.address)

    def prepare(self, *, replaces_moved: bool = False) -> None:
        """Make or migrate the tables, and find the shard or begin it. Raises OutcomeUnknown or TableFailed.

        A namespace that was moved elsewhere is refused; with ``replaces_moved`` what is left of it is removed.
        """
        session = Session(self.address, "setup")
        try:
            ensure(session)
            self._shard, range_frames = shard_of(session, self.namespace, self._range_frames)
            moved = setting_of(session, self._shard, MOVED)
            if moved is not None:
                if not replaces_moved:
                    raise TableFailed(
                        f"namespace {self.namespace} was moved from {self} to {moved.decode()}: serve it from there, or move "
                        "it back with `pairbus store move`"
                    )
                drop_shard(session, self._shard)
                self._shard, range_frames = shard_of(session, self.namespace, self._range_frames)
            self._range_frames = range_frames
        finally:
            session.close()

    def find(self) -> bool:
        """Find the shard and make nothing; False: the database has no such namespace. Raises OutcomeUnknown or TableFailed."""
        session = Session(self.address, "setup")
        try:
            found = find_shard(session, self.namespace)
        finally:
            session.close()
        if found is not None:
            self._shard, self._range_frames = found
        return found is not None

    @property
    def shard(self) -> int:
        assert self._shard, "the database is prepared first"
        return self._shard

    @property
    def range_frames(self) -> int:
        """Frames that are given back together."""
        return self._range_frames

    def writer(self) -> PostgresWriter:
        return PostgresWriter(self.address, self.shard, self._range_frames)

    def reader(self) -> PostgresReader:
        return PostgresReader(self.address, self.shard)

    def lease(self) -> PostgresLease:
        return PostgresLease(self.address, self.shard, self._range_frames)

    def nodes(self) -> PostgresNodes:
        return PostgresNodes(self.address, self.shard)

    def settings(self) -> PostgresSettings:
        return PostgresSettings(self.address, self.shard)
