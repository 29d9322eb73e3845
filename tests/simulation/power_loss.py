"""One log on one bad disk: a random history, and at any of its instants the power goes.

The ledger knows what the state was after each batch, and which batches were acknowledged. Whatever a crash leaves, recovery must give
exactly the state after the last acknowledged batch, or after the one that was being written (B1, B5, B13, B19). And if then the end of
the log is lost, by whatever hand, recovery says so or loses nothing (B10).
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any, Final

from pairbus.engine.records import (
    DeliveryFailed,
    DuplicateSeen,
    EntityDeleted,
    EntityPut,
    EntityUsed,
    MessageDeferred,
    MessageMoved,
    MessageRemoved,
    MessageStored,
    NamespacePut,
    Record,
    SequenceAdvanced,
    SessionStateSet,
)
from pairbus.errors import StorageError, StoreCorrupt
from pairbus.model.message import DEFERRED, SCHEDULED, Extra, Message
from pairbus.storage.log.mark import MARK_FILE
from pairbus.storage.log.segment import SEGMENT_HEADER_BYTES, segment_number
from pairbus.storage.log.store import LogStore
from pairbus.storage.tools.inspect import check
from pairbus.storage.tools.repair import repair
from tests.attributes import attribute_names
from tests.simulation.disk import SimulatedDisk

STATES_PER_WORLD: Final = 300
STEPS_MAX: Final = 100_000


class PowerLoss(Exception):
    """Ends an epoch from within a disk operation; carries what is left."""

    def __init__(self, disk: SimulatedDisk, allowed: list[dict[str, Any]]) -> None:
        super().__init__("the power goes")
        self.disk = disk
        self.allowed = allowed


class Ledger:
    """The least that can be called the meaning of records: a fold into plain values."""

    def __init__(self) -> None:
        self.messages: dict[tuple[int, int], MessageStored] = {}
        self.next_number: dict[int, int] = {}
        self.latest = 0
        self.sessions: dict[tuple[int, str], bytes] = {}
        self.duplicates: dict[tuple[int, bytes], int] = {}
        self.entities: dict[int, tuple[int, str, str]] = {}
        self.namespace: tuple[int, str] | None = None
        self.used: dict[int, int] = {}

    def fold(self, record: Record) -> None:
        match record:
            case MessageStored(queue_id=queue_id, message=message):
                self.messages[queue_id, message.sequence_number] = record
                self._given(queue_id, message.sequence_number, message.enqueued_at)
                if record.duplicate_key:
                    self.duplicates[queue_id, record.duplicate_key] = message.enqueued_at
            case MessageRemoved():
                self.messages.pop((record.queue_id, record.sequence_number), None)
            case DeliveryFailed() | MessageDeferred():
                stored = self.messages.get((record.queue_id, record.sequence_number))
                if stored is not None:
                    stored.message.delivery_count = record.delivery_count
                    if isinstance(record, MessageDeferred):
                        stored.message.state = DEFERRED
            case MessageMoved():
                stored = self.messages.pop((record.queue_id, record.sequence_number), None)
                if stored is not None:
                    stored.message.extra = record.extra
                    moved = MessageStored(record.to_queue_id, stored.message, stored.blob, b"")
                    self.messages[record.to_queue_id, record.sequence_number] = moved
                self._given(record.to_queue_id, record.sequence_number, 0)
            case DuplicateSeen():
                self.duplicates[record.queue_id, record.duplicate_key] = record.at
            case SequenceAdvanced():
                self._given(record.queue_id, record.next_sequence_number - 1, record.enqueued_at)
            case SessionStateSet(state=None):
                self.sessions.pop((record.queue_id, record.session_id), None)
            case SessionStateSet(state=bytes() as state):
                self.sessions[record.queue_id, record.session_id] = state
            case EntityPut():
                self.entities[record.entity_id] = (record.kind, record.path, record.settings)
            case EntityDeleted():
                self._deleted(record.entity_id)
            case EntityUsed():
                self.used[record.entity_id] = max(self.used.get(record.entity_id, 0), record.at)
            case NamespacePut():
                self.namespace = (record.next_entity_id, record.settings)

    def _given(self, queue_id: int, number: int, at: int) -> None:
        self.next_number[queue_id] = max(self.next_number.get(queue_id, 0), number + 1)
        self.latest = max(self.latest, at)

    def _deleted(self, entity_id: int) -> None:
        self.entities.pop(entity_id, None)
        self.used.pop(entity_id, None)
        tables: tuple[dict[Any, Any], ...] = (self.messages, self.sessions, self.duplicates)
        for table in tables:
            for key in [key for key in table if key[0] >> 2 == entity_id]:
                del table[key]
        for queue_id in [queue_id for queue_id in self.next_number if queue_id >> 2 == entity_id]:
            del self.next_number[queue_id]

    def snapshot(self, blobs: dict[tuple[int, int], bytes]) -> dict[str, Any]:
        """Plain values, comparable. ``blobs`` has each message's bytes."""
        return {
            "messages": {key: _values(stored.message, blobs[key]) for key, stored in self.messages.items()},
            "next_number": dict(self.next_number),
            "sessions": dict(self.sessions),
            "duplicates": dict(self.duplicates),
            "entities": dict(self.entities),
            "namespace": self.namespace,
            "used": dict(self.used),
        }


def _values(message: Message, blob: bytes) -> tuple[Any, ...]:
    extra = message.extra
    return (
        message.enqueued_at,
        message.expires_at,
        message.session_id,
        message.state,
        message.delivery_count,
        None if extra is None else tuple(getattr(extra, name) for name in attribute_names(Extra) or ()),
        blob,
    )


def recover(
    disk: SimulatedDisk, segment_bytes: int, chance: random.Random
) -> tuple[LogStore, Ledger, dict[str, Any]]:
    """Open, replay, read every message."""
    store = LogStore.open(
        "simulated",
        segment_bytes=segment_bytes,
        cache_bytes=64 * 1024,
        reserve_bytes=0,
        file_system=disk,
        make_marker=lambda: chance.randbytes(8),
        is_background=False,
    )
    ledger = Ledger()
    for record in store.replay():
        ledger.fold(record)
    store.live(
        (queue_id, stored.message.location, stored.message.size)
        for (queue_id, _), stored in ledger.messages.items()
    )
    blobs = {
        key: store.read(stored.message.location, stored.message.size)
        for key, stored in ledger.messages.items()
    }
    return store, ledger, ledger.snapshot(blobs)


def refusal(disk: SimulatedDisk) -> str:
    """What a check says of damage; empty: everything is intact."""
    try:
        check("simulated", file_system=disk)
    except StorageError as error:
        return str(error)
    return ""


class World:
    """A seed's history.

    Args:
        seed: Draws everything.
        replies_before_sync: The planted bug: a batch counts as acknowledged when its commit begins.
    """

    def __init__(self, seed: int, *, replies_before_sync: bool = False) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.replies_before_sync = replies_before_sync
        self.segment_bytes = self.chance.choice((4096, 6000, 8192, 16384))
        self.crash_rate = self.chance.choice((0.1, 0.3, 0.6))
        self.keep_rate = self.chance.choice((0.05, 0.3))
        self.epoch_rate = self.chance.choice((0.002, 0.01, 0.03))
        self.lose_rate = self.chance.choice((0.02, 0.1))
        self.crashes = 0
        self.damaged = 0
        self.refused = 0
        self.repaired = 0
        self.epochs = 0
        self.restated = 0
        self.retired = 0
        self.time = 1_000
        self.is_watching = False
        self.in_doubt: dict[str, Any] | None = None
        self.waiting: deque[tuple[Any, dict[str, Any]]] = deque()
        self.disk = SimulatedDisk()
        self.blobs: dict[tuple[int, int], bytes] = {}
        self._begin(self.disk)

    # -- the run -----------------------------------------------------------------------------------------------

    def run(self, states: int = STATES_PER_WORLD) -> None:
        """Live until so many crashes were recovered from."""
        for _ in range(STEPS_MAX):
            if self.crashes >= states:
                return
            try:
                self._step()
            except PowerLoss as loss:
                # Life goes on with what is left.
                self._check(loss.disk, loss.allowed)
                self._begin(loss.disk)
        raise AssertionError(f"the world of seed {self.seed} stands still")

    def _begin(self, disk: SimulatedDisk) -> None:
        self.is_watching = False
        self.disk = disk
        disk.watch = self._watch
        self.store, self.ledger, self.acknowledged = recover(disk, self.segment_bytes, self.chance)
        self.blobs = {key: values[-1] for key, values in self.acknowledged["messages"].items()}
        self.waiting.clear()
        self.in_doubt = None
        self.is_watching = True
        self.epochs += 1

    def _watch(self, operation: str) -> None:
        if not self.is_watching:
            return
        allowed = [self.acknowledged] + ([self.in_doubt] if self.in_doubt is not None else [])
        if self.chance.random() < self.crash_rate:
            if self.chance.random() < 0.2:
                self._check_killed(allowed)
            else:
                self._check(self.disk.crashed(self.chance), allowed)
        if self.chance.random() < self.lose_rate:
            self._check_lost_end(allowed)
        if self.chance.random() < self.epoch_rate:
            raise PowerLoss(self.disk.crashed(self.chance), allowed)

    # -- what must hold ----------------------------------------------------------------------------------------

    def _check(self, disk: SimulatedDisk, allowed: list[dict[str, Any]]) -> None:
        """Recover; crash at some instants of the recovery; recover again: the same (B9)."""
        self.crashes += 1
        again: list[SimulatedDisk] = []
        if self.chance.random() < 0.25:
            disk.watch = lambda _: (
                again.append(disk.crashed(self.chance)) if self.chance.random() < 0.4 else None
            )
        store, _, state = recover(disk, self.segment_bytes, self.chance)
        disk.watch = None
        self._allow(state, allowed)
        store.close()
        for other in [*again, disk.crashed(self.chance)] if again else []:
            self.crashes += 1
            store, _, second = recover(other, self.segment_bytes, self.chance)
            store.close()
            self._allow(second, [state])

    def _check_killed(self, allowed: list[dict[str, Any]]) -> None:
        """The process ends, another one serves what it finds, and then the power goes (B9, B17)."""
        self.crashes += 2
        disk = self.disk.killed()
        store, _, state = recover(disk, self.segment_bytes, self.chance)
        self._allow(state, allowed)
        after = disk.crashed(self.chance)
        store.close()
        store, _, second = recover(after, self.segment_bytes, self.chance)
        store.close()
        self._allow(second, [state])

    def _check_lost_end(self, allowed: list[dict[str, Any]]) -> None:
        """The process or the machine ends, and then the end of the log is lost. That is noticed, or nothing is lost (B10)."""
        self.damaged += 1
        chance = self.chance
        is_killed = chance.random() < 0.7
        disk = self.disk.killed() if is_killed else self.disk.crashed(chance)
        # After a loss of power the last mark may be missing, so that zeros from a frame on are not always noticed.
        self._lose_end(
            disk, chance.choice(("cut", "cut", "files", "mark", *(("zero", "zero") if is_killed else ())))
        )
        try:
            store, _, state = recover(disk, self.segment_bytes, chance)
        except StorageError as error:
            self.refused += 1
            disk.unlock()
            if str(error) != (checked := refusal(disk)):
                raise AssertionError(f"refused: {error}; the check says: {checked or 'intact'}") from error
            self._repair(disk, str(error))
            return
        store.close()
        self._allow(state, allowed)

    def _lose_end(self, disk: SimulatedDisk, kind: str) -> None:
        segments = sorted(name for name in disk.names() if segment_number(name) is not None)
        name = self.chance.choice(segments[-4:])
        match kind:
            case "cut":
                disk.truncate(name, self.chance.randrange(disk.size(name)))
            case "zero":
                disk.zero(name, self.chance.randrange(SEGMENT_HEADER_BYTES, disk.size(name)))
            case "files":
                for lost in segments[-self.chance.randrange(1, len(segments) + 1) :]:
                    disk.lose(lost)
            case _:
                disk.lose(MARK_FILE)

    def _repair(self, disk: SimulatedDisk, told: str) -> None:
        """A loss that was accepted is no loss the next time, and whoever is told to accept it can."""
        try:
            report = repair("simulated", accepts_loss=True, file_system=disk)
        except StoreCorrupt as error:
            # Damage before the end of the log. A file that lost commits let go is none.
            if "--accept-loss" in told and "the file is missing;" in str(error):
                raise AssertionError(
                    f"told to accept the loss ({told}), and it cannot be: {error}"
                ) from error
            return
        assert report.damage
        self.repaired += 1
        check("simulated", file_system=disk)
        recover(disk, self.segment_bytes, self.chance)[0].close()

    def _allow(self, state: dict[str, Any], allowed: list[dict[str, Any]]) -> None:
        if state not in allowed:
            raise AssertionError(
                f"after crash {self.crashes} of seed {self.seed} recovery gives none of {len(allowed)} allowed states: "
                f"{_difference(allowed[0], state)}\n"
                f"replay: PAIRBUS_SEED={self.seed} python -m pytest tests/simulation/test_power_loss.py -k worlds"
            )

    # -- what happens ------------------------------------------------------------------------------------------

    def _step(self) -> None:
        kind = self.chance.choices(
            ("send", "remove", "other", "seal", "commit", "restate"),
            (30, self.chance.choice((25, 45)), 12, 14, 14, 4),
        )[0]
        match kind:
            case "send":
                self._send()
            case "remove":
                for _ in range(self.chance.choice((1, 1, 6))):
                    self._remove()
            case "other":
                self._other()
            case "seal":
                self._seal()
            case "commit":
                self._seal()
                while self.waiting:
                    self._commit()
            case _:
                self._restate()

    def _append(self, record: Record) -> None:
        self.store.append(record)
        self.ledger.fold(record)

    def _number(self, queue_id: int) -> int:
        return self.ledger.next_number.get(queue_id, 1)

    def _send(self) -> None:
        self.time += self.chance.randrange(3)
        for _ in range(self.chance.choice((1, 1, 3))):
            queue_id = self.chance.choice((4, 4, 4, 8))
            number = self._number(queue_id)
            size = self.chance.choice((0, 40, 300, 900, self.chance.randrange(2 * self.segment_bytes)))
            if self.chance.random() < 0.6:
                size = min(size, 900)
            message = Message(number, self.time, 0, size, self.chance.choice((None, "s")))
            key = b""
            if self.chance.random() < 0.05:
                key = b"k%d" % self.chance.randrange(5)
            if self.chance.random() < 0.1:
                message.state = SCHEDULED
                message.extra = Extra()
                message.extra.scheduled_at = self.time + 50
            blob = self.chance.randbytes(size)
            self.blobs[queue_id, number] = blob
            self._append(MessageStored(queue_id, message, blob, key))

    def _pick(self) -> tuple[tuple[int, int], MessageStored] | None:
        if not self.ledger.messages:
            return None
        if self.chance.random() < 0.7:
            return next(iter(self.ledger.messages.items()))
        return self.chance.choice(list(self.ledger.messages.items()))

    def _remove(self) -> None:
        picked = self._pick()
        if picked is not None and self.chance.random() > self.keep_rate:
            (queue_id, number), stored = picked
            self._append(MessageRemoved(queue_id, number, stored.message.location, stored.message.size))
            del self.blobs[queue_id, number]

    def _other(self) -> None:
        chance = self.chance
        queue_id = chance.choice((4, 8))
        kind = chance.randrange(7)
        picked = self._pick()
        if kind == 0:
            state = chance.choice((None, chance.randbytes(20)))
            self._append(SessionStateSet(queue_id, chance.choice("ab"), state, self.time))
        elif kind == 1:
            self._append(EntityPut(queue_id >> 2, 0, f"q{queue_id}", chance.choice(("{}", '{"a":1}'))))
        elif kind == 2 and chance.random() < 0.1:
            self._append(EntityDeleted(queue_id >> 2))
            self.blobs = {key: blob for key, blob in self.blobs.items() if key[0] >> 2 != queue_id >> 2}
        elif kind == 2:
            self._append(EntityUsed(queue_id >> 2, self.time))
        elif kind == 3:
            self._append(NamespacePut(chance.randrange(9), "{}"))
        elif picked is not None:
            self._change(kind, *picked)

    def _change(self, kind: int, key: tuple[int, int], stored: MessageStored) -> None:
        queue_id, number = key
        message = stored.message
        if kind == 4:
            self._append(DeliveryFailed(queue_id, number, message.delivery_count + 1))
        elif kind == 5 and queue_id & 3 == 0:
            extra = Extra()
            extra.dead_letter_reason = "tired"
            self.blobs[queue_id + 1, number] = self.blobs.pop(key)
            self._append(MessageMoved(queue_id, number, queue_id + 1, extra))
        elif kind == 6:
            self._append(MessageDeferred(queue_id, number, message.delivery_count))

    def _seal(self) -> None:
        batch = self.store.seal()
        if batch is not None:
            self.waiting.append((batch, self.ledger.snapshot(self.blobs)))

    def _commit(self) -> None:
        batch, state = self.waiting.popleft()
        self.in_doubt = state
        if self.replies_before_sync:
            self.acknowledged = state
        self.retired += len(batch.released)
        self.store.commit(batch)
        self.acknowledged = state
        self.in_doubt = None

    def _restate(self) -> None:
        for record in self.store.restate(self.chance.choice((1, 10, 100))):
            self.restated += 1
            match record:
                case MessageStored(queue_id=queue_id, message=message):
                    self._restate_message(record, queue_id, message)
                case SessionStateSet():
                    state = self.ledger.sessions.get((record.queue_id, record.session_id))
                    if state is not None:
                        self._append(SessionStateSet(record.queue_id, record.session_id, state, record.at))
                case EntityPut():
                    values = self.ledger.entities.get(record.entity_id)
                    if values is not None:
                        self._append(EntityPut(record.entity_id, *values))
                case NamespacePut():
                    if self.ledger.namespace is not None:
                        self._append(NamespacePut(*self.ledger.namespace))
                case DuplicateSeen():
                    self._restate_duplicate(record.queue_id, record.duplicate_key)

    def _restate_message(self, record: MessageStored, queue_id: int, old: Message) -> None:
        # It may have moved to the dead-letter queue or have been activated since: its bytes' place tells.
        for (place, number), stored in list(self.ledger.messages.items()):
            if stored.message.location == old.location:
                blob = self.store.read(old.location, old.size)
                assert blob == self.blobs[place, number]
                self._append(MessageStored(place, stored.message, blob, stored.duplicate_key))
                break
        if record.duplicate_key:
            self._restate_duplicate(queue_id, record.duplicate_key)

    def _restate_duplicate(self, queue_id: int, key: bytes) -> None:
        at = self.ledger.duplicates.get((queue_id, key))
        if at is not None:
            self._append(DuplicateSeen(queue_id, key, at))


def _difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    parts: list[str] = []
    for name, value in expected.items():
        if value != found[name]:
            if isinstance(value, dict):
                lost = sorted(map(str, value.keys() - found[name].keys()))
                new = sorted(map(str, found[name].keys() - value.keys()))
                changed = sorted(
                    str(key) for key in value.keys() & found[name].keys() if value[key] != found[name][key]
                )
                parts.append(f"{name}: lost {lost}, from nowhere {new}, changed {changed}")
            else:
                parts.append(f"{name}: {value!r} became {found[name]!r}")
    return "; ".join(parts)
