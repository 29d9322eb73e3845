"""Changes that a person makes on the page: send, redrive and purge messages, switch faults. Check first, then change."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.scan import scan
from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.types import Timestamp
from pairbus.engine.queues import browse
from pairbus.engine.queues.browse import PURGED
from pairbus.engine.stored_message import incoming_of
from pairbus.errors import ArgumentError, MessageNotFound, NotAllowed, UsageError
from pairbus.gateway.accept import accept
from pairbus.gateway.telemetry import meter
from pairbus.gateway.telemetry.audit_rows import COMPLETED, REDRIVEN
from pairbus.model.entity import TOPIC
from pairbus.model.message import ACTIVE, SCHEDULED
from pairbus.model.typed_text import properties_of
from pairbus.web.messages import incarnation_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pairbus.amqp.message.scan import Scanned
    from pairbus.engine.entity import Entity
    from pairbus.engine.queues.queue import Queue
    from pairbus.gateway.broker import Broker
    from pairbus.model.message import Message

SEND_COUNT_MAX: Final = 100
"""Copies of a test message in one request."""
NUMBERS_MAX: Final = 250
REDRIVE_MAX: Final = 1_000
"""Messages redriven by one request; the answer says how many are left."""
REDRIVE_BYTES_MAX: Final = 16_777_216
PURGE_MAX: Final = 4_000
"""Messages deleted by one request, as by the management link's batch delete; the answer says how many are left."""
DELAY_SECONDS_MAX: Final = 30 * 86_400


def send(broker: Broker, entity: Entity, body: Mapping[str, object], now: int) -> dict[str, object]:
    """Store test messages as a client's would be; all of them or none."""
    count = whole(body, "count", 1, SEND_COUNT_MAX, 1)
    delay = whole(body, "delay_seconds", 0, DELAY_SECONDS_MAX, 0)
    try:
        users: dict[str, object] = dict(properties_of(body.get("properties")))
    except UsageError as error:
        raise ArgumentError(f"{error}.") from None
    annotations: dict[str, object] | None = None
    if delay:
        annotations = {"x-opt-scheduled-enqueue-time": Timestamp(broker.date_of(now) + delay * 1000)}
    given_id = text(body, "message_id")
    messages = []
    for index in range(count):
        message_id = (
            broker.tracker.message_id()
            if given_id is None
            else given_id + (f"-{index + 1}" if count > 1 else "")
        )
        payload = encode_message(
            message_id=message_id,
            subject=text(body, "subject"),
            content_type=text(body, "content_type"),
            correlation_id=text(body, "correlation_id"),
            group_id=text(body, "session_id"),
            application_properties=users or None,
            message_annotations=annotations,
            body=(text(body, "body") or "").encode(),
            body_kind="data",
        )
        messages.append(scan(payload, entity.main.duplicates is not None))
    operation = meter.SCHEDULE if delay else meter.SEND
    tallies = meter.SendTallies(broker.meter, entity.path, operation)
    numbers = accept(broker, entity, messages, tallies, now)
    return {
        "sent": len(numbers),
        "sequence_numbers": numbers,
        "duplicates": numbers.count(0) if entity.kind != TOPIC else 0,
    }


def redrive(broker: Broker, entity: Entity, body: Mapping[str, object], now: int) -> dict[str, object]:
    """Send dead-lettered messages to where they died, as new ones: fresh number, fresh count, fresh life."""
    place = entity.dead_letter
    again: list[tuple[Message, Scanned]] = []
    held = size = 0
    for message in _chosen(place, body, REDRIVE_MAX):
        size += message.size
        if message.is_locked or message.state != ACTIVE:
            held += 1  # a receiver has it; it decides
        elif not again or size <= REDRIVE_BYTES_MAX:
            arriving = incoming_of(broker.log.read(message.location, message.size))
            # Its id was accepted once already: duplicate detection would drop what was never handled.
            arriving.message_id = b""
            entity.main.check_send(arriving, 0)
            again.append((message, arriving))
    for message, arriving in again:
        number = entity.main.send(arriving, now)
        if broker.audit_rows is not None:
            broker.audit_rows.sent(entity.path, number, arriving, now, REDRIVEN)
            blob = broker.log.read(message.location, message.size)
            broker.audit_rows.ended(COMPLETED, place, message, blob, now)
        place.remove(message)
        _count_redriven(broker, entity, message)
    return {"redriven": len(again), "held": held, "left": place.active_count}


def _count_redriven(broker: Broker, entity: Entity, message: Message) -> None:
    """It is billed like the receive, send and settlement it stands for."""
    size, place = meter.billed_size(message), entity.dead_letter.path
    broker.meter.tally(place, meter.RECEIVE).add(size)
    broker.meter.tally(entity.path, meter.SEND).add(size)
    broker.meter.tally(place, meter.SETTLE).add(0)


def purge(broker: Broker, queue: Queue, body: Mapping[str, object]) -> dict[str, object]:
    """Delete messages for good, whatever their state. All of a place only when its path was typed."""
    if body.get("numbers") is None:
        queue.check_receive()
        if body.get("confirm") != queue.path:
            raise ArgumentError(f"Purging deletes everything: type the path '{queue.path}' to confirm.")
    queue.numbers.accessed_at = broker.now
    removed, held = _purge_chosen(queue, _chosen(queue, body, PURGE_MAX), broker.now)
    broker.meter.tally(queue.path, meter.DELETE).add(0)
    return {"purged": removed, "held": held, "left": len(queue.messages) - len(queue.locks)}


def _purge_chosen(queue: Queue, chosen: list[Message], now: int) -> tuple[int, int]:
    removed = held = 0
    for message in chosen:
        if message.is_locked:
            held += 1
        elif message.state == SCHEDULED:
            browse.cancel_scheduled(queue, [message.sequence_number], now)
            removed += 1
        else:
            if queue.context.watcher is not None:
                queue.context.watcher.dropped(queue, message, PURGED, now)
            queue.remove(message)
            removed += 1
    return removed, held


def _chosen(queue: Queue, body: Mapping[str, object], limit: int) -> list[Message]:
    """The messages of these numbers, or the first ones that nobody holds."""
    numbers = body.get("numbers")
    if numbers is None:
        free = (message for message in queue.messages.values() if not message.is_locked)
        return list(islice(free, limit))
    if not isinstance(numbers, list) or not 0 < len(numbers) <= NUMBERS_MAX or not _are_whole(numbers):
        raise ArgumentError(f"numbers needs 1 to {NUMBERS_MAX} sequence numbers.")
    if body.get("incarnation") != incarnation_of(queue):
        # A number alone would name a message that the person has never seen.
        raise MessageNotFound(
            f"'{queue.path}' was deleted and made again since its messages were shown: look at them again."
        )
    found: list[Message] = []
    for number in dict.fromkeys(numbers):
        message = queue.messages.get(number)
        if message is None:
            raise MessageNotFound(
                f"No message in '{queue.path}' has the number {number}: it was received or moved meanwhile."
            )
        found.append(message)
    return found


def _are_whole(values: list[object]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def add_fault(broker: Broker, body: Mapping[str, object], now: int) -> dict[str, object]:
    broker.faults.add(dict(body), now, broker.namespace)
    return faults(broker, now)


def clear_faults(broker: Broker, now: int) -> dict[str, object]:
    _check_offered(broker)
    broker.faults.clear()
    return faults(broker, now)


def faults(broker: Broker, now: int) -> dict[str, object]:
    _check_offered(broker)
    return {"faults": broker.faults.snapshot(now), "at_ms": now}


def _check_offered(broker: Broker) -> None:
    if not broker.offers_faults:
        raise NotAllowed("The switchboard is not offered: start the broker with --faults.")


def text(body: Mapping[str, object], name: str) -> str | None:
    """An optional text; empty is absent."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise ArgumentError(f"{name} is no text.")
    return value or None


def whole(body: Mapping[str, object], name: str, low: int, high: int, default: int) -> int:
    """An optional whole number within its range."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ArgumentError(f"{name} is {value!r}: it must be a whole number from {low} to {high}.")
    return value
