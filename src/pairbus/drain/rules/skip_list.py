"""Remembers the messages that a drain skips or leaves waiting, so that one stalled destination does not hold up the others.

A backlog queue delivers its messages in order, so the drain must lock the front ones to reach those behind. Of a stalled
destination only so many are held. A further one is skipped: its lock is left to lapse, and meanwhile the queue delivers
what is behind it. When a skipped message is delivered again, the queue has nothing new: the drain pauses that queue,
longer each time, so that waiting does not turn into a loop of useless receives (P38).

A message that waits for an older one of its session is left in its queue in the same way (``LeftWaiting``).

Rule 1: a message is never taken while an older skipped one of its destination and queue has not come back (P14).
Rule 2: at most ``SKIPPED_MAX`` messages per queue are remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pairbus.drain.rules.message import BacklogMessage

SKIPPED_MAX: Final = 2_000
"""Messages of one backlog queue that are skipped at a time; at this number the queue is paused."""
LAPSE_MARGIN_MS: Final = 5_000
"""Beyond its lock's end plus this a skipped message is not waited for: another receiver has it."""
PAUSE_MS_MIN: Final = 60_000
PAUSE_MS_MAX: Final = 300_000


@dataclass(slots=True)
class _Queue:
    skipped: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Destination and end of the lock, by sequence number."""
    pause_ms: int = PAUSE_MS_MIN
    paused_until_ms: int = 0
    has_taken: bool = False
    """Whether any message was taken since the last pause."""


class SkipList:
    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    def must_wait(self, queue: str, key: str, number: int, now: int) -> bool:
        """Whether an older skipped message for the same destination has not come back."""
        found = self._queues.get(queue)
        return found is not None and any(
            older < number and destination == key and now < lapse_ms + LAPSE_MARGIN_MS
            for older, (destination, lapse_ms) in found.skipped.items()
        )

    def skip(self, queue: str, key: str, number: int, lapse_ms: int, now: int) -> None:
        """Skip a message whose lock lapses at ``lapse_ms``."""
        found = self._queues.setdefault(queue, _Queue())
        is_repeated = found.skipped.pop(number, None) is not None
        found.skipped[number] = (key, lapse_ms)
        if (is_repeated or len(found.skipped) >= SKIPPED_MAX) and now >= found.paused_until_ms:
            found.pause_ms = PAUSE_MS_MIN if found.has_taken else min(found.pause_ms * 2, PAUSE_MS_MAX)
            found.paused_until_ms = now + found.pause_ms
            found.has_taken = False
        while len(found.skipped) > SKIPPED_MAX:
            del found.skipped[next(iter(found.skipped))]

    def taken(self, queue: str, number: int) -> None:
        """A message of the queue was taken: the queue is worth receiving from."""
        found = self._queues.get(queue)
        if found is not None:
            found.skipped.pop(number, None)
            found.has_taken = True

    def is_paused(self, queue: str, now: int) -> bool:
        """Whether nothing should be received from a queue for now."""
        found = self._queues.get(queue)
        return found is not None and now < found.paused_until_ms

    def destination_resumed(self) -> None:
        """A stalled destination works again: end every pause."""
        for found in self._queues.values():
            found.paused_until_ms, found.pause_ms = 0, PAUSE_MS_MIN


class LeftWaiting:
    """Messages that wait for older ones of their session and were left in their backlog queue, so that others are received.

    Their numbers by queue, each until its lock has ended: then Service Bus delivers the message again.
    """

    def __init__(self) -> None:
        self._until: dict[str, dict[int, int]] = {}

    def add(self, message: BacklogMessage) -> None:
        """A message is left in its queue, its lock to lapse."""
        self._until.setdefault(message.queue, {})[message.sequence_number] = message.locked_until_ms

    def received(self, message: BacklogMessage) -> None:
        """A message has come again."""
        self._until.get(message.queue, {}).pop(message.sequence_number, None)

    def count(self, queue: str, now: int) -> int:
        """How many of a queue are locked."""
        left = self._until.get(queue)
        if left:
            left = self._until[queue] = {number: until for number, until in left.items() if until > now}
        return len(left or ())

    def has_older(self, message: BacklogMessage, now: int) -> bool:
        """Whether an older message of the same queue is among them."""
        is_any = self.count(message.queue, now) > 0
        return is_any and min(self._until[message.queue]) < message.sequence_number

    def take(self, queue: str, count: int) -> list[int]:
        """The oldest of a queue, which should come again now."""
        left = self._until[queue]
        numbers = sorted(left)[:count]
        for number in numbers:
            del left[number]
        return numbers

    def drop(self, queue: str) -> list[int]:
        """All of a queue, which this drain steps back from."""
        return sorted(self._until.pop(queue, {}))
