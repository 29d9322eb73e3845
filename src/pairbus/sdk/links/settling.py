"""Settles many deliveries of one receiver with few frames.

The official SDK settles one delivery per round trip. A drain needs one disposition for a page. The wire sees nothing
that the SDK does not do itself but a disposition with a range (AMQP 1.0, 2.7.6).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus._pyamqp.outcomes import Accepted, Released
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
)

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusReceiver as AsyncServiceBusReceiver

SETTLE_SECONDS_MAX: Final = 20.0
"""How long the broker may take to confirm a page of settlements."""
_CANCELLED: Final = {"deadletter-reason": "Cancelled"}
"""Beside the status ``completed``: PairBus writes ``cancelled`` into its audit log. Azure Service Bus has no use for it."""


async def settle_all(
    receiver: AsyncServiceBusReceiver,
    messages: Sequence[ServiceBusReceivedMessage],
    *,
    released: bool = False,
) -> list[bool]:
    """Complete (or release) deliveries of one receiver with as few frames as their numbers allow.

    Returns for each whether the broker confirmed it; a message that is not confirmed may have lost its lock, and
    then comes again (P40).
    """
    handler: Any = receiver._handler
    link = None if handler is None else handler._link
    if link is None or link._is_closed:
        return [False] * len(messages)
    wanted = "released" if released else "accepted"
    by_number = sorted(messages, key=_delivery_number)
    pending = link._pending_dispositions
    numbers = [_delivery_number(message) for message in by_number]
    try:
        for first, last in _runs(numbers):
            run = by_number[first:last]
            for message in run:
                pending[_delivery_number(message)] = {"settled": False, "outcome": None}
            tags = [message._delivery_tag for message in run]
            state: Any = Released() if released else Accepted()
            await link._outgoing_disposition(numbers[first], numbers[last - 1], tags[0], False, state, None)
            link._received_delivery_tags.difference_update(tags)
        await _wait_for_outcomes(link, numbers)
        confirmed = {number for number in numbers if wanted in (pending[number]["outcome"] or {})}
    finally:
        for number in numbers:
            pending.pop(number, None)
    return [_delivery_number(message) in confirmed for message in messages]


async def cancel(call: Callable[..., Awaitable[Any]], receiver: Any, message: Any) -> None:
    """Complete a message because its sender cancelled it, so that an audit log can tell the two apart.

    ``call`` calls a method of the receiver, which may be synchronous. Raises as ``complete_message`` does.
    """
    try:
        await call(receiver._settle_message_via_mgmt_link, "completed", [message.lock_token], _CANCELLED)
    except (
        MessageLockLostError,
        OperationTimeoutError,
        ServiceBusCommunicationError,
        ServiceBusConnectionError,
    ):
        raise
    except ServiceBusError:
        await call(receiver.complete_message, message)  # a service that refuses a reason here
    message._settled = True


def is_received_by(message: Any, receiver: object) -> bool:
    """Whether a message was delivered by this receiver. Its lock belongs to that link."""
    return message._receiver is receiver


def _delivery_number(message: ServiceBusReceivedMessage) -> int:
    return int(message._delivery_id)


async def _wait_for_outcomes(link: Any, numbers: Sequence[int]) -> None:
    give_up = time.monotonic() + SETTLE_SECONDS_MAX
    pending = link._pending_dispositions
    while not all(pending[number]["settled"] for number in numbers):
        if time.monotonic() > give_up or link._is_closed or link.state.name in ("DETACHED", "ERROR"):
            return
        await link._session._connection.listen(wait=False)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Index ranges of ascending numbers without a gap."""
    runs: list[tuple[int, int]] = []
    start = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            runs.append((start, index))
            start = index
    return runs if numbers else []
