"""The watch over one entity that is not healthy: its failover timer and its pings. One per entity and client."""

from __future__ import annotations

import logging
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessage

from pairbus.pairing.events import Kind
from pairbus.pairing.rules.health import EntityHealth, Health
from pairbus.pairing.rules.ping import PING_CONTENT_TYPE, PING_LIFE_SECONDS
from pairbus.sdk.failures import Failure, classify, shown
from pairbus.sdk.links import handlers

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient

logger = logging.getLogger("pairbus.pairing")

PAUSE_SECONDS: Final = 1.0
SDK_SHARE: Final = 0.9
"""Part of a ping's time that the SDK gets, so that it can end in its own way before it is cut off."""


KEY_REFUSED: Final = (
    "the primary answers and refuses the key, so messages stay in the backlog: make a new client with a key that is valid and "
    "may send"
)


def ping_message() -> ServiceBusMessage:
    """Empty, short-lived, with a throw-away session so that entities that require one accept it (P23, P24)."""
    return ServiceBusMessage(
        b"",
        content_type=PING_CONTENT_TYPE,
        time_to_live=timedelta(seconds=PING_LIFE_SECONDS),
        session_id=str(uuid.uuid4()),
        message_id=str(uuid.uuid4()),
    )


async def watch(client: PairedClient[Any, Any], health: EntityHealth) -> None:
    """Run until the entity is healthy or the client is closed."""
    while True:
        try:
            if await _turn(client, health):
                return
        except Exception:
            # An entity that nobody watches would stay failed over for ever.
            logger.exception(
                "the watch over %s failed; it goes on", health.path, extra={"event": "pairing.watch_failed"}
            )
            health.pings.answered(client._state.clock())
            await client._runtime.wait_for_change(client._runtime.change_token(), PAUSE_SECONDS)


async def _turn(client: PairedClient[Any, Any], health: EntityHealth) -> bool:
    """Look once, then ping or wait. True: there is nothing left to watch."""
    state = client._state
    with state.lock:
        token = client._runtime.change_token()
        now = state.clock()
        state.apply(health, health.tick(now))
        if health.state is Health.HEALTHY or client._is_ended:
            client._watch_ended(health)
            return True
        is_due = health.ping_is_due(now)
        if is_due:
            health.pings.sending(now)
        deadline = health.next_deadline()
    if is_due:
        await _ping(client, health)
    else:
        seconds = None if deadline is None else max(0.001, (deadline - now) / 1000)
        await client._runtime.wait_for_change(token, seconds)
    return False


async def _ping(client: PairedClient[Any, Any], health: EntityHealth) -> None:
    state = client._state
    with state.lock:
        state.counters.pings += 1
    state.emit(Kind.PING_SENT, health.path, "asking whether the entity is back")
    seconds = health.pings.timeout_ms / 1000
    error: Exception | None = None
    sender: Any = None
    try:
        # A fresh link for each ping: an old one would report its own death, not the entity's.
        sender = client.primary.get_queue_sender(health.path)
        handlers.for_one_try(sender)
        async with client._runtime.limit(sender, seconds):
            await client._runtime.call(sender.send_messages, ping_message(), timeout=seconds * SDK_SHARE)
    except Exception as caught:  # noqa: BLE001 - every error is the answer to the ping
        error = caught
    except BaseException:
        await client._close_quietly(sender)
        raise
    # The answer counts at once: closing the link takes the SDK half a second.
    _answered(client, health, error)
    await client._close_quietly(sender)


def _answered(client: PairedClient[Any, Any], health: EntityHealth, error: Exception | None) -> None:
    """A ping was accepted, or failed with ``error``."""
    state = client._state
    is_loud = False
    with state.lock:
        if client._is_ended:
            return
        now = state.clock()
        if error is None:
            state.counters.pings_answered += 1
            text = "the entity accepted a ping"
            changes = health.ping_succeeded(now)
        else:
            text = shown(error)
            failure = classify(error)
            is_key_refused = failure is Failure.UNAUTHORIZED
            if is_key_refused:
                text = f"{KEY_REFUSED} ({text})"
            is_gone = failure is Failure.NOT_FOUND
            changes = health.ping_failed(
                now, text, entity_is_gone=is_gone, error=error, is_silent=failure is Failure.TIMEOUT
            )
            # Once for each time that it begins: this ends only when somebody acts.
            is_loud = is_key_refused and not health.is_key_refused
            health.is_key_refused = is_key_refused
        state.note(health, f"ping: {text}")
        kind = Kind.PING_ANSWERED if error is None else Kind.PING_FAILED
        state.emit(kind, health.path, text, is_loud=is_loud)
        state.apply(health, changes)
