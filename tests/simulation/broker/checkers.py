"""What clients of a simulated world were told, and what holds the broker to it.

``Ledger`` knows only what went over the wire. ``Inspector`` looks over the engine's shoulder as it decides. Both speak by
raising ``PromiseBroken`` with the number of the promise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.engine.ports import Outbox
from pairbus.model.entity import FOREVER_MS
from pairbus.model.message import ACTIVE, DEFERRED, SCHEDULED

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.engine.namespace import Namespace
    from pairbus.engine.queues.consumer import Consumer, Lock
    from pairbus.engine.queues.queue import Queue
    from pairbus.model.message import Message

PENDING: Final = "pending"
OK: Final = "ok"
FAILED: Final = "failed"
UNKNOWN: Final = "unknown"
LOCK_MS_MAX: Final = 9_000
"""The longest that a lock lasts in these worlds."""


class PromiseBroken(AssertionError):
    """The broker did what it promised not to do."""


class Sent:
    """One message that a client sent, whatever came of it."""

    def __init__(
        self,
        uid: str,
        entity: str,
        body: str,
        destinations: tuple[str, ...],
        scheduled_at: int,
        ttl_ms: int,
        batch: int,
        at: int,
    ) -> None:
        self.uid = uid
        self.entity = entity
        self.body = body
        self.destinations = destinations
        """Where it must turn up if it was accepted."""
        self.scheduled_at = scheduled_at
        self.ttl_ms = ttl_ms
        self.batch = batch
        """0: it was sent alone."""
        self.sent_at = at
        self.heard_at = 0
        self.outcome = PENDING
        self.is_hidden = False
        """It is part of a transaction that nobody has asked to commit yet (B14)."""


class Attempt:
    """One transaction: a message that is completed, and what is sent in its stead."""

    def __init__(self, path: str, uid: str, number: int) -> None:
        self.path = path
        self.uid = uid
        self.number = number
        """Groups what is sent, as a batch's number does: all of it or nothing."""
        self.uids: list[str] = []
        self.commits = False


class Copy:
    """One message in one place: an entity and its dead-letter queue count as one."""

    def __init__(self) -> None:
        self.numbers: dict[int, None] = {}
        self.delivered = 0
        self.is_done = False
        """Somebody asked to complete it, or took it for good."""
        self.is_taken = False
        self.completed_at = -1
        """When a client heard that it is completed; -1: none did."""
        self.emission = -1
        self.emitted_at = 0
        """The latest one in which it was seen; what follows is about that."""
        self.count = 0
        """The delivery count shown, by the entity or by its dead-letter queue, which keeps it."""
        self.life = -1
        self.locked_until = 0
        self.is_settled = True
        """Whoever got it last has asked for some settlement, or its connection ended."""


class Stamp:
    """When and by which life of the broker some bytes were emitted."""

    __slots__ = ("at", "index", "life", "wall")

    def __init__(self, index: int, at: int, wall: int, life: int) -> None:
        self.index = index
        self.at = at
        self.wall = wall
        """By the clock of the broker's machine, whose dates clients get."""
        self.life = life


class Delivered:
    """What a client read in one delivery."""

    __slots__ = ("body", "count", "is_dead", "locked_until", "number", "settled")

    def __init__(
        self, body: str, number: int, count: int, locked_until: int, settled: bool, is_dead: bool
    ) -> None:
        self.body = body
        self.number = number
        self.count = count
        self.locked_until = locked_until
        self.settled = settled
        self.is_dead = is_dead
        """It came from a dead-letter queue."""


class Ledger:
    """Sends, deliveries and settlements as clients saw them."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.copies: dict[tuple[str, str], Copy] = {}
        self.by_number: dict[tuple[str, int], str] = {}
        self.lost_locks: Callable[[str, int, int], bool] = _no_lost_locks
        """Whether a change of settings may have ended the locks of an entity between two instants."""
        self.latest_wall: Callable[[int], int] = int
        """The latest date by which output can have been made that was written at some moment of real time."""
        self.was_set_back: Callable[[int], bool] = bool
        """Whether the clock of the machine was set back since some moment of real time."""
        self.attempts: dict[tuple[str, str], list[Attempt]] = {}
        """Transactions by the message that they complete."""
        self.session_states: dict[tuple[str, str], list[bytes | None]] = {}
        """The values that a session's state may have: one once a write was acknowledged."""
        self._former_states: dict[tuple[str, str, bytes | None], int] = {}
        """Until when a value that was overwritten may have been told."""

    # -- sends ---------------------------------------------------------------------------------

    def told(self, uid: str, outcome: str, at: int) -> None:
        """A client learned what became of a send, or that it never will."""
        sent = self.sent[uid]
        if sent.outcome == OK:
            return  # a second try of a message that was accepted already
        sent.outcome = outcome
        sent.heard_at = at
        if outcome == FAILED:
            self._check_rejected(sent)

    def _check_rejected(self, sent: Sent) -> None:
        for path in sent.destinations:
            if (path, sent.uid) in self.copies:
                raise PromiseBroken(f"B3: {sent.uid} was refused and yet delivered from {path}")

    # -- deliveries ----------------------------------------------------------------------------

    def delivered(self, path: str, seen: Delivered, stamp: Stamp) -> str:
        """A client got a message; its uid."""
        uid = seen.body.partition(":")[0]
        sent = self.sent.get(uid)
        if sent is None or path not in sent.destinations:
            raise PromiseBroken(f"B2: {path} delivered {uid}, which nobody sent there")
        if sent.body != seen.body:
            raise PromiseBroken(f"B2: {uid} came with other bytes than it was sent with")
        if sent.outcome == FAILED:
            raise PromiseBroken(f"B3, B14: {uid} was refused or rolled back and yet delivered from {path}")
        if sent.is_hidden:
            raise PromiseBroken(f"B14: {uid} was delivered from {path} before its transaction was committed")
        copy = self.copies.setdefault((path, uid), Copy())
        self._check_number(path, uid, seen, copy)
        self.locked(f"{uid} of {path}", seen.locked_until, stamp)
        if 0 <= copy.completed_at < stamp.at:
            raise PromiseBroken(f"B5: {uid} was completed and yet delivered again from {path}")
        copy.delivered += 1
        copy.is_done = copy.is_done or seen.settled
        # A lock may have ended before the delivery was written, for output waits: then nobody ever held the message by it.
        is_void = 0 < seen.locked_until <= stamp.wall
        if stamp.index > copy.emission and not is_void:  # else it was overtaken on its way
            self._check_holder(path, uid, seen, copy, stamp)
            copy.emission = stamp.index
            copy.emitted_at = stamp.at
            copy.life = stamp.life
            copy.locked_until = seen.locked_until
            copy.is_settled = seen.settled
            copy.is_taken = seen.settled
            copy.count = seen.count
        return uid

    def locked(self, what: str, until: int, stamp: Stamp) -> None:
        """A client was told until when it holds something: longer than a lock lasts would have it renew too late (B26)."""
        wall = self.latest_wall(stamp.at)
        if until > wall + LOCK_MS_MAX:
            raise PromiseBroken(f"B26: the lock on {what} is announced until {until - wall} ms after now")

    def _check_holder(self, path: str, uid: str, seen: Delivered, copy: Copy, stamp: Stamp) -> None:
        if copy.is_taken:
            raise PromiseBroken(f"B32: {uid} of {path} came again after it was received and deleted")
        is_held = copy.life == stamp.life and not copy.is_settled and stamp.wall < copy.locked_until
        if is_held and self.was_set_back(copy.emitted_at):
            is_held = False  # the lock ends when the broker has counted its length, and its date comes later
        if is_held and not self.lost_locks(path, copy.emitted_at, stamp.at):
            raise PromiseBroken(f"B25: {uid} of {path} was handed out while another one held it")
        if seen.count < copy.count:
            raise PromiseBroken(
                f"B29: {uid} of {path} showed {copy.count} failed deliveries and then {seen.count}"
            )

    def _check_number(self, path: str, uid: str, seen: Delivered, copy: Copy) -> None:
        other = self.by_number.setdefault((path, seen.number), uid)
        if other != uid:
            raise PromiseBroken(f"B19: number {seen.number} of {path} stood for {other} and now for {uid}")
        copy.numbers[seen.number] = None
        if len(copy.numbers) > 1:
            raise PromiseBroken(f"B47: {uid} lies in {path} under the numbers {list(copy.numbers)}")

    def taken(self, path: str, uid: str) -> None:
        """The broker decided to hand out a message for good: what is lost in transfer now is lost (B32)."""
        self.copies.setdefault((path, uid), Copy()).is_done = True

    def freed(self, path: str, uid: str) -> None:
        """The session in which a client held a message has ended for it."""
        self.copies[path, uid].is_settled = True

    def settling(self, path: str, uid: str, completes: bool) -> None:
        """A client asks for a settlement: from now on others may get the message, or nobody."""
        copy = self.copies[path, uid]
        copy.is_settled = True
        copy.is_done = copy.is_done or completes

    def completed(self, path: str, uid: str, at: int) -> None:
        """A client heard that its completion holds."""
        copy = self.copies[path, uid]
        if copy.completed_at < 0:
            copy.completed_at = at

    # -- transactions --------------------------------------------------------------------------

    def attempt(self, path: str, uid: str, number: int) -> Attempt:
        """A client begins a transaction that completes a message."""
        attempt = Attempt(path, uid, number)
        self.attempts.setdefault((path, uid), []).append(attempt)
        return attempt

    def committing(self, attempt: Attempt) -> None:
        """It asks for the commit: from now on all of it may be seen."""
        for uid in attempt.uids:
            self.sent[uid].is_hidden = False
        self.settling(attempt.path, attempt.uid, completes=True)

    def _check_attempts(self) -> None:
        """Of all attempts at one message exactly one came true, and it wholly (B14)."""
        for (path, uid), attempts in self.attempts.items():
            came_true = []
            for attempt in attempts:
                seen = [one for one in attempt.uids if (self.sent[one].entity, one) in self.copies]
                if seen and len(seen) != len(attempt.uids):
                    raise PromiseBroken(f"B14: of a transaction's {attempt.uids} only {seen} were stored")
                if seen:
                    came_true.append(attempt.number)
            if len(came_true) > 1 or (not came_true and self.sent[uid].outcome == OK):
                raise PromiseBroken(f"B14: {uid} of {path} was taken by {len(came_true)} transactions")

    # -- sessions ------------------------------------------------------------------------------

    def state_read(self, path: str, session_id: str, value: bytes | None, stamp: Stamp) -> None:
        """The holder of a session was told its state (B53)."""
        allowed = self.session_states.setdefault((path, session_id), [None])
        if value not in allowed and self._former_states.get((path, session_id, value), -1) < stamp.at:
            raise PromiseBroken(
                f"B53: session {session_id} of {path} has the state {value!r}, allowed are {allowed}"
            )

    def state_writing(self, path: str, session_id: str, value: bytes) -> None:
        """The holder asks to write the state."""
        self.session_states.setdefault((path, session_id), [None]).append(value)

    def state_written(self, path: str, session_id: str, value: bytes, at: int) -> None:
        """The holder heard that its write holds: what was before it does not any more."""
        allowed = self.session_states[path, session_id]
        if value in allowed:
            index = allowed.index(value)
            for former in allowed[:index]:
                self._former_states[path, session_id, former] = at
            self.session_states[path, session_id] = allowed[index:]

    def state_refused(self, path: str, session_id: str, value: bytes) -> None:
        """The holder heard that its write does not hold."""
        self.session_states[path, session_id].remove(value)

    # -- the verdict ---------------------------------------------------------------------------

    def unfinished(self) -> list[tuple[str, str]]:
        """Accepted messages that no client has finished with (B1)."""
        return [
            (path, sent.uid)
            for sent in self.sent.values()
            if sent.outcome == OK
            for path in sent.destinations
            if (path, sent.uid) not in self.copies or not self.copies[path, sent.uid].is_done
        ]

    def check_end(self) -> None:
        """After the final drain."""
        lost = self.unfinished()
        if lost:
            raise PromiseBroken(f"B1: accepted and never finished with: {lost}")
        self._check_attempts()
        self._check_batches()
        self._check_order()

    def _check_batches(self) -> None:
        batches: dict[tuple[int, str], list[str]] = {}
        for sent in self.sent.values():
            if sent.batch:
                for path in sent.destinations:
                    copy = self.copies.get((path, sent.uid))
                    # Handed out for good and never seen: stored, or gone with the life that decided so.
                    found = "no" if copy is None else "yes" if copy.delivered else "perhaps"
                    batches.setdefault((sent.batch, path), []).append(found)
        for (number, path), kinds in batches.items():
            if "yes" in kinds and "no" in kinds:
                raise PromiseBroken(f"B13: of batch {number} only a part was stored in {path}")

    def _check_order(self) -> None:
        """What was sent after another one had been acknowledged has the higher number (B19)."""
        known: dict[str, list[tuple[int, int, int, str]]] = {}
        for sent in self.sent.values():
            if sent.outcome != OK or sent.scheduled_at or sent.destinations != (sent.entity,):
                continue
            copy = self.copies.get((sent.entity, sent.uid))
            if copy is not None and copy.numbers:
                known.setdefault(sent.entity, []).append(
                    (sent.sent_at, sent.heard_at, next(iter(copy.numbers)), sent.uid)
                )
        for entity, sends in known.items():
            for _, heard_at, number, uid in sends:
                for sent_at, _, later, other in sends:
                    if sent_at > heard_at and later < number:
                        raise PromiseBroken(
                            f"B19: {other} of {entity} came after {uid} and has {later} below {number}"
                        )


class Inspector(Outbox):
    """Stands between the engine and its outbox and checks each decision. It changes nothing.

    Args:
        ledger: What clients sent; tells when a message is due.
        read: Gives a message's text.
        decisions: Deliveries by (queue id, number), kept over lives.
        latest_wall: The latest date that the machine's clock has shown since a moment; a clock set back undoes no activation.
    """

    def __init__(
        self,
        outbox: Outbox,
        ledger: Ledger,
        read: Callable[[Message], str],
        queue_of: Callable[[Consumer], Queue],
        decisions: dict[tuple[int, int], int],
        latest_wall: Callable[[int], int],
    ) -> None:
        self._outbox = outbox
        self._ledger = ledger
        self._read = read
        self._queue_of = queue_of
        self._decisions = decisions
        self._latest_wall = latest_wall
        self._locks: dict[tuple[int, int], Lock] = {}
        self.now = 0
        """The instant the engine was given for this burst."""
        self.is_blind = False
        """It checks nothing, so that only what clients see counts."""

    def deliver(self, consumer: Consumer, message: Message, lock: Lock | None) -> None:
        """See Outbox."""
        queue = self._queue_of(consumer)
        uid = self._read(message).partition(":")[0]
        if not self.is_blind:
            self._check(queue, consumer, message, lock, uid)
        if lock is None and uid:
            self._ledger.taken(queue.path.removesuffix("/$DeadLetterQueue"), uid)
        self._outbox.deliver(consumer, message, lock)

    def _check(self, queue: Queue, consumer: Consumer, message: Message, lock: Lock | None, uid: str) -> None:
        key = (queue.queue_id, message.sequence_number)
        self._check_lock(key, lock)
        self._check_times(queue, message, uid)
        # A dead letter keeps the count of its deliveries by the entity, and is counted no more.
        main = (queue.queue_id - queue.queue_id % 4, message.sequence_number)
        decisions = self._decisions.get(main, 0)
        if message.delivery_count > decisions:
            raise PromiseBroken(
                f"B29: {key} shows {message.delivery_count} failed deliveries after {decisions} deliveries"
            )
        if not queue.is_sub_queue and message.delivery_count >= queue.settings.max_delivery_count:
            raise PromiseBroken(f"B30: {key} has failed {message.delivery_count} times already")
        if not queue.is_sub_queue:
            self._decisions[key] = decisions + 1
        if queue.sessions is not None:
            self._check_session(queue, consumer, message)

    def _check_lock(self, key: tuple[int, int], lock: Lock | None) -> None:
        held = self._locks.get(key)
        if held is not None and held.is_held and held is not lock:
            raise PromiseBroken(f"B25: {key} is handed out while a lock on it holds")
        if lock is not None:
            self._locks[key] = lock

    def _check_times(self, queue: Queue, message: Message, uid: str) -> None:
        if message.expires_at and message.expires_at <= self.now and not queue.is_sub_queue:
            raise PromiseBroken(
                f"B41: {message.sequence_number} of {queue.path} expired before this delivery"
            )
        sent = self._ledger.sent.get(uid)
        if sent is not None and sent.is_hidden:
            raise PromiseBroken(f"B14: {uid} is delivered before its transaction was committed")
        if sent is not None and sent.scheduled_at > (wall := self._latest_wall(sent.sent_at)):
            raise PromiseBroken(f"B44: {sent.uid} is delivered {sent.scheduled_at - wall} ms before its time")

    def _check_session(self, queue: Queue, consumer: Consumer, message: Message) -> None:
        session = consumer.session
        if session is None or session.holder is not consumer or session.session_id != message.session_id:
            raise PromiseBroken(
                f"B51: {message.sequence_number} of {queue.path} goes to one who does not hold its session"
            )
        for other in queue.messages.values():
            if other.session_id == message.session_id and other.state == ACTIVE and not other.is_locked:
                if other.sequence_number < message.sequence_number:
                    raise PromiseBroken(
                        f"B22: {message.sequence_number} of {queue.path} overtakes {other.sequence_number}"
                    )

    def session_accepted(self, consumer: Consumer) -> None:
        """See Outbox."""
        session = consumer.session
        if session is None or session.holder is not consumer:
            raise PromiseBroken("B51: a receiver is told that it holds a session which it does not hold")
        self._outbox.session_accepted(consumer)

    def detach(self, consumer: Consumer, condition: str, description: str) -> None:
        """See Outbox."""
        self._outbox.detach(consumer, condition, description)


def check_counts(namespace: Namespace) -> None:
    """Counts and sizes equal an enumeration, and each message is in one place (B7, B66)."""
    sizes: dict[int, int] = {}
    for queue in namespace.all_queues():
        states = [message.state for message in queue.messages.values()]
        counted = (queue.active_count, queue.deferred_count, queue.scheduled_count)
        found = (states.count(ACTIVE), states.count(DEFERRED), states.count(SCHEDULED))
        if counted != found:
            raise PromiseBroken(f"B66: {queue.path} counts {counted} and holds {found}")
        sizes[id(queue.space)] = sizes.get(id(queue.space), 0) + sum(m.size for m in queue.messages.values())
        for number in queue.messages:
            sub = queue.queue_id % 4
            for place in range(sub):
                other = namespace.queue_of(queue.queue_id - sub + place)
                if other is not None and number in other.messages:
                    raise PromiseBroken(f"B7: {number} is in {queue.path} and in {other.path}")
    for queue in namespace.all_queues():
        if queue.space.stored_bytes != sizes[id(queue.space)]:
            raise PromiseBroken(
                f"B66: {queue.path} counts {queue.space.stored_bytes} bytes, not {sizes[id(queue.space)]}"
            )


def check_times(namespace: Namespace, now: int, first_numbers: dict[int, int]) -> None:
    """What this life has stored counts from its own clock, wherever the clocks of earlier lives stood (B41, B49, B65).

    Args:
        namespace: What is stored.
        now: Of this life.
        first_numbers: Queue id to the first sequence number of this life.
    """
    for queue in namespace.all_queues():
        ttl = queue.settings.default_ttl_ms
        if ttl < FOREVER_MS and not queue.is_sub_queue:
            first = first_numbers.get(queue.queue_id, 0)
            for message in queue.messages.values():
                if message.sequence_number >= first and message.expires_at > now + ttl:
                    raise PromiseBroken(
                        f"B41, B65: {message.sequence_number} of {queue.path} may live {message.expires_at - now} ms, not {ttl}"
                    )
        if queue.duplicates is not None:
            ahead = max(queue.duplicates._seen.values(), default=0) - now
            if ahead > 0:
                raise PromiseBroken(f"B49, B65: {queue.path} knows an id {ahead} ms longer than its window")


def memory_of(namespace: Namespace) -> dict[str, object]:
    """What a restart must rebuild, as plain values."""
    return {
        queue.path: (
            queue.numbers.next_sequence_number,
            [
                (m.sequence_number, m.enqueued_at, m.expires_at, m.session_id, m.state, m.delivery_count)
                for m in sorted(queue.messages.values(), key=_number_of)
            ],
            {}
            if queue.sessions is None
            else {s.session_id: s.state for s in queue.sessions.sessions.values() if s.state is not None},
        )
        for queue in namespace.all_queues()
    }


def _no_lost_locks(_path: str, _begin: int, _end: int) -> bool:
    return False


def _number_of(message: Message) -> int:
    return message.sequence_number
