"""The server's half of the SASL exchange (AMQP 1.0, 5.3). One round: mechanisms, init, outcome."""

from __future__ import annotations

from typing import Final

from pairbus.amqp.decode import decode_value, values_budget
from pairbus.amqp.encode import (
    NULL,
    encode_binary,
    encode_described,
    encode_list,
    encode_string,
    encode_symbol,
    encode_value,
)
from pairbus.amqp.fields import Fields
from pairbus.amqp.framing import sasl_frame
from pairbus.amqp.types import Array, Described, Symbol, UByte
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
"""EXTERNAL is not offered: no SDK uses it, and without client certificates it would say nothing."""


class SaslInit:
    """The client's choice of mechanism."""

    __slots__ = ("hostname", "initial_response", "mechanism")

    def __init__(self, mechanism: str, initial_response: bytes, hostname: str | None) -> None:
        self.mechanism = mechanism
        self.initial_response = initial_response
        self.hostname = hostname

    def encode(self) -> bytes:
        items = [
            encode_symbol(self.mechanism),
            encode_binary(self.initial_response),
            NULL if self.hostname is None else encode_string(self.hostname),
        ]
        return sasl_frame(encode_described(SASL_INIT, encode_list(items)))


def mechanisms_frame(names: tuple[str, ...] = MECHANISMS) -> bytes:
    offer = encode_value(Array([Symbol(name) for name in names]))
    return sasl_frame(encode_described(SASL_MECHANISMS, encode_list([offer])))


def outcome_frame(code: int) -> bytes:
    data = encode_binary(b"Welcome!") if code == OUTCOME_OK else NULL
    return sasl_frame(encode_described(SASL_OUTCOME, encode_list([encode_value(UByte(code)), data])))


def decode_init(buf: bytes, offset: int, end: int) -> SaslInit:
    """The body of a SASL frame, which must be ``sasl-init``: the mechanisms offered need no more from a client."""
    value, _ = decode_value(buf, offset, end, values_budget(INIT_VALUES_MAX))
    if isinstance(value, Described) and isinstance(value.value, list):
        if value.descriptor in (SASL_INIT, "amqp:sasl-init:list"):
            fields = Fields(value.value, "sasl-init")
            return SaslInit(fields.required_text(0), fields.binary(1), fields.text(2))
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
