"""Receives and settles deferred messages, as encoded bytes, on an open asynchronous receiver.

The SDK decodes what it receives, and one message with a type that it has no name for ends the request. So the bytes are kept, as
``receivers`` does for what comes on the link. The requests are the SDK's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
)

from pairbus.sdk.links.browsing import NoLog
from pairbus.sdk.links.receivers import settling_part

RECEIVE_OPERATION: Final = b"com.microsoft:receive-by-sequence-number"
PEEK_LOCK: Final = 1
"""The value of ``receiver-settle-mode`` that locks."""
NOT_THERE: Final = (MessageLockLostError, MessageNotFoundError, MessageAlreadySettled)
"""What a namespace answers when one of several messages is gone, or is locked by another receiver, or not by this one."""


async def receive(receiver: Any, numbers: Sequence[int], seconds: float) -> list[Any]:
    """Lock deferred messages by their sequence numbers. Those that are gone or that another receiver has locked are left out."""

    async def some(part: Sequence[int]) -> list[Any]:
        request, answer = _request(receiver, part)
        found = await receiver._mgmt_request_response_with_retry(
            RECEIVE_OPERATION, request, answer, timeout=seconds
        )
        return list(found)

    return [message for one in await _in_halves(some, numbers) for message in one]


async def settle(receiver: Any, messages: Sequence[Any], *, released: bool = False) -> list[bool]:
    """Complete deferred messages, or release them, which leaves them deferred. Returns for each whether it was done."""
    done: set[object] = set()

    async def some(part: Sequence[Any]) -> None:
        tokens = [message.lock_token for message in part]
        await receiver._settle_message_via_mgmt_link("abandoned" if released else "completed", tokens)
        done.update(tokens)

    await _in_halves(some, messages)
    return [message.lock_token in done for message in messages]


def is_deferred(message: Any) -> bool:
    """Whether a message was received by its sequence number: it does not belong to the link."""
    return bool(message._is_deferred_message)


async def _in_halves(work: Callable[[Sequence[Any]], Any], items: Sequence[Any]) -> list[Any]:
    """A request is for all of its messages or none: only halves tell which of them are not there."""
    if not items:
        return []
    try:
        return [await work(items)]
    except NOT_THERE:
        if len(items) == 1:
            return []
        half = len(items) // 2
        return [*await _in_halves(work, items[:half]), *await _in_halves(work, items[half:])]


def _request(receiver: Any, numbers: Sequence[int]) -> tuple[dict[str, object], Callable[..., list[Any]]]:
    transport = receiver._amqp_transport
    longs = [transport.AMQP_LONG_VALUE(number) for number in numbers]
    request: dict[str, object] = {
        "sequence-numbers": transport.AMQP_ARRAY_VALUE(longs),
        "receiver-settle-mode": transport.AMQP_UINT_VALUE(PEEK_LOCK),
    }
    receiver._populate_message_properties(request)

    def answer(
        status_code: int, message: Any, description: Any, amqp_transport: Any = transport
    ) -> list[Any]:
        if status_code == 200:
            return [_message(receiver, entry) for entry in message.value[b"messages"]]
        if status_code in (202, 204):
            return []
        condition = (message.application_properties or {}).get(b"errorCondition")
        amqp_transport.handle_amqp_mgmt_error(
            NoLog(), "Receiving deferred messages failed.", condition, description, status_code
        )
        return []

    return request, answer


def _message(receiver: Any, entry: Any) -> Any:
    payload = bytes(entry[b"message"])
    message: Any = ServiceBusReceivedMessage(
        decode_payload(memoryview(settling_part(payload))),
        receive_mode=ServiceBusReceiveMode.PEEK_LOCK,
        receiver=receiver,
        is_deferred_message=True,
        lock_token=entry[b"lock-token"],
    )
    message._pairbus_payload = payload
    return message
