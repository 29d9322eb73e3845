"""Looks into backlog queues for older messages of a session, so that no message overtakes them (``order`` decides).

When it looks, and what that costs, one operation of the secondary per page:

- at the start of a queue and after a gap in its sequence numbers, before the messages just received are held: one page of
  one message when nothing is there, however long the queue is;
- while messages wait for older ones that are elsewhere: again after a pause that grows to ``LOOK_MS_MAX``;
- for messages that follow some of other backlog queues: a page of such a queue at a time, until its messages are younger
  than those that wait. What it showed is remembered (``queue_view``), and what this drain completes there needs no look.

A queue that one drain empties from its first number on costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pairbus.drain.lookups.queue_view import ENTRIES_MAX, QueueView, followed_by
from pairbus.drain.ports import Inbox, Observer
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import Seen, TooManyElsewhere, missing_after
from pairbus.drain.rules.plan import DrainPlan
from pairbus.drain.rules.skip_list import SKIPPED_MAX
from pairbus.drain.rules.unserved import UnservedQueues
from pairbus.pairing.parking import Follows
from pairbus.pairing.statistics import Counters
from pairbus.sdk.failures import Failure, classify

PAGE: Final = 250
PAGES_MAX: Final = 80
"""How many pages one look may take: more messages than the windows of twenty drains."""
BEHIND_PAGES: Final = SKIPPED_MAX // PAGE
"""How many pages one look for messages of other destinations takes."""
LOOK_MS_MIN: Final = 200
LOOK_MS_MAX: Final = 5_000
DEFERRED_MAX: Final = 100
"""Deferred messages that are asked for at once. A later look shows the others again."""
FRESH_MS: Final = 100
"""What was browsed is not browsed again before this time has passed."""
FOLLOW_MS: Final = 300_000
"""How long a message waits for the one of another backlog queue that it follows, while nothing comes from there."""


_Waiting = tuple[BacklogMessage, Follows]
"""A message, and what it follows in another backlog queue."""
_Place = tuple[str, int, Follows]
"""Queue and number of a message, and what it follows."""


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
        misses: Whether the drain does not have a backlog queue that is waited for.
    """

    def __init__(
        self,
        plan: DrainPlan,
        counters: Counters,
        clock: Callable[[], int],
        observer: Observer,
        follow_ms: int = FOLLOW_MS,
        misses: Callable[[str], bool] = lambda queue: False,  # noqa: ARG005 - it has all by default
    ) -> None:
        self._plan = plan
        self._counters = counters
        self._clock = clock
        self._observer = observer
        self._follow_ms = follow_ms
        self._misses = misses
        self._page_max, self._pages_max, self._entries_max = PAGE, PAGES_MAX, ENTRIES_MAX
        self._unserved = UnservedQueues()
        self._pauses: dict[str, _Pause] = {}
        self._views: dict[str, QueueView] = {}
        """What is known about the queues that messages follow."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._places: dict[_Place, int] = {}
        """The first message that another one waits for; 0: nobody can tell yet."""
        self._freed: set[str] = set()
        """Queues with messages of which some may wait no longer."""
        self._completed_ms: dict[str, int] = {}
        """When this drain last completed a message of each queue."""
        self._newest_ms = 0
        """When the newest message that was received was stored in the backlog."""
        self._browsed_ms: dict[str, int] = {}
        """When each queue was last browsed for older messages."""
        self._received_to: dict[str, int] = {}
        """The highest number of each queue that was received."""
        self._deferred: dict[str, set[int]] = {}
        """Messages of each queue that looks have shown and that somebody deferred."""
        self._drained: set[str] = set()
        """The queues of which this drain can lock messages."""

    # --- before messages are held -------------------------------------------------------------------------

    async def account_for(self, inbox: Inbox, messages: Sequence[BacklogMessage]) -> None:
        """Find out which older messages of the queue are elsewhere, where these messages leave a gap. Those behind it wait till then.

        Raises:
            TooManyElsewhere: More than one look goes through.
        """
        order, queue = self._plan.order, inbox.queue
        if not messages:
            return
        numbers = {message.sequence_number for message in messages}
        mine = numbers | self._plan.numbers(queue)
        gaps = order.gaps(queue, mine)
        if not gaps:
            order.observed(queue, (), mine, max(numbers))
        elif any(message.is_ordered for message in messages):
            order.observed(queue, await self._browse(inbox, gaps), mine, max(numbers))
            self._deferred.get(queue, set()).difference_update(mine)
            self._browsed_ms[queue] = self._clock()
        self._received_to[queue] = max(*numbers, self._received_to.get(queue, 0))
        self._newest_ms = max(self._newest_ms, *(message.enqueued_ms or 0 for message in messages))
        await self._follow(inbox, [message for message in messages if message.follows], again=False)

    async def _browse(self, inbox: Inbox, gaps: Sequence[tuple[int, int]]) -> list[Seen]:
        """What the queue has in these stretches of numbers; a page may show what is between them too."""
        seen: list[Seen] = []
        covered_to = 0
        count = 1
        for _ in range(self._pages_max):
            missing = missing_after(gaps, covered_to)
            if missing is None:
                return seen
            start, _ = missing
            # Own messages between the gaps are shown too: a page for each gap would be far more pages.
            page = await self._page(inbox, start, min(count, gaps[-1][1] - start))
            seen += page
            covered_to = max(start, page[-1].sequence_number) if page else gaps[-1][1]
            count = self._page_max
        raise TooManyElsewhere(inbox.queue)

    async def _page(self, inbox: Inbox, start: int, count: int, queue: str | None = None) -> Sequence[Seen]:
        self._counters.receive_operations += 1
        self._counters.order_looks += 1
        page = await inbox.browse(start, count, queue)
        shown = {one.sequence_number for one in page if one.is_deferred}
        if shown and (queue is None or queue in self._drained):
            self._deferred.setdefault(queue or inbox.queue, set()).update(shown)
        return page

    def take_deferred(self, queue: str) -> list[int]:
        """Deferred messages that looks have shown since the last call, oldest first, but for those that are held."""
        self._drained.add(queue)
        shown = self._deferred.pop(queue, None)
        return sorted(shown - self._plan.numbers(queue))[:DEFERRED_MAX] if shown else []

    async def browse_behind(self, inbox: Inbox) -> None:
        """Look whether stalled messages hold up others, before any more are locked."""
        after = self._plan.browse_after(inbox.queue, self._clock())
        for _ in range(0 if after is None else BEHIND_PAGES):
            assert after is not None
            self._counters.receive_operations += 1
            page = await inbox.browse(after + 1, PAGE)
            after = page[-1].sequence_number if page else after
            paths = {one.path for one in page if one.path}
            self._plan.observed_behind(inbox.queue, paths, self._clock(), after)
            if len(page) < PAGE:
                return

    # --- while messages wait ------------------------------------------------------------------------------

    def seconds_to_look(self, queue: str) -> float | None:
        """When the queue should be looked through again; None: nothing waits for an older message."""
        held_up = self._plan.note_held_up(queue)
        if not held_up:
            self._freed.discard(queue)
            if self._pauses.pop(queue, None) is not None:
                self._forget_places(queue, ())
            return None
        pause = self._pauses.get(queue)
        if pause is None:
            pause = self._pauses[queue] = _Pause(self._clock() + LOOK_MS_MIN)
        return 0.0 if queue in self._freed else max(0.0, (pause.next_ms - self._clock()) / 1000)

    async def look_again(self, inbox: Inbox, *, at_once: bool = False) -> set[str]:
        """Look whether older messages are done, when it is time for that. Returns destinations to wake.

        ``at_once``: do not wait for the time, unless what is known is from just now.
        """
        queue = inbox.queue
        at_once = at_once and self._clock() - self._browsed_ms.get(queue, -FRESH_MS) >= FRESH_MS
        if self.seconds_to_look(queue) != 0.0 and not at_once:
            return set()
        self._freed.discard(queue)
        held_up = self._plan.note_held_up(queue)
        pause = self._pauses.setdefault(queue, _Pause(0))
        is_due = at_once or pause.next_ms <= self._clock()
        if is_due:
            order = self._plan.order
            unknown = [one for one in held_up if not order.is_accounted_for(queue, one.sequence_number)]
            await self.account_for(inbox, unknown)
        is_moving = is_due and await self._look_for(inbox, held_up)
        followers = [message for message in held_up if message.follows]
        self._forget_places(queue, {message.sequence_number for message in followers})
        await self._follow(inbox, followers, again=is_due)
        self._say_what_nobody_drains(queue, followers)
        still = {message.sequence_number for message in self._plan.note_held_up(queue)}
        freed = {message.path for message in held_up if message.sequence_number not in still}
        if freed or is_moving:
            pause.pause_ms = LOOK_MS_MIN
        elif is_due:
            pause.pause_ms = min(pause.pause_ms * 2, LOOK_MS_MAX)
        if freed or is_due:
            pause.next_ms = self._clock() + pause.pause_ms
        return freed

    def _say_what_nobody_drains(self, queue: str, followers: Sequence[BacklogMessage]) -> None:
        waits: dict[str, tuple[int, int]] = {}
        for message in followers:
            for one in message.follows:
                if self._misses(one.queue):
                    number = self._places.get((*message.key, one), 0)
                    waits.setdefault(one.queue, (message.sequence_number, number))
        for sentence in self._unserved.sentences(queue, waits, self._clock()):
            self._observer.waits(queue, sentence)

    async def what_follows(self, inbox: Inbox, number: int) -> str:
        """A sentence about a message that another drain has, when it may wait for other backlog queues itself; else empty."""
        page = await self._page(inbox, number, 1)
        queues = followed_by(page[0]) if page and page[0].sequence_number == number else []
        if not queues:
            return ""
        missed = [queue for queue in queues if self._misses(queue)]
        text = f". Message {number} itself follows messages in {', '.join(queues)}"
        return text + (f"; this drain does not drain {', '.join(missed)}" if missed else "")

    def _forget_places(self, queue: str, numbers: Collection[int]) -> None:
        """Keep only the places of these messages of a queue."""
        for place in [one for one in self._places if one[0] == queue and one[1] not in numbers]:
            del self._places[place]

    async def _look_for(self, inbox: Inbox, held_up: Sequence[BacklogMessage]) -> bool:
        """Find out for each session that waits which of its older messages is the first that is still there.

        Returns whether any is gone. A page shows everything up to its last message, so that one look passes all that
        other drains have delivered meanwhile. Pages go on where the first message of a session is not known yet.
        """
        order, queue = self._plan.order, inbox.queue
        end = max((message.sequence_number for message in held_up), default=0)
        seen: set[int] = set()
        position, is_moving = 0, False
        for _ in range(self._pages_max):
            first = min((one for one in self._first_older(queue, held_up) if one >= position), default=None)
            if first is None:
                break
            page = await self._page(inbox, first, min(self._page_max, end - first))
            seen |= {one.sequence_number for one in page}
            position = page[-1].sequence_number + 1 if page else end
            is_moving |= order.observed_again(queue, first, min(position, end), seen)
        self._browsed_ms[queue] = self._clock()
        return is_moving

    def _first_older(self, queue: str, held_up: Iterable[BacklogMessage]) -> set[int]:
        """The first message of each session that is waited for."""
        older = (
            self._plan.order.older(queue, message.sequence_number, message.path, message.order_key)
            for message in held_up
        )
        return {number for number in older if number is not None}

    async def _follow(self, inbox: Inbox, messages: Sequence[BacklogMessage], *, again: bool) -> None:
        """Let messages wait no longer for what is not in other backlog queues. ``again``: look at what they waited for."""
        queues: dict[str, list[_Waiting]] = {}
        for message in messages:
            for one in message.follows:
                queues.setdefault(one.queue, []).append((message, one))
                self._misses(one.queue)
        present: dict[_Place, int] = {}
        for queue, waiting in queues.items():
            present |= await self._present(inbox, queue, waiting, again=again)
        for message in messages:
            left = [one for one in message.follows if (*message.key, one) in present]
            if left and self._clock() - self._waits_since_ms(message, left) >= self._follow_ms:
                self._give_up(message, left)
                left = []
            for one in set(message.follows).difference(left):
                self._places.pop((*message.key, one), None)
            message.follows = tuple(left)
            self._places.update({(*message.key, one): present[*message.key, one] for one in left})

    async def _present(
        self, inbox: Inbox, queue: str, waiting: Sequence[_Waiting], *, again: bool
    ) -> dict[_Place, int]:
        """Which of these messages must go on waiting, each with the number it waits for; 0: nobody can tell."""
        try:
            async with self._locks.setdefault(queue, asyncio.Lock()):
                await self._browse_on(inbox, queue, waiting)
                first = min((number for number in self._first(queue, waiting).values() if number), default=0)
                if again and first:
                    await self._view_page(inbox, queue, first)
        except TooManyElsewhere:
            self._views.pop(queue, None)
        except Exception as error:  # noqa: BLE001 - a queue that does not answer is waited for, as long as allowed
            if classify(error) is Failure.NOT_FOUND:
                # With the queue its messages are gone.
                self._views.pop(queue, None)
                return {}
        return self._first(queue, waiting)

    def _first(self, queue: str, waiting: Sequence[_Waiting]) -> dict[_Place, int]:
        """For each message that must wait the number of the first one that goes before it, as far as the queue is known."""
        view = self._view(queue)
        found = {}
        for message, follows in waiting:
            number = view.first_before(message, follows)
            if number is not None or view.needs_ms(message, follows) is not None:
                found[*message.key, follows] = number or 0
        return found

    async def _browse_on(self, inbox: Inbox, queue: str, waiting: Sequence[_Waiting]) -> None:
        """Get to know a queue as far as it takes to answer for these messages."""
        needs = (self._view(queue).needs_ms(message, follows) for message, follows in waiting)
        until_ms = max((one for one in needs if one is not None), default=None)
        if until_ms is None:
            return
        received, newest_ms = dict(self._received_to), self._newest_ms
        is_from_start = False
        for _ in range(self._pages_max):
            view = self._view(queue)
            if view.is_covered(until_ms):
                return
            start = view.next_number
            is_from_start = is_from_start or start == 1
            if await self._view_page(inbox, queue, start):
                continue
            if not is_from_start:
                first = await self._page(inbox, 1, 1, queue)
                if not view.starts_with(first[0] if first else None):
                    self._views[queue] = QueueView(queue, self._entries_max)
                    continue
            view.ended(received, newest_ms)
            return

    async def _view_page(self, inbox: Inbox, queue: str, start: int) -> Sequence[Seen]:
        view = self._view(queue)
        view.asking()
        try:
            page = await self._page(inbox, start, self._page_max, queue)
        except BaseException:
            view.failed()
            raise
        if not view.answered(start, page):
            self._views[queue] = QueueView(queue, self._entries_max)
        return page

    def _view(self, queue: str) -> QueueView:
        view = self._views.get(queue)
        if view is None:
            view = self._views[queue] = QueueView(queue, self._entries_max)
        return view

    def _waits_since_ms(self, message: BacklogMessage, left: Sequence[Follows]) -> int:
        """Since when nothing was delivered from the queues that a message follows. A long backlog is no reason to give up."""
        return max(message.held_since_ms, *(self._completed_ms.get(one.queue, 0) for one in left))

    def completed(self, queue: str, numbers: Collection[int]) -> set[str]:
        """Messages of a queue are done. Returns the queues of messages that follow them: it is time to look again."""
        self._completed_ms[queue] = self._clock()
        view = self._views.get(queue)
        if view is not None:
            view.completed(numbers)
        waiting = {
            place[0]
            for place, number in self._places.items()
            if place[2].queue == queue and number in numbers
        }
        self._freed |= waiting
        return waiting

    def _give_up(self, message: BacklogMessage, left: Sequence[Follows]) -> None:
        queues = ", ".join(one.queue for one in left)
        sentence = (
            f"message {message.sequence_number} of {message.queue} has waited {self._follow_ms // 1000} s for older "
            f"messages of {message.order_key!r} in {queues}: it is delivered now, and they may arrive after it"
        )
        self._observer.order_given_up(message, sentence)
