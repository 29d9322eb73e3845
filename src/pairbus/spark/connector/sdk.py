"""What the pipelines need of the official SDK below its surface: links that open at once, and browsing without a link.

Browsing raw bytes and settling many deliveries at once are shared with the in-process syphon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusSubQueue
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.drain import browsing, settling
from pairbus.errors import UsageError

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

OPEN_SECONDS_MAX: Final = 30.0
OPEN_PAUSE_SECONDS: Final = 0.01
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


browse = browsing.browse
browse_async = browsing.browse_async
settle_all = settling.settle_all


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
