"""Accepts messages: the one way in for a transfer, a batch, a schedule request and a transaction.

Checking and storing are apart, because several messages are accepted whole or not at all (B13, B14).
What is metered and what the message audit gets is written here and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.encode import encode_string
from pairbus.amqp.message.layout import PREFIX_SIZE
from pairbus.amqp.message.rewrite import application_properties, with_properties
from pairbus.amqp.message.scan import scan
from pairbus.model.entity import QUEUE

if TYPE_CHECKING:
    from pairbus.amqp.message.scan import Scanned
    from pairbus.engine.entity import Entity
    from pairbus.gateway.broker import Broker
    from pairbus.gateway.telemetry.meter import SendTallies

MESSAGE_ID: Final = 0
"""The place of the message id among the properties."""


def read(broker: Broker, payload: bytes, wants_id: bool) -> Scanned:
    """One message. Without a message id it gets one: the JavaScript client cannot settle a message that has none."""
    message = scan(payload, wants_id)
    if not message.has_message_id and not message.is_ping:
        message_id = broker.tracker.message_id()
        message.blob = with_properties(
            message.blob, application_properties(message.blob), {MESSAGE_ID: message_id}
        )
        if wants_id:
            message.message_id = encode_string(message_id)
    return message


def accept(
    broker: Broker,
    entity: Entity,
    messages: list[Scanned],
    tallies: SendTallies,
    now: int,
    destination: str = "",
) -> list[int]:
    """Store all messages or none, or transfer them to the ``destination``. Their sequence numbers; 0: nothing was stored."""
    size = 0
    for message in messages:
        check(broker, entity, message, size, destination)
        size += len(message.blob)
    return [store(broker, entity, message, tallies, now, destination) for message in messages]


def check(broker: Broker, entity: Entity, message: Scanned, more_bytes: int, destination: str) -> None:
    """Refuse what ``store`` could not store after ``more_bytes`` of the same request."""
    if destination:
        broker.namespace.check_send_via(entity, destination, message, more_bytes)
    elif entity.kind == QUEUE:
        entity.main.check_send(message, more_bytes)
    else:
        broker.namespace.check_send(entity, message, more_bytes)


def store(
    broker: Broker, entity: Entity, message: Scanned, tallies: SendTallies, now: int, destination: str
) -> int:
    """Store a message that ``check`` has passed, meter and audit it. Its sequence number; 0: nothing was stored."""
    if destination:
        number = broker.namespace.send_via(entity, destination, message, now)
        if number and number not in entity.transfer_dead_letter.messages:
            broker.counters.transferred(entity.main, number, message.blob, destination, now)
    elif entity.kind == QUEUE:
        number = entity.main.send(message, now)
    else:
        number = broker.namespace.send(entity, message, now)
    (tallies.pings if message.is_ping else tallies.messages).add(len(message.blob) - PREFIX_SIZE)
    if broker.audit_rows is not None:
        broker.audit_rows.sent(entity.path, number, message, now)
    return number
