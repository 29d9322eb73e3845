"""Texts of errors as the service writes them: what, then a reference that support can look for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pairbus.amqp.conditions import AmqpError

if TYPE_CHECKING:
    from pairbus.errors import Refusal

_NODE: Final = "B0"


class Tracker:
    """Gives every error a tracking id that is unique within this broker's life."""

    __slots__ = ("_count", "_namespace", "_prefix")

    def __init__(self, namespace: str, prefix: bytes) -> None:
        self._namespace = namespace
        self._prefix = prefix.hex()
        self._count = 0

    def describe(self, text: str, path: str, now: int) -> str:
        """The text with its tracking part."""
        self._count += 1
        prefix = self._prefix
        guid = f"{prefix[:8]}-{prefix[8:12]}-{prefix[12:16]}-{self._count >> 48:04x}-{self._count & 0xFFFFFFFFFFFF:012x}"
        instant = datetime.fromtimestamp(now / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{text} TrackingId:{guid}_{_NODE}, SystemTracker:{self._namespace}:{path}, Timestamp:{instant}"

    def error(self, refusal: Refusal, path: str, now: int) -> AmqpError:
        """A refusal as it goes over the wire."""
        return AmqpError(refusal.condition, self.describe(refusal.description, path, now))
