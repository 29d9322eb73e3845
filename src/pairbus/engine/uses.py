"""When clients use entities: what keeps one from being idle, and when its last use is recorded (decision 0125)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pairbus.engine.entity import Entity

RECORDED_EVERY_MS: Final = 300_000
"""How often the last use of an entity is recorded at most. After a kill, what the broker says of it may be this old."""
LOOKED_AT_MAX: Final = 1_000
"""Entities that are looked at in one slice of housekeeping."""
RECORD_BYTES_MAX: Final = 64


def is_in_use(entity: Entity) -> bool:
    """Whether it is used at this moment: a receiver is attached, somebody holds a message or a session, it forwards, or messages are
    scheduled there. What ends such a state is use at that instant: nobody need look meanwhile.
    """
    if entity.settings.forward_to is not None or entity.main.scheduled_count:
        return True
    if any(queue.receiver_count or queue.locks for queue in entity.queues):
        return True
    sessions = entity.main.sessions
    return sessions is not None and bool(sessions.held or sessions.waiting)


def used_at(entity: Entity) -> int:
    """Since when an entity may be idle; a topic is used with its subscriptions."""
    found = max(entity.numbers.accessed_at, entity.settings.updated_at, entity.idle_since)
    for subscription in entity.subscriptions.values():
        found = max(found, subscription.numbers.accessed_at, subscription.settings.updated_at)
    return found


class Rounds:
    """Which entities to look at, a part at a time: each once in a round, and a round every few minutes."""

    __slots__ = ("_begun_at", "_left")

    def __init__(self) -> None:
        self._begun_at = 0
        self._left: list[int] = []

    def next_part(self, entity_ids: Iterable[int], now: int, is_last: bool) -> list[int]:
        """The next ids; ``is_last``: all of them at once, for this life ends."""
        if is_last:
            return list(entity_ids)
        if not self._left and now - self._begun_at >= RECORDED_EVERY_MS:
            self._left = list(entity_ids)
            self._begun_at = now
        part = self._left[-LOOKED_AT_MAX:]
        del self._left[-LOOKED_AT_MAX:]
        return part
