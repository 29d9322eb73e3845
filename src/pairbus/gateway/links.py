"""What hangs on a link: which entity it reaches, with which right, and until when that has been checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.engine.queues.consumer import Consumer
from pairbus.gateway.telemetry import meter

if TYPE_CHECKING:
    from pairbus.amqp.transport.link import Link
    from pairbus.engine.entity import Entity
    from pairbus.engine.queues.queue import Queue
    from pairbus.gateway.addressing import Address
    from pairbus.gateway.connection import GatewayConnection

RECHECK_MS: Final = 5_000
"""How long an authorisation is trusted before the rules are asked again; tokens and rule changes ask at once."""


class LinkContext:
    __slots__ = ("allowed_until", "connection", "link", "path", "right", "scope")

    def __init__(self, connection: GatewayConnection, link: Link, path: str, right: str) -> None:
        self.connection = connection
        self.link = link
        self.path = path
        self.scope = path
        """What a token must cover; a dead-letter queue has a scope of its own."""
        self.right = right
        """The right that the link needs; empty: none (the token node)."""
        self.allowed_until = 0
        """The authorisation holds until then without asking again."""


class TokenRequests(LinkContext):
    """The client's sending half of ``$cbs``."""


class Replies(LinkContext):
    """The receiving half of ``$cbs`` or of a management node: answers go out here."""


class SendLink(LinkContext):
    __slots__ = ("destination", "entity", "tallies")

    def __init__(
        self, connection: GatewayConnection, link: Link, path: str, right: str, entity: Entity
    ) -> None:
        super().__init__(connection, link, path, right)
        self.entity = entity
        self.destination = ""
        """The path of the entity that messages are transferred to (send-via); empty: they stay in ``entity``."""
        self.tallies = meter.SendTallies(connection.broker.meter, entity.path, meter.SEND)


class ReceiveLink(LinkContext):
    __slots__ = (
        "consumer",
        "deliveries",
        "empty_receives",
        "entity",
        "flows",
        "is_polling",
        "is_silent",
        "queue",
        "settlements",
    )

    def __init__(
        self,
        connection: GatewayConnection,
        link: Link,
        path: str,
        right: str,
        entity: Entity,
        queue: Queue,
        deletes: bool,
    ) -> None:
        super().__init__(connection, link, path, right)
        self.entity = entity
        self.queue = queue
        self.consumer = Consumer(self, deletes)
        tally = connection.broker.meter.tally
        self.deliveries = tally(queue.path, meter.RECEIVE)
        self.settlements = tally(queue.path, meter.SETTLE)
        self.empty_receives = tally(queue.path, meter.EMPTY_RECEIVE)
        self.flows = 0
        self.is_polling = False
        """Credit was given and nothing has been delivered since."""
        self.is_silent = False
        """Its entity is in a black hole of the switchboard: nothing is delivered."""

    def begin_receive(self) -> None:
        """The client changed its credit: the receive before ends here, the next begins if there is credit."""
        self.end_receive()
        self.is_polling = self.link.credit > 0

    def end_receive(self) -> None:
        """A receive ended; one that brought nothing is billed as an empty one (docs/explanation/cost.md)."""
        if self.is_polling:
            self.is_polling = False
            self.empty_receives.add(0)


class ManagementRequests(LinkContext):
    """A client asks the management node of an entity."""

    __slots__ = ("address",)

    def __init__(self, connection: GatewayConnection, link: Link, path: str, address: Address) -> None:
        super().__init__(connection, link, path, "")
        self.address = address


class Coordinator(LinkContext):
    """A client's controller link for transactions."""
