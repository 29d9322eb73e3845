"""Finds out whether messages in doubt are at their destination, by browsing it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pairbus.pairing import parking
from pairbus.sdk.links.browsing import NUMBER_MAX, PAGE, Browsed, bounds, page_of
from pairbus.sdk.messages.message_bytes import body_of

if TYPE_CHECKING:
    from pairbus.drain.rules.message import BacklogMessage

BROWSE_MAX: Final = 20_000
"""How many of a destination's newest messages are searched for those in doubt."""
STRETCH: Final = 1_000
"""How many are searched at a time, from the newest back."""
GAP: Final = 2_000
"""The search ends after so many messages without one in doubt, once one was found: a killed drain's sends lie together."""


class DestinationIndex:
    """Which of the messages in doubt a destination holds. One look serves every message in doubt by then."""

    def __init__(self) -> None:
        self._found: dict[str, Counter[bytes]] = {}
        self._taken: Counter[tuple[str, bytes]] = Counter()
        self._next_number: int | None = None
        self._looked_ms = -1
        self._ids: frozenset[str] = frozenset()

    def must_look(self, messages: Sequence[BacklogMessage]) -> bool:
        """Whether the last look was before one of these messages came into doubt."""
        return any(
            (message.in_doubt_since_ms or 0) >= self._looked_ms or message.message_id not in self._ids
            for message in messages
        )

    async def look(self, receiver: Any, ids: frozenset[str], now: int) -> None:
        """Browse what came since the last look, the first time the destination's newest messages."""
        if self._next_number is None or not ids <= self._ids:
            self._found = {}
            self._next_number = await self._look_back(receiver, ids)
        else:
            self._next_number = await self._look_through(receiver, ids, self._next_number, NUMBER_MAX)
        self._looked_ms, self._ids = now, ids

    async def _look_back(self, receiver: Any, ids: frozenset[str]) -> int:
        """Look through the newest messages, stretch by stretch from the newest back. Returns the number after them."""
        first, last = await bounds(receiver)
        end = NUMBER_MAX
        start = last + 1
        after = start
        nearest = last + 1
        while start > max(first, last - BROWSE_MAX):
            start = max(first, start - STRETCH)
            known = sum(counter.total() for counter in self._found.values())
            after = max(after, await self._look_through(receiver, ids, start, end))
            if sum(counter.total() for counter in self._found.values()) > known:
                nearest = start
            if self._found and nearest - start >= GAP:
                break
            end = start
        return after

    async def _look_through(self, receiver: Any, ids: frozenset[str], start: int, end: int) -> int:
        """Note what is wanted among the messages from ``start`` up to ``end``. Returns the number to go on with."""
        while start < end and (page := await page_of(receiver, start, min(PAGE, end - start))):
            for browsed in page:
                if browsed.sequence_number < end:
                    self._note(browsed, ids)
            start = max(start, page[-1].sequence_number) + 1
        return start

    def _note(self, browsed: Browsed, ids: frozenset[str]) -> None:
        message_id = parking.message_id_text(browsed.message_id)
        if message_id in ids:
            self._found.setdefault(message_id, Counter())[_digest(browsed.payload)] += 1

    def take(self, messages: Sequence[BacklogMessage]) -> list[BacklogMessage]:
        """Those of the messages that the destination holds. Each message there stands for one in the backlog.

        Message ids are the application's and may repeat, so the bodies are compared too.
        """
        taken = []
        for message in messages:
            found = self._found.get(message.message_id)
            if found is None:
                continue
            digest = _digest(message.payload)
            if found[digest] > self._taken[message.message_id, digest]:
                self._taken[message.message_id, digest] += 1
                taken.append(message)
        return taken


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(body_of(payload)).digest()
