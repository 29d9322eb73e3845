"""Queues as a test declares them, in the words of the official SDK, and as the broker reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from xml.sax.saxutils import escape

_ATOM = "http://www.w3.org/2005/Atom"
_SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """What a queue is, field names as in ``ServiceBusAdministrationClient.create_queue``. None: the default."""

    lock_duration: timedelta | str | None = None
    max_size_in_megabytes: int | None = None
    requires_duplicate_detection: bool | None = None
    requires_session: bool | None = None
    default_message_time_to_live: timedelta | str | None = None
    dead_lettering_on_message_expiration: bool | None = None
    duplicate_detection_history_time_window: timedelta | str | None = None
    max_delivery_count: int | None = None
    status: str | None = None
    auto_delete_on_idle: timedelta | str | None = None
    forward_to: str | None = None
    user_metadata: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    max_message_size_in_kilobytes: int | None = None


# The order of the elements is the order of the schema (management REST, QueueDescription).
_ELEMENTS = (
    ("LockDuration", "lock_duration"),
    ("MaxSizeInMegabytes", "max_size_in_megabytes"),
    ("RequiresDuplicateDetection", "requires_duplicate_detection"),
    ("RequiresSession", "requires_session"),
    ("DefaultMessageTimeToLive", "default_message_time_to_live"),
    ("DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration"),
    ("DuplicateDetectionHistoryTimeWindow", "duplicate_detection_history_time_window"),
    ("MaxDeliveryCount", "max_delivery_count"),
    ("Status", "status"),
    ("AutoDeleteOnIdle", "auto_delete_on_idle"),
    ("ForwardTo", "forward_to"),
    ("UserMetadata", "user_metadata"),
    ("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to"),
    ("MaxMessageSizeInKilobytes", "max_message_size_in_kilobytes"),
)


@dataclass(frozen=True)
class Queue(_Settings):
    """A queue to create: ``Queue("sessions", requires_session=True)``."""

    name: str

    def properties(self) -> dict[str, object]:
        """What was set, under its names in the configuration file and in the management API."""
        values = {element: getattr(self, field) for element, field in _ELEMENTS}
        return {
            element: duration_text(value) if isinstance(value, timedelta) else value
            for element, value in values.items()
            if value is not None
        }

    def entry(self) -> bytes:
        """The body of the management request that creates the queue."""
        parts = [f"<{name}>{escape(_xml_text(value))}</{name}>" for name, value in self.properties().items()]
        return (
            f'<entry xmlns="{_ATOM}"><content type="application/xml">'
            f'<QueueDescription xmlns="{_SERVICE_BUS}">{"".join(parts)}</QueueDescription>'
            "</content></entry>"
        ).encode()


def as_queue(queue: str | Queue) -> Queue:
    """A queue by its name alone, or as it is."""
    return queue if isinstance(queue, Queue) else Queue(queue)


def configuration(
    namespace: str, queues: Sequence[str | Queue], further: Mapping[str, object] | None = None
) -> dict[str, object]:
    """The ``--config`` document, in the form of Microsoft's emulator.

    Args:
        namespace: The name of the one namespace it declares.
        queues: The queues to declare.
        further: More keys of the namespace, ``Topics`` for one, as the emulator spells them.
    """
    declared = [{"Name": queue.name, "Properties": queue.properties()} for queue in map(as_queue, queues)]
    entry: dict[str, object] = {"Name": namespace, "Queues": declared}
    entry.update(further or {})
    return {"UserConfig": {"Namespaces": [entry]}}


def duration_text(value: timedelta) -> str:
    """ISO 8601, as management writes durations: days, then seconds."""
    seconds = f"{value.seconds}.{value.microseconds:06d}" if value.microseconds else str(value.seconds)
    return f"P{value.days}DT{seconds}S" if value.days else f"PT{seconds}S"


def _xml_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
