"""What the engine and the event loop do with a store, as far as space is concerned."""

from __future__ import annotations

from collections.abc import Iterable

from pairbus.engine.records import EntityPut, MessageRemoved, MessageStored, Record
from pairbus.model.message import Message
from pairbus.storage.ports import Store

QUEUE = 4
ROUNDS_MAX = 100
"""Rounds of housekeeping in which space must have come back: a quarter of a second each."""


class Owner:
    """What the engine and the event loop do: knows what lives, keeps house four times a second."""

    def __init__(self, store: Store, records: Iterable[Record]) -> None:
        self.store = store
        self.messages: dict[int, Message] = {}
        for record in records:
            if isinstance(record, MessageStored):
                self.messages[record.message.sequence_number] = record.message
            elif isinstance(record, MessageRemoved):
                self.messages.pop(record.sequence_number, None)
        self.store.live((QUEUE, one.location, one.size) for one in self.messages.values())
        self.next = max(self.messages, default=0) + 1

    def send_until_refused(self, size: int, most: int = 1000) -> int:
        sent = 0
        while sent < most and self.store.has_room(size):
            message = Message(self.next, 1000, 0, size, None)
            self.store.append(MessageStored(QUEUE, message, b"x" * size, b""))
            self.commit()
            self.messages[self.next] = message
            self.next += 1
            sent += 1
        return sent

    def settle(self, count: int) -> None:
        for number in list(self.messages)[:count]:
            message = self.messages.pop(number)
            self.store.append(MessageRemoved(QUEUE, number, message.location, message.size))
            self.commit()

    def commit(self) -> bool:
        """Whether there was something to commit."""
        batch = self.store.seal()
        if batch is not None:
            self.store.commit(batch)
        return batch is not None

    def keep_house(self, rounds: int) -> None:
        for _ in range(rounds):
            for record in self.store.restate(50):
                self.restate(record)
            self.commit()

    def restate(self, record: object) -> None:
        if isinstance(record, EntityPut):
            self.store.append(record)
        elif isinstance(record, MessageStored):
            message = self.messages.get(record.message.sequence_number)
            if message is not None and message.location == record.message.location:
                blob = self.store.read(message.location, message.size)
                self.store.append(MessageStored(QUEUE, message, blob, b""))

    def rounds_until_room(self, size: int) -> int:
        rounds = 0
        while not self.store.has_room(size):
            assert rounds < ROUNDS_MAX, f"no room for {size} bytes: {self.store.statistics()}"
            self.keep_house(1)
            rounds += 1
        return rounds
