"""Errors as AMQP carries them, and the conditions the standard names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.amqp.encode import (
    NULL,
    encode_described,
    encode_fields,
    encode_list,
    encode_string,
    encode_symbol,
)

RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
NOT_ALLOWED: Final = "amqp:not-allowed"
CONNECTION_FORCED: Final = "amqp:connection:forced"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
STOLEN: Final = "amqp:link:stolen"

ERROR_CODE: Final = 0x1D

DESCRIPTION_CHARACTERS_MAX: Final = 2048
"""Longer descriptions are cut: an error must fit the smallest frame a peer may ask for many times over."""

SHORT_CHARACTERS_MAX: Final = 64
"""Four bytes each at worst, which leaves room for everything else in 512."""


@dataclass(slots=True)
class AmqpError:
    """Condition, description and details of an error (AMQP 1.0, 2.8.14)."""

    condition: str
    description: str = ""
    info: dict[str, object] | None = None

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

    def __hash__(self) -> int:
        return hash((self.condition, self.description))
