"""What a drain knows about another backlog queue: which of its messages must be delivered before messages of its own. No I/O.

A message of a session that moved between backlog queues says in which queues older messages may be (``Follows``). Often it
names several queues and no client, because its sender did not know. To look each time through all of them would cost more
than the drain itself, so what browsing has shown is kept: the messages of a queue from its start on, as far as it was needed.

Two things keep the answers true and cheap:

1. A message follows only such as were stored before it, and a queue stores in the order of time. So the queue is browsed only
   until messages are younger than the one that asks. Two queues that are drained side by side are browsed page by page.
2. What this drain completes is removed here without a look. What others complete is found out by looking at the place of the
   first message that is waited for: everything before the first message that a page shows is done.

A page that shows a message where none was left means that the queue was deleted and made again. Then nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import Group, Seen, TooManyElsewhere, group_of
from pairbus.pairing.parking import Follows, Passport

ENTRIES_MAX: Final = 50_000
"""Messages of one queue that are remembered."""
NAMED_SLACK_MS: Final = 60_000
"""A message that names the client it follows is exact about it. How far a clock that is set back may be off is not."""


class QueueView:
    """The messages of one backlog queue, from its start, as far as they were looked at."""

    def __init__(self, queue: str, entries_max: int = ENTRIES_MAX) -> None:
        self.queue = queue
        self._entries_max = entries_max
        self._groups: dict[Group, dict[int, Seen]] = {}
        self._group_of: dict[int, Group] = {}
        self._covered_to = 0
        """Every message up to this number is remembered here, or done."""
        self._covered_ms = -1
        """Likewise every message that was stored up to this time."""
        self._ended: Mapping[str, int] = {}
        """When a look last came to the end of the queue: the highest number received of each queue before it, and the time."""
        self._ended_ms = -1
        self._gone: set[int] | None = None
        """What was completed since a page was asked for, which may still show it."""

    # --- what is known ------------------------------------------------------------------------------

    def needs_ms(self, message: BacklogMessage, follows: Follows) -> float | None:
        """Up to which time the queue must be browsed to answer for a message; None: it was browsed far enough."""
        if message.enqueued_ms is None:
            return float("inf")
        number = self._ended.get(message.queue, 0)
        if message.sequence_number <= number and message.enqueued_ms <= self._ended_ms:
            return None
        until_ms = message.enqueued_ms + (NAMED_SLACK_MS if follows.factory else 0)
        return None if until_ms <= self._covered_ms else until_ms

    def first_before(self, message: BacklogMessage, follows: Follows) -> int | None:
        """The number of the first message here that must be delivered before ``message``; None: there is none."""
        group = group_of(message.path, message.order_key)
        if group is None:
            return None
        for number, seen in self._groups.get(group, {}).items():
            if goes_before(seen, message, follows):
                return number
        return None

    @property
    def next_number(self) -> int:
        """Where to browse on. From the start while nothing is remembered: that notices a queue that was made again."""
        return self._covered_to + 1 if self._group_of else 1

    def is_covered(self, until_ms: float) -> bool:
        """Whether messages stored up to this time are known."""
        return until_ms <= self._covered_ms

    # --- what happens -------------------------------------------------------------------------------

    def asking(self) -> None:
        """A page is asked for."""
        self._gone = set()

    def failed(self) -> None:
        """The page that was asked for did not come."""
        self._gone = None

    def answered(self, start: int, page: Sequence[Seen]) -> bool:
        """A page from the number ``start`` on; an empty one: nothing is there. False: the queue is another one by now.

        Raises:
            TooManyElsewhere: More messages wait than are remembered.
        """
        gone, self._gone = self._gone or set(), None
        if not page:
            self.completed([number for number in self._group_of if number >= start])
            return True
        last = page[-1].sequence_number
        shown = {one.sequence_number: one for one in page if one.sequence_number not in gone}
        known = [number for number in self._group_of if start <= number <= last]
        if not all(self._is_expected(one) for one in shown.values()):
            return False
        self.completed(number for number in known if number not in shown)
        for number, one in shown.items():
            group = group_of(one.path, one.order_key)
            if group is not None and number not in self._group_of:
                self._group_of[number] = group
                self._groups.setdefault(group, {})[number] = one
        self._covered_to = max(self._covered_to, last)
        times = [one.enqueued_ms for one in page if one.enqueued_ms is not None]
        if times:
            # Another message of the same millisecond may follow.
            self._covered_ms = max(self._covered_ms, max(times) - 1)
        if len(self._group_of) > self._entries_max:
            raise TooManyElsewhere(self.queue)
        return True

    def ended(self, received: Mapping[str, int], newest_ms: int) -> None:
        """The queue was browsed to its end. ``received``: the highest number of each queue received before, ``newest_ms``: the
        latest time at which one of those was stored."""
        self._ended, self._ended_ms = received, newest_ms

    def starts_with(self, first: Seen | None) -> bool:
        """The first message of the queue; None: it is empty. False: the queue is another one by now."""
        if first is not None and not self._is_expected(first):
            return False
        self.completed([one for one in self._group_of if first is None or one < first.sequence_number])
        return True

    def _is_expected(self, seen: Seen) -> bool:
        """Whether a message that was shown is one that is remembered, or new. No message comes back once it is done."""
        number = seen.sequence_number
        if number > self._covered_to or seen.order_key is None:
            return True
        group = self._group_of.get(number)
        return group is not None and self._groups[group][number] == seen

    def completed(self, numbers: Iterable[int]) -> None:
        """Messages of the queue are done."""
        for number in numbers:
            if self._gone is not None:
                self._gone.add(number)
            group = self._group_of.pop(number, None)
            if group is not None:
                entries = self._groups[group]
                del entries[number]
                if not entries:
                    del self._groups[group]


def goes_before(seen: Seen, message: BacklogMessage, follows: Follows) -> bool:
    """Whether a message of the queue that ``message`` follows must be delivered before it."""
    if seen.order_key is None or group_of(seen.path, seen.order_key) != group_of(
        message.path, message.order_key
    ):
        return False
    detour = _detour_of(seen.passport)
    own = message.detour
    if detour is not None and own is not None and detour[0] == own[0] and detour[1] >= own[1]:
        # Its own client has sent it later, or it is a copy of this message, left by an attempt without an answer. It may wait
        # for this message: the two would wait for each other.
        return False
    if not follows.factory:
        # Of any client, if it was there before.
        times = seen.enqueued_ms, message.enqueued_ms
        return times[0] is None or times[1] is None or times[0] <= times[1]
    return detour is not None and detour[0] == follows.factory and detour[1] <= follows.detour


def followed_by(seen: Seen) -> list[str]:
    """The backlog queues of which messages go before a message that browsing shows."""
    try:
        return [one.queue for one in Passport.parse(seen.passport).follows]
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        return []


@lru_cache(maxsize=10_000)
def _detour_of(passport: str) -> tuple[str, int] | None:
    """The client that parked a message, and its number there. Asked for the same message over and over."""
    try:
        parsed = Passport.parse(passport)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        return None
    return parsed.factory, parsed.detour
