"""How a request to a node is settled, and which link its answer goes out on: clients differ in how they say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.whole import DecodedMessage, decode_into
from pairbus.amqp.states import STATE_ACCEPTED
from pairbus.errors import MalformedMessage, ProtocolError
from pairbus.gateway.links import Replies

if TYPE_CHECKING:
    from pairbus.amqp.transport.link import Link
    from pairbus.gateway.connection import GatewayConnection
    from pairbus.gateway.links import LinkContext


REPLY_BYTES_MAX: Final = 8_388_608
"""Answers that may wait on one connection before further requests are refused as busy."""


def may_ask(connection: GatewayConnection) -> bool:
    """Whether a request may be answered. A client that asks on and on and lets no answer through is disconnected (M6)."""
    amqp = connection.amqp
    if not amqp.has_enough_waiting():
        return True
    text = (
        f"Answers and messages of {amqp.waiting_size} bytes wait for the windows of this connection's sessions to open: at most "
        f"{amqp.settings.waiting_bytes_max} may wait. Open the windows before asking for more."
    )
    connection.close("amqp:resource-limit-exceeded", text)
    return False


def take_request(
    connection: GatewayConnection,
    context: LinkContext,
    delivery_id: int,
    settled: bool,
    payload: bytes,
    values_max: int,
) -> tuple[DecodedMessage | None, MalformedMessage | None]:
    """Read a request and settle it.

    Returns the message and what is wrong with its bytes. No message: nobody could match an answer to it, so it is rejected.
    """
    message = DecodedMessage()
    malformed: MalformedMessage | None = None
    try:
        decode_into(message, payload, values_max)
    except ProtocolError as error:
        malformed = MalformedMessage(f"The request cannot be read: {error}")
        if not message.properties.message_id_raw:
            if not settled:
                refusal = connection.broker.tracker.error(malformed, context.path, connection.now)
                context.link.session.reject_incoming(delivery_id, refusal)
            return None, malformed
    if not settled:
        settle_request(context.link, delivery_id)
    return message, malformed


def settle_request(link: Link, delivery_id: int) -> None:
    """Accept a request at once, not with others at the end of the turn: clients on uAMQP drop an answer that comes before it."""
    link.session.settle_incoming_state(delivery_id, STATE_ACCEPTED)


def reply(connection: GatewayConnection, link: Link, answer: bytes) -> None:
    if may_ask(connection):
        link.send(b"\x00", [answer], True)


def reply_link(connection: GatewayConnection, request: Link, path: str, reply_to: str | None) -> Link | None:
    """The receiving link for a node: by reply-to where it names one, else on the same session, else any."""
    fallback: Link | None = None
    for link, context in connection.links.items():
        if not isinstance(context, Replies) or context.path != path:
            continue
        if reply_to is not None and reply_to in (link.name, link.target_address):
            return link
        if fallback is None or (link.session is request.session and fallback.session is not request.session):
            fallback = link
    return fallback
