"""Messages out: receivers attach, deliveries are encoded around the stored bytes, settlements come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.message.delivery import DeliveryExtras, delivery_parts
from pairbus.amqp.message.layout import PREFIX_SIZE
from pairbus.amqp.states import ACCEPTED_CODE, REJECTED_CODE, RELEASED_CODE, TRANSACTIONAL_CODE
from pairbus.amqp.types import Described, Long, Symbol, ULong, text_of
from pairbus.engine.ports import Outbox
from pairbus.engine.queues.consumer import Consumer, Lock
from pairbus.engine.sessions import operations as session_ops
from pairbus.errors import ArgumentError, NotSupported, Refusal, Unauthorized
from pairbus.gateway import transactions
from pairbus.gateway.faults import BLACK_HOLE
from pairbus.gateway.links import ReceiveLink
from pairbus.gateway.settlement import complete, settlement_of_outcome
from pairbus.gateway.telemetry.audit_rows import RECEIVED_AND_DELETED
from pairbus.gateway.telemetry.meter import SESSION
from pairbus.model.access import LISTEN
from pairbus.model.message import ACTIVE, SCHEDULED

if TYPE_CHECKING:
    from pairbus.amqp.states import Outcome
    from pairbus.amqp.transport.link import Link
    from pairbus.amqp.transport.session import Session
    from pairbus.engine.entity import Entity
    from pairbus.engine.queues.queue import Queue
    from pairbus.gateway.broker import Broker
    from pairbus.gateway.connection import GatewayConnection
    from pairbus.model.message import Message

SESSION_FILTER: Final = "com.microsoft:session-filter"
TIMEOUT: Final = "com.microsoft:timeout"
LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"
SETTLED_MODE: Final = 1
MOVE: Final = "move"
"""The one distribution mode: a message goes to one receiver (AMQP 1.0, 3.5.3)."""
TICKS_AT_EPOCH: Final = 621_355_968_000_000_000
TICKS_PER_MS: Final = 10_000
ACCEPT_TIMEOUT_MAX_MS: Final = 600_000
OUTPUT_BYTES_MAX: Final = 1_048_576
"""Bytes that may wait for a commit on one connection before its deliveries pause."""
TRANSFER_HEAD_BYTES_MAX: Final = 64
"""Bytes of a transfer frame before the message."""
ANNOTATION_BYTES_MAX: Final = 16_384
"""Bytes that the broker may add to a message: annotations, and the reason and description of a dead letter."""
_TTL_MAX: Final = 0xFFFF_FFFF


def attach(
    connection: GatewayConnection, link: Link, entity: Entity, queue: Queue, scope: str, until: int
) -> None:
    """A receiver begins: on a session or without. Raises a Refusal."""
    source = link.attach.source
    if source is not None and source.distribution_mode not in ("", MOVE):
        raise NotSupported(
            f"The receiver asked for the distribution mode '{source.distribution_mode}' of '{scope}', and only '{MOVE}' is "
            f"offered: messages are locked or deleted as they are received. To browse, peek: send the operation "
            f"com.microsoft:peek-message to '{scope}/$management'."
        )
    deletes = link.attach.snd_settle_mode == SETTLED_MODE
    context = ReceiveLink(connection, link, scope, LISTEN, entity, queue, deletes)
    context.allowed_until = until
    context.consumer.is_suspended = connection.is_paused or connection.is_backed_up
    filters = source.filter if source is not None and source.filter is not None else {}
    if SESSION_FILTER not in filters:
        queue.attach(context.consumer, connection.now)
        connection.add(context)
        link.accept()
        flow(connection, context)
        return
    session_id = _session_id(filters[SESSION_FILTER])
    connection.add(context)
    timeout_ms = link.attach.properties.get(TIMEOUT)
    if not isinstance(timeout_ms, int) or not 0 < timeout_ms <= ACCEPT_TIMEOUT_MAX_MS:
        timeout_ms = session_ops.ACCEPT_NEXT_TIMEOUT_MS
    session_ops.accept(queue, context.consumer, session_id, timeout_ms, connection.now)


def _session_id(value: object) -> str | None:
    if isinstance(value, Described):
        value = value.value
    text = text_of(value)
    if value is None or text is not None:
        return text
    raise ArgumentError(
        f"The session filter is a {type(value).__name__}: it must be a string, or null for any session."
    )


def _filter_in_place(link: Link, session_id: str) -> object:
    """The session filter as the answer states it: with the descriptor that the client gave it, if it gave one.

    The Go client reads described filters only, and others a plain string only.
    """
    source = link.attach.source
    asked = None if source is None or source.filter is None else source.filter.get(SESSION_FILTER)
    if not isinstance(asked, Described):
        return session_id
    descriptor = asked.descriptor
    if isinstance(descriptor, int) and descriptor >= 0:
        descriptor = ULong(
            descriptor
        )  # whole numbers are decoded without their type; as descriptors they are ulongs
    return Described(descriptor, session_id)


def flow(connection: GatewayConnection, context: ReceiveLink) -> None:
    """The receiver says how much it will take."""
    link = context.link
    if link.flows != context.flows:  # not merely the session's window that opened again
        context.flows = link.flows
        context.begin_receive()
        context.consumer.heard()
        context.queue.numbers.accessed_at = connection.now
    # Without a window what is sent would pile up here; when it opens, this is called again (B62, B63).
    context.queue.set_credit(context.consumer, link.credit if _may_deliver(connection, context) else 0)
    if link.drain:
        connection.broker.draining.append(context)


def _may_deliver(connection: GatewayConnection, context: ReceiveLink) -> bool:
    """Whether a session's window lets a message out. While enough waits for other windows of the connection, it must let the
    largest message out whole, so that no more is made to wait (B62).
    """
    session = context.link.session
    if not session.has_window():
        return False
    if not connection.is_window_limited:
        return True
    frame_bytes = connection.amqp.send_frame_max - TRANSFER_HEAD_BYTES_MAX
    message_bytes = context.entity.settings.max_message_kb * 1024 + ANNOTATION_BYTES_MAX
    return session.remote_window > message_bytes // frame_bytes


def _window_shut(connection: GatewayConnection, session: Session) -> None:
    """A delivery has used up a session's window: no link of the session gets more until it opens (``flow`` is called then)."""
    for link in session.links.values():
        context = link.context
        if isinstance(context, ReceiveLink):
            context.consumer.credit = 0
    if not connection.is_window_limited and connection.amqp.has_enough_waiting():
        connection.is_window_limited = True
        connection.broker.window_limited[connection] = None
        connection.broker.windows_seen = -1
        for context in connection.links.values():
            if isinstance(context, ReceiveLink) and not _may_deliver(connection, context):
                context.consumer.credit = 0


def review_windows(connection: GatewayConnection) -> None:
    """Less waits for windows than before: deliver again, if it is little enough."""
    if connection.amqp.has_enough_waiting():
        return
    connection.is_window_limited = False
    connection.broker.window_limited.pop(connection, None)
    for context in connection.links.values():
        if isinstance(context, ReceiveLink) and context.link.is_attached:
            flow(connection, context)


class Deliveries(Outbox):
    """The engine's outbox: everything said here waits in the connections' output for the commit."""

    def __init__(self, broker: Broker, token_prefix: bytes) -> None:
        self._broker = broker
        self.lead_ms = 0
        """How far the instants of this turn are ahead of the wall clock, which dates for clients are of."""
        self._prefix = token_prefix
        # The same eight bytes in the order .NET writes the first three groups of a GUID.
        self._tag_prefix = token_prefix[3::-1] + token_prefix[5:3:-1] + token_prefix[7:5:-1]

    def deliver(self, consumer: Consumer, message: Message, lock: Lock | None) -> None:
        """Encode a message for one receiver and put it on its link."""
        context = consumer.owner
        assert isinstance(context, ReceiveLink), context
        until, token, tag = 0, b"", b""  # an empty tag, as on the service: nothing is left to settle
        if lock is not None:
            until = lock.locked_until if lock.session is None else lock.session.locked_until
            until -= self.lead_ms
            number = lock.token.to_bytes(8, "big")
            token = self._prefix + number
            tag = self._tag_prefix + number
        broker = self._broker
        blob = broker.log.read(message.location, message.size)
        parts = encode_delivery(context.queue, message, blob, until, token, is_received=True)
        link = context.link
        link.send(tag, parts, lock is None, lock)
        session = link.session
        connection = context.connection
        if (
            session.remote_window <= 0
            or session.queued
            or (connection.is_window_limited and not _may_deliver(connection, context))
        ):
            _window_shut(connection, session)
        context.is_polling = False
        context.deliveries.add(message.size - PREFIX_SIZE)
        if lock is None and broker.audit_rows is not None:
            broker.audit_rows.ended(
                RECEIVED_AND_DELETED, context.queue, message, blob, context.connection.now
            )
        broker.touch(connection)
        if connection.amqp.output_size > OUTPUT_BYTES_MAX:
            connection.hold_back()

    def lock_token(self, lock: Lock) -> bytes:
        """A lock token as it travels outside delivery tags: sixteen bytes in RFC order."""
        return self._prefix + lock.token.to_bytes(8, "big")

    def token_number(self, token: bytes) -> int:
        """The engine's number of a token; 0 if it is not one of this broker's life."""
        return int.from_bytes(token[8:], "big") if len(token) == 16 and token[:8] == self._prefix else 0

    def session_accepted(self, consumer: Consumer) -> None:
        """Answer an attach that asked for a session."""
        context = consumer.owner
        assert isinstance(context, ReceiveLink), context
        session = consumer.session
        assert session is not None, context.path
        ticks = self._broker.date_of(session.locked_until) * TICKS_PER_MS + TICKS_AT_EPOCH
        context.link.accept(
            properties={LOCKED_UNTIL: Long(ticks)},
            filter={Symbol(SESSION_FILTER): _filter_in_place(context.link, session.session_id)},
        )
        self._broker.meter.tally(context.queue.path, SESSION).add(0)
        flow(context.connection, context)
        self._broker.touch(context.connection)

    def detach(self, consumer: Consumer, condition: str, description: str) -> None:
        """End a receiver's link with a reason."""
        context = consumer.owner
        assert isinstance(context, ReceiveLink), context
        broker, connection = self._broker, context.connection
        connection.dropped(context.link)
        if condition == TIMEOUT:
            context.empty_receives.add(0)  # it waited for a session and got none
        context.end_receive()
        broker.tracker.refused(condition)
        error = AmqpError(condition, broker.tracker.describe(description, context.path, connection.now))
        if context.link.is_attached:
            context.link.detach(error)
        else:
            context.link.refuse(error)
        broker.touch(connection)


def encode_delivery(
    queue: Queue, message: Message, blob: bytes, until: int, token: bytes, is_received: bool = False
) -> list[bytes]:
    """A message as a client gets it: the sender's bytes with the broker's own fields around them.

    One that was scheduled and is received now says so by its state, as the service has it; a peek shows the state it is in.
    """
    ttl = 0
    if message.expires_at and not queue.is_sub_queue:
        # After the clock was set back the enqueued time may be the later one: then the sender's own time to live is shown.
        ttl = max(0, min(message.expires_at - message.enqueued_at, _TTL_MAX))
    extra = message.extra
    extras: DeliveryExtras | None = None
    state = message.state
    if extra is not None:
        if is_received and extra.scheduled_at and state == ACTIVE:
            state = SCHEDULED
        extras = DeliveryExtras()
        extras.enqueue_sequence_number = extra.enqueue_sequence_number
        extras.dead_letter_reason = extra.dead_letter_reason
        extras.dead_letter_description = extra.dead_letter_description
        extras.dead_letter_source = extra.dead_letter_source
        extras.changed_properties = extra.changed_properties
    return delivery_parts(
        blob,
        message.delivery_count,
        message.sequence_number,
        message.enqueued_at,
        until,
        token,
        state,
        ttl,
        extras,
    )


def settle(
    connection: GatewayConnection, link: Link, delivery_id: int, lock: object, outcome: Outcome, settled: bool
) -> None:
    """Apply a receiver's outcome and echo it, or refuse it with the reason."""
    context = link.context
    if not isinstance(context, ReceiveLink) or not isinstance(lock, Lock):
        return
    session, now = link.session, connection.now
    faults = connection.broker.faults
    if faults.is_on and faults.strike(BLACK_HOLE, context.entity.path, now) is not None:
        return
    code = outcome.code
    context.consumer.heard()
    try:
        if now >= context.allowed_until:
            context.allowed_until = connection.authorize(context.scope, context.right)
        if code == TRANSACTIONAL_CODE:
            transactions.add_settlement(connection, context, delivery_id, lock, outcome, settled)
            return
        if code == ACCEPTED_CODE:
            complete(connection.broker, context.queue, lock, now)
        elif code == RELEASED_CODE and connection.transactions and transactions.forgotten(connection, lock):
            if not settled:  # a Java receiver releases what a transaction has not settled yet when it closes
                session.settle_outgoing(delivery_id, code)
            return
        else:
            settlement = settlement_of_outcome(outcome)
            changed = settlement.check(context.queue, lock, now)
            settlement.apply(connection.broker, context.queue, lock, changed, now)
        context.settlements.add(0)
    except Unauthorized as refusal:
        connection.end_link(link, refusal, context.path)
        return
    except Refusal as refusal:
        if not settled:
            error = connection.broker.tracker.error(refusal, context.path, now)
            session.settle_outgoing(delivery_id, REJECTED_CODE, error)
        return
    if not settled:
        session.settle_outgoing(delivery_id, code)


def complete_many(
    connection: GatewayConnection,
    link: Link,
    ids: list[int],
    locks: list[object | None],
    outcome: Outcome,
    settled: bool,
) -> int:
    """Do what ``settle`` does with deliveries of a link that a receiver completes together, up to the first that has to be refused, or
    is anything but plain; how many that was.
    """
    context, now = link.context, connection.now
    if (
        outcome.code != ACCEPTED_CODE
        or not isinstance(context, ReceiveLink)
        or now >= context.allowed_until
        or connection.broker.audit_rows is not None
        or connection.broker.faults.is_on
    ):
        return 0
    held = [lock for lock in locks if isinstance(lock, Lock)]
    if len(held) < len(ids):
        return 0
    context.consumer.heard()
    done = context.queue.complete_many(held, now)
    connection.broker.counters.completed += done
    context.settlements.add_many(done)
    session = link.session
    if settled:
        session.forget_many(link, ids[:done])
    else:
        for delivery_id in ids[:done]:
            session.settle_outgoing(delivery_id, ACCEPTED_CODE)
    return done
