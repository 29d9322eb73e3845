"""Errors as AMQP carries them, and the conditions the standard names."""

from __future__ import annotations

from typing import Final

from pairbus.amqp.encode import (
    NULL,
    encode_described,
    encode_fields,
    encode_list,
    encode_string,
    encode_symbol,
)
from pairbus.errors import Refusal

INTERNAL_ERROR: Final = "amqp:internal-error"
NOT_FOUND: Final = "amqp:not-found"
UNAUTHORIZED_ACCESS: Final = "amqp:unauthorized-access"
DECODE_ERROR: Final = "amqp:decode-error"
RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
NOT_ALLOWED: Final = "amqp:not-allowed"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
ILLEGAL_STATE: Final = "amqp:illegal-state"
FRAME_SIZE_TOO_SMALL: Final = "amqp:frame-size-too-small"
CONNECTION_FORCED: Final = "amqp:connection:forced"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
WINDOW_VIOLATION: Final = "amqp:session:window-violation"
ERRANT_LINK: Final = "amqp:session:errant-link"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
DETACH_FORCED: Final = "amqp:link:detach-forced"
MESSAGE_SIZE_EXCEEDED: Final = "amqp:link:message-size-exceeded"
STOLEN: Final = "amqp:link:stolen"

ERROR_CODE: Final = 0x1D

DESCRIPTION_CHARACTERS_MAX: Final = 2048
"""Longer descriptions are cut: an error must fit the smallest frame a peer may ask for many times over."""

SHORT_CHARACTERS_MAX: Final = 64
"""Four bytes each at worst, which leaves room for everything else in 512."""


class AmqpError:
    """Condition, description and details of an error (AMQP 1.0, 2.8.14)."""

    __slots__ = ("condition", "description", "info")

    def __init__(self, condition: str, description: str = "", info: dict[str, object] | None = None) -> None:
        self.condition = condition
        self.description = description
        self.info = info

    @staticmethod
    def from_refusal(refusal: Refusal) -> AmqpError:
        """The error a client sees when the broker says no."""
        return AmqpError(refusal.condition, refusal.description)

    def shortened(self) -> AmqpError:
        """The same error in so few bytes that it fits the smallest frame."""
        return AmqpError(self.condition[:64], self.description[:SHORT_CHARACTERS_MAX])

    def encode(self) -> bytes:
        """All three fields always: ``_pyamqp`` hangs or raises on fewer."""
        description = self.description[:DESCRIPTION_CHARACTERS_MAX]
        return encode_described(
            ERROR_CODE,
            encode_list(
                [
                    encode_symbol(self.condition),
                    encode_string(description) if description else NULL,
                    encode_fields(self.info) if self.info else NULL,
                ]
            ),
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, AmqpError)
            and other.condition == self.condition
            and other.description == self.description
            and (other.info or None) == (self.info or None)
        )

    def __hash__(self) -> int:
        return hash((self.condition, self.description))

    def __repr__(self) -> str:
        return f"AmqpError({self.condition!r}, {self.description!r}, {self.info!r})"
