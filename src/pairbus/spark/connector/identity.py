"""Tells whether a checkpoint belongs to the entity that is read, or to another one with the same name.

An entity that was deleted and created again, and an entity of the same name in another namespace, use the same
sequence numbers for other messages. A stream that goes on from such a checkpoint would skip messages, and would complete
messages that it has not read.

Three facts tell the entities apart:

1. the namespace's host and port;
2. the entity's creation time, where the connection has the right to manage;
3. the messages: a message whose number the checkpoint has passed cannot be enqueued later than the latest message that
   the checkpoint knows.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import AzureError
from azure.servicebus.exceptions import ServiceBusError

from pairbus.errors import UsageError
from pairbus.spark.connector.entity_kind import management_of
from pairbus.spark.connector.offsets import Offset, numbers_of

if TYPE_CHECKING:
    from pairbus.spark.connector.entity import Browsed, Entity
    from pairbus.spark.connector.options import SourceOptions

CLOCK_STEP_MS: Final = 60_000
"""A broker's clock may step back this far, at a failover for example, before a message counts as too old."""


class CheckpointMismatch(UsageError):
    """The checkpoint belongs to another entity than the one that is read."""

    def __init__(self, entity: str, reason: str) -> None:
        super().__init__(
            f"checkpointLocation belongs to another {entity!r} than the one that is read: {reason}. No message was "
            "completed. Use a new checkpointLocation, or set the option failOnDataLoss=false to read the entity from its "
            "first message"
        )
        self.entity = entity
        self.reason = reason

    def __reduce__(self) -> tuple[type[CheckpointMismatch], tuple[str, str]]:
        return type(self), (self.entity, self.reason)


def created_ms(options: SourceOptions) -> int | None:
    """When the entity was created, as the management API tells; None when it cannot be asked."""
    try:
        return asyncio.run(_created_ms(options))
    except (AzureError, ServiceBusError, TimeoutError, OSError, ValueError):
        return None


async def _created_ms(options: SourceOptions) -> int | None:
    async with management_of(options.access) as management:
        if management is None:
            return None
        properties: Any = (
            await management.get_queue_runtime_properties(options.queue)
            if options.queue
            else await management.get_subscription_runtime_properties(options.topic, options.subscription)
        )
    try:
        created = properties.created_at_utc
    except AttributeError:
        # The official client gives properties without content when the name is that of an entity of another kind.
        return None
    return None if created is None else int(created.timestamp() * 1000)


def check(offset: Offset, entity: Entity, namespace: str, created: int | None) -> None:
    """Make sure that a checkpoint belongs to the entity that is read.

    Raises:
        CheckpointMismatch: It belongs to another one, or nothing tells whether it does.
    """
    if offset.sequence == 0 and not offset.runs:
        return
    if not offset.is_marked:
        _check_unmarked(offset, entity)
        return
    if offset.namespace != namespace:
        raise CheckpointMismatch(
            offset.entity, f"the checkpoint was written for {offset.namespace}, and this is {namespace}"
        )
    if offset.created_ms is not None and created is not None and offset.created_ms != created:
        raise CheckpointMismatch(
            offset.entity,
            f"the checkpoint was written for an entity created at {_shown(offset.created_ms)}, and this one was created "
            f"at {_shown(created)}",
        )
    first = next(entity.browse(1), None)
    if first is None:
        return
    if first.number <= offset.sequence and first.enqueued_ms > offset.last_ms:
        raise enqueued_too_late(offset, first)
    if first.number > offset.sequence and first.enqueued_ms < offset.last_ms - CLOCK_STEP_MS:
        raise CheckpointMismatch(
            offset.entity,
            f"its message {first.number} was enqueued at {_shown(first.enqueued_ms)}, before the messages up to number "
            f"{offset.sequence} that the checkpoint knows ({_shown(offset.last_ms)})",
        )


def enqueued_too_late(offset: Offset, message: Browsed) -> CheckpointMismatch:
    """The error for a message under a number that the checkpoint has passed, enqueued after everything it knows."""
    return CheckpointMismatch(
        offset.entity,
        f"its message {message.number} was enqueued at {_shown(message.enqueued_ms)}, after the messages up to number "
        f"{offset.sequence} that the checkpoint knows ({_shown(offset.last_ms)})",
    )


def _check_unmarked(offset: Offset, entity: Entity) -> None:
    """Version 1 does not say which entity it means. That is harmless only where no message up to its number is left."""
    first = next((message for message in entity.browse(1, offset.sequence) if message.is_active), None)
    if first is None:
        return
    known = "of its last batch" if first.number in set(numbers_of((*offset.runs, *offset.owed))) else "unread"
    raise CheckpointMismatch(
        offset.entity,
        f"the checkpoint was written by an older release, which did not note the entity, and message {first.number} "
        f"({known}, if it is the same entity) is still there",
    )


def _shown(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
