"""Messages in: a transfer becomes a send, and its outcome is said after the commit that covers it (B4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.sections import scan, split_batch
from pairbus.errors import EntityDisabled, EntityNotFound, ProtocolError, QuotaExceeded, Refusal, ServerBusy, Unauthorized
from pairbus.gateway import transactions
from pairbus.gateway.faults import BLACK_HOLE, CUT, DELAY, DROP_ACKNOWLEDGEMENTS, FILL, REFUSE, THROTTLE

if TYPE_CHECKING:
    from pairbus.amqp.sections import Scanned
    from pairbus.amqp.states import Outcome
    from pairbus.engine.entity import Entity
    from pairbus.gateway.connection import GatewayConnection
    from pairbus.gateway.links import SendLink

BATCH_FORMAT: Final = 0x80013700
"""The message format of a batch: every data section is one encoded message."""


class MalformedMessage(Refusal):
    """The message's bytes cannot be read."""

    condition = "amqp:decode-error"
    status = 400


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
            context.allowed_until = connection.authorize(context.path, context.right)
        entity = context.entity
        if entity.is_deleted:
            raise EntityNotFound(entity.path)
        if connection.broker.faults.is_on and _is_hit(connection, context, delivery_id, settled, message_format, payload):
            return
        if state is not None and state.txn_id is not None:
            messages = parse(entity, message_format, payload)
            transactions.add_sends(connection, context, delivery_id, state.txn_id, messages)
            return
        if message_format == BATCH_FORMAT:
            store(connection, entity, parse(entity, message_format, payload), now)
        else:
            namespace = connection.broker.namespace
            message = scan(payload, entity.main.duplicates is not None)
            namespace.check_send(entity, message, 0)
            namespace.send(entity, message, now)
            connection.broker.meter.sent(entity.path, message)
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
            session.reject_incoming(delivery_id, connection.broker.tracker.error(malformed, context.path, now))
        return
    if not settled:
        session.accept_incoming(delivery_id)


def parse(entity: Entity, message_format: int, payload: bytes) -> list[Scanned]:
    """The messages in a transfer: one, or those of a batch."""
    wants_id = entity.main.duplicates is not None
    if message_format != BATCH_FORMAT:
        return [scan(payload, wants_id)]
    return [scan(part, wants_id) for part in split_batch(payload)]


def store(connection: GatewayConnection, entity: Entity, messages: list[Scanned], now: int) -> list[int]:
    """Store all of them or none (B13); their sequence numbers."""
    namespace = connection.broker.namespace
    size = 0
    for message in messages:
        namespace.check_send(entity, message, size)
        size += len(message.blob)
    numbers = [namespace.send(entity, message, now) for message in messages]
    for message in messages:
        connection.broker.meter.sent(entity.path, message)
    return numbers


def _is_hit(
    connection: GatewayConnection, context: SendLink, delivery_id: int, settled: bool, message_format: int, payload: bytes
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
        raise ServerBusy("The request was terminated because the namespace is being throttled. Wait 10 seconds and try again.")
    if faults.strike(FILL, entity.path, now) is not None:
        raise QuotaExceeded(f"The maximum entity size has been reached or exceeded for '{entity.path}' (a fault was switched on).")
    drop = faults.strike(DROP_ACKNOWLEDGEMENTS, entity.path, now)
    delay = faults.strike(DELAY, entity.path, now)
    if drop is None and delay is None:
        return False
    store(connection, entity, parse(entity, message_format, payload), now)
    if delay is not None and not settled:
        broker.accept_later(connection, context.link.session, delivery_id, now + delay.delay_ms)
    return True
