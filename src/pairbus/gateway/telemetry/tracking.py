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

    __slots__ = ("_count", "_message_count", "_namespace", "_prefix", "refusals")

    def __init__(self, namespace: str, prefix: bytes) -> None:
        self._namespace = namespace
        self._prefix = prefix.hex()
        self._count = 0
        self._message_count = 0
        self.refusals: dict[str, int] = {}
        """How often each condition was given as a reason."""

    def message_id(self) -> str:
        """An id for a message that came without: 32 hex digits, as the service makes them."""
        self._message_count += 1
        return f"{self._prefix}{self._message_count:016x}"

    def describe(self, text: str, path: str, now: int) -> str:
        """The text with its tracking part."""
        self._count += 1
        prefix = self._prefix
        guid = f"{prefix[:8]}-{prefix[8:12]}-{prefix[12:16]}-{self._count >> 48:04x}-{self._count & 0xFFFFFFFFFFFF:012x}"
        instant = datetime.fromtimestamp(now / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return (
            f"{text} TrackingId:{guid}_{_NODE}, SystemTracker:{self._namespace}:{path}, Timestamp:{instant}"
        )

    def refused(self, condition: str) -> None:
        """Count a refusal. Conditions are the broker's own, so there are few."""
        self.refusals[condition] = self.refusals.get(condition, 0) + 1

    def error(self, refusal: Refusal, path: str, now: int) -> AmqpError:
        """A refusal as it goes over the wire."""
        self.refused(refusal.condition)
        return AmqpError(refusal.condition, self.describe(refusal.description, path, now))
