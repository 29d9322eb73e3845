"""What the pipelines need of the official SDK below its surface: raw browsing, and settling many deliveries at once.

The SDK decodes what it browses into values without types, and settles one delivery per round trip. A copy that is
equal bit for bit needs the encoded bytes, and a pump needs one disposition for a page. The wire sees nothing that
the SDK does not do itself: the same request, and a disposition with a range (AMQP 1.0, 2.7.6).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus._pyamqp.outcomes import Accepted, Released
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.errors import UsageError

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
    from azure.servicebus.aio import ServiceBusReceiver as AsyncServiceBusReceiver

PEEK_OPERATION: Final = b"com.microsoft:peek-message"
OPEN_SECONDS_MAX: Final = 30.0
OPEN_PAUSE_SECONDS: Final = 0.01
SETTLE_SECONDS_MAX: Final = 20.0
"""How long the broker may take to confirm a page of settlements."""
SUB_QUEUES: Final = {
    "deadletter": ServiceBusSubQueue.DEAD_LETTER,
    "transferdeadletter": ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
}


def client_of(conn_str: str, **options: Any) -> ServiceBusClient:
    """The official client. Its errors never show the connection string, for it holds a key."""
    try:
        return ServiceBusClient.from_connection_string(conn_str, logging_enable=False, **options)
    except ValueError:
        raise UsageError(
            "connectionString cannot be used: it needs Endpoint, SharedAccessKeyName and SharedAccessKey"
        ) from None


def browse(receiver: Any, from_number: int, count: int) -> list[bytes]:
    """The encoded messages of an entity from a sequence number on, at most ``count``, without taking them."""
    request, answer = _browsing(receiver, from_number, count)
    return list(receiver._mgmt_request_response_with_retry(PEEK_OPERATION, request, answer))


async def browse_async(receiver: Any, from_number: int, count: int) -> list[bytes]:
    """As ``browse``, for a receiver of the asynchronous client."""
    request, answer = _browsing(receiver, from_number, count)
    return list(await receiver._mgmt_request_response_with_retry(PEEK_OPERATION, request, answer))


def _browsing(
    receiver: Any, from_number: int, count: int
) -> tuple[dict[str, object], Callable[..., list[bytes]]]:
    transport = receiver._amqp_transport
    request: dict[str, object] = {
        "from-sequence-number": transport.AMQP_LONG_VALUE(from_number),
        "message-count": count,
    }
    receiver._populate_message_properties(request)

    def answer(
        status_code: int, message: Any, description: Any, amqp_transport: Any = transport
    ) -> list[bytes]:
        if status_code == 200:
            return [
                bytes(entry[b"message"]) for entry in amqp_transport.get_message_value(message)[b"messages"]
            ]
        if status_code in (202, 204):
            return []
        condition = (message.application_properties or {}).get(b"errorCondition")
        amqp_transport.handle_amqp_mgmt_error(
            _Quiet(), "Browsing failed.", condition, description, status_code
        )
        return []

    return request, answer


def open_without_link(receiver: Any) -> None:
    """Let a synchronous receiver serve browsing only: it connects and shows its token, but attaches no link."""
    from azure.servicebus._common.utils import create_authentication

    def open_connection(timeout: float | None = None) -> None:
        if receiver._running:
            return
        if receiver._handler and not receiver._handler._shutdown:
            receiver._handler.close()
        receiver._create_handler(create_authentication(receiver))
        # It would look after the link that is not there, and end at the first look; closing would wait for that.
        receiver._handler._keep_alive_interval = 0
        give_up = time.monotonic() + (timeout or OPEN_SECONDS_MAX)
        receiver._handler.open(connection=receiver._connection)
        while not receiver._handler.auth_complete():
            if time.monotonic() > give_up:
                raise OperationTimeoutError(message="the namespace did not answer")
            time.sleep(OPEN_PAUSE_SECONDS)
        receiver._running = True

    receiver._open = open_connection


def at_once(link: Any) -> Any:
    """Let a receiver or sender of the asynchronous client open and close without the SDK's pauses.

    It sleeps 50 ms after each frame of opening, half a second in all, and closing waits for its keep-alive, up to a second.
    A session is opened to settle a message or two, and a link that is busy until it closes needs nobody to keep it alive.
    """
    create: Callable[..., None] = link._create_handler

    def create_handler(*arguments: Any) -> None:
        create(*arguments)
        link._handler._keep_alive_interval = 0
        ready: Callable[[], Coroutine[Any, Any, bool]] = link._handler.client_ready_async

        async def is_ready() -> bool:
            # Each try waits for the socket by itself, and the caller's deadline ends it.
            while not await ready():  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0)
            return True

        link._handler.client_ready_async = is_ready

    link._create_handler = create_handler
    return link


class SendersAtOnce:
    """The part of an asynchronous client that makes senders; they open and close at once."""

    def __init__(self, client: AsyncServiceBusClient) -> None:
        self._client = client

    def get_queue_sender(self, path: str) -> Any:
        """A sender to a queue or topic."""
        return at_once(self._client.get_queue_sender(path))


class _Quiet:
    """A log that keeps nothing: the error itself says it all."""

    def info(self, *_arguments: object) -> None:
        """Nothing."""

    warning = error = debug = info


async def settle_all(
    receiver: AsyncServiceBusReceiver,
    messages: Sequence[ServiceBusReceivedMessage],
    *,
    released: bool = False,
) -> list[bool]:
    """Complete (or give back) deliveries of one receiver with as few frames as their numbers allow.

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
