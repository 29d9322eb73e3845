"""Message bytes are those that were stored, whatever happened to the files and the cache since."""

from __future__ import annotations

import random

import pytest

from pairbus.engine.records import MessageStored
from pairbus.model.message import Message
from pairbus.storage.log.cache import BLOCK_BYTES
from tests.simulation.disk import SimulatedDisk
from tests.unit.storage.helpers import QUEUE, open_log, ready_log, remove, replay

SEGMENT_BYTES = 5 * BLOCK_BYTES
CACHE_BYTES = 4 * BLOCK_BYTES
SIZES = (1, 900, BLOCK_BYTES - 1, BLOCK_BYTES + 1, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES + 77, SEGMENT_BYTES + 5)
STEPS = 250
KEPT_MAX = 12


class Bodies:
    """A log with messages in it, and what their bytes must be."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = SimulatedDisk()
        self.store = ready_log(self.disk, segment_bytes=SEGMENT_BYTES, cache_bytes=CACHE_BYTES)
        self.kept: dict[int, tuple[Message, bytes]] = {}
        self.next_number = 1
        self.moved = self.reused = 0

    def step(self) -> None:
        chance = self.chance.random()
        if chance < 0.4:
            self.send()
        elif chance < 0.6 and self.kept:
            self.take()
        elif chance < 0.75:
            self.commit()
        elif chance < 0.85:
            self.tidy()
        elif chance < 0.87:
            self.restart()
        self.look()

    def send(self) -> None:
        number, size = self.next_number, self.chance.choice(SIZES)
        self.next_number += 1
        blob = (b"%08d" % number * (size // 8 + 1))[:size]
        message = Message(number, 1000 + number, 0, size, None)
        self.store.append(MessageStored(QUEUE, message, blob, b""))
        self.kept[number] = message, blob
        while len(self.kept) > KEPT_MAX:
            self.take()

    def take(self) -> None:
        """Read and remove a message, in one commit, as a receiver that deletes does."""
        # Mostly old ones, so that segments become garbage.
        number = min(self.kept) if self.chance.random() < 0.7 else self.chance.choice(list(self.kept))
        self.check(number)
        remove(self.store, self.kept.pop(number)[0])

    def commit(self) -> None:
        batch = self.store.seal()
        if batch is not None:
            self.reused += len(batch.released)
            self.store.commit(batch)

    def tidy(self) -> None:
        by_location = {message.location: number for number, (message, _) in self.kept.items()}
        for record in self.store.restate(self.chance.choice((1, 3))):
            if isinstance(record, MessageStored) and record.message.location in by_location:
                message, blob = self.kept[by_location[record.message.location]]
                assert self.store.read(message.location, message.size) == blob
                self.store.append(MessageStored(QUEUE, message, blob, b""))
                self.moved += 1

    def restart(self) -> None:
        self.commit()
        self.store.close()
        self.store = open_log(self.disk, segment_bytes=SEGMENT_BYTES, cache_bytes=CACHE_BYTES)
        for record in replay(self.store):
            if isinstance(record, MessageStored) and record.message.sequence_number in self.kept:
                number = record.message.sequence_number
                self.kept[number] = record.message, self.kept[number][1]

    def look(self) -> None:
        if self.kept:
            self.check(self.chance.choice(list(self.kept)))

    def check(self, number: int) -> None:
        message, blob = self.kept[number]
        found = self.store.read(message.location, message.size)
        assert found == blob, (
            f"message {number} of {len(blob)} bytes has the bytes of {sorted({*_owners(found)})}"
        )


def _owners(found: bytes) -> list[bytes]:
    return [found[start : start + 8] for start in range(0, min(len(found), 1 << 16), 8)]


@pytest.mark.promise("B2")
@pytest.mark.parametrize("seed", range(4))
def test_bodies_of_any_size_are_read_back_through_eviction_moves_reuse_and_restarts(seed: int) -> None:
    bodies = Bodies(seed)
    for _ in range(STEPS):
        bodies.step()
    for number in bodies.kept:
        bodies.check(number)
    assert bodies.reused, "no file was used again"
