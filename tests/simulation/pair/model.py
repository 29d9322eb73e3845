"""A namespace in memory for the simulation of pairs: queues, locks, duplicates, and the errors that the SDK raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from azure.servicebus import exceptions as sdk

from pairbus.amqp.message.whole import PROPERTY_FIELDS
from pairbus.sdk.messages import sections
from tests.payloads import message_id_of

LOCK_MS = 60_000
PARTITION_KEY = "x-opt-partition-key"


@dataclass(slots=True)
class Stored:
    """One message in a queue."""

    number: int
    payload: bytes
    enqueued_ms: int
    locked_until_ms: int = 0
    lock: int = 0
    deliveries: int = 0
    is_deferred: bool = False


@dataclass
class QueueModel:
    """A queue: what it holds and everything it ever took."""

    name: str
    detects_duplicates: bool = False
    exists: bool = True
    is_disabled: bool = False
    is_full: bool = False
    messages: dict[int, Stored] = field(default_factory=dict)
    dead: list[tuple[Stored, str]] = field(default_factory=list)
    history: list[bytes] = field(default_factory=list)
    seen_ids: set[str] = field(default_factory=set)
    pings: int = 0
    _next_number: int = 1
    _next_lock: int = 1

    def check(self, *, is_send: bool) -> None:
        """Refuse what the real one would refuse."""
        if not self.exists:
            raise sdk.MessagingEntityNotFoundError(
                message=f"The messaging entity '{self.name}' could not be found."
            )
        if is_send and self.is_disabled:
            raise sdk.MessagingEntityDisabledError
        if is_send and self.is_full:
            raise sdk.ServiceBusQuotaExceededError

    def send(self, payloads: list[bytes], now: int) -> None:
        """Store messages: all or none."""
        self.check(is_send=True)
        for payload in payloads:
            message_id = message_id_of(payload)
            if self.detects_duplicates and message_id in self.seen_ids:
                continue
            self.seen_ids.add(message_id)
            self.history.append(payload)
            self.messages[self._next_number] = Stored(self._next_number, payload, now)
            self._next_number += 1

    def ping(self) -> None:
        """Accept a ping and keep nothing of it."""
        self.check(is_send=True)
        self.pings += 1

    def receive(self, count: int, now: int) -> list[tuple[Stored, int]]:
        """Lock the oldest free messages."""
        self.check(is_send=False)
        taken: list[tuple[Stored, int]] = []
        for stored in self.messages.values():
            if len(taken) >= count:
                break
            if stored.locked_until_ms <= now and not stored.is_deferred:
                taken.append((stored, self._lock(stored, now)))
        return taken

    def receive_deferred(self, numbers: Sequence[int], now: int) -> list[tuple[Stored, int]]:
        """Lock those of these messages that are deferred and free."""
        self.check(is_send=False)
        there = [self.messages[number] for number in numbers if number in self.messages]
        return [
            (stored, self._lock(stored, now))
            for stored in there
            if stored.locked_until_ms <= now and stored.is_deferred
        ]

    def _lock(self, stored: Stored, now: int) -> int:
        stored.lock, self._next_lock = self._next_lock, self._next_lock + 1
        stored.locked_until_ms = now + LOCK_MS
        stored.deliveries += 1
        return stored.lock

    def unlock(self, number: int, lock: int, *, deferred: bool = False) -> None:
        """Give a message back, if its lock is still this one: any receiver may have it, or it must be asked for."""
        stored = self.messages.get(number)
        if stored is not None and stored.lock == lock:
            stored.locked_until_ms = 0
            stored.is_deferred |= deferred

    def settle(self, number: int, lock: int, now: int, *, aside: str | None = None) -> None:
        """Complete or dead-letter under a valid lock."""
        stored = self._locked(number, lock, now)
        del self.messages[number]
        if aside is not None:
            self.dead.append((stored, aside))

    def renew(self, number: int, lock: int, now: int) -> int:
        """Renew a lock."""
        self._locked(number, lock, now).locked_until_ms = now + LOCK_MS
        return now + LOCK_MS

    def _locked(self, number: int, lock: int, now: int) -> Stored:
        stored = self.messages.get(number)
        if stored is None or stored.lock != lock or stored.locked_until_ms <= now:
            raise sdk.MessageLockLostError
        return stored


class NamespaceModel:
    """Queues by name, and whether the namespace answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[str, QueueModel] = {}
        self.is_down = False
        self.is_silent = False

    def queue(self, path: str) -> QueueModel:
        """A queue by its path."""
        found = self.queues.get(path.strip("/").lower())
        if found is None:
            raise sdk.MessagingEntityNotFoundError(
                message=f"The messaging entity '{path}' could not be found."
            )
        return found

    def add(self, queue: QueueModel) -> QueueModel:
        """Create a queue."""
        self.queues[queue.name.lower()] = queue
        return queue


def original(
    number: int, session: str | None, *, has_alias_name: bool, has_life: bool, partition: str | None = None
) -> bytes:
    """An encoded message as an application would send it; ``number`` makes it unlike any other."""
    properties = [sections.NULL] * len(PROPERTY_FIELDS)
    properties[0] = sections.encode_text(f"m{number}")
    if session is not None:
        properties[10] = sections.encode_text(session)
    users = [(sections.encode_text("n"), sections.encode_long(number))]
    if has_alias_name:
        users.append((sections.encode_text("X-MS-Path"), sections.encode_text("the application's own")))
    parts = [
        sections.Section(sections.PROPERTIES, sections.encode_list(properties)),
        sections.Section(sections.APPLICATION_PROPERTIES, sections.encode_map(users)),
        sections.Section(0x75, b"\xa0\x01" + bytes((number % 256,))),
    ]
    if partition is not None:
        key = (sections.encode_symbol(PARTITION_KEY), sections.encode_text(partition))
        parts.insert(0, sections.Section(sections.MESSAGE_ANNOTATIONS, sections.encode_map([key])))
    if has_life:
        header = [sections.NULL, sections.NULL, sections.encode_uint(3_600_000), sections.NULL, sections.NULL]
        parts.append(sections.Section(sections.HEADER, sections.encode_list(header)))
    return sections.join(parts)


def number_of(payload: bytes) -> int:
    """The number of a message, parked or not."""
    return int(message_id_of(payload).removeprefix("m"))
