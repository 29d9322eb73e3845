"""Which messages must wait for an older one of their session. No clock, no I/O.

The problem. A drain that receives message 7 of a backlog queue does not know whether message 5, of the same session, is
at its destination, or locked by a drain that was killed, or by one that runs beside this one. Nobody tells. But browsing
shows locked messages too, and a message leaves its queue only after the primary has accepted it, or when it is
dead-lettered. So an older message that cannot be seen and is not held here is done.

What this drain knows about a queue is therefore two things: the number up to which every message is accounted for
(``known_to``), and which of those are in the queue without being held here (``elsewhere``). Numbers that follow each
other need no question. After a gap, and at the start, the queue is browsed once for the numbers that are missing.

Rules:

1. A message in order is sent only when every message before it is accounted for, however it came to this drain, and no
   older one of its destination and session is elsewhere in its queue. Those held here are before it in the plan's own queue.
2. Every message that this drain stops holding without settling it (lock lost, skipped, released) is elsewhere.
3. The oldest message of a session in a queue never waits for another one of that queue: drains cannot block each other.

A message that ``follows`` one of another backlog queue waits for that one too: its session moved while a queue failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from pairbus.pairing.naming import entity_key

ELSEWHERE_MAX: Final = 20_000
"""Messages of one queue that are remembered as being elsewhere; beyond, the drain begins again with this queue."""
HOME_MAX: Final = 10_000
"""Messages of one queue that are remembered as accepted and not yet completed."""

OrderPolicy = Literal["relaxed", "session", "partition"]
Group = tuple[str, str]
"""A destination, and a session or partition key."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A message of a backlog queue as browsing shows it."""

    sequence_number: int
    path: str
    order_key: str | None
    """Its session, or its partition key. None: it has neither, or it is scheduled and not in the order."""
    enqueued_ms: int | None = None
    passport: str = ""
    is_active: bool = True
    """Whether it is neither deferred nor scheduled: whether a receive can bring it."""
    is_deferred: bool = False


class TooManyElsewhere(Exception):
    """Other drains hold so many messages of a queue that this one cannot tell whose turn it is."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def __str__(self) -> str:
        return (
            "more messages are locked by other drains than this one looks through to keep sessions in order; it waits for them. "
            "Fewer drains on one queue avoid that"
        )


def group_of(path: str, order_key: str | None) -> Group | None:
    """The messages among which order is kept; None: a message without a session or partition key has none."""
    return None if order_key is None else (entity_key(path), order_key)


@dataclass(slots=True)
class _Queue:
    known_to: int = 0
    elsewhere: dict[int, Group] = field(default_factory=dict)
    groups: dict[Group, set[int]] = field(default_factory=dict)
    lowest: dict[Group, int] = field(default_factory=dict)
    home: dict[int, None] = field(default_factory=dict)
    """Accepted by the primary, and still in the queue for all we know."""

    def add(self, number: int, group: Group) -> None:
        self.elsewhere[number] = group
        self.groups.setdefault(group, set()).add(number)
        self.lowest[group] = min(number, self.lowest.get(group, number))

    def remove(self, number: int) -> None:
        group = self.elsewhere.pop(number, None)
        if group is None:
            return
        numbers = self.groups[group]
        numbers.discard(number)
        if not numbers:
            del self.groups[group], self.lowest[group]
        elif self.lowest[group] == number:
            self.lowest[group] = min(numbers)


class SessionOrder:
    """What one drain knows about the order of its backlog queues."""

    def __init__(self) -> None:
        self.elsewhere_max = ELSEWHERE_MAX
        self._queues: dict[str, _Queue] = {}

    def _of(self, queue: str) -> _Queue:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = _Queue()
        return found

    # --- what is known about a queue --------------------------------------------------------------------

    def gaps(self, queue: str, numbers: Iterable[int]) -> list[tuple[int, int]]:
        """The stretches of numbers, each from and up to, that nobody has accounted for before those just received."""
        gaps = []
        expected = self._of(queue).known_to + 1
        for number in sorted(numbers):
            if number > expected:
                gaps.append((expected, number))
            expected = max(expected, number + 1)
        return gaps

    def observed(self, queue: str, seen: Iterable[Seen], mine: Collection[int], known_to: int) -> None:
        """Note what browsing showed of the missing numbers; up to ``known_to`` all are accounted for now.

        Raises:
            TooManyElsewhere: More are elsewhere than are remembered.
        """
        found = self._of(queue)
        for one in seen:
            group = group_of(one.path, one.order_key)
            # What the primary has accepted is about to be completed, unless it was deferred: then it must be locked by its number first.
            is_done = one.sequence_number in found.home and not one.is_deferred
            if group is not None and one.sequence_number not in mine and not is_done:
                found.add(one.sequence_number, group)
        found.known_to = max(found.known_to, known_to)
        if len(found.elsewhere) > self.elsewhere_max:
            raise TooManyElsewhere(queue)

    def observed_again(self, queue: str, start: int, end: int, numbers: Collection[int]) -> bool:
        """Note which messages from ``start`` up to ``end`` are still in the queue: the others are done. True: some are."""
        found = self._of(queue)
        gone = [number for number in found.elsewhere if start <= number < end and number not in numbers]
        for number in gone:
            found.remove(number)
        return bool(gone)

    def forget(self, queue: str) -> None:
        """Know nothing about a queue: its link is gone, and with it every lock."""
        found = self._queues.pop(queue, None)
        if found is not None and found.home:
            self._queues[queue] = _Queue(home=found.home)

    # --- what happens to messages -----------------------------------------------------------------------

    def received(self, queue: str, number: int) -> None:
        """A message is held here."""
        self._of(queue).remove(number)

    def left(self, queue: str, number: int, path: str, order_key: str | None) -> None:
        """A message is in its queue and no longer held here; it comes again."""
        group = group_of(path, order_key)
        if group is not None:
            self._of(queue).add(number, group)

    def at_home(self, queue: str, number: int) -> None:
        """The primary has a message."""
        home = self._of(queue).home
        home[number] = None
        while len(home) > HOME_MAX:
            del home[next(iter(home))]

    def settled(self, queue: str, numbers: Iterable[int]) -> None:
        """Messages are no longer in their queue."""
        home = self._of(queue).home
        for number in numbers:
            home.pop(number, None)

    # --- questions ----------------------------------------------------------------------------------------

    def has_elsewhere(self, queue: str) -> bool:
        """Whether messages of a queue are known to be there without being held here."""
        found = self._queues.get(queue)
        return found is not None and bool(found.elsewhere)

    def is_accounted_for(self, queue: str, number: int) -> bool:
        """Whether everything in a queue up to this number is held here, known to be elsewhere, or done."""
        found = self._queues.get(queue)
        return found is not None and number <= found.known_to

    def older(self, queue: str, number: int, path: str, order_key: str | None) -> int | None:
        """The oldest message of the same destination and session that is elsewhere and older than this one."""
        found = self._queues.get(queue)
        if found is None or not found.elsewhere or order_key is None:
            return None
        lowest = found.lowest.get((entity_key(path), order_key))
        return lowest if lowest is not None and lowest < number else None


def missing_after(gaps: Sequence[tuple[int, int]], covered_to: int) -> tuple[int, int] | None:
    """The first stretch of numbers beyond ``covered_to`` that is still to be browsed."""
    for start, end in gaps:
        if end - 1 > covered_to:
            return max(start, covered_to + 1), end
    return None
