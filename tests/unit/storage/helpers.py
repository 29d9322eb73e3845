"""Short ways to make stores and messages."""

from __future__ import annotations

import itertools

from pairbus.engine.records import MessageRemoved, MessageStored, Record
from pairbus.model.message import Message
from pairbus.storage.log.segment import OFFSET_MASK, segment_name
from pairbus.storage.log.store import LogStore
from tests.simulation.disk import SimulatedDisk

QUEUE = 4


def open_log(
    disk: SimulatedDisk, *, segment_bytes: int = 4096, reserve_bytes: int = 0, cache_bytes: int = 1 << 20
) -> LogStore:
    """A log on a simulated disk, not yet replayed."""
    markers = itertools.count(1)
    salt = len(disk.names())
    return LogStore.open(
        "simulated",
        namespace="ns",
        segment_bytes=segment_bytes,
        cache_bytes=cache_bytes,
        reserve_bytes=reserve_bytes,
        file_system=disk,
        make_marker=lambda: b"M%03d%04d" % (salt, next(markers)),
        is_background=False,
    )


def ready_log(
    disk: SimulatedDisk, *, segment_bytes: int = 4096, reserve_bytes: int = 0, cache_bytes: int = 1 << 20
) -> LogStore:
    """A log on a simulated disk, replayed."""
    store = open_log(disk, segment_bytes=segment_bytes, reserve_bytes=reserve_bytes, cache_bytes=cache_bytes)
    replay(store)
    return store


def replay(store: LogStore) -> list[Record]:
    """Replay to the end and say what lives."""
    records = list(store.replay())
    alive: dict[tuple[int, int], Message] = {}
    for record in records:
        if isinstance(record, MessageStored):
            alive[record.queue_id, record.message.sequence_number] = record.message
        elif isinstance(record, MessageRemoved):
            alive.pop((record.queue_id, record.sequence_number), None)
    store.live((queue_id, message.location, message.size) for (queue_id, _), message in alive.items())
    return records


def numbers(records: list[Record]) -> list[int]:
    """Sequence numbers of stored messages, in order."""
    return [record.message.sequence_number for record in records if isinstance(record, MessageStored)]


def send(store: LogStore, number: int, size: int = 500, queue_id: int = QUEUE) -> Message:
    """Stage one message."""
    message = Message(number, 1000 + number, 0, size, None)
    store.append(MessageStored(queue_id, message, bytes([number % 251]) * size, b""))
    return message


def remove(store: LogStore, message: Message, queue_id: int = QUEUE) -> None:
    """Stage a removal."""
    store.append(MessageRemoved(queue_id, message.sequence_number, message.location, message.size))


def commit(store: LogStore) -> None:
    """Make durable what is staged."""
    batch = store.seal()
    if batch is not None:
        store.commit(batch)


def fill_segments(store: LogStore) -> None:
    """Store and remove so many messages that the segments before them hold nothing that is needed."""
    for number in range(1, 200):
        remove(store, send(store, number))
        commit(store)


def store_frames(store: LogStore, frames: int, size: int = 500) -> list[tuple[str, int, int]]:
    """Store messages 1, 2, 3 …, one per frame. Returns (file, start, end) of each frame."""
    places: list[tuple[str, int, int]] = []
    for number in range(1, frames + 1):
        send(store, number, size)
        batch = store.seal()
        assert batch is not None
        store.commit(batch)
        frame = batch.frames[-1]
        places.append((segment_name(frame.segment), frame.offset, batch.end & OFFSET_MASK))
    return places
