"""Queues, topics and subscriptions as a test declares them, with the official SDK's names, and as the broker reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from xml.sax.saxutils import escape

from pairbus.errors import UsageError
from pairbus.model.entity import SETTINGS
from pairbus.testing.checks import check_list, check_optional, check_text

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


@dataclass(frozen=True)
class Queue(_Settings):
    """A queue to create: ``Queue("sessions", requires_session=True)``. Settings have the names of the official administration client.

    Every setting is optional; without it the broker's default applies. Lengths of time are a ``timedelta`` or ISO 8601 text (``"PT30S"``).

    Args:
        name: Its name.
        lock_duration: How long a delivery stays locked.
        max_size_in_megabytes: The size at which it refuses messages.
        requires_duplicate_detection: Whether a second message with the same id is dropped.
        requires_session: Whether it delivers by session.
        default_message_time_to_live: The time to live of messages that have none.
        dead_lettering_on_message_expiration: Whether expired messages are dead-lettered.
        duplicate_detection_history_time_window: How long ids are remembered.
        max_delivery_count: Deliveries before a message is dead-lettered.
        status: ``"Active"``, ``"Disabled"``, ``"SendDisabled"`` or ``"ReceiveDisabled"``.
        auto_delete_on_idle: How long nobody must use the queue before it is deleted.
        forward_to: The queue or topic that gets every message instead.
        user_metadata: A text of the user's own.
        forward_dead_lettered_messages_to: The queue or topic that gets its dead letters.
        max_message_size_in_kilobytes: The largest message that it takes.
    """

    name: str

    def __post_init__(self) -> None:
        check_text("name", self.name, "give the name of a queue")

    def properties(self) -> dict[str, object]:
        """Return what was set, under the names of the configuration file and of the management API."""
        return _set_properties(self)

    def entry(self) -> bytes:
        """Return the body of the management request that creates the queue."""
        parts = [f"<{name}>{escape(_xml_text(value))}</{name}>" for name, value in self.properties().items()]
        return (
            f'<entry xmlns="{_ATOM}"><content type="application/xml">'
            f'<QueueDescription xmlns="{_SERVICE_BUS}">{"".join(parts)}</QueueDescription>'
            "</content></entry>"
        ).encode()


@dataclass(frozen=True)
class Subscription:
    """A subscription to create: ``Subscription("red", rules={"red": "colour = 'red'"}, max_delivery_count=3)``.

    Args:
        name: Its name.
        rules: SQL filters by the name of their rule. Without any, the subscription takes every message.
        requires_session: Whether it delivers by session.
        lock_duration: How long a delivery stays locked.
        default_message_time_to_live: The time to live of messages that have none.
        dead_lettering_on_message_expiration: Whether expired messages are dead-lettered.
        max_delivery_count: Deliveries before a message is dead-lettered.
        forward_to: The queue or topic that gets every message instead.
    """

    name: str
    rules: Mapping[str, str] = field(default_factory=dict)
    requires_session: bool | None = None
    lock_duration: timedelta | str | None = None
    default_message_time_to_live: timedelta | str | None = None
    dead_lettering_on_message_expiration: bool | None = None
    max_delivery_count: int | None = None
    forward_to: str | None = None

    def __post_init__(self) -> None:
        check_text("name", self.name, "give the name of a subscription")
        check_optional(
            "rules",
            self.rules,
            Mapping,
            "give SQL filters by the name of their rule, {'red': \"colour = 'red'\"}",
        )

    def declared(self) -> dict[str, object]:
        """Return the subscription in the form of the configuration file."""
        rules = [
            {"Name": name, "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}}
            for name, expression in self.rules.items()
        ]
        return {"Name": self.name, "Properties": _set_properties(self), "Rules": rules}


@dataclass(frozen=True)
class Topic:
    """A topic to create: ``Topic("events", subscriptions=["audit", Subscription("red", rules={…})])``.

    Args:
        name: Its name.
        subscriptions: By name, or as ``Subscription``.
        default_message_time_to_live: The time to live of messages that have none.
        requires_duplicate_detection: Whether a second message with the same id is dropped.
        duplicate_detection_history_time_window: How long ids are remembered.
    """

    name: str
    subscriptions: Sequence[str | Subscription] = ()
    default_message_time_to_live: timedelta | str | None = None
    requires_duplicate_detection: bool | None = None
    duplicate_detection_history_time_window: timedelta | str | None = None

    def __post_init__(self) -> None:
        check_text("name", self.name, "give the name of a topic")
        check_list("subscriptions", self.subscriptions, Subscription)

    def declared(self) -> dict[str, object]:
        """Return the topic in the form of the configuration file."""
        subscriptions = [
            (one if isinstance(one, Subscription) else Subscription(one)).declared()
            for one in self.subscriptions
        ]
        return {"Name": self.name, "Properties": _set_properties(self), "Subscriptions": subscriptions}


def _set_properties(declared: object) -> dict[str, object]:
    """What was set of an entity's settings, under the names of the configuration file."""
    values = {setting.element: getattr(declared, setting.sdk_name, None) for setting in SETTINGS}
    return {
        element: duration_text(value) if isinstance(value, timedelta) else value
        for element, value in values.items()
        if value is not None
    }


def as_queue(queue: str | Queue) -> Queue:
    """A queue by its name alone, or as it is."""
    return queue if isinstance(queue, Queue) else Queue(queue)


def configuration(
    namespace: str,
    queues: Sequence[str | Queue],
    topics: Sequence[str | Topic] = (),
    further: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """The ``--config`` document, in the form of Microsoft's emulator.

    Args:
        namespace: The name of the one namespace it declares.
        queues: The queues to declare.
        topics: The topics to declare.
        further: More keys of the namespace as the emulator spells them, or a whole ``Config.json``, whose one
            namespace then bears this name.

    Raises:
        UsageError: An argument is of a wrong type, or a whole document declares no namespace, or several.
    """
    check_list("queues", queues, Queue)
    check_list("topics", topics, Topic)
    check_optional("config", further, Mapping, "give the namespace as in the emulator's Config.json, or None")
    whole: dict[str, object] = {}
    entry: dict[str, object] = {"Queues": [], "Topics": []}
    if further is not None and {"UserConfig", "PairBus"} & further.keys():
        whole = dict(further)
        entry.update(_only_namespace(further))
    else:
        entry.update(further or {})
    entry["Name"] = namespace
    entry["Queues"] = [
        *_listed(entry["Queues"]),
        *({"Name": queue.name, "Properties": queue.properties()} for queue in map(as_queue, queues)),
    ]
    entry["Topics"] = [
        *_listed(entry["Topics"]),
        *((topic if isinstance(topic, Topic) else Topic(topic)).declared() for topic in topics),
    ]
    users = whole.get("UserConfig")
    whole["UserConfig"] = {**(users if isinstance(users, Mapping) else {}), "Namespaces": [entry]}
    return whole


def _only_namespace(document: Mapping[str, object]) -> Mapping[str, object]:
    users = document.get("UserConfig", {"Namespaces": [{}]})
    namespaces = users.get("Namespaces") if isinstance(users, Mapping) else None
    if not isinstance(namespaces, Sequence) or len(namespaces) != 1 or not isinstance(namespaces[0], Mapping):
        raise UsageError(
            "config must declare one namespace in UserConfig.Namespaces: a Namespace is one broker"
        )
    return namespaces[0]


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def duration_text(value: timedelta) -> str:
    """ISO 8601, as management writes durations: days, then seconds."""
    seconds = f"{value.seconds}.{value.microseconds:06d}" if value.microseconds else str(value.seconds)
    return f"P{value.days}DT{seconds}S" if value.days else f"PT{seconds}S"


def _xml_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
