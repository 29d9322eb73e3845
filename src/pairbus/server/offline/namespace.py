"""A namespace without its broker: verify its data, give space back. For operators, while nothing serves it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from pairbus.engine.namespace import Namespace
from pairbus.engine.ports import Outbox, RecordLog
from pairbus.engine.records import DuplicateSeen, MessageStored, NamespacePut, SessionStateSet
from pairbus.errors import StoreUnavailable, UsageError
from pairbus.model.access import ROOT_RULE
from pairbus.model.entity import QUEUE, SUBSCRIPTION, TOPIC
from pairbus.server.assemble import STORE_DIRECTORY, recover, refuse_moved
from pairbus.server.config.addresses import format_address, parse_address
from pairbus.server.config.options import AMQP_ADDRESS_DEFAULT, HTTP_ADDRESS_DEFAULT
from pairbus.server.ready import READY_FILE, ReadyInfo, connection_string, read_ready_file
from pairbus.storage.files import RealFileSystem
from pairbus.storage.identity import FORMAT_FILE, LOCK_FILE, read_identity
from pairbus.storage.log.store import LogStore
from pairbus.storage.tools.inspect import CheckReport, check, holds_data

if TYPE_CHECKING:
    from pairbus.engine.entity import Entity
    from pairbus.engine.queues.consumer import Consumer, Lock
    from pairbus.engine.records import Record
    from pairbus.model.message import Message
    from pairbus.storage.ports import Store, StoreStatistics

KIND_NAMES: Final = {QUEUE: "queue", TOPIC: "topic", SUBSCRIPTION: "subscription"}
PROGRESS_EVERY: Final = 1_000
"""Records between two reports of progress."""
COMPACT_RECORDS_MAX: Final = 2_000
"""Records restated in one commit."""
COMPACT_GARBAGE_SHARE_MIN: Final = 20
"""Data of which less than one part in this many is garbage is left as it is."""

Progress = Callable[[int, int], None]
"""Takes how much is done and how much there is in all; 0: not known yet."""


class NoOutbox(Outbox):
    """The outbox of an offline namespace, which has no consumers."""

    def deliver(self, consumer: Consumer, message: Message, lock: Lock | None) -> NoReturn:
        raise AssertionError("an offline namespace delivers nothing")

    def session_accepted(self, consumer: Consumer) -> NoReturn:
        raise AssertionError("an offline namespace has no sessions to accept")

    def detach(self, consumer: Consumer, condition: str, description: str) -> NoReturn:
        raise AssertionError("an offline namespace has no links")


class RecordList(RecordLog):
    """A log that keeps records in a list and has no bytes."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def append(self, record: Record) -> None:
        self.records.append(record)

    def has_room(self, size: int) -> bool:
        return False

    def read(self, location: int, size: int) -> bytes:
        raise UsageError(f"the bytes at {location:#x} were not kept: open the store to read them")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityCounts:
    path: str
    kind: str
    active: int
    scheduled: int
    deferred: int
    dead_letter: int
    transfer_dead_letter: int
    bytes: int
    """What its messages take, those in its dead-letter queues included."""


def store_directory(data: Path) -> Path:
    """Where a broker's data directory keeps its log. StoreUnavailable if there is none: nothing is made here."""
    directory = data / STORE_DIRECTORY
    refuse_moved(data)
    if not holds_data(directory):
        raise StoreUnavailable(
            f"{data} holds no data of a namespace: name the directory that was given to `pairbus serve --data`"
        )
    return directory


def name_of(data: Path) -> str:
    """The namespace that a data directory holds. Raises StoreUnavailable."""
    return _owner(store_directory(data))


def verify(data: Path, progress: Progress) -> tuple[CheckReport, list[EntityCounts]]:
    """Read every frame, check it, and count what is there. Changes nothing.

    Raises:
        StoreCorrupt: Acknowledged data is damaged; the text names file and offset.
        StoreUnavailable: There is no data, or it is in use or of a newer format.
    """
    directory = store_directory(data)
    namespace = Namespace("", RecordList(), NoOutbox())
    report = check(directory, seen=_counting(progress, namespace.fold))
    namespace.replayed()
    return report, [counts_of(entity) for entity in entities(namespace)]


def entities(namespace: Namespace) -> list[Entity]:
    """Everything with a path, in the order it was made: a topic before its subscriptions."""
    found = [entity for kind in KIND_NAMES for entity in namespace.entities(kind)]
    return sorted(found, key=lambda entity: entity.entity_id)


def counts_of(entity: Entity) -> EntityCounts:
    counts = entity.counts()
    return EntityCounts(
        path=entity.path,
        kind=KIND_NAMES[entity.kind],
        active=counts.active,
        scheduled=counts.scheduled,
        deferred=counts.deferred,
        dead_letter=counts.dead_letter,
        transfer_dead_letter=counts.transfer_dead_letter,
        bytes=sum(message.size for queue in entity.queues for message in queue.messages.values()),
    )


@dataclass(slots=True)
class Opened:
    """A namespace with its store, recovered as a broker would, and facts that only the records hold."""

    name: str
    store: Store
    namespace: Namespace
    settings: NamespacePut | None = None
    """The latest record about the namespace itself; None before its first commit."""
    sessions: set[tuple[int, str]] = field(default_factory=set)
    """Queue id and session id of each session that ever had a state."""
    keys: set[tuple[int, bytes]] = field(default_factory=set)
    """Queue id and key of each message that duplicate detection may remember."""

    def note(self, record: Record) -> None:
        if isinstance(record, SessionStateSet):
            self.sessions.add((record.queue_id, record.session_id))
        elif isinstance(record, DuplicateSeen | MessageStored):
            if record.duplicate_key:
                self.keys.add((record.queue_id, record.duplicate_key))
        elif isinstance(record, NamespacePut):
            self.settings = record


def _counting(progress: Progress, seen: Callable[[Record], None]) -> Callable[[Record], None]:
    """``seen``, with a report of progress every so many records."""
    counter = count(1)

    def counted(record: Record) -> None:
        number = next(counter)
        if number % PROGRESS_EVERY == 0:
            progress(number, 0)
        seen(record)

    return counted


@contextmanager
def opened(data: Path, progress: Progress) -> Iterator[Opened]:
    """Own a namespace's data for a while, as a broker does: no other process may open it meanwhile.

    Raises StoreUnavailable or StoreCorrupt.
    """
    directory = store_directory(data)
    store = LogStore.open(directory, is_background=False)
    try:
        name = _owner(directory)
        found = Opened(name, store, Namespace(name, store, NoOutbox()))
        recover(found.namespace, store, _counting(progress, found.note))
        yield found
    finally:
        store.close()


def last_ready(data: Path) -> tuple[ReadyInfo, bool]:
    """How a namespace is reached, and whether a broker serves it now.

    While one does, its ready file says so. Otherwise the address comes from the last ready file, or is the default one, and the root
    key comes from the log, for it may have been changed since that file was written.

    Raises:
        StoreUnavailable: There is no data, it cannot be read, or its broker keeps no ready file.
        StoreCorrupt: Acknowledged data is damaged.
    """
    ready = read_ready_file(data / READY_FILE)
    if ready is not None and ready.node is not None and not holds_data(data / STORE_DIRECTORY):
        # A node of a cluster: its messages and keys are in the database, and its last ready file is all that is here.
        return ready, _is_alive(ready.pid)
    directory = store_directory(data)
    if _is_served(directory):
        if ready is None:
            raise StoreUnavailable(
                f"{data} is served by a broker that keeps no {READY_FILE} there: look at its own --ready-file, or restart it"
            )
        return ready, True
    namespace = Namespace("", RecordList(), NoOutbox())

    def seen(record: Record) -> None:
        if isinstance(record, NamespacePut):
            namespace.fold(record)

    report = check(directory, seen=seen)
    key = next((rule.primary_key for rule in namespace.access_rules if rule.name == ROOT_RULE), None)
    if key is None:
        raise StoreUnavailable(f"{data} holds no key yet: start its broker once with `pairbus serve`")
    host, port = parse_address(ready.amqp if ready is not None else AMQP_ADDRESS_DEFAULT, READY_FILE)
    return (
        ReadyInfo(
            namespace=report.namespace,
            pid=0,
            amqp=format_address(host, port),
            http=ready.http if ready is not None else HTTP_ADDRESS_DEFAULT,
            connection_string=connection_string(host, port, report.namespace, key),
            ca_file=ready.ca_file if ready is not None else None,
        ),
        False,
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _is_served(directory: Path) -> bool:
    files = RealFileSystem(directory)
    try:
        files.lock(LOCK_FILE)
    except StoreUnavailable:
        return True
    finally:
        files.unlock()
    return False


def _owner(directory: Path) -> str:
    files = RealFileSystem(directory)
    try:
        identity = read_identity(files)
    finally:
        files.unlock()
    if identity is None:
        raise StoreUnavailable(f"the file '{FORMAT_FILE}' of {directory} is missing: restore it from a copy")
    return identity[1]


def compact(data: Path, now: int, progress: Progress) -> tuple[StoreStatistics, StoreStatistics]:
    """Write what is still true again and give the rest back. Returns the store's statistics before and after.

    Every step is a commit of its own, so it may be interrupted at any time. Raises StorageError.
    """
    with opened(data, progress) as found:
        store = found.store
        assert isinstance(store, LogStore), "it was opened from files"
        before = store.statistics()
        if COMPACT_GARBAGE_SHARE_MIN * before.garbage_bytes > before.used_bytes:
            store.rewrite()
        restated = 0
        while records := store.restate(COMPACT_RECORDS_MAX):
            for record in records:
                found.namespace.restate(record, now)
            _commit(store)
            restated += len(records)
            progress(restated, 0)
        _commit(store)
        return before, store.statistics()


def _commit(store: Store) -> None:
    batch = store.seal()
    if batch is not None:
        store.commit(batch)
