"""The server's half of the SASL exchange (AMQP 1.0, 5.3). One round: mechanisms, init, outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.amqp.composite import BINARY, SYMBOL, TEXT, Composite, Field, define, read_composite
from pairbus.amqp.decode import decode_value, values_budget
from pairbus.amqp.encode import (
    NULL,
    encode_binary,
    encode_described,
    encode_list,
    encode_symbols,
    encode_value,
)
from pairbus.amqp.transport.framing import sasl_frame
from pairbus.amqp.types import Described, UByte
from pairbus.errors import RemoteProtocolError

SASL_MECHANISMS: Final = 0x40
SASL_INIT: Final = 0x41
SASL_OUTCOME: Final = 0x44

OUTCOME_OK: Final = 0
OUTCOME_AUTH: Final = 1

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
MSSBCBS: Final = "MSSBCBS"

INIT_VALUES_MAX: Final = 16
"""Values in a ``sasl-init``: a descriptor, a list and three fields."""
MECHANISMS: Final = (MSSBCBS, PLAIN, ANONYMOUS)
"""EXTERNAL is not offered: no SDK uses it, and without client certificates it proves nothing."""


@dataclass(slots=True)
class SaslInit(Composite):
    """The client's choice of mechanism."""

    mechanism: str = ""
    initial_response: bytes = b""
    hostname: str | None = None

    def frame(self) -> bytes:
        """The whole frame, as a client sends it."""
        return sasl_frame(self.encode())


define(
    SaslInit,
    SASL_INIT,
    Field("mechanism", SYMBOL, is_required=True),
    Field("initial_response", BINARY),
    Field("hostname", TEXT),
)


def mechanisms_frame(names: tuple[str, ...] = MECHANISMS) -> bytes:
    """The server's offer."""
    return sasl_frame(encode_described(SASL_MECHANISMS, encode_list([encode_symbols(list(names))])))


def outcome_frame(code: int) -> bytes:
    """The server's verdict."""
    data = encode_binary(b"Welcome!") if code == OUTCOME_OK else NULL
    return sasl_frame(encode_described(SASL_OUTCOME, encode_list([encode_value(UByte(code)), data])))


def decode_init(buf: bytes, offset: int, end: int) -> SaslInit:
    """The body of a SASL frame, which must be ``sasl-init``: the mechanisms offered need no more from a client."""
    value, _ = decode_value(buf, offset, end, values_budget(INIT_VALUES_MAX))
    if isinstance(value, Described) and isinstance(value.value, list):
        if value.descriptor in (SASL_INIT, "amqp:sasl-init:list"):
            return read_composite(SaslInit, value.value)
    raise RemoteProtocolError("amqp:not-allowed", "sasl-init was expected")


def plain_credentials(response: bytes) -> tuple[str, str] | None:
    """User and password of a PLAIN response (RFC 4616), or None when it is malformed."""
    parts = response.split(b"\x00")
    if len(parts) != 3:
        return None
    try:
        return parts[1].decode("utf-8"), parts[2].decode("utf-8")
    except UnicodeDecodeError:
        return None
