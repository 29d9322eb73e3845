"""Where probes go: a queue of the drill's own, or entities that were named; and taking away what was made for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.servicebus.management import CorrelationRuleFilter, ServiceBusAdministrationClient

from pairbus.errors import PairingError, UsageError
from pairbus.sdk.connection_string import parse_connection_string
from pairbus.sdk.management.admin import admin_client
from pairbus.stage.drill.plan import PREFIX, PROPERTY, DrillOptions

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient

IDLE: Final = timedelta(minutes=15)
"""What a drill that was killed leaves in the primary goes by itself after its duration and this."""
REQUEST_SECONDS: Final = 10
_DEFAULT_RULE: Final = "$Default"
_FORBIDDEN: Final = (401, 403)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One entity of the drill.

    Args:
        entity: Where probes are sent.
        is_topic: Whether that is a topic.
        is_own: Whether the drill made it.
        subscription: The drill's own subscription, for a topic.
        session: The session of the probes; None for none.
    """

    entity: str
    is_topic: bool = False
    is_own: bool = False
    subscription: str | None = None
    session: str | None = None

    @property
    def is_read(self) -> bool:
        """Whether the drill may receive what arrives: never from a queue that is not its own."""
        return self.is_own or self.subscription is not None

    @property
    def path(self) -> str:
        """Where probes arrive: the queue, or the subscription of the drill's own."""
        return (
            self.entity if self.subscription is None else f"{self.entity}/Subscriptions/{self.subscription}"
        )


def administration(client: ServiceBusClient, ca_file: str | None) -> ServiceBusAdministrationClient:
    """The official administration client of the namespace that an official client is connected to."""
    options: dict[str, Any] = {
        "connection_timeout": REQUEST_SECONDS,
        "read_timeout": REQUEST_SECONDS,
    }
    if ca_file is not None:
        options["connection_verify"] = ca_file
    return admin_client(client, options)


class Places:
    """Makes the places of a drill, and takes them away."""

    def __init__(self, admin: ServiceBusAdministrationClient, options: DrillOptions, drill: str) -> None:
        self._admin = admin
        self._options = options
        self._primary = f"the primary {','.join(parse_connection_string(options.primary, 'primary').hosts)}"
        self._name = f"{PREFIX}{drill}"
        self._drill = drill

    def prepare(self) -> list[Place]:
        """All of them, ready. What was made so far is taken away again when one cannot be."""
        places: list[Place] = []
        try:
            if not self._options.entities:
                places.append(self._own())
            for path in self._options.entities:
                places.append(self._named(path.strip("/")))  # noqa: PERF401 - those before a failure count
        except (AzureError, UsageError) as error:
            self.remove(places)
            if isinstance(error, ClientAuthenticationError):
                raise PairingError(
                    f"{self._primary}: its key is wrong or may not manage it, which making a queue for the drill needs: "
                    "use a key with Manage"
                ) from error
            raise
        return places

    def remove(self, places: list[Place]) -> list[str]:
        """Take away what the drill made; what could not be, and why that is no harm."""
        left = []
        for place in places:
            try:
                if place.is_own:
                    self._admin.delete_queue(place.entity)
                elif place.subscription is not None:
                    self._admin.delete_subscription(place.entity, place.subscription)
            except ResourceNotFoundError:
                continue
            except AzureError as error:
                left.append(f"{place.path} ({type(error).__name__}; it goes by itself when nobody uses it)")
        return left

    def _own(self) -> Place:
        self._admin.create_queue(self._name, auto_delete_on_idle=self._options.lasts + IDLE)
        return Place(entity=self._name, is_own=True)

    def _named(self, path: str) -> Place:
        if self._is_topic(path):
            return self._subscribed(path)
        try:
            self._admin.get_queue(path)
        except ResourceNotFoundError:
            raise UsageError(
                f"{self._primary} has no queue or topic {path!r}: see pairbus entity list"
            ) from None
        except HttpResponseError as error:
            if error.status_code not in _FORBIDDEN:
                raise
            # Without Manage this cannot be found out: it is treated as a queue.
        # A session is ignored where none is needed, and needed where there are sessions.
        return Place(entity=path, session=self._name)

    def _is_topic(self, path: str) -> bool:
        # A queue and a topic share one address, and the client cannot say which it found; only a topic can list
        # its subscriptions.
        try:
            next(iter(self._admin.list_subscriptions(path, max_page_size=1)), None)
        except HttpResponseError:
            return False
        return True

    def _subscribed(self, path: str) -> Place:
        """A topic, with a subscription of the drill's own that takes copies of probes and of nothing else."""
        self._admin.create_subscription(
            path, self._name, auto_delete_on_idle=self._options.lasts + IDLE, max_delivery_count=100
        )
        place = Place(entity=path, is_topic=True, subscription=self._name, session=self._name)
        try:
            # Its own rule first: without any rule a moment's probes would be missed.
            self._admin.create_rule(
                path, self._name, "drill", filter=CorrelationRuleFilter(properties={PROPERTY: self._drill})
            )
            self._admin.delete_rule(path, self._name, _DEFAULT_RULE)
        except AzureError:
            self.remove([place])
            raise
        return place
