"""Restores a backlog message at the moment of sending it, with the rule for limited times to live. No clock, no I/O.

Two policies for a limited time to live:

- ``freeze``: the time to live begins again with the send, as with any send. Nothing expires here, not even a message
  whose time to live is 0: it goes to its destination as it was.
- ``deduct``: the time since the message came into its backlog queue, by the stamp that the secondary gave it, is taken
  off. A message with nothing left is dead-lettered as ``ExpiredInBacklog``. A message that an operator redrives has
  been stored in its backlog queue again and gets its full time to live.
"""

from __future__ import annotations

from typing import Final, Literal

from pairbus.drain.ports import Delivery
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import OrderPolicy
from pairbus.errors import InvalidParkedPropertyError
from pairbus.pairing import parking
from pairbus.pairing.naming import PrimaryIdentity
from pairbus.pairing.parking import Follows, Restored

EXPIRED: Final = "ExpiredInBacklog"

TimeToLivePolicy = Literal["freeze", "deduct"]


def restore_to_send(
    payload: bytes,
    *,
    now_ms: int,
    enqueued_ms: int | None,
    time_to_live: TimeToLivePolicy,
    primary: PrimaryIdentity | None = None,
) -> Restored:
    """The original of a backlog message, ready to be sent at ``now_ms`` (time of day).

    Args:
        payload: The backlog message as it was delivered.
        now_ms: The time of day.
        enqueued_ms: When the message came into its backlog queue; None: unknown, nothing is deducted.
        time_to_live: Whether time in the backlog counts.
        primary: The primary that the message will be sent to. None: do not compare.

    Raises:
        InvalidParkedPropertyError: The message must be dead-lettered; ``reason`` and text say why.
    """
    if time_to_live == "freeze":
        return parking.restore(payload, now_ms, primary=primary)
    elapsed = 0 if enqueued_ms is None else max(0, now_ms - enqueued_ms)
    restored = parking.restore(payload, now_ms, elapsed_ms=elapsed, primary=primary)
    if restored.time_to_live_ms == 0:
        raise InvalidParkedPropertyError(
            EXPIRED, f"expected time left to live, found none after {elapsed} ms in the backlog"
        )
    return restored


def ordering_of(restored: Restored, queue: str, order: OrderPolicy) -> tuple[bool, tuple[Follows, ...]]:
    """Whether a message of a backlog queue keeps its place in its session, and what it follows in other queues.

    A scheduled message is due at a time of its own: it has no place in the order. A message of a client that keeps an
    order is always in order; one of another client, or of the retired SDK, when ``order`` asks for it.
    """
    if restored.scheduled_ms is not None:
        return False, ()
    passport = restored.passport
    kept = "relaxed" if passport is None else passport.order
    keys = [parking.order_key(one, restored.session_id, restored.partition_key) for one in (kept, order)]
    if keys == [None, None]:
        return False, ()
    follows = () if passport is None else passport.follows
    return True, tuple(one for one in follows if one.queue != queue)


def received(queue: str, delivery: Delivery, now: int) -> BacklogMessage:
    """A message as it was received, before it is restored."""
    return BacklogMessage(
        queue,
        delivery.sequence_number,
        path="",
        payload=b"",
        message_id="",
        session_id=None,
        partition_key=None,
        locked_until_ms=delivery.locked_until_ms,
        token=delivery.token,
        lock_ms=max(1_000, delivery.locked_until_ms - now),
        enqueued_ms=delivery.enqueued_ms,
        attempt=delivery.attempt,
        restored_ms=now,
        held_since_ms=now,
    )


def fill(message: BacklogMessage, restored: Restored, payload: bytes, order: OrderPolicy) -> None:
    """Put the restored form of a message, and what decides about its order, into it. ``payload``: its bytes in the backlog."""
    message.path, message.payload = restored.path, restored.payload
    message.message_id = restored.message_id_text
    message.session_id, message.partition_key = restored.session_id, restored.partition_key
    message.parked = payload if restored.time_to_live_ms is not None else None
    if (passport := restored.passport) is not None:
        message.detour = (passport.factory, passport.detour, passport.first_send_ms)
    message.is_ordered, message.follows = ordering_of(restored, message.queue, order)
