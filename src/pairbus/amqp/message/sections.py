"""The sections of a message: taken apart when it comes, put together when it goes, looked at in between.

``layout`` tells how a stored message looks; ``scan`` makes one, ``delivery`` sends one, ``view`` reads one.
"""

from __future__ import annotations

from pairbus.amqp.decode import decode_value
from pairbus.amqp.message.delivery import DeliveryExtras, delivery_parts, without_body
from pairbus.amqp.message.layout import PREFIX_SIZE
from pairbus.amqp.message.scan import BadMessage, Scanned, scan, split_batch
from pairbus.amqp.message.view import PropertiesView, properties_view
from pairbus.amqp.types import Uuid

__all__ = [
    "PREFIX_SIZE",
    "BadMessage",
    "DeliveryExtras",
    "PropertiesView",
    "Scanned",
    "delivery_parts",
    "message_id_text",
    "properties_view",
    "scan",
    "split_batch",
    "without_body",
]


def message_id_text(raw: bytes) -> str:
    """A message-id as people write it: what ``scan`` found, for logs and listings."""
    if not raw:
        return ""
    value, _ = decode_value(raw)
    if isinstance(value, Uuid):
        text = value.raw.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return value.hex() if isinstance(value, bytes) else str(value)
