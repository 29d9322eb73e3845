"""Detects the protocol of a connection from its first bytes: one port serves them all."""

from __future__ import annotations

from enum import Enum
from typing import Final

AMQP_MAGIC: Final = b"AMQP"
TLS_RECORD: Final = b"\x16\x03"
"""A handshake record of any TLS version (RFC 8446, 5.1)."""

HTTP_STARTS: Final = tuple(
    method + b" "
    for method in (
        b"GET",
        b"PUT",
        b"POST",
        b"HEAD",
        b"DELETE",
        b"OPTIONS",
        b"PATCH",
        b"MERGE",
        b"TRACE",
        b"CONNECT",
    )
)
PREFIX_BYTES_MAX: Final = max(len(start) for start in HTTP_STARTS)
"""The protocol is known after this many bytes."""


class WireProtocol(Enum):
    AMQP = "amqp"
    TLS = "tls"
    HTTP = "http"
    UNKNOWN = "unknown"


_STARTS: Final = (
    (AMQP_MAGIC, WireProtocol.AMQP),
    (TLS_RECORD, WireProtocol.TLS),
    *((start, WireProtocol.HTTP) for start in HTTP_STARTS),
)


def detect_protocol(prefix: bytes) -> WireProtocol | None:
    """The protocol of a stream that begins with ``prefix``; None while more bytes are needed."""
    for start, protocol in _STARTS:
        if prefix.startswith(start):
            return protocol
    if any(start.startswith(prefix) for start, _ in _STARTS):
        return None
    return WireProtocol.UNKNOWN
