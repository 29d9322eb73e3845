"""Which link an answer goes out on: clients differ in how they say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.gateway.links import Replies

if TYPE_CHECKING:
    from pairbus.amqp.link import Link
    from pairbus.gateway.connection import GatewayConnection


REPLY_BYTES_MAX: Final = 8_388_608
"""Answers that may wait on one connection before further requests are told to come later."""
WAITING_BYTES_MAX: Final = 4_194_304
"""Answers that may wait for the window of a session; who asks on and on and takes nothing is shown the door (M6)."""


def reply(connection: GatewayConnection, link: Link, answer: bytes) -> None:
    """Send an answer."""
    if link.session.queued_bytes > WAITING_BYTES_MAX:
        text = f"More than {WAITING_BYTES_MAX} bytes of answers wait for the session's window to open."
        connection.close("amqp:resource-limit-exceeded", text)
        return
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
