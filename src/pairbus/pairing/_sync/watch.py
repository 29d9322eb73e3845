# Written by tools/unasync.py from _async/watch.py: edit that file.
"""The watch over one entity that is not healthy: its failover timer and its pings. One per entity and state."""

from __future__ import annotations

import logging
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessage

from pairbus.pairing.events import Kind
from pairbus.pairing.rules.health import EntityHealth, Health
from pairbus.pairing.rules.ping import PING_CONTENT_TYPE, PING_LIFE_SECONDS
from pairbus.sdk import handlers
from pairbus.sdk.failures import Failure, classify

if TYPE_CHECKING:
    from pairbus.pairing._sync.client import PairedServiceBusClient

logger = logging.getLogger("pairbus.pairing")

PAUSE_SECONDS: Final = 1.0
SDK_SHARE: Final = 0.9
"""What the SDK gets of a ping's time, so that it may end in its own way before it is cut off."""


def ping_message() -> ServiceBusMessage:
    """Empty, short-lived, with a throw-away session so that entities that require one accept it (P23, P24)."""
    return ServiceBusMessage(
        b"",
        content_type=PING_CONTENT_TYPE,
        time_to_live=timedelta(seconds=PING_LIFE_SECONDS),
        session_id=str(uuid.uuid4()),
        message_id=str(uuid.uuid4()),
    )


def watch(client: PairedServiceBusClient, record: EntityHealth) -> None:
    """Run until the entity is healthy or the client is closed."""
    while True:
        try:
            if _turn(client, record):
                return
        except Exception:
            # An entity that nobody watches would stay failed over for ever.
            logger.exception(
                "the watch over %s stumbled", record.path, extra={"event": "pairing.watch_failed"}
            )
            record.pings.answered(client._state.clock())
            client._pulse.wait(client._pulse.ticket(), PAUSE_SECONDS)


def _turn(client: PairedServiceBusClient, record: EntityHealth) -> bool:
    """Look once, then ping or wait. True: there is nothing left to watch."""
    state = client._state
    with state.lock:
        ticket = client._pulse.ticket()
        now = state.clock()
        state.apply(record, record.tick(now))
        if record.state is Health.HEALTHY or client._is_ended:
            client._watch_ended(record)
            return True
        is_due = record.ping_is_due(now)
        if is_due:
            record.pings.sending(now)
        deadline = record.next_deadline()
    if is_due:
        _ping(client, record)
    else:
        client._pulse.wait(ticket, None if deadline is None else max(0.001, (deadline - now) / 1000))
    return False


def _ping(client: PairedServiceBusClient, record: EntityHealth) -> None:
    state = client._state
    with state.lock:
        state.counters.pings += 1
    state.tell(Kind.PING_SENT, record.path, "asking whether the entity is back")
    seconds = record.pings.timeout_ms / 1000
    error: Exception | None = None
    sender: Any = None
    try:
        # A fresh link for each ping: an old one would report its own death, not the entity's.
        sender = client.primary.get_queue_sender(record.path)
        handlers.set_retries(sender, 0)
        with client._limits.limit(sender, seconds):
            sender.send_messages(ping_message(), timeout=seconds * SDK_SHARE)
    except Exception as caught:  # noqa: BLE001 - every error is the answer to the ping
        error = caught
    finally:
        client._close_handler(sender)
    with state.lock:
        if client._is_ended:
            return
        now = state.clock()
        if error is None:
            state.counters.pings_answered += 1
            text = "the entity accepted a ping"
            changes = record.ping_succeeded(now)
        else:
            text = f"{type(error).__name__}: {error}"[:200]
            is_gone = classify(error) is Failure.NOT_FOUND
            changes = record.ping_failed(now, text, entity_is_gone=is_gone, error=error)
        state.note(record, f"ping: {text}")
        state.tell(Kind.PING_ANSWERED, record.path, text, is_good=error is None)
        state.apply(record, changes)
