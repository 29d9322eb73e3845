"""Messages in: a transfer becomes a send, and its outcome is said after the commit that covers it (B4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.scan import split_batch
from pairbus.engine.rules.sql.nodes import STEPS_PER_COPY
from pairbus.errors import (
    EntityDisabled,
    EntityNotFound,
    MalformedMessage,
    MessageTooLarge,
    ProtocolError,
    Refusal,
    Unauthorized,
)
from pairbus.gateway import transactions
from pairbus.gateway.accept import accept, check, read, store
from pairbus.gateway.faults import BLACK_HOLE, DELAY, DROP_ACKNOWLEDGEMENTS
from pairbus.model.entity import TOPIC

if TYPE_CHECKING:
    from pairbus.amqp.message.scan import Scanned
    from pairbus.amqp.states import Outcome
    from pairbus.engine.entity import Entity
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
        broker = connection.broker
        if message_format == BATCH_FORMAT or context.destination or entity.kind == TOPIC:
            messages = parse(connection, context, message_format, payload)
            taken = broker.namespace.context.budget.taken_in_burst
            accept(broker, entity, messages, context.tallies, now, context.destination)
            taken = broker.namespace.context.budget.taken_in_burst - taken
            # Who sends batches, or to a thousand subscriptions, has fewer transfers in one turn (B63).
            connection.amqp.work_left -= len(messages) - 1 + taken // STEPS_PER_COPY
        else:
            message = read(broker, payload, entity.main.duplicates is not None)
            check(broker, entity, message, 0, "")
            store(broker, entity, message, context.tallies, now, "")
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
        return [read(connection.broker, payload, wants_id)]
    parts = split_batch(payload)
    limit = context.entity.settings.max_message_kb * 1024
    if len(payload) > limit:
        # What is around the messages is not counted: the clients fill a batch up to the limit and do not count it either.
        size = sum(len(part) + (DATA_OVERHEAD if len(part) < 256 else LONG_DATA_OVERHEAD) for part in parts)
        if size > limit:
            raise MessageTooLarge(size, limit)
    return [read(connection.broker, part, wants_id) for part in parts]


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
    faults.check_send(entity.path, now)
    drop = faults.strike(DROP_ACKNOWLEDGEMENTS, entity.path, now)
    delay = faults.strike(DELAY, entity.path, now)
    if drop is None and delay is None:
        return False
    messages = parse(connection, context, message_format, payload)
    accept(broker, entity, messages, context.tallies, now, context.destination)
    if delay is not None and not settled:
        broker.accept_later(connection, context.link.session, delivery_id, now + delay.delay_ms)
    return True
