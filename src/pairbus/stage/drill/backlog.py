"""Browses the backlog for messages of the drill and of others; receives nothing."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError
from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient
    from azure.servicebus.management import ServiceBusAdministrationClient

LOOKS_MAX: Final = 10
"""Queues that are looked into side by side."""
PAGE: Final = 100
PAGES_MAX: Final = 1_000
"""Of one queue; a backlog beyond that is not a drill's."""


def foreign_backlog(
    admin: ServiceBusAdministrationClient, secondary: ServiceBusClient, queues: Sequence[str]
) -> str:
    """The first backlog queue that holds messages to drain; empty when there is none."""
    for name in queues:
        try:
            counts = admin.get_queue_runtime_properties(name)
            waiting = (counts.total_message_count or 0) - (counts.dead_letter_message_count or 0)
        except ResourceNotFoundError:
            continue
        except ClientAuthenticationError:
            # Without Manage: browsing needs Listen alone, and takes longer.
            waiting = _browse_one(secondary, name)
        if waiting:
            return name
    return ""


def _browse_one(secondary: ServiceBusClient, name: str) -> int:
    try:
        with secondary.get_queue_receiver(name) as receiver:
            return len(receiver.peek_messages(max_message_count=1))
    except ServiceBusError:
        return 0  # a queue that does not open holds nothing that could be drained


def left_in_backlog(
    secondary: ServiceBusClient, queues: Sequence[str], stem: str, *, is_dead_lettered: bool = False
) -> dict[str, str]:
    """Messages whose ids begin so that are in the backlog queues, or in their dead-letter queues: where each is."""
    details: dict[str, Any] = {"sub_queue": ServiceBusSubQueue.DEAD_LETTER} if is_dead_lettered else {}

    def look(name: str) -> dict[str, str]:
        try:
            with secondary.get_queue_receiver(name, **details) as receiver:
                return dict.fromkeys(_ids(receiver, stem), name)
        except ServiceBusError:
            return {}  # a queue that does not open took nothing in

    # The client takes a second to open and close a link, whatever is asked: side by side that is one second.
    with ThreadPoolExecutor(LOOKS_MAX, "look") as pool:
        return {message_id: queue for found in pool.map(look, queues) for message_id, queue in found.items()}


def _ids(receiver: Any, stem: str) -> list[str]:
    found: list[str] = []
    position = 1
    for _ in range(PAGES_MAX):
        page = receiver.peek_messages(max_message_count=PAGE, sequence_number=position)
        if not page:
            break
        ids = (str(message.message_id) for message in page)
        found += [message_id for message_id in ids if message_id.startswith(stem)]
        position = int(page[-1].sequence_number or 0) + 1
    return found
