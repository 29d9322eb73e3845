"""A stored message read back: as something to send on, as what rules may see, and with an action's changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pairbus.amqp.encode import encode_value
from pairbus.amqp.message.layout import header_size
from pairbus.amqp.message.rewrite import application_properties, payload_of, with_properties
from pairbus.amqp.message.scan import Scanned, scan
from pairbus.amqp.message.view import PropertiesView
from pairbus.amqp.types import Timestamp, ULong, Uuid
from pairbus.engine.rules.message_view import MISSING
from pairbus.engine.rules.sql.values import Duration
from pairbus.errors import FilterFailed, UsageError
from pairbus.model.message import HEADER_BYTES_MAX

if TYPE_CHECKING:
    from pairbus.engine.rules.sql.action import Changes

_LONG_MAX: Final = (1 << 63) - 1
_ID_TIME_MASK: Final = (1 << 48) - 1
_ID_COUNT_MASK: Final = (1 << 32) - 1
_FIELDS: Final = {
    "messageid": 0,
    "to": 2,
    "label": 3,
    "replyto": 4,
    "correlationid": 5,
    "contenttype": 6,
    "sessionid": 10,
    "replytosessionid": 12,
}
"""Broker properties that an action may write, to their place in the properties section."""


@dataclass(slots=True, eq=False)
class Kept:
    """An application property that an action leaves alone, still encoded."""

    raw: bytes


def incoming_of(blob: bytes) -> Scanned:
    """What the broker must know of stored bytes that go on to another entity."""
    return scan(payload_of(blob), True)


def with_changes(blob: bytes, changes: Changes) -> bytes:
    """The message with an action's changes; everything else keeps its bytes (B56). Raises FilterFailed."""
    before: dict[str, object] = {name: Kept(raw) for name, raw in application_properties(blob).items()}
    users: dict[str, bytes] = {}
    for name, value in changes.user_properties(before).items():
        users[name] = value.raw if isinstance(value, Kept) else _encoded(value)
    systems = {_FIELDS[name]: text for name, text in changes.system_properties().items()}
    changed = with_properties(blob, users, systems)
    if (header := header_size(changed)) > HEADER_BYTES_MAX:
        raise FilterFailed(
            f"the action makes properties and annotations of {header} bytes; at most {HEADER_BYTES_MAX} are allowed"
        )
    return changed


def _encoded(value: object) -> bytes:
    if isinstance(value, Duration):
        # AMQP has no duration among the types of properties; ticks of 100 ns are what Service Bus counts in.
        value = value.ms * 10_000
    elif isinstance(value, int) and value > _LONG_MAX:
        value = ULong(value)  # a sender's unsigned long, copied by an action
    try:
        return encode_value(value)
    except UsageError as error:
        # Never further than this: a publish is whole or not at all, whatever a message brings (B15, B58).
        raise FilterFailed(f"the action's value cannot be written: {error}") from error


class MessageFacts:
    """A message as the rules of a topic see it."""

    __slots__ = ("_ids", "_incoming", "_number", "_view", "enqueued_at")

    def __init__(self, incoming: Scanned, number: int, enqueued_at: int) -> None:
        self._incoming = incoming
        self._number = number
        self._view = PropertiesView(incoming.blob)
        self._ids = 0
        self.enqueued_at = enqueued_at

    def user(self, name: str) -> object:
        """An application property, or MISSING."""
        return self._view.user(name) if self._view.has_user(name) else MISSING

    def system(self, name: str) -> object:
        """A broker property by its canonical name, or MISSING."""
        own = self._own(name)
        if own is not None:
            return own
        value = self._view.system(name)
        return MISSING if value is None else value

    def _own(self, name: str) -> object:
        incoming = self._incoming
        if name == "timetolive":
            return Duration(incoming.ttl_ms) if incoming.ttl_ms else None
        if name == "enqueuedtimeutc":
            return Timestamp(self.enqueued_at)
        if name == "expiresatutc":
            return Timestamp(self.enqueued_at + incoming.ttl_ms) if incoming.ttl_ms else None
        if name == "scheduledenqueuetimeutc":
            return Timestamp(incoming.scheduled_at) if incoming.scheduled_at else None
        if name == "partitionkey":
            return incoming.partition_key
        if name == "sequencenumber":
            return self._number
        if name == "size":
            return len(incoming.blob)
        if name == "deliverycount":
            return 0
        return None

    def new_id(self) -> Uuid:
        """An identifier that no other message of the topic gets."""
        self._ids += 1
        # Six bytes each for time and number, four for the count: rules of one topic may ask very often for one message.
        parts = (
            (self.enqueued_at & _ID_TIME_MASK) << 80
            | (self._ids & _ID_COUNT_MASK) << 48
            | self._number & _ID_TIME_MASK
        )
        return Uuid(parts.to_bytes(16, "big"))
