"""A stored message as the page shows it: plain text and numbers, never markup (M8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.whole import DecodedMessage, decode_message
from pairbus.amqp.types import Double, Float, Sized, Timestamp
from pairbus.engine.queues import browse
from pairbus.errors import InvalidParkedPropertyError, ProtocolError
from pairbus.gateway.outgoing import encode_delivery
from pairbus.gateway.telemetry.meter import BACKLOG, stage_of
from pairbus.model.message_row import PAGE_ROW, property_values, stored_values
from pairbus.pairing import parking

if TYPE_CHECKING:
    from pairbus.engine.queues.queue import Queue
    from pairbus.gateway.broker import Broker
    from pairbus.model.message import Message

PAGE_MAX: Final = 50
"""Messages in one answer."""
BODY_BYTES_SHOWN_MAX: Final = 16_384
BODY_BYTES_WHOLE_MAX: Final = 1_048_576
"""Of one message, when somebody wants to see all of it."""
TEXT_CHARACTERS_MAX: Final = 2_048
PROPERTIES_SHOWN_MAX: Final = 100


def page_of(
    broker: Broker, queue: Queue, from_number: int, count: int, now: int, *, is_whole: bool = False
) -> dict[str, object]:
    """Messages from a number on, in order; ``is_whole``: one of them, with its body as far as a page can show it."""
    limit = BODY_BYTES_WHOLE_MAX if is_whole else BODY_BYTES_SHOWN_MAX
    wanted = 1 if is_whole else max(1, min(count, PAGE_MAX))
    queue.numbers.accessed_at = now  # a look is use, as a peek is
    # One more than asked for tells whether there is a next page.
    found = browse.peek(queue, from_number, wanted + 1, None)
    shown, rest = found[:wanted], found[wanted:]
    broker.meter.peeked(queue.path, shown)
    ahead = queue.context.read_ahead
    if ahead is not None:  # one question for all of them; a page is waited for
        ahead.fetch([one.location for one in shown if not ahead.is_at_hand(one.location)], queue.queue_id)
    is_backlog = stage_of(queue.path) == BACKLOG
    return {
        "messages": [_row(broker, queue, message, now, limit, is_backlog=is_backlog) for message in shown],
        "next": rest[0].sequence_number if rest else _after(queue, shown),
        "incarnation": incarnation_of(queue),
    }


def incarnation_of(queue: Queue) -> str:
    """Distinguishes a queue from an earlier one of the same name: both number their messages from 1."""
    return f"{queue.queue_id}-{queue.settings.created_at}"


def _after(queue: Queue, shown: list[Message]) -> int | None:
    """Where the next page begins when this one was cut short by its size."""
    if not shown:
        return None
    more = browse.peek(queue, shown[-1].sequence_number + 1, 1, None)
    return more[0].sequence_number if more else None


def _row(
    broker: Broker, queue: Queue, message: Message, now: int, limit: int, *, is_backlog: bool
) -> dict[str, object]:
    blob = broker.log.read(message.location, message.size)
    payload = b"".join(encode_delivery(queue, message, blob, 0, b""))
    facts = stored_values(PAGE_ROW, message)
    return {
        **{
            name: value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) else value
            for name, value in facts.items()
        },
        "original": _original(payload, now, limit) if is_backlog else None,
        **shown_parts(payload, limit),
    }


def _original(payload: bytes, now: int, limit: int) -> dict[str, object]:
    """Return a backlog message as its destination will get it."""
    try:
        restored = parking.restore(payload, now)
    except InvalidParkedPropertyError as error:
        return {"error": str(error)}
    passport = restored.passport
    return shown_parts(restored.payload, limit) | {
        "path": restored.path,
        "time_to_live_ms": restored.time_to_live_ms,
        "scheduled_at": restored.scheduled_ms,
        "detoured_because": passport.reason if passport is not None else None,
        "first_sent_at": passport.first_send_ms if passport is not None else None,
    }


def shown_parts(payload: bytes, limit: int = BODY_BYTES_SHOWN_MAX) -> dict[str, object]:
    """Properties and body of an encoded message."""
    try:
        decoded = decode_message(payload)
    except ProtocolError as error:
        return {"unreadable": str(error), "body": _body(payload, "bytes", limit), "properties": []}
    users = list(decoded.application_properties.items())
    return {
        **property_values(PAGE_ROW, decoded.properties, _text),
        "properties": [
            {"name": name[:TEXT_CHARACTERS_MAX], "value": _text(value), "type": _type(value)}
            for name, value in users[:PROPERTIES_SHOWN_MAX]
        ],
        "properties_not_shown": max(0, len(users) - PROPERTIES_SHOWN_MAX),
        "body": _body_of(decoded, limit),
    }


def _body_of(decoded: DecodedMessage, limit: int) -> dict[str, object]:
    if isinstance(decoded.body, bytes):
        return _body(decoded.body, decoded.body_kind, limit)
    text = "" if decoded.body is None else str(_text(decoded.body, limit))
    return _body(text.encode(errors="replace"), decoded.body_kind or "none", limit)


def _body(body: bytes, kind: str, limit: int) -> dict[str, object]:
    """Text where it is text; always the bytes, as hexadecimal digits."""
    shown = body[:limit]
    text: str | None
    try:
        text = shown.decode("utf-8")
    except UnicodeDecodeError as error:
        # A cut in the middle of the last character is no sign of binary content.
        is_cut = len(body) > len(shown) and error.start >= len(shown) - 3
        text = shown[: error.start].decode("utf-8") if is_cut else None
    if text is not None and "\x00" in text:
        text = None
    return {
        "kind": kind,
        "size": len(body),
        "text": text,
        "hex": shown.hex(),
        "is_cut": len(body) > len(shown),
    }


def _text(value: object, limit: int = TEXT_CHARACTERS_MAX) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Timestamp):
        return f"{value.ms} ms"
    if isinstance(value, Sized | Float | Double):
        return str(value.value)
    if isinstance(value, bytes):
        return value.hex()[:limit]
    return str(value)[:limit]


def _type(value: object) -> str:
    return "null" if value is None else type(value).__name__.lower()
