"""Who owns a connection, and what a connection announces and allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.sasl import MECHANISMS
from pairbus.amqp.states import Outcome

if TYPE_CHECKING:
    from pairbus.amqp.connection import Connection
    from pairbus.amqp.link import Link
    from pairbus.amqp.session import Session


class Handler(Protocol):
    """Who owns the connection. Every call comes from inside ``receive``, ``tick``, ``lost`` or ``close``."""

    def sasl_plain(self, user: str, password: str) -> bool:
        """Whether these credentials are good."""

    def opened(self, connection: Connection) -> None:
        """The peer's open has come; ours follows unless ``connection.close`` is called."""

    def session_began(self, session: Session) -> None: ...

    def session_ended(self, session: Session) -> None:
        """A session has gone; its links went before."""

    def link_attached(self, link: Link) -> None:
        """A link asks to attach: answer now or later with ``accept`` or ``refuse``."""

    def link_detached(self, link: Link, closed: bool, error: AmqpError | None) -> None:
        """A link has gone, by the peer's doing or with its session; already answered."""

    def transfer(
        self,
        link: Link,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes,
        state: Outcome | None,
    ) -> None:
        """A whole delivery from the peer."""

    def transfer_too_large(self, link: Link, delivery_id: int, settled: bool, size: int) -> None:
        """A delivery that exceeded the link's limit; its bytes were not kept."""

    def settled(
        self, link: Link, delivery_id: int, context: object | None, outcome: Outcome, settled: bool
    ) -> None:
        """The peer's verdict on one of our deliveries. Unsettled: it waits for ``session.settle_outgoing``."""

    def credit(self, link: Link) -> None:
        """A link where we send has new credit, drain or window."""


class Nobody:
    """The handler of a connection whose socket has gone: nothing that happens concerns anybody."""

    __slots__ = ()

    def sasl_plain(self, user: str, password: str) -> bool:  # noqa: ARG002 - the handler's shape
        return False

    def opened(self, connection: Connection) -> None: ...

    def session_began(self, session: Session) -> None: ...

    def session_ended(self, session: Session) -> None: ...

    def link_attached(self, link: Link) -> None: ...

    def link_detached(self, link: Link, closed: bool, error: AmqpError | None) -> None: ...

    def transfer(
        self,
        link: Link,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes,
        state: Outcome | None,
    ) -> None: ...

    def transfer_too_large(self, link: Link, delivery_id: int, settled: bool, size: int) -> None: ...

    def settled(
        self, link: Link, delivery_id: int, context: object | None, outcome: Outcome, settled: bool
    ) -> None: ...

    def credit(self, link: Link) -> None: ...


NOBODY: Final = Nobody()


class Waiting:
    """What waits for the windows of sessions, over all connections with the same settings."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0
        """Bytes."""


class ConnectionSettings:
    """What a connection announces and allows."""

    __slots__ = (
        "channel_max",
        "container_id",
        "handle_max",
        "idle_timeout_ms",
        "incoming_window",
        "link_credit",
        "links_max",
        "max_frame_size",
        "mechanisms",
        "partial_bytes_max",
        "pre_auth_bytes_max",
        "properties",
        "send_frame_max",
        "unknown_delivery",
        "waiting",
        "waiting_bytes_max",
        "waiting_bytes_total_max",
    )

    def __init__(
        self,
        container_id: str,
        max_frame_size: int = 65536,
        send_frame_max: int = 1 << 20,
        channel_max: int = 4999,
        handle_max: int = 255,
        idle_timeout_ms: int = 240_000,
        incoming_window: int = 5000,
        link_credit: int = 1000,
        pre_auth_bytes_max: int = 16384,
        links_max: int = 5000,
        partial_bytes_max: int = 32 << 20,
        waiting_bytes_max: int = 1 << 20,
        waiting_bytes_total_max: int = 64 << 20,
    ) -> None:
        self.container_id = container_id
        self.max_frame_size = max_frame_size
        self.send_frame_max = send_frame_max
        """Ours to keep even with peers that would take 4 GiB, as rhea says it does."""
        self.channel_max = channel_max
        self.handle_max = handle_max
        self.idle_timeout_ms = idle_timeout_ms
        self.incoming_window = incoming_window
        self.link_credit = link_credit
        self.pre_auth_bytes_max = pre_auth_bytes_max
        self.links_max = links_max
        """How many links a connection may have over all its sessions."""
        self.partial_bytes_max = partial_bytes_max
        """How much a connection may hold of deliveries whose last frame has not come, over all its links."""
        self.waiting_bytes_max = waiting_bytes_max
        """How much may wait on a connection for the windows of its sessions before it has enough (``has_enough_waiting``)."""
        self.waiting_bytes_total_max = waiting_bytes_total_max
        """How much may wait on all connections before each of those that have something waiting has enough."""
        self.waiting = Waiting()
        self.mechanisms: tuple[str, ...] = MECHANISMS
        self.properties: dict[str, object] = {}
        self.unknown_delivery = AmqpError(
            "com.microsoft:message-lock-lost",
            "The lock supplied is invalid. Either the lock expired, or the message has already been removed from "
            "the queue.",
        )
        """What a client hears that settles a delivery which is settled, expired or never was."""
