"""Messages in: a transfer becomes a send, and its outcome is said after the commit that covers it (B4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.encode import encode_string
from pairbus.amqp.message.layout import PREFIX_SIZE
from pairbus.amqp.message.rewrite import application_properties, with_properties
from pairbus.amqp.message.sections import scan, split_batch
from pairbus.errors import (
    EntityDisabled,
    EntityNotFound,
    MalformedMessage,
    MessageTooLarge,
    ProtocolError,
    QuotaExceeded,
    Refusal,
    ServerBusy,
    Unauthorized,
)
from pairbus.gateway import transactions
from pairbus.gateway.faults import BLACK_HOLE, CUT, DELAY, DROP_ACKNOWLEDGEMENTS, FILL, REFUSE, THROTTLE
from pairbus.gateway.telemetry.meter import PING, SEND

if TYPE_CHECKING:
    from pairbus.amqp.message.sections import Scanned
    from pairbus.amqp.states import Outcome
    from pairbus.engine.entity import Entity
    from pairbus.gateway.broker import Broker
    from pairbus.gateway.connection import GatewayConnection
    from pairbus.gateway.links import SendLink

BATCH_FORMAT: Final = 0x80013700
"""The message format of a batch: every data section is one encoded message."""
ENVELOPE_BYTES_MAX: Final = 4_096
"""Bytes that a batch may have around its messages, beyond the limit of size: an id, a session id and a partition key of the first
message, each of up to 128 characters."""
DATA_OVERHEAD: Final = 5
"""Bytes of a data section around a message of less than 256 bytes."""
LONG_DATA_OVERHEAD: Final = 8
MESSAGE_ID: Final = 0
"""The place of the message id among the properties."""


def check_attach(entity: Entity) -> None:
    """Refuse a sender where nothing may be sent."""
    if not entity.settings.can_send:
        raise EntityDisabled(entity.path, "send")


def receive(
    connection: GatewayConnection,
    context: SendLink,
    delivery_id: int,
    message_format: int,
    settled: bool,
    payload: bytes,
    state: Outcome | None,
) -> None:
    """Store what a client sent, or say why not. A pre-settled transfer is answered with nothing."""
    session = context.link.session
    now = connection.now
    try:
        if now >= context.allowed_until:
            context.allowed_until = connection.authorize_link(context)
        entity = context.entity
        if entity.is_deleted:
            raise EntityNotFound(entity.path)
        if connection.broker.faults.is_on and _is_hit(
            connection, context, delivery_id, settled, message_format, payload
        ):
            return
        if state is not None and state.txn_id is not None:
            messages = parse(connection, context, message_format, payload)
            transactions.add_sends(connection, context, delivery_id, state.txn_id, messages)
            return
        if message_format == BATCH_FORMAT or context.destination:
            messages = parse(connection, context, message_format, payload)
            store(connection.broker, entity, messages, SEND, now, context.destination)
        else:
            broker = connection.broker
            message = read(connection, payload, entity.main.duplicates is not None)
            broker.namespace.check_send(entity, message, 0)
            number = broker.namespace.send(entity, message, now)
            (context.pings if message.is_ping else context.sends).add(len(message.blob) - PREFIX_SIZE)
            if broker.trail is not None:
                broker.trail.sent(entity.path, number, message, now)
    except (Unauthorized, EntityNotFound) as refusal:
        connection.end_link(context.link, refusal, context.path)
        return
    except Refusal as refusal:
        if not settled:
            session.reject_incoming(delivery_id, connection.broker.tracker.error(refusal, context.path, now))
        return
    except ProtocolError as error:
        if not settled:
            malformed = MalformedMessage(f"The message cannot be read: {error}")
            session.reject_incoming(
                delivery_id, connection.broker.tracker.error(malformed, context.path, now)
            )
        return
    if not settled:
        session.accept_incoming(delivery_id)


def parse(
    connection: GatewayConnection, context: SendLink, message_format: int, payload: bytes
) -> list[Scanned]:
    """The messages in a transfer: one, or those of a batch."""
    wants_id = context.entity.main.duplicates is not None or bool(context.destination)
    if message_format != BATCH_FORMAT:
        return [read(connection, payload, wants_id)]
    parts = split_batch(payload)
    limit = context.entity.settings.max_message_kb * 1024
    if len(payload) > limit:
        # What is around the messages is not counted: the clients fill a batch up to the limit and do not count it either.
        size = sum(len(part) + (DATA_OVERHEAD if len(part) < 256 else LONG_DATA_OVERHEAD) for part in parts)
        if size > limit:
            raise MessageTooLarge(size, limit)
    return [read(connection, part, wants_id) for part in parts]


def read(connection: GatewayConnection, payload: bytes, wants_id: bool) -> Scanned:
    """One message. Without a message id it gets one: the JavaScript client cannot settle a message that has none."""
    message = scan(payload, wants_id)
    if not message.has_message_id and not message.is_ping:
        message_id = connection.broker.tracker.message_id()
        message.blob = with_properties(
            message.blob, application_properties(message.blob), {MESSAGE_ID: message_id}
        )
        if wants_id:
            message.message_id = encode_string(message_id)
    return message


def store(
    broker: Broker, entity: Entity, messages: list[Scanned], operation: str, now: int, destination: str = ""
) -> list[int]:
    """Store all of them or none (B13), or transfer them to the ``destination``; their sequence numbers."""
    size = 0
    for message in messages:
        check_one(broker, entity, message, size, destination)
        size += len(message.blob)
    return [store_one(broker, entity, message, operation, now, destination) for message in messages]


def check_one(broker: Broker, entity: Entity, message: Scanned, more_bytes: int, destination: str) -> None:
    """Refuse what ``store_one`` could not store after ``more_bytes`` of the same batch."""
    if destination:
        broker.namespace.check_send_via(entity, destination, message, more_bytes)
    else:
        broker.namespace.check_send(entity, message, more_bytes)


def store_one(
    broker: Broker, entity: Entity, message: Scanned, operation: str, now: int, destination: str = ""
) -> int:
    """Store a message that has been checked, and count it; its sequence number."""
    if destination:
        number = broker.namespace.send_via(entity, destination, message, now)
        if number and number not in entity.transfer_dead_letter.messages:
            broker.counters.transferred(entity.main, number, message.blob, destination)
    else:
        number = broker.namespace.send(entity, message, now)
    tally = broker.meter.tally(entity.path, PING if message.is_ping else operation)
    tally.add(len(message.blob) - PREFIX_SIZE)
    if broker.trail is not None:
        broker.trail.sent(entity.path, number, message, now)
    return number


def _is_hit(
    connection: GatewayConnection,
    context: SendLink,
    delivery_id: int,
    settled: bool,
    message_format: int,
    payload: bytes,
) -> bool:
    """Let the switchboard spoil this send; True when it has been dealt with."""
    broker, entity, now = connection.broker, context.entity, connection.now
    faults = broker.faults
    if faults.strike(BLACK_HOLE, entity.path, now) is not None:
        return True
    if faults.strike(CUT, entity.path, now) is not None:
        connection.cut()
        return True
    if faults.strike(REFUSE, entity.path, now) is not None:
        raise Refusal(f"'{entity.path}' refuses because a fault was switched on.")
    if faults.strike(THROTTLE, entity.path, now) is not None:
        raise ServerBusy(
            "The request was terminated because the namespace is being throttled. Wait 10 seconds and try again."
        )
    if faults.strike(FILL, entity.path, now) is not None:
        raise QuotaExceeded(
            f"The maximum entity size has been reached or exceeded for '{entity.path}' (a fault was switched on)."
        )
    drop = faults.strike(DROP_ACKNOWLEDGEMENTS, entity.path, now)
    delay = faults.strike(DELAY, entity.path, now)
    if drop is None and delay is None:
        return False
    messages = parse(connection, context, message_format, payload)
    store(broker, entity, messages, SEND, now, context.destination)
    if delay is not None and not settled:
        broker.accept_later(connection, context.link.session, delivery_id, now + delay.delay_ms)
    return True
