"""What the engine asks of the world: a log that keeps facts, an outbox that takes deliveries, and the wall clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pairbus.engine.records import MessageRemoved
from pairbus.native import mypyc_attr

if TYPE_CHECKING:
    from pairbus.engine.queues.consumer import Consumer, Lock
    from pairbus.engine.queues.queue import Queue
    from pairbus.engine.records import Record
    from pairbus.model.message import Message


@mypyc_attr(allow_interpreted_subclasses=True)
class WallClock:
    """The machine's clock, which dates of clients belong to. The engine's instants are ahead of it for a while after it was set back.

    This one is never set.
    """

    __slots__ = ()

    def lead_ms(self) -> int:
        """How far the instants that the engine gets are ahead; never below 0."""
        return 0

    def instant_of(self, date: int) -> int:
        """The instant at which the wall clock will show a date, if nobody sets it before."""
        return date


@mypyc_attr(allow_interpreted_subclasses=True)
class RecordLog:
    """Keeps records. What is appended in one engine call becomes durable together or not at all.

    A class and not a protocol, as ``Outbox`` is: both are called for each message, and compiled code calls a method of a class much
    sooner.
    """

    __slots__ = ()

    def append(self, record: Record) -> None:
        """Stage a record for the next commit. A ``MessageStored`` gets its ``message.location`` here."""
        raise NotImplementedError

    def append_removals(self, queue_id: int, messages: list[Message]) -> None:
        """Stage a ``MessageRemoved`` for each of these messages of one queue. A log may do it with less work than one by one."""
        for message in messages:
            self.append(MessageRemoved(queue_id, message.sequence_number, message.location, message.size))

    def has_room(self, size: int) -> bool:
        """Whether a send of this many bytes can be taken. False when the disk is (nearly) full: the rest
        is a reserve for settlements (B12)."""
        raise NotImplementedError

    def read(self, location: int, size: int) -> bytes:
        """A message's blob, from memory or disk."""
        raise NotImplementedError


class ReadAhead(Protocol):
    """Brings blobs that are not on this machine while the engine goes on with something else."""

    def is_at_hand(self, location: int) -> bool:
        """Whether the log's ``read`` answers at once."""

    def fetch(self, locations: list[int], tag: int) -> None:
        """Bring these blobs. ``Namespace.fetched`` is called with the tag, a queue's id, when one of them has come."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Outbox:
    """Takes deliveries and detaches. Nothing that is put here leaves before the log has committed."""

    __slots__ = ()

    def deliver(self, consumer: Consumer, message: Message, lock: Lock | None) -> None:
        """Hand a message to a consumer. Without a lock it is received and deleted."""
        raise NotImplementedError

    def session_accepted(self, consumer: Consumer) -> None:
        """A waiting consumer now holds ``consumer.session``."""
        raise NotImplementedError

    def detach(self, consumer: Consumer, condition: str, description: str) -> None:
        """The consumer's link must end: session lock lost, entity deleted or disabled, accept timed out."""
        raise NotImplementedError


class Watcher(Protocol):
    """Gets what the engine does by itself, for counts and for the audit log. It changes nothing.

    It gets a message before the message goes: its bytes can still be read.
    """

    def lock_expired(self, queue: Queue) -> None:
        """A message's lock, or the hold on a session, ran out."""

    def dropped(self, queue: Queue, message: Message, why: str, now: int) -> None:
        """A message goes without having been received: it ``expired``, was ``cancelled`` or ``purged``."""

    def dead_lettered(self, queue: Queue, message: Message, reason: str | None, now: int) -> None:
        """A message leaves ``queue`` for a dead-letter queue."""

    def forwarded(self, queue: Queue, message: Message, target: str, now: int) -> None:
        """A message leaves ``queue`` for another entity."""

    def entity_deleted(self, path: str, now: int) -> None:
        """An entity went with everything in it."""

    def idle_deleted(self, kind: int, path: str) -> None:
        """An entity was deleted because nobody had used it for as long as its AutoDeleteOnIdle says."""


class Relay(Protocol):
    """Takes messages that become deliverable in one queue to where they belong."""

    def relay(self, queue: Queue, message: Message, now: int) -> bool:
        """Move one message on; whatever comes of it, it is no longer in ``queue`` afterwards. False: the disk has no room for
        that just now, and nothing has changed."""
