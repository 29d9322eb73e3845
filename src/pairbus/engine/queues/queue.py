"""One queue as a state machine: sends in, deliveries out, locks between.

Rule 1: no clock, no randomness, no I/O. Time arrives as ``now``; lock tokens follow from a seed (``tokens``).
Rule 2: a command checks everything before it changes anything, so a refusal leaves no trace.
Rule 3: every change is a record: ``record`` appends it to the log and folds it (``state``).
Rule 4: nothing here iterates over a set. The same commands give the same records.

Locks live in memory only: a restart ends them, as the end of a connection would. The delivery count rises when a delivery ends without
the message having been dealt with (abandon, defer, lock expiry), and that is recorded. In a dead-letter queue it stays as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.layout import header_size
from pairbus.engine.context import DUE_BURST_MAX, FETCH_BYTES_MAX, FETCH_MESSAGES_MAX
from pairbus.engine.queues import due
from pairbus.engine.queues.consumer import Consumer, Lock, prefer_another
from pairbus.engine.queues.state import QueueState
from pairbus.engine.records import (
    DeliveryFailed,
    DuplicateSeen,
    MessageDeferred,
    MessageMoved,
    MessageRemoved,
    MessageStored,
)
from pairbus.engine.rules.sql.nodes import PUBLISH_STEPS_MAX
from pairbus.engine.sessions import operations as session_ops
from pairbus.errors import (
    ArgumentError,
    EntityDisabled,
    HeaderTooLarge,
    MessageLockLost,
    MessageTooLarge,
    NotAllowed,
    QuotaExceeded,
    SessionLockLost,
)
from pairbus.model.entity import FOREVER_MS
from pairbus.model.message import (
    ACTIVE,
    HEADER_BYTES_MAX,
    MESSAGE_ID_CHARACTERS_MAX,
    NEVER,
    SCHEDULED,
    Extra,
    Message,
)

if TYPE_CHECKING:
    from pairbus.amqp.message.scan import Scanned
    from pairbus.engine.context import Context, Numbers, Space
    from pairbus.engine.ports import ReadAhead, Relay
    from pairbus.engine.queues.ready import Ready
    from pairbus.engine.sessions.table import Session
    from pairbus.model.entity import Settings

ID_LENGTH_MAX: Final = session_ops.SESSION_ID_MAX
"""Characters in a session id or partition key."""
DEAD_LETTER_TEXT_MAX: Final = 4_096
RELAY_BURST_MAX: Final = 500
"""Messages forwarded by one queue in one turn."""

REASON_MAX_DELIVERY_COUNT: Final = "MaxDeliveryCountExceeded"
REASON_EXPIRED: Final = "TTLExpiredException"
EXPIRED: Final = "expired"


class Queue(QueueState):
    """A place that messages are sent to and received from."""

    __slots__ = ("dead_letter_queue", "relay")

    def __init__(
        self,
        context: Context,
        queue_id: int,
        path: str,
        settings: Settings,
        numbers: Numbers,
        space: Space,
        is_sub_queue: bool,
    ) -> None:
        super().__init__(context, queue_id, path, settings, numbers, space, is_sub_queue)
        self.dead_letter_queue: Queue | None = None
        self.relay: Relay | None = None
        """Takes what becomes deliverable here somewhere else: auto-forwarding, or a topic's fan-out."""

    # -- sends ---------------------------------------------------------------------------------

    def check_send(self, incoming: Scanned, more_bytes: int) -> None:
        """Refuse what could not be stored after ``more_bytes`` of the same batch. Changes nothing."""
        self._check_size(incoming)
        session_id = incoming.session_id
        if self.sessions is not None and session_id is None and not incoming.is_ping:
            raise NotAllowed(
                "The SessionId was not set on a message, and it cannot be sent to the entity. Entities that have "
                "session support enabled can only receive messages that have the SessionId set to a valid value."
            )
        if session_id is not None and len(session_id) > ID_LENGTH_MAX:
            raise ArgumentError(
                f"The session id has {len(session_id)} characters: at most {ID_LENGTH_MAX} are allowed."
            )
        partition_key = incoming.partition_key
        if partition_key is not None:
            if len(partition_key) > ID_LENGTH_MAX:
                raise ArgumentError(
                    f"The partition key is too long: at most {ID_LENGTH_MAX} characters are allowed."
                )
            if session_id and partition_key != session_id:
                raise ArgumentError(
                    "The partition key differs from the session id: when both are set they must be equal."
                )
        self._check_room(incoming, more_bytes)

    def check_transfer(self, incoming: Scanned, more_bytes: int) -> None:
        """Refuse what could not pass through here on its way to another entity. What the message says of sessions and
        partitions is for that entity to judge. Changes nothing.
        """
        self._check_size(incoming)
        self._check_room(incoming, more_bytes)

    def _check_size(self, incoming: Scanned) -> None:
        settings = self.settings
        if not settings.can_send:
            raise EntityDisabled(self.path, "send")
        if incoming.size > settings.max_message_kb * 1024:
            raise MessageTooLarge(incoming.size, settings.max_message_kb * 1024)
        if incoming.message_id_length > MESSAGE_ID_CHARACTERS_MAX:
            raise ArgumentError(
                f"The message id has {incoming.message_id_length} characters: at most {MESSAGE_ID_CHARACTERS_MAX} are allowed."
            )
        if incoming.size > HEADER_BYTES_MAX and (header := header_size(incoming.blob)) > HEADER_BYTES_MAX:
            raise HeaderTooLarge(
                f"The properties and annotations of the message have {header} bytes: at most {HEADER_BYTES_MAX} are allowed "
                "beside the body. Put what is long into the body."
            )

    def _check_room(self, incoming: Scanned, more_bytes: int) -> None:
        settings = self.settings
        size = len(incoming.blob)
        if incoming.is_ping:
            # A ping stands for any message that might follow it, so it must not pass where one would be refused.
            size = settings.max_message_kb * 1024
        if self.space.stored_bytes + more_bytes + size > settings.max_size_mb * 1_048_576:
            raise QuotaExceeded(
                f"The maximum entity size of {settings.max_size_mb} MB has been reached or exceeded for '{self.path}'."
            )
        if not self.context.log.has_room(more_bytes + size):
            raise self.context.no_room(f"a message to '{self.path}'")

    def send(self, incoming: Scanned, now: int, extra: Extra | None = None) -> int:
        """Store one message (``check_send`` has passed). Its sequence number; 0 if nothing was stored.

        ``extra``: what a message that comes from another entity brings with it.
        """
        numbers = self.numbers
        numbers.accessed_at = now
        if incoming.is_ping:
            return 0  # answered like any send, and never seen again (P23)
        key = incoming.message_id if self.duplicates is not None else b""
        enqueued_at = now if now > numbers.last_enqueued_at else numbers.last_enqueued_at
        if (
            key
            and self.duplicates is not None
            and self.duplicates.holds(key, now, self.settings.duplicate_window_ms)
        ):
            return 0
        if key and enqueued_at > now:
            # The clock was set back before this life: the window counts from now, as the time to live does.
            self.record(DuplicateSeen(self.queue_id, key, now))
            key = b""
        number = numbers.next_sequence_number
        # The session id counts only where sessions are required (B52); elsewhere it is just a property.
        session_id = incoming.session_id if self.sessions is not None else None
        if incoming.scheduled_at and self.context.is_ahead(incoming.scheduled_at, now):
            message = Message(number, enqueued_at, NEVER, len(incoming.blob), session_id)
            message.state = SCHEDULED
            message.extra = extra or Extra()
            message.extra.scheduled_at = incoming.scheduled_at
            message.extra.ttl_ms = incoming.ttl_ms
        else:
            expires_at = self.expiry(incoming.ttl_ms, now)
            message = Message(number, enqueued_at, expires_at, len(incoming.blob), session_id)
            message.extra = extra
        self.record(MessageStored(self.queue_id, message, incoming.blob, key))
        return number

    def store(self, message: Message, blob: bytes) -> None:
        self.record(MessageStored(self.queue_id, message, blob, b""))

    def expiry(self, ttl_ms: int, now: int) -> int:
        """When a message enqueued now expires: after the shorter of its own and the entity's time to live. Counted from now (B20)."""
        default = self.settings.default_ttl_ms
        ttl = default if not ttl_ms or ttl_ms > default else ttl_ms
        return NEVER if ttl >= FOREVER_MS else now + ttl

    # -- consumers and deliveries --------------------------------------------------------------

    def attach(self, consumer: Consumer, now: int) -> None:
        """A receiver without a session begins. Sessions are accepted through ``accept``."""
        self.check_receive()
        if self.sessions is not None:
            raise NotAllowed(
                "It is not possible for an entity that requires sessions to create a non-sessionful message receiver."
            )
        self.numbers.accessed_at = now
        consumer.is_attached = True
        self.receiver_count += 1

    def detach(self, consumer: Consumer, now: int) -> None:
        """A receiver ends. Its locks last until they expire and can be settled elsewhere; a session is given up."""
        self.numbers.accessed_at = now
        if consumer.is_attached and self.sessions is None:
            self.receiver_count -= 1
        consumer.is_attached = False
        consumer.credit = 0
        if self.sessions is not None:
            session_ops.give_up(self, consumer, now)
            return
        if consumer.in_rotation:
            self.rotation.remove(consumer)
            consumer.in_rotation = False
        if self.rotation and self.receiver_count == 1:
            self.context.dirty[self.queue_id] = None  # the last one may be silent: alone, it takes everything

    def check_receive(self) -> None:
        """Refuse receiving from an entity that is disabled for it, or that forwards everything."""
        if not self.settings.can_receive:
            raise EntityDisabled(self.path, "receive")
        if self.relay is not None:
            raise NotAllowed(f"'{self.path}' passes its messages on: receive where they go.")

    def set_credit(self, consumer: Consumer, credit: int) -> None:
        """A receiver says how many deliveries it will take from now on."""
        consumer.credit = credit
        if self.sessions is not None:
            if consumer.session is not None:
                self.sessions.wake(consumer.session)
        elif credit > 0 and not consumer.in_rotation and consumer.is_attached:
            consumer.in_rotation = True
            self.rotation.append(consumer)
        self.context.dirty[self.queue_id] = None

    def deliver(self, now: int) -> None:
        """Hand out what is ready to those who have credit, one each in turn."""
        self.is_fetching = False
        if self.relay is not None:
            self._relay_ready(now)
            return
        if self.sessions is not None:
            self._deliver_sessions(now)
            return
        rotation, ready, ahead = self.rotation, self.ready, self.context.read_ahead
        expired = 0
        while rotation:
            consumer = rotation[0]
            if consumer.credit <= 0 or consumer.is_suspended or not consumer.is_attached:
                rotation.popleft()
                consumer.in_rotation = False
                continue
            message = ready.first()
            if message is None:
                return
            if message.expires_at and message.expires_at <= now and not self.is_sub_queue:
                self.expire(message, now)
                expired += 1
                if expired >= DUE_BURST_MAX:
                    self.context.dirty[self.queue_id] = None  # the rest in the next turn, as for a tick
                    return
                continue
            if ahead is not None and not ahead.is_at_hand(message.location):
                self._fetch(ahead, ready)
                return
            if self.receiver_count > 1 and consumer.is_silent():
                if not prefer_another(rotation):
                    return  # the others ask again, or a lock lapses
                consumer = rotation[0]
            ready.take(message)
            self.hand_over(consumer, message, None, now)
            if len(rotation) > 1:
                rotation.rotate(-1)

    def _fetch(self, ahead: ReadAhead, ready: Ready) -> None:
        """Have the next blobs brought: ``fetched`` comes when they are here, and meanwhile nobody waits (B63)."""
        wanted: list[int] = []
        size = 0
        for message in ready.upcoming(FETCH_MESSAGES_MAX):
            size += message.size
            if wanted and size > FETCH_BYTES_MAX:
                break
            if not ahead.is_at_hand(message.location):
                wanted.append(message.location)
        self.is_fetching = True
        ahead.fetch(wanted, self.queue_id)

    def fetched(self, now: int) -> None:
        """Blobs that were asked for are here."""
        self.context.dirty[self.queue_id] = None
        if self.retry_at:
            self.retry_at = 0
            self.arm(now)

    def _relay_ready(self, now: int) -> None:
        assert self.relay is not None, self.path
        ahead = self.context.read_ahead
        for _ in range(RELAY_BURST_MAX):
            if self.context.budget.taken_in_burst > PUBLISH_STEPS_MAX:
                break  # the rules of topics have worked long enough for this turn
            # Of a queue with sessions one session after the other is passed on, each in its own order.
            ready = self.ready if self.sessions is None else self.sessions.first_available()
            message = None if ready is None else ready.first()
            if ready is None or message is None:
                return
            if message.expires_at and message.expires_at <= now and not self.is_sub_queue:
                self.expire(message, now)
                continue
            if ahead is not None and not ahead.is_at_hand(message.location):
                self._fetch(ahead, ready)
                return
            ready.take(message)
            if not self.relay.relay(self, message, now):
                ready.put_back(message)
                due.ask_room_later(self, now)
                return
        self.context.dirty[self.queue_id] = None  # the rest in the next turn, so that nobody waits long

    def _deliver_sessions(self, now: int) -> None:
        assert self.sessions is not None, self.path
        session_ops.serve_waiting(self, now)
        ahead = self.context.read_ahead
        expired = 0
        for session in self.sessions.take_awake():
            if session.grace_until and session.ready.first() is not None:
                session_ops.end_hold(self, session, now)  # the message is for a receiver with a lock
            consumer = session.holder
            while consumer is not None and consumer.credit > 0 and not consumer.is_suspended:
                message = session.ready.first()
                if message is None:
                    break
                if message.expires_at and message.expires_at <= now:
                    if expired >= DUE_BURST_MAX:
                        self.sessions.wake(session)
                        self.context.dirty[self.queue_id] = None
                        break
                    self.expire(message, now)
                    expired += 1
                    continue
                if ahead is not None and not ahead.is_at_hand(message.location):
                    self.sessions.wake(session)  # it is looked at again when its bytes are here
                    self._fetch(ahead, session.ready)
                    break
                session.ready.take(message)
                self.hand_over(consumer, message, session, now)

    def hand_over(self, consumer: Consumer, message: Message, session: Session | None, now: int) -> None:
        """Deliver one message: under a lock, or for good."""
        consumer.credit -= 1
        self.numbers.accessed_at = now
        if consumer.receives_and_deletes:
            # The removal is in the same commit as the delivery: nothing leaves before it is durable (B32).
            self.context.outbox.deliver(consumer, message, None)
            self.remove(message)
            return
        lock = self.lock(message, session, now)
        consumer.watch(lock)
        self.context.outbox.deliver(consumer, message, lock)

    def lock(self, message: Message, session: Session | None, now: int) -> Lock:
        """Take a lock on a message that nobody holds (B25, B26)."""
        token = self.context.tokens.next()
        message.is_locked = True
        if session is not None:
            lock = Lock(token, message, session.locked_until, session)
            session.locks[token] = lock
            return lock
        until = now + self.settings.lock_duration_ms
        lock = Lock(token, message, until, None)
        self.locks[token] = lock
        self.arm(until)
        return lock

    # -- settlement ----------------------------------------------------------------------------

    def find_lock(self, token: int, session_id: str | None) -> Lock | None:
        """The lock behind a token, for settlement away from the link."""
        if self.sessions is not None:
            session = None if session_id is None else self.sessions.sessions.get(session_id)
            return None if session is None else session.locks.get(token)
        return self.locks.get(token)

    def check_held(self, lock: Lock, now: int) -> None:
        """Refuse a lock that has ended, even if no tick has noticed yet (B27).

        Also notes that the entity was used, because every settlement and renewal calls this.
        """
        session = lock.session
        if session is not None:
            if not lock.is_held or session.locked_until <= now:
                raise SessionLockLost
        elif not lock.is_held or lock.locked_until <= now:
            raise MessageLockLost(str(lock.token))
        self.numbers.accessed_at = now

    def complete(self, lock: Lock, now: int) -> None:
        """The receiver is done with the message: it is gone for good (B5)."""
        self.check_held(lock, now)
        # ``end_lock``, written out: nearly every message ends here.
        lock.is_held = False
        if lock.session is None:
            del self.locks[lock.token]
        else:
            del lock.session.locks[lock.token]
        message = lock.message
        self.record(MessageRemoved(self.queue_id, message.sequence_number, message.location, message.size))

    def complete_many(self, locks: list[Lock], now: int) -> int:
        """Complete several deliveries, in this order, up to the first that ``complete`` refuses; how many that was."""
        messages: list[Message] = []
        for lock in locks:
            session = lock.session
            until = lock.locked_until if session is None else session.locked_until
            if not lock.is_held or until <= now:
                break
            self.end_lock(lock)
            messages.append(lock.message)
        if messages:
            self.numbers.accessed_at = now
            self.record_removals(messages)
        return len(messages)

    def abandon(self, lock: Lock, changed_properties: bytes, now: int) -> None:
        """The receiver gives the message back as failed."""
        self.check_held(lock, now)
        self.end_lock(lock)
        self.fail(lock.message, changed_properties, now)

    def release(self, lock: Lock, now: int) -> None:
        """The receiver gives the message back unused: the delivery count stays."""
        self.check_held(lock, now)
        self.end_lock(lock)
        self.give_back(lock.message, now)

    def defer(self, lock: Lock, changed_properties: bytes, now: int) -> None:
        """Set the message aside, to be received by its number."""
        self.check_held(lock, now)
        self.end_lock(lock)
        message = lock.message
        count = self._next_delivery_count(message)
        self.record(MessageDeferred(self.queue_id, message.sequence_number, count, changed_properties))

    def dead_letter(
        self, lock: Lock, reason: str | None, description: str | None, changed: bytes, now: int
    ) -> None:
        """Move the message to the dead-letter queue on the receiver's word."""
        self.check_held(lock, now)
        self.check_dead_letter(reason, description)
        self.end_lock(lock)
        self.move_to_dead_letter(lock.message, reason, description, changed, now)

    def check_dead_letter(self, reason: str | None, description: str | None) -> None:
        """Refuse a dead-lettering that cannot be (B40)."""
        if self.dead_letter_queue is None:
            raise NotAllowed(f"A message in '{self.path}' cannot be dead-lettered again.")
        for text in (reason, description):
            if text is not None and len(text) > DEAD_LETTER_TEXT_MAX:
                raise ArgumentError(
                    f"A dead-letter reason or description has at most {DEAD_LETTER_TEXT_MAX} characters."
                )

    def renew(self, lock: Lock, now: int) -> int:
        """Extend a lock by the entity's lock duration; when it ends now (B28)."""
        self.check_held(lock, now)
        if lock.session is not None:
            return lock.session.locked_until
        lock.locked_until = max(lock.locked_until, now + self.settings.lock_duration_ms)
        self.locks.pop(lock.token)  # to the end: locks stand in the order they expire
        self.locks[lock.token] = lock
        return lock.locked_until

    def end_lock(self, lock: Lock) -> None:
        """A lock ends; its message is the caller's business."""
        lock.is_held = False
        if lock.session is not None:
            del lock.session.locks[lock.token]
        else:
            del self.locks[lock.token]

    def lose_locks(self) -> None:
        """Every lock of this queue ends (a change of the entity's properties): no count rises."""
        locks = list(self.locks.values())
        self.locks.clear()
        for lock in locks:
            lock.is_held = False
            self.unlocked(lock.message)
            # Its time may have come while it was locked; then nothing else would look at it again (B41, B43).
            if lock.message.state == ACTIVE:
                self.watch_expiry(lock.message)

    def abolish(self) -> None:
        """The entity is gone: every lock ends, and settling does nothing any more."""
        self._abolish(self.locks)
        if self.sessions is not None:
            for session in self.sessions.held.values():
                self._abolish(session.locks)

    def _abolish(self, locks: dict[int, Lock]) -> None:
        """End locks without giving their messages back."""
        for lock in locks.values():
            lock.is_held = False
        locks.clear()

    # -- ends ----------------------------------------------------------------------------------

    def remove(self, message: Message) -> None:
        self.record(MessageRemoved(self.queue_id, message.sequence_number, message.location, message.size))

    def fail(self, message: Message, changed_properties: bytes, now: int) -> None:
        """A delivery failed: count it, and dead-letter what failed too often (B29, B30)."""
        count = self._next_delivery_count(message)
        if count != message.delivery_count or changed_properties:
            self.record(DeliveryFailed(self.queue_id, message.sequence_number, count, changed_properties))
        else:
            self.unlocked(message)
        if self.dead_letter_queue is not None and count >= self.settings.max_delivery_count:
            self._give_up_on(message, now)
        else:
            self._expire_if_due(message, now)

    def _next_delivery_count(self, message: Message) -> int:
        """The count after one more delivery; a dead-letter queue does not count."""
        return message.delivery_count if self.is_sub_queue else message.delivery_count + 1

    def _give_up_on(self, message: Message, now: int) -> None:
        text = f"Message could not be consumed after {message.delivery_count} delivery attempts."
        self.move_to_dead_letter(message, REASON_MAX_DELIVERY_COUNT, text, b"", now)

    def enforce_delivery_limit(self, now: int) -> None:
        """The limit was lowered: what has failed that often already is not delivered once more (B30)."""
        limit = self.settings.max_delivery_count
        for message in [m for m in self.messages.values() if m.delivery_count >= limit and m.state == ACTIVE]:
            self._give_up_on(message, now)

    def give_back(self, message: Message, now: int) -> None:
        """A delivery ended without failing: the message goes to its old place, the count stays."""
        self.unlocked(message)
        self._expire_if_due(message, now)

    def _expire_if_due(self, message: Message, now: int) -> None:
        if (
            message.state == ACTIVE
            and message.expires_at
            and message.expires_at <= now
            and not self.is_sub_queue
        ):
            self.expire(message, now)

    def expire(self, message: Message, now: int) -> None:
        """A message outlived its time: dead-letter or drop it (B41–B43)."""
        if self.settings.dead_letter_on_expiration and self.dead_letter_queue is not None:
            self.move_to_dead_letter(
                message, REASON_EXPIRED, "The message expired and was dead lettered.", b"", now
            )
        else:
            if self.context.watcher is not None:
                self.context.watcher.dropped(self, message, EXPIRED, now)
            self.remove(message)

    def move_to_dead_letter(
        self, message: Message, reason: str | None, description: str | None, changed: bytes, now: int
    ) -> None:
        assert self.dead_letter_queue is not None, self.path
        self.move(message, self.dead_letter_queue, reason, description, changed, now)

    def move(
        self,
        message: Message,
        target: Queue,
        reason: str | None,
        description: str | None,
        changed: bytes,
        now: int,
    ) -> None:
        """Record a move to another place of the entity; the bytes stay where they are (B38, B39)."""
        if self.context.watcher is not None:
            self.context.watcher.dead_lettered(self, message, reason, now)
        extra = message.extra.copy() if message.extra is not None else Extra()
        extra.dead_letter_reason = reason
        extra.dead_letter_description = description
        extra.dead_letter_source = self.path
        extra.changed_properties = changed or extra.changed_properties
        self.record(MessageMoved(self.queue_id, message.sequence_number, target.queue_id, extra))

    # -- time ----------------------------------------------------------------------------------

    def tick(self, now: int) -> int:
        """Do what fell due: expired locks, expired messages, scheduled messages, session locks and waits. How much it was."""
        return due.tick(self, now)
