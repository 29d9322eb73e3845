"""Takes messages out of the dead-letter queue of one backlog queue: those that were there at the start, once each.

Why there is an end: while a syphon runs, a message that goes back into its backlog queue may be dead-lettered again within
a second. It then has a new number, above all those of the start, and is left alone.

Messages that stay must be held until the end, because a message that is given back is the next one to be received. So their
locks are renewed meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pairbus.drain.ports import Delivery, Inbox
from pairbus.drain.renewing import RENEW_MAX
from pairbus.drain.rules.message import LOCK_MS_DEFAULT, BacklogMessage
from pairbus.errors import PairbusError
from pairbus.pairing import parking
from pairbus.sdk.links.browsing import bounds_by

PAGE: Final = 100
WAIT_SECONDS: Final = 1.0
HELD_MAX: Final = 10_000
"""How many messages may stay locked until the end. Beyond it the messages behind them are not looked at."""

MayRemove = Callable[[bytes, str | None], Awaitable[bool]]
"""Whether a message may go, given its bytes and the reason why it was dead-lettered; may do something with it first."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of a dead-letter queue."""

    removed: int = 0
    unconfirmed: int = 0
    """Messages that should be gone, and of which the namespace did not say so. They are there again when their locks end."""
    others: dict[str, int] = field(default_factory=dict)
    """Messages that were not asked for, by their reason."""
    has_later: bool = False
    """Messages were dead-lettered after the start, and stay."""
    is_full: bool = False
    """There may be messages behind ``HELD_MAX`` that stay."""


async def remove_dead_letters(
    inbox: Inbox,
    reason: str | None,
    may_remove: MayRemove,
    clock: Callable[[], int],
    progress: Callable[[int], None] = lambda done: None,  # noqa: ARG005 - not wanted by default
) -> Removal:
    """Complete the messages that ``may_remove`` says yes to; the others are given back at the end.

    Args:
        inbox: The dead-letter queue.
        reason: Only messages that were dead-lettered for it are asked about; None: all.
        may_remove: Called once for each message.
        clock: A steady clock in milliseconds.
        progress: Called with the number of messages that are done.
    """
    work = _Work(inbox, reason, may_remove, clock)
    try:
        return await work.run(progress)
    finally:
        await work.give_back()


class _Work:
    def __init__(
        self, inbox: Inbox, reason: str | None, may_remove: MayRemove, clock: Callable[[], int]
    ) -> None:
        self._inbox = inbox
        self._reason = reason
        self._may_remove = may_remove
        self._clock = clock
        self._held: dict[int, BacklogMessage] = {}
        """Everything that is locked, by number."""
        self._goes: dict[int, bool] = {}
        """What was decided, by number."""
        self._others: Counter[str] = Counter()
        self._removed = 0
        self._unconfirmed: set[int] = set()

    async def run(self, progress: Callable[[int], None]) -> Removal:
        _, last = await bounds_by(self._first_from)
        has_later = False
        while len(self._held) < HELD_MAX:
            page = await self._inbox.receive(PAGE, WAIT_SECONDS)
            for delivery in page:
                self._hold(delivery)
            # Where a lock was lost a message comes again. A page of such ones, and of later ones, brings nothing new.
            has_new = any(
                one.sequence_number <= last and one.sequence_number not in self._goes for one in page
            )
            for delivery in page:
                if delivery.sequence_number > last:
                    has_later = True
                    continue
                await self._renew_due()
                if delivery.sequence_number in self._held:
                    await self._settle(delivery)
                    progress(len(self._goes))
            if not has_new:
                return self._result(has_later=has_later)
        return self._result(has_later=has_later, is_full=True)

    def _result(self, *, has_later: bool, is_full: bool = False) -> Removal:
        return Removal(self._removed, len(self._unconfirmed), dict(self._others), has_later, is_full)

    async def _first_from(self, number: int) -> int | None:
        seen = await self._inbox.browse(number, 1)
        return seen[0].sequence_number if seen else None

    def _hold(self, delivery: Delivery) -> None:
        lock_ms = min(max(delivery.locked_until_ms - self._clock(), 0), LOCK_MS_DEFAULT)
        self._held[delivery.sequence_number] = BacklogMessage(
            queue=self._inbox.queue,
            sequence_number=delivery.sequence_number,
            path="",
            payload=b"",
            message_id="",
            session_id=None,
            partition_key=None,
            locked_until_ms=delivery.locked_until_ms,
            token=delivery.token,
            lock_ms=lock_ms,
        )

    async def _settle(self, delivery: Delivery) -> None:
        number = delivery.sequence_number
        if number not in self._goes:
            self._goes[number] = await self._decide(delivery.payload)
        if self._goes[number]:
            # One that could not be completed may come again, and is completed then.
            if await self._inbox.complete([self._held.pop(number)]):
                self._removed += 1
                self._unconfirmed.discard(number)
            else:
                self._unconfirmed.add(number)

    async def _decide(self, payload: bytes | None) -> bool:
        found = None if payload is None else reason_of(payload)
        if payload is None or (self._reason is not None and found != self._reason):
            self._others[found or "no reason"] += 1
            return False
        return await self._may_remove(payload, found)

    async def _renew_due(self) -> None:
        now = self._clock()
        due = [message for message in self._held.values() if message.renew_at_ms <= now]
        for first in range(0, len(due), RENEW_MAX):
            some = due[first : first + RENEW_MAX]
            for message, until in zip(some, await self._inbox.renew(some), strict=True):
                if until is None:
                    del self._held[message.sequence_number]
                else:
                    message.locked_until_ms = until

    async def give_back(self) -> None:
        held, self._held = list(self._held.values()), {}
        if held:
            with suppress(Exception):  # their locks end by themselves
                await self._inbox.release([message.token for message in held])


def reason_of(payload: bytes) -> str | None:
    """Why a message was dead-lettered; None when it does not say."""
    try:
        return parking.dead_letter_reason(payload)
    except (PairbusError, ValueError, LookupError):
        return None
