"""Decides what the drain does next with the backlog messages it has locked. No clock, no I/O.

The problem. A backlog queue holds messages for many destinations in the order in which they were parked. A drain locks
them, sends each to its destination in the primary, and completes it in the backlog after the primary has accepted it.
Three things make that harder than a loop:

1. *A destination can be unavailable for hours while others work.* Service Bus hands out messages from the front of a
   queue, so the messages of one broken destination would soon fill everything the drain may lock. Therefore each
   destination has a queue of its own here (``DestinationQueue``), with its own back-off, and at most half of a backlog
   queue's window may be held for destinations that are stalled. Beyond that a message of a stalled destination is
   *skipped*: it stays locked and unsettled until its lock lapses, and the drain reaches the messages behind it. The
   bookkeeping of skipped messages is in ``skip_list``. Skipping delays a message by the length of a lock, so it happens
   only where messages of another, working destination are known to be waiting: the drain browses the queue to find out
   (``browse_after`` and ``observed_behind``).

2. *Order per destination.* A destination has at most one batch in flight. A batch that failed returns to the front of
   its destination's queue. A message is never taken while an older skipped one of the same destination and backlog
   queue has not come back (P14). A message *in order* (of a client with ``order="session"``, or any with a session when
   the operator asked for that) also waits while an older one of its session is, or may be, elsewhere in its backlog queue
   (``order`` knows); messages of other sessions pass it. A batch may have several of a session: it is stored whole, in order.

3. *A failed send does not say what is wrong.* Failures are sorted by ``sdk.failures`` into three groups:
   temporary ones (the destination backs off and is probed with a single message), ``NOT_FOUND`` (dead-letter, or wait
   when the operator asked for that), and refusals of the content. A refused batch is sent again in smaller ones
   (``batch_limit``), so that only the message at fault is dead-lettered and the others go on (P39).

The life of a message here::

    add ──> waiting ──next_batch──> in flight ──send_accepted──> completed by the shell
               ^                       │ ├─found_delivered─────> completed by the shell, without a send
               ├──send_failed (temporary), send_cancelled
               │                       └─send_failed, expired──> dead-lettered by the shell
               ├──lock_lost, drop_queue: forgotten; Service Bus delivers it again
               └──withdraw: its sender cancelled it

``left_locked`` has the words for messages that are in their queue and not held here. Rules:

1. A message is completed only after the primary acknowledged it (P34): ``send_accepted`` returned it, or
   ``found_delivered`` was called because an earlier run's copy was found at the destination.
2. No message is dead-lettered because of a temporary failure (P38).
3. At most ``window`` messages are held per backlog queue, and ``ready_max`` more where others lie behind stalled ones. At most
   ``window`` are left locked because they wait. Nothing here grows without bound.

The module only decides. ``drain.shell`` and ``drain.senders`` perform the I/O and pass the time in. In-process drain,
``pairbus syphon``, Spark task and simulation run this code and that shell: a message meets the same rules everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal

from pairbus.drain.rules.destination_queue import DestinationQueue, SeenDestinations
from pairbus.drain.rules.forbidden_paths import forbidden
from pairbus.drain.rules.message import BacklogMessage, DeadLetter
from pairbus.drain.rules.order import SessionOrder
from pairbus.drain.rules.restoring import EXPIRED
from pairbus.drain.rules.skip_list import LeftWaiting, SkipList
from pairbus.pairing.naming import entity_key
from pairbus.sdk.failures import OF_THE_MESSAGE, Failure

WINDOW: Final = 1_000
"""Messages that one backlog queue may have locked at a time."""
READY_MAX: Final = 300
"""How many of them may wait for available destinations: enough to keep sends going while more is received."""
BACKOFF_MS_MIN: Final = 250
BACKOFF_MS_MAX: Final = 5_000
"""Longest pause between two probes of an unavailable destination."""
THROTTLED_MS: Final = 10_000
SLOW_MS: Final = 5_000
"""A destination that has not answered for this long counts as stalled, as if it were unavailable. So does one that refuses
messages, while others wait for it that long."""
BROWSE_INTERVAL_MS: Final = 30_000
"""How often a queue that is full of stalled messages is browsed for others behind them."""
DESTINATION_NOT_FOUND: Final = "DestinationNotFound"
TOO_LARGE: Final = "TooLargeForDestination"
REFUSED: Final = "RefusedByDestination"
FORBIDDEN_PATH: Final = "ForbiddenPath"

NotFoundPolicy = Literal["dead-letter", "wait"]


class DrainPlan:
    """The messages that one drain holds.

    Args:
        not_found: What to do when a destination does not exist.
        is_blocked: Whether the pairing of this process holds an entity for failed over: then only its pings go
            there (P21).
        window: How many messages a backlog queue may have locked.
        ready_max: How many of them may wait for available destinations.
    """

    def __init__(
        self,
        *,
        not_found: NotFoundPolicy = "dead-letter",
        is_blocked: Callable[[str], bool] = lambda path: False,  # noqa: ARG005 - nothing is blocked by default
        window: int = WINDOW,
        ready_max: int = READY_MAX,
    ) -> None:
        self._not_found = not_found
        self._is_blocked = is_blocked
        self._window = window
        self._ready_max = min(ready_max, window)
        self._half = max(1, window // 2)
        self._held_max = window + self._ready_max
        self._destinations: dict[str, DestinationQueue] = {}
        self._held: dict[str, int] = {}
        self._identities: dict[tuple[str, int, int, str], BacklogMessage] = {}
        self._skip_list = SkipList()
        self._seen = SeenDestinations()
        self._next_browse_ms: dict[str, int] = {}
        self.order = SessionOrder()
        self._highest: dict[str, int] = {}
        """The highest sequence number that was held of each backlog queue."""
        self._browsed_to: dict[str, int] = {}
        self._released: dict[str, dict[int, str]] = {}
        """Messages that were released because their destinations are away, by queue and number."""
        self._left_waiting = LeftWaiting()
        self._with_waiting: set[str] = set()
        """Backlog queues of which messages waited for older ones when somebody last asked."""

    # --- receiving --------------------------------------------------------------------------------

    def capacity(self, queue: str, now: int) -> int:
        """How many more messages of a backlog queue may be received now."""
        may_leave = self._window - self._left_waiting.count(queue, now)
        if self._skip_list.is_paused(queue, now) or may_leave <= 0:
            return 0
        held = self.held(queue)
        stalled = self.stalled(queue, now)
        ready = self._ready_max - (held - stalled)
        released = len(self._released_to(queue))
        has_others = (released or stalled >= self._half) and self._has_others(queue, "", now)
        if released and not has_others:
            return 0  # they would come again, and nothing else
        room = self._window - held
        if has_others and stalled + released >= self._half:
            room = self._held_max - held + sum(1 for _ in self._can_be_left(queue, now))
        return max(0, min(room, ready, may_leave))

    def browse_after(self, queue: str, now: int) -> int | None:
        """The sequence number after which to look for messages that are held up, when it is time for that."""
        released = self._released_to(queue)
        is_full = bool(released) or self.stalled(queue, now) >= self._half
        if not is_full or now < self._next_browse_ms.get(queue, 0):
            return None
        self._next_browse_ms[queue] = now + BROWSE_INTERVAL_MS
        return max((*released, *self.numbers(queue), self._browsed_to.get(queue, 0)))

    def take_to_release(self, queue: str, now: int) -> list[BacklogMessage]:
        """The messages to release instead of renewing their locks: their destination is away.

        Every renewal costs, and one message for each destination is enough to probe it with. While messages for others
        come, they are kept: they would be received again with those.
        """
        released = []
        for key, destination in list(self._destinations.items()):
            if not self._is_away(destination) or self._has_others(queue, key, now):
                continue
            probe = next((one for one in destination.waiting if not self._waits(one)), None)
            for message in list(destination.waiting):
                if message.queue == queue and message is not probe and message.renew_at_ms <= now:
                    self._let_go(key, message)
                    self.note_elsewhere(message)
                    self._released.setdefault(queue, {})[message.sequence_number] = key
                    released.append(message)
        return released

    def _is_away(self, destination: DestinationQueue) -> bool:
        return destination.is_unavailable or self._is_blocked(destination.path)

    def _released_to(self, queue: str) -> dict[int, str]:
        """The messages that were given back to a queue and whose destinations are still away."""
        given = self._released.get(queue)
        if not given:
            return {}
        away = {key for key, destination in self._destinations.items() if self._is_away(destination)}
        given = self._released[queue] = {number: key for number, key in given.items() if key in away}
        return given

    def observed_behind(self, queue: str, paths: Iterable[str], now: int, up_to: int = 0) -> None:
        """Note that messages for these paths are in the queue behind those that are held, up to a sequence number.

        The next look begins behind them: each message is looked at once.
        """
        self._browsed_to[queue] = up_to
        for path in paths:
            self._seen.note(queue, entity_key(path))
            self._seen.reached(entity_key(path), now)

    def should_skip(self, message: BacklogMessage, now: int) -> bool:
        """Whether to leave a message in its queue, its lock to lapse, because its destination is stalled.

        Half of the window stays for other destinations, and every destination keeps at least one message to probe it
        with. A message is skipped only where others wait: it comes back when its lock has lapsed. After an outage of all
        destinations, skipping would only delay each message by a lock.
        """
        key = entity_key(message.path)
        destination = self._destinations.get(key)
        number = message.sequence_number
        is_full = (
            destination is not None
            and self._is_stalled(destination, now)
            and self.stalled(message.queue, now) + len(self._released_to(message.queue)) >= self._half
            and self._has_others(message.queue, key, now)
        )
        self._released.get(message.queue, {}).pop(number, None)
        if destination is not None and is_full:
            destination.was_skipped = True
        if is_full or self._skip_list.must_wait(message.queue, key, number, now):
            self._skip_list.skip(message.queue, key, number, message.locked_until_ms, now)
            self.note_elsewhere(message)
            return True
        if self._is_held_up(message) and (
            self.stalled(message.queue, now) >= self._half or self._left_waiting.has_older(message, now)
        ):
            # Half of the window stays for other sessions, of the same destination too. The place of an older message is
            # not for a younger one, which may wait for it.
            self._leave_waiting(message)
            return True
        self._skip_list.taken(message.queue, number)
        return False

    def youngest_to_leave(self, message: BacklogMessage, now: int) -> BacklogMessage | None:
        """The message to leave in its queue for an older one that waits, or for one that can be sent when too many are held.

        So the drain always holds the oldest waiting messages. One of them can be sent, because a message waits only for
        messages stored before it.
        """
        if not self._is_held_up(message):
            return self._make_room(message, now)
        if self.stalled(message.queue, now) < self._half:
            return None
        younger = (
            one
            for destination in self._destinations.values()
            for one in destination.blocked(self._waits)
            if one.queue == message.queue and one.sequence_number > message.sequence_number
        )
        youngest = max(younger, key=lambda one: one.sequence_number, default=None)
        if youngest is not None:
            self._let_go(entity_key(youngest.path), youngest)
            self._leave_waiting(youngest)
        return youngest

    def _make_room(self, message: BacklogMessage, now: int) -> BacklogMessage | None:
        """Stop holding the youngest stalled message for one that can be sent. Destinations may stall one after the other."""
        queue = message.queue
        own = self._destinations.get(entity_key(message.path))
        if self.held(queue) < self._held_max or (own is not None and self._is_stalled(own, now)):
            return None  # there is room, or this one is skipped itself
        those = self._can_be_left(queue, now)
        destination, youngest = max(those, key=lambda one: one[1].sequence_number, default=(None, None))
        if destination is None or youngest is None:
            return None
        self._let_go(key := entity_key(youngest.path), youngest)
        if not self._is_stalled(destination, now):
            self._leave_waiting(youngest)
            return youngest
        destination.was_skipped = True
        self._skip_list.skip(queue, key, youngest.sequence_number, youngest.locked_until_ms, now)
        self.note_elsewhere(youngest)
        return youngest

    def _can_be_left(self, queue: str, now: int) -> Iterator[tuple[DestinationQueue, BacklogMessage]]:
        """The messages of a queue that may be left there: those that wait, and all but the first of a stalled destination."""
        for destination in self._destinations.values():
            is_stalled = self._is_stalled(destination, now)
            some = destination.waiting[1:] if is_stalled else destination.blocked(self._waits)
            yield from ((destination, message) for message in some if message.queue == queue)

    def take_to_receive_again(self, queue: str, now: int) -> list[int]:
        """The messages that were left in their queue and should come again now: fewer of those that are held wait."""
        if not self._left_waiting.count(queue, now):
            return []
        room = self._half - self.stalled(queue, now)
        if room < max(1, self._half // 2):
            return []  # a few at a time would be released and received over and over
        return self._left_waiting.take(queue, room)

    def _leave_waiting(self, message: BacklogMessage) -> None:
        """Leave a message that waits in its queue, its lock to lapse."""
        self._left_waiting.add(message)
        self.note_elsewhere(message)

    def copy_to_leave(self, message: BacklogMessage) -> BacklogMessage | None:
        """Of two copies of one parked message the one that stays in its queue: this one, unless only the held one must wait."""
        held = self._identities.get(message.identity)
        if held is None:
            return None
        if held.is_in_flight or not self._is_held_up(held) or self._is_held_up(message):
            self.note_elsewhere(message)
            return message
        self.lock_lost(held)  # what it waits for may in turn wait for this one
        return held

    def add(self, message: BacklogMessage) -> DeadLetter | None:
        """Hold a message that was received; a path that no application sends to is dead-lettered instead."""
        reason = forbidden(message.path)
        if reason is not None:
            return DeadLetter(message, FORBIDDEN_PATH, reason)
        key = entity_key(message.path)
        destination = self._destinations.get(key)
        if destination is None:
            destination = self._destinations[key] = DestinationQueue(message.path.strip("/"))
        self._insert(destination.waiting, message)
        if self._waits(message):
            self._with_waiting.add(message.queue)
        self.order.received(message.queue, message.sequence_number)
        self._left_waiting.received(message)
        self._seen.note(message.queue, key)
        self._identities[message.identity] = message
        self._held[message.queue] = self.held(message.queue) + 1
        return None

    def _insert(self, waiting: list[BacklogMessage], message: BacklogMessage) -> None:
        """Put a message at the end, or before the first younger one of its session: it may have come a second time."""
        highest = self._highest.get(message.queue, 0)
        self._highest[message.queue] = max(highest, message.sequence_number)
        if message.is_ordered and message.sequence_number < highest:
            for index, other in enumerate(waiting):
                if other.session == message.session and other.sequence_number > message.sequence_number:
                    waiting.insert(index, message)
                    return
        waiting.append(message)

    def _has_others(self, queue: str, key: str, now: int) -> bool:
        """Whether this queue has, or recently had, messages for another destination that works."""
        for other in self._seen.by(queue):
            destination = self._destinations.get(other)
            is_stalled = (
                self._is_blocked(other) if destination is None else self._is_stalled(destination, now)
            )
            if other == key or is_stalled:
                continue
            if self._seen.is_recent(other, now):
                return True
            if destination is not None and any(
                message.queue == queue and self._waits(message) for message in destination.waiting
            ):
                return True  # they wait for older ones, which the queue still has
        return False

    def _is_stalled(self, destination: DestinationQueue, now: int) -> bool:
        return (
            destination.is_slow(now, SLOW_MS)
            or destination.is_unavailable
            or self._is_blocked(destination.path)
        )

    # --- sending ----------------------------------------------------------------------------------

    def is_waited_for(self, key: str) -> bool:
        """Whether messages for a destination are held."""
        return key in self._destinations

    def next_batch(self, key: str, now: int) -> list[BacklogMessage]:
        """The messages to send to a destination now; none while a batch is in flight or it backs off.

        A destination that was unavailable is probed with one message first. A message that waits for an older one of
        its session stays, and with it the younger ones of that session.
        """
        destination = self._destinations.get(key)
        if destination is None or destination.in_flight or self._is_blocked(destination.path):
            return []
        if destination.is_unavailable and now < destination.retry_ms:
            return []
        return destination.take(self._waits, now)

    def send_accepted(self, key: str) -> list[BacklogMessage]:
        """The primary acknowledged the batch in flight: returns the messages that may be completed now (P34)."""
        destination = self._destinations[key]
        done, destination.in_flight = destination.in_flight, []
        destination.is_unavailable, destination.attempts = False, 0
        destination.limit.accepted(len(done))
        self._seen.reached(key, destination.in_flight_since_ms)
        self._resume_skipping(destination)
        self._forget(key, done)
        return done

    def found_delivered(self, key: str, messages: Sequence[BacklogMessage]) -> None:
        """The destination already has these messages of the batch: they may be completed without a send (P34)."""
        destination = self._destinations[key]
        destination.in_flight = [message for message in destination.in_flight if message not in messages]
        self._forget(key, messages)

    def send_failed(self, key: str, failure: Failure, why: str, now: int) -> list[DeadLetter]:
        """The batch in flight was refused or had no answer. Returns what to dead-letter because of it."""
        destination = self._destinations[key]
        is_final = failure in OF_THE_MESSAGE or (
            failure is Failure.NOT_FOUND and self._not_found == "dead-letter"
        )
        if not is_final:
            self.send_cancelled(key)
            self._back_off(destination, failure, now)
            return []
        if failure is not Failure.NOT_FOUND and len(destination.in_flight) > 1:
            # One of them is at fault. Smaller batches show which, and the others get through (P39).
            destination.limit.refused(len(destination.in_flight))
            self.send_cancelled(key)
            return []
        if failure is Failure.NOT_FOUND:
            destination.is_unavailable = False
            reason = DESTINATION_NOT_FOUND
            text = f"expected entity {destination.path!r} in the primary, found none: {why}"
        else:
            destination.is_unavailable, destination.attempts = False, 0
            destination.limit.refused(1)
            reason = TOO_LARGE if failure is Failure.TOO_LARGE else REFUSED
            text = f"expected {destination.path!r} to accept it, found {failure.value}: {why}"
        failed, destination.in_flight = destination.in_flight, []
        return self._dead_letter(key, failed, reason, text)

    def expired(self, key: str, messages: Sequence[BacklogMessage]) -> list[DeadLetter]:
        """The time to live of these messages of the batch ended while they waited here."""
        destination = self._destinations[key]
        destination.in_flight = [message for message in destination.in_flight if message not in messages]
        text = "expected time left to live, found none after the time in the backlog"
        return self._dead_letter(key, messages, EXPIRED, text)

    def send_cancelled(self, key: str) -> None:
        """The batch in flight ended without an answer; it goes back to the front of its destination's queue."""
        destination = self._destinations.get(key)
        if destination is not None:
            destination.put_back()

    def next_retry_ms(self, key: str) -> int | None:
        """When an unavailable destination is probed again."""
        destination = self._destinations.get(key)
        return destination.retry_ms if destination is not None and destination.is_unavailable else None

    def _back_off(self, destination: DestinationQueue, failure: Failure, now: int) -> None:
        destination.is_unavailable = True
        pause = min(BACKOFF_MS_MIN * 2 ** min(destination.attempts, 10), BACKOFF_MS_MAX)
        destination.attempts += 1
        destination.retry_ms = now + (THROTTLED_MS if failure is Failure.BUSY else pause)

    def _dead_letter(
        self, key: str, messages: Sequence[BacklogMessage], reason: str, text: str
    ) -> list[DeadLetter]:
        self._forget(key, messages)
        return [DeadLetter(message, reason, text) for message in messages]

    # --- locks ------------------------------------------------------------------------------------

    def renewals(self, queue: str, now: int) -> list[BacklogMessage]:
        """The messages of a queue whose locks should be renewed now."""
        return [message for message in self._of(queue) if message.renew_at_ms <= now]

    def next_renewal_ms(self, queue: str) -> int | None:
        """When the first lock of a queue should be renewed."""
        return min((message.renew_at_ms for message in self._of(queue)), default=None)

    def lock_lost(self, message: BacklogMessage) -> bool:
        """A lock is gone and the message will be delivered again. True when it was not in flight and is forgotten."""
        key = entity_key(message.path)
        if not self._let_go(key, message):
            return False
        self.note_elsewhere(message)
        return True

    def note_elsewhere(self, message: BacklogMessage) -> None:
        """A message stays in its backlog queue and is not held here: younger ones of its session wait for it."""
        self.order.left(message.queue, message.sequence_number, message.path, message.order_key)

    def _let_go(self, key: str, message: BacklogMessage) -> bool:
        destination = self._destinations.get(key)
        if destination is None or message not in destination.waiting:
            return False
        destination.waiting.remove(message)
        self._forget(key, [message])
        return True

    def withdraw(self, queue: str, message_id: str, detour: tuple[str, int]) -> BacklogMessage | None:
        """Stop holding a message that is not in flight, because its sender cancelled it.

        Message ids may repeat; ``detour``, the client that parked it and its number there, does not.
        """
        for destination in self._destinations.values():
            for message in destination.waiting:
                is_meant = message.detour is not None and message.detour[:2] == detour
                if is_meant and message.queue == queue and message.message_id == message_id:
                    self._let_go(entity_key(message.path), message)
                    return message
        return None

    def drop_queue(self, queue: str) -> list[BacklogMessage]:
        """Stop holding the messages of a queue, because its receiver is gone or closes. Those in flight stay."""
        dropped = [message for message in self._of(queue) if not message.is_in_flight]
        for message in dropped:
            self._let_go(entity_key(message.path), message)
        self.order.forget(queue)
        self._released.pop(queue, None)
        return dropped

    # --- questions --------------------------------------------------------------------------------

    def held(self, queue: str) -> int:
        """How many messages of a queue are held."""
        return self._held.get(queue, 0)

    def stalled(self, queue: str, now: int) -> int:
        """How many messages of a queue are held for stalled destinations, or wait for an older one of their session."""
        return sum(
            1
            for destination in self._destinations.values()
            for message in (
                destination if self._is_stalled(destination, now) else destination.blocked(self._waits)
            )
            if message.queue == queue
        )

    def note_held_up(self, queue: str) -> list[BacklogMessage]:
        """Note whether messages of a queue wait for an older one of their session. Returns those that do."""
        waiting = [message for message in self._of(queue) if self._waits(message)]
        (self._with_waiting.add if waiting else self._with_waiting.discard)(queue)
        return waiting

    def waits_for_others(self, queue: str) -> int | None:
        """The oldest message elsewhere, when everything that is held of a queue waits for such; None: something does not."""
        held = self.held(queue)
        if not held or not self.order.has_elsewhere(queue):
            return None
        oldest: int | None = None
        for destination in self._destinations.values():
            for message in destination.blocked(self._waits):
                if message.queue != queue:
                    continue
                held -= 1
                older = self._older(message)
                if older is not None:
                    oldest = older if oldest is None else min(oldest, older)
                elif self._waits(message):
                    return None  # it waits for a look, or for another queue, which this drain may be at
        return None if held else oldest

    def drop_waiting(self, queue: str) -> tuple[list[BacklogMessage], list[int]]:
        """Stop holding the messages of a queue. Returns them, and the numbers of those that were left there locked."""
        left = self._left_waiting.drop(queue)
        return self.drop_queue(queue), left

    def numbers(self, queue: str) -> set[int]:
        """The sequence numbers of a queue that are held."""
        return {message.sequence_number for message in self._of(queue)}

    def _waits(self, message: BacklogMessage) -> bool:
        if not message.is_ordered or message.is_in_flight:
            return False
        is_accounted_for = self.order.is_accounted_for(message.queue, message.sequence_number)
        return bool(message.follows) or not is_accounted_for or self._older(message) is not None

    def _is_held_up(self, message: BacklogMessage) -> bool:
        """Whether a message that was received waits, or an older one of its session that is held does."""
        if self._waits(message):
            return True
        destination = self._destinations.get(entity_key(message.path))
        if not message.is_ordered or message.queue not in self._with_waiting or destination is None:
            return False
        return any(
            one.session == message.session and one.sequence_number < message.sequence_number
            for one in destination.blocked(self._waits)
        )

    def _older(self, message: BacklogMessage) -> int | None:
        return self.order.older(message.queue, message.sequence_number, message.path, message.order_key)

    def is_in_flight(self, queue: str) -> bool:
        """Whether messages of a queue are on their way to the primary."""
        return any(message.is_in_flight for message in self._of(queue))

    def oldest_ms(self, queue: str) -> int | None:
        """When the oldest message that is held was stored in the backlog."""
        times = [message.enqueued_ms for message in self._of(queue) if message.enqueued_ms is not None]
        return min(times, default=None)

    def _of(self, queue: str) -> list[BacklogMessage]:
        return [
            message
            for destination in self._destinations.values()
            for message in destination
            if message.queue == queue
        ]

    def _forget(self, key: str, messages: Iterable[BacklogMessage]) -> None:
        for message in messages:
            self._held[message.queue] -= 1
            self._identities.pop(message.identity, None)
        destination = self._destinations[key]
        if not destination.waiting and not destination.in_flight:
            self._resume_skipping(destination)
            del self._destinations[key]

    def _resume_skipping(self, destination: DestinationQueue) -> None:
        self._browsed_to.clear()
        if destination.was_skipped:
            destination.was_skipped = False
            self._skip_list.destination_resumed()
