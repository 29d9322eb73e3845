"""Looks into backlog queues for older messages of a session, so that no message overtakes them (``order`` decides).

When it looks, and what that costs, one operation of the secondary per page:

- at the start of a queue and after a gap in its sequence numbers, before the messages just received are held: one page of
  one message when nothing is there, however long the queue is;
- while messages wait for older ones that are elsewhere: again after a pause that grows to ``LOOK_MS_MAX``;
- for a message that follows one of another backlog queue: the same, in that queue, and soon after this drain has
  completed the one it waits for. What a look does not find is remembered for other messages that follow the same.

A queue that one drain empties from its first number on costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pairbus.drain.message import BacklogMessage
from pairbus.drain.order import Group, Seen, TooManyElsewhere, group_of, missing_after
from pairbus.drain.plan import DrainPlan
from pairbus.drain.ports import Inbox, Observer
from pairbus.pairing.parking import Follows, Passport
from pairbus.pairing.statistics import Counters
from pairbus.sdk.failures import Failure, classify

PAGE: Final = 250
PAGES_MAX: Final = 80
"""How many pages one look may take: more messages than the windows of twenty drains."""
LOOK_MS_MIN: Final = 200
LOOK_MS_MAX: Final = 5_000
DONE_MAX: Final = 10_000
"""Sessions of which it is remembered what is done in another queue."""
FOLLOW_MS: Final = 300_000
"""How long a message waits for the one of another backlog queue that it follows, while nothing comes from there."""


_Waiting = tuple[BacklogMessage, Follows]
"""A message, and what it follows in another backlog queue."""


@dataclass(slots=True)
class _Pause:
    next_ms: int
    pause_ms: int = LOOK_MS_MIN


class OlderMessages:
    """Keeps a plan informed about what is elsewhere in its backlog queues.

    Args:
        plan: The decisions.
        counters: Where to count.
        clock: A steady clock in milliseconds.
        observer: Called when a message is waited for no longer.
        follow_ms: How long a message of another backlog queue is waited for.
    """

    def __init__(
        self,
        plan: DrainPlan,
        counters: Counters,
        clock: Callable[[], int],
        observer: Observer,
        follow_ms: int = FOLLOW_MS,
    ) -> None:
        self._plan = plan
        self._counters = counters
        self._clock = clock
        self._observer = observer
        self._follow_ms = follow_ms
        self._pauses: dict[str, _Pause] = {}
        self._places: dict[tuple[str, int, Follows], int] = {}
        """Where the first message that another follows was seen last."""
        self._completed_ms: dict[str, int] = {}
        """When this drain last completed a message of each queue."""
        self._newest_ms = 0
        """When the newest message that was received was stored in the backlog."""
        self._done: dict[tuple[Group | None, str, str], tuple[int, int]] = {}
        """Up to which number a client's messages of a session were not in a queue any more, and ``_newest_ms`` then."""

    # --- before messages are held -------------------------------------------------------------------------

    async def account_for(self, inbox: Inbox, messages: Sequence[BacklogMessage]) -> None:
        """Find out which older messages of the queue are elsewhere, where the messages just received leave a gap.

        Raises:
            TooManyElsewhere: More than one look goes through.
        """
        order, queue = self._plan.order, inbox.queue
        if not messages:
            return
        self._recall(messages)
        numbers = {message.sequence_number for message in messages}
        mine = numbers | self._plan.numbers(queue)
        gaps = order.gaps(queue, mine)
        if not gaps:
            order.observed(queue, (), mine, max(numbers))
        elif any(message.is_ordered for message in messages):
            order.observed(queue, await self._browse(inbox, gaps), mine, max(numbers))

    async def _browse(self, inbox: Inbox, gaps: Sequence[tuple[int, int]]) -> list[Seen]:
        """What the queue has in these stretches of numbers; a page may show what is between them too."""
        seen: list[Seen] = []
        covered_to = 0
        count = 1
        for _ in range(PAGES_MAX):
            missing = missing_after(gaps, covered_to)
            if missing is None:
                return seen
            start, end = missing
            page = await self._page(inbox, start, min(count, end - start))
            seen += page
            covered_to = max(start, page[-1].sequence_number) if page else gaps[-1][1]
            count = PAGE
        raise TooManyElsewhere(inbox.queue)

    async def _page(self, inbox: Inbox, start: int, count: int, queue: str | None = None) -> Sequence[Seen]:
        self._counters.receive_operations += 1
        self._counters.order_looks += 1
        return await inbox.browse(start, count, queue)

    def _recall(self, messages: Sequence[BacklogMessage]) -> None:
        """Let messages not wait for what an earlier look did not find: a replay is many messages that follow the same."""
        for message in messages:
            self._newest_ms = max(self._newest_ms, message.enqueued_ms or 0)
            if message.follows:
                message.follows = tuple(one for one in message.follows if not self._is_done(message, one))

    def _is_done(self, message: BacklogMessage, follows: Follows) -> bool:
        group = group_of(message.path, message.order_key)
        number, newest_ms = self._done.get((group, follows.queue, follows.factory), (0, 0))
        # What it follows was stored before it. So the look would have shown it only if it was stored before the look.
        return (
            message.enqueued_ms is not None and message.enqueued_ms <= newest_ms and follows.detour <= number
        )

    def _note_done(self, message: BacklogMessage, follows: Follows, newest_ms: int) -> None:
        own = message.detour
        if not follows.factory or (
            own is not None and own[0] == follows.factory and own[1] <= follows.detour
        ):
            return
        key = group_of(message.path, message.order_key), follows.queue, follows.factory
        if follows.detour >= self._done.get(key, (0, 0))[0]:
            self._done[key] = follows.detour, newest_ms
        while len(self._done) > DONE_MAX:
            del self._done[next(iter(self._done))]

    # --- while messages wait ------------------------------------------------------------------------------

    def seconds_to_look(self, queue: str) -> float | None:
        """When the queue should be looked through again; None: nothing waits for an older message."""
        held_up = self._plan.held_up(queue)
        if not held_up:
            self._pauses.pop(queue, None)
            return None
        pause = self._pauses.get(queue)
        if pause is None:
            pause = self._pauses[queue] = _Pause(self._clock() + LOOK_MS_MIN)
        return max(0.0, (pause.next_ms - self._clock()) / 1000)

    async def look_again(self, inbox: Inbox) -> set[str]:
        """Look whether older messages are done, when it is time for that. Returns destinations to wake."""
        queue = inbox.queue
        if self.seconds_to_look(queue) != 0.0:
            return set()
        held_up = self._plan.held_up(queue)
        await self._look_for(inbox, held_up)
        await self._follow(inbox, [message for message in held_up if message.follows])
        still = {message.sequence_number for message in self._plan.held_up(queue)}
        freed = {message.path for message in held_up if message.sequence_number not in still}
        pause = self._pauses.setdefault(queue, _Pause(0))
        pause.pause_ms = LOOK_MS_MIN if freed else min(pause.pause_ms * 2, LOOK_MS_MAX)
        pause.next_ms = self._clock() + pause.pause_ms
        return freed

    async def _look_for(self, inbox: Inbox, held_up: Iterable[BacklogMessage]) -> None:
        """Look for the oldest message of each session that is waited for."""
        order, queue = self._plan.order, inbox.queue
        wanted = {
            order.older(queue, message.sequence_number, message.path, message.order_key)
            for message in held_up
        }
        numbers = sorted(number for number in wanted if number is not None)
        if not numbers:
            return
        start, end = numbers[0], numbers[-1] + 1
        seen: set[int] = set()
        position = start
        for _ in range(PAGES_MAX):
            page = await self._page(inbox, position, min(PAGE, end - position))
            seen |= {one.sequence_number for one in page}
            position = page[-1].sequence_number + 1 if page else end
            if position >= end:
                break
        order.observed_again(queue, start, min(position, end), seen)

    async def _follow(self, inbox: Inbox, messages: Sequence[BacklogMessage]) -> None:
        """Look into other backlog queues for what these messages follow: once through each queue for all of them."""
        queues: dict[str, list[_Waiting]] = {}
        for message in messages:
            for one in message.follows:
                queues.setdefault(one.queue, []).append((message, one))
        newest_ms = self._newest_ms
        present: set[tuple[str, int, Follows]] = set()
        for queue, waiting in queues.items():
            present |= await self._present(inbox, queue, waiting)
        for message in messages:
            left = [one for one in message.follows if (*message.key, one) in present]
            for one in message.follows:
                if one not in left:
                    self._note_done(message, one, newest_ms)
            if left and self._clock() - self._waits_since_ms(message, left) >= self._follow_ms:
                self._give_up(message, left)
                left = []
            for one in set(message.follows).difference(left):
                self._places.pop((*message.key, one), None)
            message.follows = tuple(left)

        numbers = {message.sequence_number for message in messages}
        for place in [one for one in self._places if one[0] == inbox.queue and one[1] not in numbers]:
            del self._places[place]

    def _waits_since_ms(self, message: BacklogMessage, left: Sequence[Follows]) -> int:
        """Since when nothing was delivered from the queues that a message follows. A long backlog is no reason to give up."""
        return max(message.held_since_ms, *(self._completed_ms.get(one.queue, 0) for one in left))

    def completed(self, queue: str, numbers: Collection[int]) -> set[str]:
        """Messages of a queue are done. Returns the queues of messages that follow them: it is time to look again."""
        now = self._clock()
        self._completed_ms[queue] = now
        queues = {
            waiting
            for (waiting, _, follows), place in self._places.items()
            if follows.queue == queue and place in numbers
        }
        for waiting in queues:
            pause = self._pauses.setdefault(waiting, _Pause(now))
            pause.pause_ms = LOOK_MS_MIN
            pause.next_ms = min(pause.next_ms, now + LOOK_MS_MIN)
        return queues

    def _give_up(self, message: BacklogMessage, left: Sequence[Follows]) -> None:
        queues = ", ".join(one.queue for one in left)
        sentence = (
            f"message {message.sequence_number} of {message.queue} has waited {self._follow_ms // 1000} s for older "
            f"messages of {message.order_key!r} in {queues}: it is delivered now, and they may arrive after it"
        )
        self._observer.order_given_up(message, sentence)

    async def _present(
        self, inbox: Inbox, queue: str, waiting: Sequence[_Waiting]
    ) -> set[tuple[str, int, Follows]]:
        """Which of these messages must go on waiting: what they follow is in that queue, or nobody can tell."""
        everything = {(*message.key, follows) for message, follows in waiting}
        try:
            found = await self._find(inbox, queue, waiting)
        except Exception as error:  # noqa: BLE001 - a queue that does not answer is waited for, as long as allowed
            # With the queue its messages are gone.
            return set() if classify(error) is Failure.NOT_FOUND else everything
        self._places.update(found)
        return set(found)

    async def _find(
        self, inbox: Inbox, queue: str, waiting: Sequence[_Waiting]
    ) -> dict[tuple[str, int, Follows], int]:
        """The number of the first message of a queue that goes before each of these, where there is one."""
        missing: dict[Group | None, list[_Waiting]] = {}
        for message, follows in waiting:
            missing.setdefault(group_of(message.path, message.order_key), []).append((message, follows))
        # What was before the place where it was seen last is done.
        position = min(self._places.get((*message.key, follows), 1) for message, follows in waiting)
        found: dict[tuple[str, int, Follows], int] = {}
        for _ in range(PAGES_MAX):
            page = await self._page(inbox, position, PAGE, queue)
            for seen in page:
                group = group_of(seen.path, seen.order_key)
                for message, follows in list(missing.get(group, ())):
                    if goes_before(seen, message, follows):
                        found[*message.key, follows] = seen.sequence_number
                        missing[group].remove((message, follows))
            if not page or not any(missing.values()):
                return found
            position = page[-1].sequence_number + 1
        raise TooManyElsewhere(queue)


def goes_before(seen: Seen, message: BacklogMessage, follows: Follows) -> bool:
    """Whether a message of the queue that ``message`` follows must be delivered before it."""
    if seen.order_key is None or group_of(seen.path, seen.order_key) != group_of(
        message.path, message.order_key
    ):
        return False
    try:
        passport = Passport.parse(seen.passport)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        passport = None
    own = message.detour
    if passport is not None and own is not None and passport.factory == own[0] and passport.detour >= own[1]:
        # Its own client has sent it later, or it is a copy of this message, left by an attempt without an answer. It may wait
        # for this message: the two would wait for each other.
        return False
    if not follows.factory:
        # Of any client, if it was there before.
        times = seen.enqueued_ms, message.enqueued_ms
        return times[0] is None or times[1] is None or times[0] <= times[1]
    if passport is None:
        return False
    return passport.factory == follows.factory and passport.detour <= follows.detour
