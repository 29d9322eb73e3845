"""One port, many tongues: decides by the first bytes what a peer speaks."""

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
"""No tongue needs more bytes than this to be told from the others."""


class Tongue(Enum):
    AMQP = "amqp"
    TLS = "tls"
    HTTP = "http"
    UNKNOWN = "unknown"


_STARTS: Final = (
    (AMQP_MAGIC, Tongue.AMQP),
    (TLS_RECORD, Tongue.TLS),
    *((start, Tongue.HTTP) for start in HTTP_STARTS),
)


def tongue_of(prefix: bytes) -> Tongue | None:
    """What a stream that begins with ``prefix`` speaks; None while more bytes are needed to tell."""
    for start, tongue in _STARTS:
        if prefix.startswith(start):
            return tongue
    if any(start.startswith(prefix) for start, _ in _STARTS):
        return None
    return Tongue.UNKNOWN
