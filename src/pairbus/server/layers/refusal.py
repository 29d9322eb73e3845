"""What a client that uses plain text is told before its connection ends (M14)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.transport.framing import AMQP_HEADER, SASL_HEADER, amqp_frame
from pairbus.amqp.transport.performatives import Close, Open
from pairbus.amqp.transport.sasl import OUTCOME_OK, mechanisms_frame, outcome_frame
from pairbus.server.layers.detect import WireProtocol
from pairbus.server.layers.http import problem

LOOPBACK_ONLY: Final = "plain text is served to loopback peers only"
NOT_ALLOWED: Final = "amqp:not-allowed"


def plain_text_refusal(protocol: WireProtocol, first: bytes, why: str = LOOPBACK_ONLY) -> bytes:
    """The answer in the protocol that the client speaks; ``first``: what it sent. Empty if there is none to give."""
    if protocol is WireProtocol.HTTP:
        body = problem(HTTPStatus.FORBIDDEN, f"{why}; use https (TLS) on the same port").body
        return (
            b"HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
    if protocol is not WireProtocol.AMQP:
        return b""
    # All at once: clients read one frame after the other, and none of these depends on what they send.
    sasl = b""
    if first.startswith(SASL_HEADER):
        sasl = SASL_HEADER + mechanisms_frame() + outcome_frame(OUTCOME_OK)
    error = AmqpError(NOT_ALLOWED, f"{why}; use TLS on the same port")
    opened = amqp_frame(0, Open(container_id="pairbus").encode())
    return sasl + AMQP_HEADER + opened + amqp_frame(0, Close(error=error).encode())
