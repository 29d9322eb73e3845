"""Finds messages of a backlog queue that somebody deferred: no receive brings them, but a request with their sequence numbers does.

A parked message that was deferred is still one that its sender has been told is kept. So a drain looks through a queue that has
nothing else for it, some pages at a time, and locks what is deferred. The messages then go the way of all others. Where the order of
a session depends on one, ``older`` finds it sooner.

A drain that should end looks before it ends. One that goes on looks after its first poll that brings nothing, and later only when
numbers were missing among those that it has received, or when there were deferred messages before: an idle queue costs its polls
and nothing more. While messages of a queue wait for older ones, it looks once a minute: what they wait for may wait, in another
queue, for a deferred message of this one.

What somebody else has locked after it was deferred cannot be had. A drain that should end waits for such messages longer than the
locks of a backlog queue last, and then says which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pairbus.drain.ports import Delivery, Inbox
from pairbus.errors import DrainStalledError
from pairbus.pairing.statistics import Counters

PAGE: Final = 100
"""Messages that are looked at, and deferred ones that are locked, with one request."""
PAGES_MAX: Final = 100
"""How many pages are looked at in one go. The next time goes on behind them."""
LOOK_MS: Final = 3_600_000
"""How long a drain that goes on does not look through a queue again that had no deferred messages."""
AGAIN_MS: Final = 60_000
"""Likewise when there were some: what could not be delivered or locked is tried again."""
ENDING_MS: Final = 5_000
"""Likewise for a drain that should end."""
LOCKED_MS: Final = 90_000
"""How long a drain that should end waits for deferred messages that it cannot lock: longer than the locks of backlog queues."""
FIRST_SECONDS: Final = 1.0
"""How long a queue is polled before it is looked through for the first time."""
NUMBERS_SHOWN_MAX: Final = 5


@dataclass(slots=True)
class _Queue:
    position: int = 1
    """Where the look goes on; 1: a new one begins."""
    left: list[int] = field(default_factory=list)
    """What the look has met so far that no receive brings and that could not be locked."""
    seen_to: int = 0
    """The highest number that was received."""
    has_reason: bool = False
    """Whether there may be deferred messages: numbers were missing, or a look has met some or not come to its end."""
    next_ms: int | None = None
    """Before this time no new look begins; None: there was none yet."""
    ended_ms: int = 0
    """When the last look came to an end."""
    stays: list[int] | None = None
    """What the last look to the end of the queue has left, when nothing else is there; None: there is more."""
    stays_since_ms: int = 0


class DeferredMessages:
    """The deferred messages in the queues of one drain.

    Args:
        counters: Where to count.
        clock: A steady clock in milliseconds.
    """

    def __init__(self, counters: Counters, clock: Callable[[], int]) -> None:
        self._counters = counters
        self._clock = clock
        self._queues: dict[str, _Queue] = {}

    def seconds_to_look(self, queue: str) -> float | None:
        """When a queue without other messages should be looked through; None: a poll need not end for that."""
        one = self._queues.get(queue)
        if one is None or not one.has_reason:
            return None
        return FIRST_SECONDS if one.next_ms is None else max(0.0, (one.next_ms - self._clock()) / 1000)

    def received(self, queue: str, numbers: Sequence[int]) -> None:
        """Messages were received. Those that are missing between them may be deferred."""
        one = self._queues.setdefault(queue, _Queue())
        new = [number for number in numbers if number > one.seen_to]
        if new:
            one.has_reason |= max(new) - one.seen_to > len(new)
            one.seen_to = max(new)

    def lost(self, queue: str) -> None:
        """Messages of a queue lost their locks, or their link: they come again, unless somebody defers them meanwhile."""
        self._has_reason(self._queues.setdefault(queue, _Queue()))

    async def receive(
        self, inbox: Inbox, before_ms: int | None, held: Collection[int] = ()
    ) -> Sequence[Delivery]:
        """Lock deferred messages of a queue of which a poll brought nothing, if it is time to look for some.

        ``before_ms``: the drain should end, and messages that were stored after this time do not count; None: it goes on.
        ``held``: messages of this queue that the drain has, all of them waiting.
        """
        one = self._queues.setdefault(inbox.queue, _Queue())
        if held:
            self._has_reason(one)
        if one.position == 1:
            is_due = one.next_ms is None or self._clock() >= one.next_ms
            if not is_due or (before_ms is None and one.next_ms is not None and not one.has_reason):
                return ()
            one.has_reason, one.left = False, []
        for _ in range(PAGES_MAX):
            self._counters.receive_operations += 1
            try:
                page = await inbox.browse(one.position, PAGE)
            except BaseException:
                one.has_reason = True  # the look goes on here
                raise
            is_new = [
                before_ms is not None and seen.enqueued_ms is not None and seen.enqueued_ms > before_ms
                for seen in page
            ]
            older = [
                seen
                for seen, new in zip(page, is_new, strict=True)
                if (seen.is_deferred or not new) and seen.sequence_number not in held
            ]
            wanted = [seen.sequence_number for seen in older if seen.is_deferred]
            got = await self.lock(inbox, wanted)
            locked = {delivery.sequence_number for delivery in got}
            # Those that are held may lose their locks before they are completed.
            one.has_reason |= any(seen.is_deferred for seen in page)
            one.left += [
                seen.sequence_number
                for seen in older
                if not seen.is_active and seen.sequence_number not in locked
            ]
            if any(seen.is_active for seen in older) and not got:
                one.has_reason = True  # what is behind them is looked at when a receive has brought them
                self._ended(one, None, before_ms)
                return ()
            if not page or any(is_new):
                self._ended(one, one.left, before_ms)
                return got
            one.position = page[-1].sequence_number + 1
            if got:
                return got
        return ()

    def _ended(self, one: _Queue, left: list[int] | None, before_ms: int | None) -> None:
        """A look has come to an end: of the queue, or of what it can tell now."""
        now = self._clock()
        if not left or not one.stays:
            one.stays_since_ms = now
        one.stays, one.position, one.ended_ms = left, 1, now
        if before_ms is not None:
            one.next_ms = now + (ENDING_MS if one.left else 0)
        else:
            one.next_ms = now + (AGAIN_MS if one.has_reason else LOOK_MS)

    def _has_reason(self, one: _Queue) -> None:
        """There may be deferred messages: look as soon as it is allowed."""
        one.has_reason = True
        if one.next_ms is not None:
            one.next_ms = min(one.next_ms, one.ended_ms + AGAIN_MS)

    async def lock(self, inbox: Inbox, numbers: Sequence[int]) -> Sequence[Delivery]:
        """Those of the deferred messages with these numbers that can be locked."""
        if not numbers:
            return ()
        # Some may have a lock that is in the way now, others may lose theirs before they are completed: no receive brings them again.
        self._has_reason(self._queues.setdefault(inbox.queue, _Queue()))
        deliveries = await inbox.receive_deferred(numbers)
        self._counters.received += len(deliveries)
        self._counters.receive_operations += max(1, len(deliveries))
        return deliveries

    def is_all(self, queue: str) -> bool:
        """Whether a drain that should end has done with a queue all that it can."""
        one = self._queues.get(queue)
        if one is None or one.stays is None or one.position != 1:
            return False
        return not one.stays or self._clock() - one.stays_since_ms >= LOCKED_MS

    def check(self) -> None:
        """Say what is left, at the end.

        Raises:
            DrainStalledError: Deferred messages are left.
        """
        left = {queue: one.stays for queue, one in self._queues.items() if one.stays}
        if left:
            raise DrainStalledError(_sentence(left))


def _sentence(left: Mapping[str, Sequence[int]]) -> str:
    """What is left, and the way out."""
    parts = []
    for queue, numbers in sorted(left.items()):
        shown = ", ".join(str(number) for number in numbers[:NUMBERS_SHOWN_MAX])
        more = ", …" if len(numbers) > NUMBERS_SHOWN_MAX else ""
        parts.append(f"{queue}: {len(numbers)} ({shown}{more})")
    return (
        f"everything else is delivered, and deferred or scheduled messages are left in the backlog: {'; '.join(parts)}. Another receiver "
        f"has the deferred ones locked, and has not settled them for {LOCKED_MS // 1000} s: stop it, or let it complete them. Scheduled "
        "ones are not from a paired client, and can be received when they are due. Then run the command again"
    )
