"""A namespace's shard in a PostgreSQL database: gives out the connections that its parts use."""

from __future__ import annotations

from collections.abc import Callable

from pairbus.storage.postgres.connection import Address, Session
from pairbus.storage.postgres.lease import PostgresLease, moved_error
from pairbus.storage.postgres.nodes import PostgresNodes
from pairbus.storage.postgres.reader import PostgresReader
from pairbus.storage.postgres.schema import (
    RANGE_FRAMES,
    drop_shard,
    ensure,
    find_shard,
    replace_shard,
    shard_of,
)
from pairbus.storage.postgres.settings import COPY, MOVED, PostgresSettings, setting_of
from pairbus.storage.postgres.writer import PostgresWriter


class Database:
    """Call ``prepare`` first.

    Args:
        url: ``postgresql://user@host[,host…]/database``.
        namespace: Whose shard.
        range_frames: Frames in each range of a new shard.
        answer_seconds_max: See ``connection.Address``.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        *,
        range_frames: int = RANGE_FRAMES,
        answer_seconds_max: float | None = None,
    ) -> None:
        self.address = Address(url, answer_seconds_max)
        self._url = url
        self.namespace = namespace
        self._range_frames = range_frames
        self._shard = 0

    def __str__(self) -> str:
        """Hosts and database, without anything secret."""
        return str(self.address)

    def prepare(self) -> bool:
        """Make or migrate the tables, and find the shard or begin it: whether this call has made it.

        Raises OutcomeUnknown, ShardMoved, TableFailed, or UsageError if the database has the namespace in another spelling.
        """
        session = Session(self.address, "setup")
        try:
            ensure(session)
            self._shard, range_frames, is_made = shard_of(session, self.namespace, self._range_frames)
            moved = setting_of(session, self._shard, MOVED)
            if moved is not None:
                raise moved_error(self.namespace, self.address, moved)
            self._range_frames = range_frames
        finally:
            session.close()
        return is_made

    def find(self) -> bool:
        """Find the shard and make nothing; False: the database has no such namespace. Raises as ``prepare`` does, but for ShardMoved."""
        session = Session(self.address, "setup")
        try:
            found = find_shard(session, self.namespace)
        finally:
            session.close()
        if found is not None:
            self._shard, self._range_frames = found
        return found is not None

    def beside(self) -> Database:
        """A shard that no node knows, for a copy that becomes the namespace's own once it is whole: see ``replace_with``.

        Not prepared yet.
        """
        # A namespace's name holds no parentheses.
        name = f"{self.namespace} (moving)"
        return Database(self._url, name, answer_seconds_max=self.address.answer_seconds_max)

    def moved_to(self) -> str | None:
        """Where the namespace was moved; None: it was not. Raises OutcomeUnknown or TableFailed."""
        mark = self.moved_mark()
        return None if mark is None else mark.partition("\n")[0]

    def moved_mark(self) -> str | None:
        """What ``LeaseTable.move_away`` was given: where the namespace is, and by which move, if that is known."""
        return self._setting(MOVED)

    def is_being_moved_in(self) -> bool:
        """Whether a move into this database has closed the namespace's own shard, and has not brought the copy in its place yet."""
        mark = self.moved_mark()
        # A move out of a database adds its number; an earlier version had no second line.
        return mark is not None and mark.endswith("\n")

    def copied_by(self) -> str | None:
        """What ``PostgresSettings`` holds as ``COPY``: which move has filled this shard, and from where; None: no move has."""
        return self._setting(COPY)

    def _setting(self, name: str) -> str | None:
        session = Session(self.address, "setup")
        try:
            value = setting_of(session, self.shard, name)
        finally:
            session.close()
        return None if value is None else value.decode()

    def replace_with(self, other: Database) -> None:
        """Remove this shard and give its name to another, in one transaction. Raises OutcomeUnknown, or TableFailed: see ``replace_shard``."""
        session = Session(self.address, "setup")
        try:
            replace_shard(session, self.shard, other.shard, self.namespace)
        finally:
            session.close()

    def remove(
        self, epoch: int, *, owner: str = "", copied: str | None = None, is_empty: bool = False
    ) -> bool:
        """Remove the shard and everything in it; False: it is not what the caller knows any more, and belongs to somebody else.

        In one transaction with that check. Raises OutcomeUnknown or TableFailed.

        Args:
            epoch: That the shard must have.
            owner: Who may still own it.
            copied: What ``copied_by`` must say.
            is_empty: Whether it must hold nothing but fences.
        """
        session = Session(self.address, "setup")
        try:
            mark = None if copied is None else copied.encode()
            name = self.namespace
            return drop_shard(
                session, self.shard, name=name, epoch=epoch, owner=owner, copied=mark, is_empty=is_empty
            )
        finally:
            session.close()

    def report_silence(self, report: Callable[[str, str], None]) -> None:
        """See ``cluster.ports.ShardDatabase``."""
        self.address.looker.report = report

    def cut(self) -> None:
        """End every call under way, and all that come: this process ends, and must not wait for a database that does not answer."""
        self.address.cut()

    @property
    def is_known(self) -> bool:
        """Whether the shard was found or made."""
        return bool(self._shard)

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
