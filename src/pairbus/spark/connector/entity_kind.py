"""Refuses a topic that is given as a queue, and in the sink also a queue that is given as a topic.

Browsing a topic is no error: it shows the messages that are scheduled there, and none otherwise. A read of it would look
like a read of an empty queue. A sink sends to either in the same way, so only the management API can tell there.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import AzureError, ResourceNotFoundError
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from pairbus.errors import UsageError
from pairbus.sdk.addresses import connect
from pairbus.sdk.failures import Failure, classify
from pairbus.sdk.links import handlers, quick

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    from pairbus.spark.connector.access import Access
    from pairbus.spark.connector.options import SinkOptions, SourceOptions

MANAGEMENT_SECONDS: Final = 5.0
"""How long the management API may take to tell something about an entity. Afterwards it counts as not known."""
LINK_SECONDS: Final = 10.0
_UNKNOWN: Final = (AzureError, ServiceBusError, TimeoutError, OSError, ValueError)


@asynccontextmanager
async def management_of(access: Access) -> AsyncIterator[ServiceBusAdministrationClient | None]:
    """The management API of the namespace; None when the credential is of no use to it."""
    from pairbus.sdk.connection_string import parse_connection_string
    from pairbus.sdk.management.admin import NoManageRight, aio_admin_client
    from pairbus.sdk.trust import bundle_of

    text = access.connection_string()
    with ExitStack() as files:
        bundle = files.enter_context(bundle_of(access.authorities))
        settings: dict[str, Any] = {"connection_verify": bundle} if bundle else {}
        settings |= {"retry_total": 0, "connection_timeout": MANAGEMENT_SECONDS}
        host = parse_connection_string(text, "given").host
        async with (
            asyncio.timeout(MANAGEMENT_SECONDS),
            connect(ServiceBusClient, **access.connection()) as client,
        ):
            try:
                management = aio_admin_client(client, settings, host)
            except NoManageRight:
                yield None
                return
            async with management:
                yield management


def refuse_topic(options: SourceOptions) -> None:
    """Make sure that the option ``queue`` names no topic.

    Raises:
        UsageError: It does.
    """
    if not options.queue or options.sub_queue == "transferdeadletter":
        return  # a topic has a transfer dead-letter queue of its own
    is_topic = asyncio.run(_is_managed(options.access, options.queue, "topic"))
    if is_topic is None:
        is_topic = asyncio.run(_is_refused_as_topic(options))
    if is_topic:
        raise UsageError(
            f"option queue is {options.queue!r}, which is a topic in the namespace {options.access.host()}: messages are read "
            "from a subscription. Give the options topic and subscription instead of queue"
        )


def refuse_other_kind(options: SinkOptions) -> None:
    """Make sure that the option ``queue`` names no topic and ``topic`` no queue, as far as the key lets it be seen.

    Raises:
        UsageError: It does.
    """
    if not options.kind:
        return
    other = "topic" if options.kind == "queue" else "queue"
    if asyncio.run(_is_managed(options.access, options.path, other)):
        raise UsageError(
            f"option {options.kind} is {options.path!r}, which is a {other} in the namespace {options.access.host()}: give the "
            f"option {other} instead"
        )


async def _is_managed(access: Access, path: str, kind: str) -> bool | None:
    """Whether the management API knows an entity of this kind; None when it cannot be asked."""
    try:
        async with management_of(access) as management:
            if management is None:
                return None
            await (management.get_topic(path) if kind == "topic" else management.get_queue(path))
    except (ResourceNotFoundError, AttributeError):
        return False  # the official client fails with the second when the name is that of the other kind
    except _UNKNOWN:
        return None
    return True


async def _is_refused_as_topic(options: SourceOptions) -> bool:
    """Whether the namespace refuses every kind of receiver, as it does for a topic. It takes no message.

    A queue that requires sessions refuses a receiver without one and accepts one for a session that nobody uses; a topic
    refuses both, under the same condition.
    """
    if not await _is_receiver_refused(options, None):
        return False
    return await _is_receiver_refused(options, f"pairbus-{uuid.uuid4().hex}")


async def _is_receiver_refused(options: SourceOptions, session_id: str | None) -> bool:
    settings: dict[str, Any] = {"sub_queue": quick.SUB_QUEUES[options.sub_queue]} if options.sub_queue else {}
    if session_id is not None:
        settings["session_id"] = session_id
    try:
        async with (
            asyncio.timeout(LINK_SECONDS),
            connect(ServiceBusClient, **options.access.connection(), retry_total=0) as client,
        ):
            receiver = quick.at_once(client.get_queue_receiver(options.queue, **settings))
            handlers.set_retries(receiver, 0)
            async with receiver:
                return False
    except ServiceBusError as error:
        return classify(error) is Failure.INVALID
    except _UNKNOWN:
        return False
