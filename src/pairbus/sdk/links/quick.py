"""Senders and receivers of the asynchronous client that open and close without the SDK's pauses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusSubQueue

from pairbus.errors import UsageError
from pairbus.sdk.addresses import connect
from pairbus.sdk.links.handlers import open_quickly

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

SUB_QUEUES: Final = {
    "deadletter": ServiceBusSubQueue.DEAD_LETTER,
    "transferdeadletter": ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
}


def client_of(conn_str: str, **options: Any) -> ServiceBusClient:
    """The official client. Its errors never show the connection string, for it holds a key."""
    try:
        client: ServiceBusClient = connect(ServiceBusClient, conn_str, logging_enable=False, **options)
    except ValueError:
        raise UsageError(
            "connectionString cannot be used: it needs Endpoint, SharedAccessKeyName and SharedAccessKey"
        ) from None
    return client


def at_once(link: Any) -> Any:
    """Let a receiver or sender of the asynchronous client open and close without the SDK's pauses.

    It sleeps 50 ms after each frame of opening, half a second in all, and closing waits for its keep-alive, up to a second.
    A session is opened to settle a message or two, and a link that is busy until it closes needs nobody to keep it alive.
    """
    create: Callable[..., None] = link._create_handler

    def create_handler(*arguments: Any) -> None:
        create(*arguments)
        link._handler._keep_alive_interval = 0

    link._create_handler = create_handler
    open_quickly(link)
    return link


class SendersAtOnce:
    """The part of an asynchronous client that makes senders; they open and close at once."""

    def __init__(self, client: AsyncServiceBusClient) -> None:
        self._client = client

    def get_queue_sender(self, path: str) -> Any:
        """A sender to a queue or topic."""
        return at_once(self._client.get_queue_sender(path))
