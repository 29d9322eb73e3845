"""What the log of a shard needs from a database: frames at consecutive numbers, and a lease on the shard.

Three connections, because they wait independently: the commit thread writes frames, the lease thread renews, a reader reads ahead. Each
part of the port belongs to one of them and is used by one thread at a time.

Every call either returns, with its effect durable on all copies that the database was told to wait for, or raises:

- ``SequenceTaken``: a frame with this number is there already. Nothing was changed.
- ``LogShortened``: the frame before is not there: this database lost what the owner had written. Nothing was changed.
- ``OutcomeUnknown``: the connection was lost, or the database reported something unexpected. The effect may be there, may come to be
  there, or may not be there. The next call connects again.
- ``TableFull``: the database has no space. Nothing was changed.
- ``TableFailed``: the database refused for a reason that a repetition does not mend, such as missing rights or a newer schema.
- ``ShardMoved``: one such reason: the namespace was moved elsewhere, so nothing written here would count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pairbus.errors import StorageError


class SequenceTaken(StorageError):
    """A frame with this number is there already."""


class LogShortened(StorageError):
    """The frame before is not there: a standby without it was promoted, or an older backup restored.

    Args:
        last: The last frame that is there.
    """

    def __init__(self, last: int) -> None:
        super().__init__(f"the log ends at frame {last}")
        self.last = last


class OutcomeUnknown(StorageError):
    """The connection was lost before the answer came."""


class TableFull(StorageError):
    """The database has no space left."""


class TableFailed(StorageError):
    """The database refused, and will refuse again."""


class ShardMoved(TableFailed):
    """The namespace was moved out of this database, or is being moved: no node may own its shard here."""

    is_of_waiting_node = False
    """A node that owned nothing has found it."""


MOVER: Final = "pairbus-store"
"""The name under which a move holds the shard; nodes wait."""


@dataclass(frozen=True, slots=True)
class FrameMark:
    """Whose frame it is: enough to recognise one's own."""

    epoch: int
    checksum: int


@dataclass(frozen=True, slots=True)
class LastFrame:
    """The last frame that an owner knows as durable; number 0: none."""

    sequence: int
    mark: FrameMark


@dataclass(frozen=True, slots=True)
class FrameHead:
    """A frame as replay reads it: everything but the bytes of messages."""

    sequence: int
    mark: FrameMark
    head: bytes
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Acquired:
    """The shard is ours: frames below ``fence`` are to be replayed, ours begin behind it."""

    epoch: int
    fence: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who owns the shard, by the database's own clock."""

    epoch: int
    owner: str
    """The name of the node; empty: nobody, the lease was given back."""
    address: str
    """Where the other nodes reach the owner."""
    remaining_ms: int
    """Until the lease ends; 0 or less: it has ended."""


class FrameWriter(Protocol):
    """Appends frames. Used by the commit thread."""

    def insert(
        self, sequence: int, mark: FrameMark, head: bytes, body: Sequence[bytes], after: int | None = None
    ) -> None:
        """Add one frame, directly behind a frame of the same epoch: checked in the same transaction.

        Args:
            sequence: Its number. One that was dropped is taken too.
            mark: Its epoch and checksum.
            head: The records.
            body: The bytes of messages, one after the other.
            after: The checksum of the frame before; None: any.
        """

    def fill(self, first: int, end: int, epoch: int, after: int | None = None) -> None:
        """Add empty frames ``first`` up to, not including, ``end``, as a fence is one: all of them or none. They are of one range.

        ``after``: as for ``insert``.
        """

    def range_end(self, sequence: int) -> int:
        """The first number behind the range of this one. Follows from the number; needs no connection, may be called by any thread."""

    def mark_of(self, sequence: int) -> FrameMark | None:
        """The mark of a frame that is visible now; None: there is none. Says nothing about durability: see ``barrier``."""

    def barrier(self) -> None:
        """Return once everything visible before is durable on all copies: a small commit of its own."""

    def drop_below(self, sequence: int) -> bool:
        """Give back the space of frames below this number, as far as whole ranges allow, oldest first.

        False: somebody reads one of them, such as a backup; try again later.
        """

    def hold_reserve(self, size: int) -> int:
        """Hold so much space that can be given up when the database is full, or a step towards it. Returns how much is held now.

        0: give it up, and what writes that found no space have left behind. After TableFull all of it is still held.
        """

    def close(self) -> None: ...


class FrameReader(Protocol):
    """Reads frames. Used at the start, then by the thread that reads ahead."""

    def oldest(self) -> int:
        """The number of the first frame that was not dropped; 1 if there is none yet."""

    def heads(self, first: int, end: int) -> Iterator[FrameHead]:
        """Frames ``first`` up to, not including, ``end``, in order."""

    def bodies(self, sequences: Sequence[int]) -> dict[int, bytes]:
        """The message bytes of these frames; those that are not there are left out."""

    def reconnect(self) -> None:
        """Hang up: the next call connects again, because this database is behind."""

    def close(self) -> None: ...


class LeaseTable(Protocol):
    """Says who owns the shard. Used by the lease thread."""

    def acquire(self, owner: str, address: str, lease_ms: int) -> Acquired | None:
        """Take the shard if its lease has ended or was given back; None: somebody else holds it, or it was moved, as ``look`` tells.

        In one transaction: the epoch grows by one, the lease begins, and an empty frame, the *fence*, is added behind the last frame.
        From then on the former owner's next commit finds its number taken. Raises SequenceTaken when the former owner was quicker by
        one frame, or when there was no space before the reserve of the former owner was given up: try again.
        """

    def renew(self, epoch: int, address: str, lease_ms: int, newest: int = 0) -> bool:
        """Let the lease end ``lease_ms`` from now; False: the shard has another epoch or owner, or the lease was given back.

        ``newest``: a frame of this epoch that is durable; 0: none is known. Raises LogShortened if neither it nor one behind it is there:
        then the lease is not prolonged.
        """

    def last_kept(self, last: LastFrame) -> int | None:
        """For an owner that was fenced: how far the log still is as that owner knew it; None: up to ``last``, or it can no longer be told.

        Numbers behind it may be free, or another owner has given them again. Frames that were dropped tell nothing.
        """

    def release(self, epoch: int) -> None:
        """Give the lease back, so that another node need not wait for its end. Nothing happens if the epoch is another."""

    def move_away(self, epoch: int, target: str) -> bool:
        """Mark the shard as moved to ``target``; False: the shard has another epoch, or the lease was given back: nothing was changed.

        In one transaction with the check of the epoch. The epoch grows, so the former owner of the shard is fenced, and nobody takes it
        again: whichever call of ``acquire`` comes, however long it was on its way.
        """

    def look(self) -> Ownership:
        """Who owns the shard now. Raises ShardMoved if the namespace was moved elsewhere, or its shard is gone."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """One node of a cluster, as it last reported itself."""

    node: str
    address: str
    """Where other nodes reach it."""
    names: tuple[str, ...] = ()
    """Host names by which clients reach it: the certificate of the owner, whichever node it is, holds them all."""
    state: str
    version: str
    asked: str = ""
    """What an operator asked of it: ``REQUEST_NONE``, ``REQUEST_MOVE`` or ``REQUEST_DRAIN``."""
    age_ms: int = 0
    """Since its last report, by the database's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyEntry:
    """One standby of the database, as the database sees it. A role that may not see more learns that there is one."""

    name: str
    """Empty: this role may not see it."""
    state: str
    """``sync``, ``quorum``, ``potential`` or ``async``; empty: this role may not see it."""
    behind_bytes: int | None
    """Of the log, written and not yet flushed there; None: not known."""
    behind_ms: int | None
    """How long the last commit took until it was flushed there; None: not known, or nothing was written lately."""


@dataclass(frozen=True, slots=True)
class DatabaseCopies:
    """How many machines have what is committed."""

    synchronous_names: str
    """The setting ``synchronous_standby_names``; empty: a commit waits for no standby that this database knows of."""
    standbys: tuple[StandbyEntry, ...]


@dataclass(frozen=True, slots=True)
class HeldUp:
    """Something for which calls wait in the database. Who is silent meanwhile may run."""

    table: str
    """That is locked, as a whole or in part; empty: none, a commit waits for the synchronous standby."""
    processes: tuple[int, ...] = ()
    """Of the database, which hold the lock; empty: they are not known."""


REQUEST_NONE: Final = ""
REQUEST_MOVE: Final = "move"
"""Give the shard to another node, once."""
REQUEST_DRAIN: Final = "drain"
"""Give the shard up and do not take it until the request is taken back."""


class NodeTable(Protocol):
    """The nodes that serve a shard, and what an operator asks of them. Used by the thread that reports and by the command line."""

    def report(self, entry: NodeEntry) -> str:
        """Set what is known of a node, but for ``asked``. Returns what is asked of it."""

    def nodes(self) -> list[NodeEntry]:
        """All nodes that ever reported, by name, and were not forgotten."""

    def ask(self, node: str, request: str) -> bool:
        """Ask something of a node, or take it back; False: there is no such node."""

    def answered(self, node: str, request: str) -> None:
        """The node has done what was asked: the request is gone, unless another one came meanwhile."""

    def forget(self, node: str, age_ms: int) -> bool:
        """Remove a node that is gone for good; False: there is none of this name, or it has reported since ``age_ms``."""

    def held_up(self) -> tuple[HeldUp, ...]:
        """For what calls of anybody wait at the tables of PairBus now. Empty also where this role may not look."""

    def copies(self) -> DatabaseCopies:
        """The standbys of the database. Raises StorageError where the database has no such view."""

    def close(self) -> None: ...


class ShardTable(Protocol):
    """The parts that a store needs; each call gives a connection of its own."""

    def writer(self) -> FrameWriter: ...

    def reader(self) -> FrameReader: ...
